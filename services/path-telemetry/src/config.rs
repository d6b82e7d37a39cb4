//! Configuration of path-telemetry.

use std::net::SocketAddr;

use service_kit::{ConfigError, ServiceConfig, grpc::FrontConfig, tls::IdentityFiles};

/// How gateways may be told to spread their traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// Redundant while every path of the gateway is lossy, else by smallest delay.
    Auto,
    SmallestDelay,
    LoadBalancing,
    ActiveStandby,
    PriorityBased,
    Redundant,
}

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
    /// Reports of one gateway's paths that either end may bring a second, beside what was not used in the last ten minutes. Beyond it a
    /// gateway is read more slowly, and what proxies report of it is left out. 0: any number.
    #[arg(long, value_name = "REPORTS", default_value_t = 10)]
    pub gateway_reports_per_s: u64,
    /// Steering mode that the policy names. Gateways of this version take the keepalive from the policy and not the mode: each path is used
    /// as its own measurements say.
    #[arg(long, value_enum, default_value = "auto")]
    pub steering: Steering,
    /// How long a dead path may go unnoticed on average, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub detection_ms: u32,
    /// How far apart two false alarms about a path shall be, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 100_000)]
    pub false_alarm_interval_s: u32,
    /// Shortest keepalive interval that a gateway is told, in milliseconds; spares batteries.
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
