//! `braid swarm`: simulated patients for an installation of separate services, whose sensors send
//! to a gateway.

use service_kit::config::parse_address;
use service_kit::{ConfigError, Context, Secret, ServiceConfig};
use swarm::Feed;
use tokio::sync::mpsc;

use crate::demonstration_ward::DemonstrationWard;
use crate::process::Failure;
use crate::setup;

/// `braid swarm`.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct SwarmConfig {
    /// The gateway's address for sensors.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8090")]
    pub to: String,
    /// The gateway's token for sensors.
    #[arg(long, value_name = "TOKEN")]
    pub sensor_token: Option<Secret>,
    /// Simulated patients; `braid setup` enters the same number into the register.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub patients: u32,
    /// Prefix of the names of patients and devices, to distinguish several swarms.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub label: String,
    /// Seed of the patients.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

impl ServiceConfig for SwarmConfig {
    const NOUN: &'static str = "swarm";

    fn validate(&self) -> Result<(), ConfigError> {
        setup::validate_patients(self.patients)?;
        if let Err(reason) = parse_address(&self.to, &["http"]) {
            return Err(ConfigError::new(
                "to",
                format!("{:?} {reason}", self.to),
                "--to http://127.0.0.1:8090",
            ));
        }
        Ok(())
    }
}

/// Runs until `context`'s shutdown is requested.
pub async fn run(config: SwarmConfig, context: Context) -> Result<(), Failure> {
    // No episode is triggered here; those of the patients' own schedule happen.
    let (_, triggers) = mpsc::channel(1);
    // A feed without patients gets no acknowledgement, so it has no check.
    let health = (config.patients > 0).then(|| context.health().check("gateway"));
    // The register decides which gateway speaks for their devices.
    let ward = DemonstrationWard::behind("", &config.label, config.patients);
    let feed = Feed {
        url: config.to,
        token: config.sensor_token,
        patients: ward.patients(config.seed).collect(),
        triggers,
        health,
    };
    feed.run(context.shutdown().clone())
        .await
        .map_err(Failure::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_swarm_without_patients_is_ready() {
        for (patients, is_ready) in [(0, true), (1, false)] {
            let config = SwarmConfig {
                to: "http://127.0.0.1:1".to_owned(),
                sensor_token: None,
                patients,
                label: String::new(),
                seed: 1,
            };
            let context = Context::new("swarm");
            let shutdown = context.shutdown().clone();
            let health = context.health().clone();
            // Asked to end earlier: the future of the test is set up by then.
            shutdown.request();
            run(config, context).await.unwrap();
            assert_eq!(health.is_ready(), is_ready, "{patients} patients");
        }
    }
}
