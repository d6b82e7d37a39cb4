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
    /// Age in seconds up to which an answer of the register of devices is used. A change of the
    /// wearer is noticed within this time, and a change of the gateway within a second.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub register_refresh_s: u64,
    /// Samples that one gateway may upload a second, plus what it did not use in the last ten
    /// minutes. Further uploads are read later. Far below the default, a gateway with a backlog
    /// takes the wait for a dead link and repeats its upload. 0: no limit.
    #[arg(long, value_name = "SAMPLES", default_value_t = 5_000)]
    pub gateway_samples_per_s: u64,
    /// Bytes that one gateway may upload a second; otherwise as for samples. 0: no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub gateway_bytes_per_s: u64,
    /// Alerts that one gateway may raise a second, plus what it did not use in the last minute.
    /// Alerts of high priority have the same quota once more. Further alerts of this gateway are
    /// published one after the other and delay no other gateway. 0: no limit.
    #[arg(long, value_name = "ALERTS", default_value_t = 2)]
    pub gateway_alerts_per_s: u64,
    /// Send a synthetic reading to each partition every half minute that must raise and clear a
    /// test alert. By it the dashboard knows that alerts arrive. It belongs to no patient: no list
    /// or count contains it, and its notice reaches nobody.
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
