//! The gateway beside the patient accepts samples from sensors, stores them on disk and checks them
//! by rules. It sends them to the core over every access network.
//!
//! ```text
//! from_sensors -> intake -> edge_rules -> journal (alerts)  -> to_ingest == to_proxy ==> ingest
//!                       \---------------> journal (vitals) /
//!                                         paths -> to_path_telemetry == to_proxy ==> path-telemetry
//! from_applications (HTTP CONNECT, SOCKS5, TUN) == to_proxy ==> TCP, UDP or IP destinations
//! ```
//!
//! Other crates see what `braid` uses: [`run`], [`wipe`], [`rejected`], [`Config`] and names.

mod alarms;
mod carers;
mod clock;
mod config;
mod core_followed;
mod drain;
mod edge_rules;
mod from_applications;
mod from_carers;
mod from_ingest;
mod from_sensors;
mod intake;
mod journal;
mod open_alerts;
mod reserve;
mod resources;
mod revocation;
mod rule_states;
mod rules_in_force;
mod run_error;
mod sealing;
mod sensor_clocks;
mod serve;
mod steering;
mod to_dashboard;
mod to_ingest;
mod to_local_alarm;
mod to_path_telemetry;
mod to_proxy;
mod unjournaled;
mod validity;
mod wipe;

use service_kit::{Context, ServiceConfig};
use tunnel::Interface;

pub use config::Config;
pub use from_sensors::LISTENER;
pub use intake::NOT_REGISTERED;
pub use run_error::RunError;
pub use wipe::{Wiped, rejected, wipe};

use crate::resources::Resources;

/// Runs a gateway until shutdown is requested and its work has drained. `interfaces` replace those
/// of the configuration, for example by emulated links.
pub async fn run(
    config: Config,
    interfaces: Option<Vec<Interface>>,
    context: Context,
) -> Result<(), RunError> {
    config.validate()?;
    let Some(mut resources) = Resources::open(&config, interfaces, &context).await? else {
        return Ok(());
    };
    let carrying = serve::carry(&config, &mut resources, &context).await?;
    let served = match config.ingest.is_empty() {
        true => serve::without_sensors(&resources.tunnel, &context).await,
        false => serve::with_sensors(config, (&resources).into(), &context).await,
    };
    context.shutdown().request();
    carrying.drain(&resources.tunnel).await?;
    served
}
