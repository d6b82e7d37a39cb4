//! The gateway beside the patient accepts samples from sensors, stores them on disk and checks them
//! by rules. It sends them to the core over every access network.
//!
//! ```text
//! from_sensors -> intake -> edge_rules -> journal (alerts)  -> to_ingest == to_proxy ==> ingest
//!                       \---------------> journal (vitals) /
//!                                         paths -> to_path_telemetry == to_proxy ==> path-telemetry
//! from_applications (HTTP CONNECT, SOCKS5, TUN) == to_proxy ==> TCP, UDP or IP destinations
//! ```

pub mod alarms;
pub mod clock;
pub mod config;
mod drain;
pub mod edge_rules;
pub mod from_applications;
pub mod from_ingest;
pub mod from_sensors;
pub mod held;
pub mod intake;
pub mod journal;
mod parts;
pub mod rule_states;
pub mod rules_in_force;
mod sensor_clocks;
mod serve;
pub mod steering;
pub mod to_dashboard;
pub mod to_ingest;
pub mod to_path_telemetry;
pub mod to_proxy;

use std::io;

use host_network::TunError;
use service_kit::{
    ConfigError, Context, ServiceConfig,
    grpc::ServeError,
    tls::{IdentityError, PeerId},
};
use tunnel::{Interface, StartError};

pub use config::{Config, TunTcp};
pub use serve::serve;

use crate::{journal::recovery, parts::Parts};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the gateway's certificate: {0}")]
    Identity(#[from] IdentityError),
    #[error("{0}")]
    Certificate(#[from] to_dashboard::CertificateError),
    #[error("the certificate names {0}, which is no gateway")]
    NotAGateway(PeerId),
    #[error("{path}: {source}")]
    Directory { path: String, source: io::Error },
    #[error(transparent)]
    Journal(#[from] recovery::OpenError),
    #[error("the proxy {proxy}: {source}")]
    Proxy { proxy: String, source: io::Error },
    #[error(transparent)]
    Tunnel(#[from] StartError),
    #[error("{0}")]
    Tun(#[from] TunError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Runs a gateway until shutdown is requested and its work has drained. `interfaces` replace those
/// of the configuration, for example by emulated links.
pub async fn run(
    config: Config,
    interfaces: Option<Vec<Interface>>,
    context: Context,
) -> Result<(), RunError> {
    config.validate()?;
    let Some(mut parts) = Parts::open(&config, interfaces, &context).await? else {
        return Ok(());
    };
    let carrying = serve::carry(&config, &mut parts, &context).await?;
    let served = match config.ingest.is_empty() {
        true => serve::without_sensors(&parts.tunnel, &context).await,
        false => serve::with_sensors(config, (&parts).into(), &context).await,
    };
    context.shutdown().request();
    carrying.drain(&parts.tunnel).await?;
    served
}
