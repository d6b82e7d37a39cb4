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

/// Certificates of the hospital's feed.
#[derive(Clone, Debug, Default, clap::Args, serde::Serialize)]
pub struct Feed {
    /// Certificate chain for the hospital's interface engine (PEM), leaf first.
    #[arg(long, value_name = "FILE")]
    pub hospital_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub hospital_key: Option<PathBuf>,
    /// Authorities of the interface engine's own certificate (PEM). Nobody else may connect.
    #[arg(long, value_name = "FILE")]
    pub hospital_ca: Option<PathBuf>,
}

impl Feed {
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
        vitals::validate_identifier("tenant", &self.tenant, "default")
            .map_err(|invalid| ConfigError::new("tenant", invalid.reason, "--tenant default"))
    }
}
