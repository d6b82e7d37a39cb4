//! Paths of a process's certificate, key and authority.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// PEM files of one identity. Use in a service's configuration with `#[command(flatten)]`.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, clap::Args, serde::Serialize, serde::Deserialize,
)]
pub struct IdentityFiles {
    /// Certificate chain of this process (PEM), leaf first.
    #[arg(long = "cert", value_name = "FILE", value_parser = path, default_value = "")]
    pub cert: PathBuf,
    /// Private key of the certificate (PEM, PKCS#8).
    #[arg(long = "key", value_name = "FILE", value_parser = path, default_value = "")]
    pub key: PathBuf,
    /// Certificates of the authorities that this process trusts (PEM).
    #[arg(long = "ca", value_name = "FILE", value_parser = path, default_value = "")]
    pub ca: PathBuf,
}

/// clap's own parser of paths refuses the empty path, which means "not set".
fn path(text: &str) -> Result<PathBuf, std::convert::Infallible> {
    Ok(PathBuf::from(text))
}

impl IdentityFiles {
    /// `<dir>/<name>.pem`, `<dir>/<name>.key`, `<dir>/ca.pem`: the layout of `LocalAuthority`.
    pub fn in_dir(dir: &Path, name: &str) -> IdentityFiles {
        IdentityFiles {
            cert: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
            ca: dir.join("ca.pem"),
        }
    }

    /// False while the flags are at their empty defaults.
    pub fn is_set(&self) -> bool {
        [&self.cert, &self.key, &self.ca]
            .iter()
            .all(|path| !path.as_os_str().is_empty())
    }

    /// Refuses an unset or unreadable identity, naming the flag.
    pub fn validate(&self) -> Result<(), crate::ConfigError> {
        for (field, path) in [("cert", &self.cert), ("key", &self.key), ("ca", &self.ca)] {
            let refused = |reason| {
                let file = match field {
                    "cert" => "NAME.pem",
                    "key" => "NAME.key",
                    _ => "ca.pem",
                };
                let example = format!(
                    "--{field} ./data/identities/{file} (see `braid identity issue --help`)"
                );
                Err(crate::ConfigError::new(field, reason, example))
            };
            if path.as_os_str().is_empty() {
                return refused("no file given; every hop needs a certificate".to_owned());
            }
            if let Err(error) = std::fs::metadata(path) {
                return refused(format!("{}: {error}", path.display()));
            }
        }
        Ok(())
    }

    /// Modification times; a difference leads to a reload.
    pub(crate) fn stamp(&self) -> Result<[SystemTime; 3], IdentityError> {
        let stamp = |path: &Path| {
            std::fs::metadata(path)
                .and_then(|metadata| metadata.modified())
                .map_err(|source| IdentityError::read(path, source))
        };
        Ok([stamp(&self.cert)?, stamp(&self.key)?, stamp(&self.ca)?])
    }

    pub(crate) fn load(&self, provider: &CryptoProvider) -> Result<Material, IdentityError> {
        let chain = read_certificates(&self.cert)?;
        let roots_der = read_certificates(&self.ca)?;
        let key_pem =
            std::fs::read(&self.key).map_err(|source| IdentityError::read(&self.key, source))?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem)
            .map_err(|error| IdentityError::content(&self.key, of_pem(&error, "private key")))?;
        let certified =
            CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => IdentityError::content(
                    &self.key,
                    format!(
                        "is not the key of the certificate in {}",
                        self.cert.display()
                    ),
                ),
                error => IdentityError::content(&self.key, error.to_string()),
            })?;
        let (mut roots, mut roots_of_clients) = (RootCertStore::empty(), RootCertStore::empty());
        for root in roots_der {
            let into = if is_for_clients_only(&root) {
                &mut roots_of_clients
            } else {
                &mut roots
            };
            into.add(root)
                .map_err(|error| IdentityError::content(&self.ca, error.to_string()))?;
        }
        Ok(Material {
            certified: Arc::new(certified),
            roots: Arc::new(roots),
            roots_of_clients: Arc::new(roots_of_clients),
        })
    }
}

/// The content of the files at their last reading.
#[derive(Clone)]
pub(crate) struct Material {
    pub certified: Arc<CertifiedKey>,
    pub roots: Arc<RootCertStore>,
    /// Authorities whose certificates permit clients only; they cannot name a service.
    pub roots_of_clients: Arc<RootCertStore>,
}

fn is_for_clients_only(root: &CertificateDer<'_>) -> bool {
    x509_parser::parse_x509_certificate(root).is_ok_and(|(_, certificate)| {
        let usage = certificate.extended_key_usage().ok().flatten();
        usage.is_some_and(|usage| {
            usage.value.client_auth && !usage.value.server_auth && !usage.value.any
        })
    })
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {reason}", path.display())]
    Content { path: PathBuf, reason: String },
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Verifier(String),
    #[error("{0}")]
    PeerId(#[from] super::PeerIdError),
}

impl IdentityError {
    /// Whether the only fault is that the issuer of the certificate is not trusted here.
    pub fn is_unknown_issuer(&self) -> bool {
        matches!(
            self,
            IdentityError::Tls(rustls::Error::InvalidCertificate(
                rustls::CertificateError::UnknownIssuer
            ))
        )
    }

    pub(crate) fn read(path: &Path, source: io::Error) -> IdentityError {
        IdentityError::Read {
            path: path.to_owned(),
            source,
        }
    }

    fn content(path: &Path, reason: String) -> IdentityError {
        IdentityError::Content {
            path: path.to_owned(),
            reason,
        }
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let pem = std::fs::read(path).map_err(|source| IdentityError::read(path, source))?;
    let certificates = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| IdentityError::content(path, of_pem(&error, "certificate")))?;
    if certificates.is_empty() {
        return Err(IdentityError::content(
            path,
            "holds no certificate".to_owned(),
        ));
    }
    Ok(certificates)
}

/// In words, because the parser's error shows the marker as bytes.
fn of_pem(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => {
            format!("ends amid a {what}: the file is cut short")
        }
        pem::Error::IllegalSectionStart { .. } => format!("has no line where a {what} begins"),
        pem::Error::NoItemsFound => format!("holds no {what}"),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tls::{Identity, PeerId, authority::LocalAuthority};
    use clap::{Args, FromArgMatches};

    #[test]
    fn unset_flags_are_refused_by_validation_and_not_by_parsing() {
        let command = IdentityFiles::augment_args(clap::Command::new("x"));
        let matches = command.clone().try_get_matches_from(["x"]).unwrap();
        let files = IdentityFiles::from_arg_matches(&matches).unwrap();
        assert!(!files.is_set());
        assert_eq!(files.validate().unwrap_err().field, "cert");
        let given = ["x", "--cert", "/a", "--key", "/b", "--ca", "/c"];
        let files =
            IdentityFiles::from_arg_matches(&command.try_get_matches_from(given).unwrap()).unwrap();
        assert!(files.is_set());
        assert!(files.validate().unwrap_err().reason.contains("/a"));
    }

    #[test]
    fn files_that_do_not_match_are_refused_in_words() {
        let directory = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(directory.path()).unwrap();
        let good = authority.issue(&PeerId::service("ingest"), &[]).unwrap();
        let other = authority.issue(&PeerId::service("proxy"), &[]).unwrap();
        let (cut, empty) = (directory.path().join("cut"), directory.path().join("empty"));
        let pem = std::fs::read(&good.cert).unwrap();
        std::fs::write(&cut, &pem[..100]).unwrap();
        std::fs::write(&empty, "").unwrap();
        let said = |change: fn(&mut IdentityFiles, &Path), to: &Path| {
            let mut files = good.clone();
            change(&mut files, to);
            Identity::load(&files).unwrap_err().to_string()
        };
        assert!(
            said(|files, to| files.cert = to.into(), &cut).contains("cut: ends amid a certificate")
        );
        assert!(said(|files, to| files.ca = to.into(), &empty).contains("holds no certificate"));
        assert!(said(|files, to| files.key = to.into(), &empty).contains("holds no private key"));
        let mismatch = said(|files, to| files.key = to.into(), &other.key);
        assert!(
            mismatch.contains("proxy.key: is not the key of the certificate in"),
            "{mismatch}"
        );
    }
}
