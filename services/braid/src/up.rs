//! `braid up`: every service in one process on the embedded bus and store, over loopback sockets
//! with real TLS. Simulated patients are behind emulated access links.
//!
//! The start creates identities, engines and register first. Then the core starts from the store
//! towards the access side, so that each service finds the next one listening; then gateways, then
//! patients. The end goes the other way: patients and page stop first, then the gateways upload
//! what they can, then the core stops. A gateway's journal keeps the rest for the next start.

mod episodes;
mod first_start;
mod gateways;
mod links;
mod report;
mod services;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use service_kit::{ConfigError, Context, ServiceConfig};

use crate::demonstration_ward::DemonstrationWard;
use crate::engines::Engines;
use crate::process::Failure;

pub use first_start::OPERATOR;
pub use report::Addresses;
use services::Services;
pub use services::defaults;

/// Patients; each has a gateway, two links and its own connections in this process.
const PATIENTS_MAX: u32 = 64;
/// Time for the gateways' last uploads before the core is asked to end.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(1_500);
/// Time for all services to end after that.
const END_LIMIT: Duration = Duration::from_millis(2_800);

/// `braid up`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct UpConfig {
    /// Directory of all persistent data: authority, bus, store, journals. For one `braid up` at a
    /// time.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    pub data: PathBuf,
    /// Simulated patients, each with its own gateway behind emulated Wi-Fi and LTE.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub patients: u32,
    /// Seed of the patients and of the links' losses.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Address of the web page; beyond this machine it is served over TLS with a certificate of the
    /// authority in the data directory.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address for samples of the first gateway; the others use any free port. Loopback only, since
    /// it needs no token.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub sensors: SocketAddr,
    /// Rate of each direction of the emulated Wi-Fi.
    #[arg(long, value_name = "NUMBER", default_value_t = 40.0)]
    pub wifi_mbit_per_s: f64,
    /// One-way delay of the emulated Wi-Fi.
    #[arg(long, value_name = "NUMBER", default_value_t = 8)]
    pub wifi_delay_ms: u32,
    /// Rate of each direction of the emulated LTE.
    #[arg(long, value_name = "NUMBER", default_value_t = 12.0)]
    pub lte_mbit_per_s: f64,
    /// One-way delay of the emulated LTE.
    #[arg(long, value_name = "NUMBER", default_value_t = 35)]
    pub lte_delay_ms: u32,
}

impl UpConfig {
    /// Passwords and health data must not leave this machine unencrypted.
    fn serves_tls(&self) -> bool {
        !self.listen.ip().is_loopback()
    }
}

impl ServiceConfig for UpConfig {
    const NOUN: &'static str = "up";

    fn validate(&self) -> Result<(), ConfigError> {
        if self.patients > PATIENTS_MAX {
            return Err(ConfigError::new(
                "patients",
                format!(
                    "{} are more than the {PATIENTS_MAX} that one process simulates",
                    self.patients
                ),
                "--patients 3",
            ));
        }
        if !self.sensors.ip().is_loopback() {
            return Err(ConfigError::new(
                "sensors",
                format!(
                    "{} is reachable by others; run `braid gateway` with a token for that",
                    self.sensors
                ),
                "--sensors 127.0.0.1:8090",
            ));
        }
        for (field, rate) in [
            ("wifi_mbit_per_s", self.wifi_mbit_per_s),
            ("lte_mbit_per_s", self.lte_mbit_per_s),
        ] {
            if !(0.05..=10_000.0).contains(&rate) {
                return Err(ConfigError::new(
                    field,
                    format!("{rate} is outside 0.05 to 10000"),
                    format!("--{} 20", field.replace('_', "-")),
                ));
            }
        }
        for (field, delay) in [
            ("wifi_delay_ms", self.wifi_delay_ms),
            ("lte_delay_ms", self.lte_delay_ms),
        ] {
            if delay > 2_000 {
                return Err(ConfigError::new(
                    field,
                    format!("{delay} is more than 2000"),
                    format!("--{} 20", field.replace('_', "-")),
                ));
            }
        }
        Ok(())
    }
}

/// Runs until `context`'s shutdown is requested or a service fails.
pub async fn run(config: UpConfig, context: Context) -> Result<(), Failure> {
    let started = context.health().check("start");
    let start = first_start::prepare(&config.data)?;
    let engines = Engines::open(&config.data, &config.data)?;
    let store = engines.store.as_ref();
    let password = start.ensure_account(store).await?;
    let ward = DemonstrationWard::with_a_gateway_each(config.patients);
    ward.register(store).await?;

    let mut services = Services::new(context.clone(), &config.data);
    let outcome = async {
        let core = services::start_core(&mut services, &start, &engines).await?;
        let links = links::Links::new();
        let sensors = gateways::start(&mut services, &config, &start, &core, &ward, &links).await?;
        let links_address = links::serve(&mut services, &start, links).await?;
        let page = services::start_dashboard(
            &mut services,
            &config,
            &start,
            &core,
            links_address,
            &engines,
        )
        .await?;
        let triggers = gateways::start_patients(&mut services, &config, &ward, &sensors);
        episodes::serve(&config.data, triggers, context.shutdown().clone())?;
        let report = report::Report {
            page,
            scheme: if config.serves_tls() { "https" } else { "http" },
            sensors: sensors.first().copied(),
            links: links_address,
            sign_in_code: core.sign_in_code.clone(),
            password,
        };
        report.publish(&config.data)?;
        report.print(&config.data, &ward);
        started.ok();
        services.first_end().await
    }
    .await;
    // A failed start must stop the started services, in the same order as a regular end.
    context.shutdown().request();
    let ended = services.end(HAND_OVER_LIMIT, END_LIMIT).await;
    outcome.and(ended)
}
