//! Configuration of exchange.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use service_kit::{ConfigError, ServiceConfig};

#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Config {
    /// Address of the listener for the hospital's ADT messages (HL7 v2, MLLP over TLS).
    #[arg(long, default_value = "127.0.0.1:7006")]
    pub listen: SocketAddr,
    #[command(flatten)]
    #[serde(flatten)]
    pub feed: Feed,
    /// Tenant whose patients the hospital admits.
    #[arg(long, value_name = "TENANT", default_value = "default")]
    pub tenant: String,
}

const INTERVAL_S: std::ops::RangeInclusive<u32> = 1..=86_400;

/// Certificates of the hospital's feed, and the way of observations.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
pub struct Feed {
    /// Certificate chain for the hospital's interface engine (PEM), leaf first.
    #[arg(long, value_name = "FILE")]
    pub hospital_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub hospital_key: Option<PathBuf>,
    /// Authorities of the interface engine's own certificate (PEM). No other peer may connect.
    #[arg(long, value_name = "FILE")]
    pub hospital_ca: Option<PathBuf>,
    /// Address of the hospital's listener for observations (ORU, MLLP over TLS), HOST:PORT. By
    /// default none are sent.
    #[arg(long, value_name = "HOST:PORT")]
    pub observations_to: Option<String>,
    /// Seconds between two values of one metric that the hospital gets.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub observations_every_s: u32,
}

impl Feed {
    /// Host and address of the listener for observations.
    pub(crate) fn observations(&self) -> Result<Option<(&str, &str)>, ConfigError> {
        let Some(address) = &self.observations_to else {
            return Ok(None);
        };
        let parts = address.rsplit_once(':');
        let host = parts.filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        let Some((host, _)) = host else {
            return Err(ConfigError::new(
                "observations_to",
                format!("{address:?} is not HOST:PORT"),
                "--observations-to engine.hospital.example:2575",
            ));
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Some((host, address)))
    }

    /// Certificate, key and authorities.
    pub(crate) fn files(&self) -> Result<[&Path; 3], ConfigError> {
        Ok([
            file("hospital_cert", &self.hospital_cert)?,
            file("hospital_key", &self.hospital_key)?,
            file("hospital_ca", &self.hospital_ca)?,
        ])
    }
}

fn file<'a>(field: &'static str, path: &'a Option<PathBuf>) -> Result<&'a Path, ConfigError> {
    let refused = |reason: String| {
        let example = format!("--{} /etc/braid/hospital.pem", field.replace('_', "-"));
        ConfigError::new(field, reason, example)
    };
    let Some(path) = path else {
        let reason = "no file given; both ends of the feed prove who they are";
        return Err(refused(reason.to_owned()));
    };
    match std::fs::metadata(path) {
        Ok(_) => Ok(path),
        Err(error) => Err(refused(format!("{}: {error}", path.display()))),
    }
}

impl ServiceConfig for Config {
    const NOUN: &'static str = "exchange";

    fn validate(&self) -> Result<(), ConfigError> {
        self.feed.files()?;
        self.feed.observations()?;
        if !INTERVAL_S.contains(&self.feed.observations_every_s) {
            let (least, most) = (INTERVAL_S.start(), INTERVAL_S.end());
            let reason = format!("is outside {least} to {most}");
            let example = "--observations-every-s 60";
            return Err(ConfigError::new("observations_every_s", reason, example));
        }
        vitals::validate_identifier("tenant", &self.tenant, "default")
            .map_err(|invalid| ConfigError::new("tenant", invalid.reason, "--tenant default"))
    }
}
