//! Configuration of alerting.

use std::{net::SocketAddr, path::PathBuf};

use service_kit::{ConfigError, ServiceConfig, config::parse_file, tls::IdentityFiles};
use vitals::RuleDocument;

#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Config {
    /// Address of the gRPC listener (AlertsService).
    #[arg(long, default_value = "127.0.0.1:7002")]
    pub listen: SocketAddr,
    #[command(flatten)]
    #[serde(flatten)]
    pub identity: IdentityFiles,
    /// Services whose certificate may list and acknowledge alerts.
    #[arg(
        long,
        value_name = "NOUN",
        default_value = "dashboard",
        value_delimiter = ','
    )]
    pub allow: Vec<String>,
    /// Rule set as a JSON file; without it the built-in thresholds for adults apply.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub people: crate::to_people::config::Options,
    /// Readings that arrive this much later than their event time are a backfill. Their alerts of
    /// high priority notify people at once, the others in one report for each patient.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub backfill_after_s: u64,
    /// A gateway, or a device with a worn sensor, that sends nothing for this time raises an alert;
    /// 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub silent_after_s: u64,
}

/// A shorter time would count every handover between networks as silence.
const SILENT_AFTER_S_MIN: u64 = 5;

impl Config {
    /// `None`: the silence watch is off.
    pub(crate) fn silent_after_us(&self) -> Option<i64> {
        let after_us = self.silent_after_s.saturating_mul(1_000_000);
        (after_us > 0).then(|| i64::try_from(after_us).unwrap_or(i64::MAX))
    }

    pub(crate) fn rule_document(&self) -> Result<RuleDocument, ConfigError> {
        let Some(path) = &self.rules else {
            return Ok(RuleDocument::built_in());
        };
        parse_file(
            "rules",
            path,
            "--rules ./rules.json",
            RuleDocument::from_json,
        )
    }
}

impl ServiceConfig for Config {
    const NOUN: &'static str = "alerting";

    fn validate(&self) -> Result<(), ConfigError> {
        self.identity.validate()?;
        self.rule_document()?;
        if self.backfill_after_s == 0 {
            return Err(ConfigError::new(
                "backfill_after_s",
                "0 would make every reading a backfill, and no alert would notify anybody",
                "--backfill-after-s 600",
            ));
        }
        if (1..SILENT_AFTER_S_MIN).contains(&self.silent_after_s) {
            return Err(ConfigError::new(
                "silent_after_s",
                format!("{} is below {SILENT_AFTER_S_MIN}", self.silent_after_s),
                "--silent-after-s 120",
            ));
        }
        self.people.validate()
    }
}
