//! Configuration of path-telemetry.

use std::net::SocketAddr;

use service_kit::{ConfigError, ServiceConfig, grpc::FrontConfig, tls::IdentityFiles};

#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Config {
    /// Address of the gRPC listener (PathTelemetryService, PolicyService).
    #[arg(long, default_value = "127.0.0.1:7003")]
    pub listen: SocketAddr,
    #[command(flatten)]
    #[serde(flatten)]
    pub identity: IdentityFiles,
    #[command(flatten)]
    #[serde(flatten)]
    pub front: FrontConfig,
    /// Services whose certificate may report on every gateway's paths.
    #[arg(
        long,
        value_name = "NOUN",
        default_value = "proxy",
        value_delimiter = ','
    )]
    pub allow: Vec<String>,
    /// Reports a second on one gateway's paths from one end; what was not used in the last ten
    /// minutes is saved. Beyond it a gateway is read more slowly, and proxies' reports on it are
    /// left out. 0: no bound.
    #[arg(long, value_name = "REPORTS", default_value_t = 10)]
    pub gateway_reports_per_s: u64,
    /// Mean time in milliseconds until a dead path is detected.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub detection_ms: u32,
    /// Mean time in seconds between two false alarms of a path.
    #[arg(long, value_name = "SECONDS", default_value_t = 100_000)]
    pub false_alarm_interval_s: u32,
    /// Shortest keepalive interval in milliseconds that a policy contains; a longer interval saves
    /// battery.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pub keepalive_interval_ms_min: u32,
}

impl ServiceConfig for Config {
    const NOUN: &'static str = "path-telemetry";

    fn validate(&self) -> Result<(), ConfigError> {
        self.identity.validate()?;
        let in_range = |field: &'static str, value: u32, low: u32, high: u32| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::new(
                field,
                format!("{value} is outside {low} to {high}"),
                format!("--{} {}", field.replace('_', "-"), low.max(high / 10)),
            ))
        };
        in_range("detection_ms", self.detection_ms, 50, 60_000)?;
        in_range(
            "false_alarm_interval_s",
            self.false_alarm_interval_s,
            1,
            100_000_000,
        )?;
        in_range(
            "keepalive_interval_ms_min",
            self.keepalive_interval_ms_min,
            10,
            10_000,
        )
    }
}
