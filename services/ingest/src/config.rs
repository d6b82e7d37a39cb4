//! Configuration of ingest.

use std::net::SocketAddr;

use service_kit::{ConfigError, ServiceConfig, grpc::FrontConfig, tls::IdentityFiles};

#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Config {
    /// Address of the gRPC listener for gateways (IngestService).
    #[arg(long, default_value = "127.0.0.1:7001")]
    pub listen: SocketAddr,
    #[command(flatten)]
    #[serde(flatten)]
    pub identity: IdentityFiles,
    #[command(flatten)]
    #[serde(flatten)]
    pub front: FrontConfig,
    /// How old an answer of the register of devices may be: a device that gets another wearer is noticed within it, and what
    /// another gateway brings of it within a second.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub register_refresh_s: u64,
    /// Samples that one gateway may bring a second, beside what it did not use in the last ten minutes; beyond it is read later. Much below
    /// the default a gateway with a backlog takes the waiting for a dead link and sends again. 0: any number.
    #[arg(long, value_name = "SAMPLES", default_value_t = 5_000)]
    pub gateway_samples_per_s: u64,
    /// The same in bytes. 0: any number.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub gateway_bytes_per_s: u64,
    /// Alerts that one gateway may raise a second, beside what it did not use in the last minute: so many of high priority, and so many
    /// others. Further alerts of this gateway go on one after the other; no other gateway's wait with them. 0: any number.
    #[arg(long, value_name = "ALERTS", default_value_t = 2)]
    pub gateway_alerts_per_s: u64,
    /// Send a made-up reading every half minute that must raise and clear a test alert, by which the dashboard knows that alerts come
    /// through. It is nobody's: no list, count or notice has it.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", default_value_t = true)]
    pub canary: bool,
}

impl ServiceConfig for Config {
    const NOUN: &'static str = "ingest";

    fn validate(&self) -> Result<(), ConfigError> {
        self.identity.validate()?;
        if !(1..=3600).contains(&self.register_refresh_s) {
            return Err(ConfigError::new(
                "register_refresh_s",
                format!("{} is not within 1 to 3600", self.register_refresh_s),
                "--register-refresh-s 30",
            ));
        }
        Ok(())
    }
}
