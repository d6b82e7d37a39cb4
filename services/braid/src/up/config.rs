//! Settings of `braid up`.

use std::net::SocketAddr;
use std::path::PathBuf;

use service_kit::{ConfigError, ServiceConfig};

/// Patients; each has a gateway, two links and its own connections in this process.
const PATIENTS_MAX: u32 = 64;

/// Tenant of everything in one process.
const TENANT: &str = "default";

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
    #[command(flatten)]
    #[serde(flatten)]
    pub people: alerting::Channels,
    /// Address for the hospital's ADT messages, with the three files of its feed; by default none.
    #[arg(long, value_name = "ADDRESS")]
    pub hospital: Option<SocketAddr>,
    #[command(flatten)]
    #[serde(flatten)]
    pub feed: exchange::Feed,
}

impl UpConfig {
    /// The channels of alerting. Messages link to the page where its address is known.
    pub(super) fn people(&self) -> alerting::Channels {
        let mut people = self.people.clone();
        if people.public_url.is_none() && self.listen.ip().is_loopback() && self.listen.port() > 0 {
            people.public_url = Some(format!("http://{}", self.listen));
        }
        people
    }

    /// The service for the hospital's feed.
    pub(super) fn exchange(&self) -> Option<exchange::Config> {
        self.hospital.map(|listen| exchange::Config {
            listen,
            feed: self.feed.clone(),
            tenant: TENANT.to_owned(),
        })
    }

    /// The dashboard writes to people by the same server when alerting cannot.
    pub(super) fn mail_of_dashboard(&self) -> dashboard::MailConfig {
        let people = self.people.clone();
        dashboard::MailConfig {
            smtp: people.smtp,
            smtp_user: people.smtp_user,
            smtp_password: people.smtp_password,
            smtp_ca: people.smtp_ca,
            email_from: people.email_from,
            email_to: people.email_to,
        }
    }

    /// Passwords and health data must not leave this machine unencrypted.
    pub(super) fn serves_tls(&self) -> bool {
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
        if let Some(exchange) = self.exchange() {
            exchange.validate()?;
        }
        self.people.validate()
    }
}
