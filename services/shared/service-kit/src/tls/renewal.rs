//! Renewal of a certificate whose key never leaves its machine: the request, and the proof by the
//! former key. Both files are replaced so that a crash at any moment leaves a fitting pair.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{
    CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SigningKey,
};
use rustls::SignatureScheme;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authority::write_whole;
use super::{Fingerprint, IdentityFiles};

/// Prefix of the signed text of a proof, so that no other signature is valid as one.
const PURPOSE: &str = "braid certificate renewal\n";

#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("key or request: {0}")]
    Key(#[from] rcgen::Error),
    #[error("{0}")]
    Write(#[from] super::authority::AuthorityError),
    #[error("the proof was not made with the key of the certificate")]
    Proof,
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
}

/// A fresh key and the request for its certificate.
pub struct Request {
    key: KeyPair,
    pub request_pem: String,
}

impl Request {
    pub fn new() -> Result<Request, RenewalError> {
        Request::with_key(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
    }

    /// With a key that is kept beside `files` until its certificate is installed. After a lost
    /// answer or a loss of power the same key is used again.
    pub fn kept(files: &IdentityFiles) -> Result<Request, RenewalError> {
        let path = asked(&files.key);
        let kept = match fs::read_to_string(&path) {
            Ok(pem) => KeyPair::from_pem(&pem).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(RenewalError::Io { path, source }),
        };
        if let Some(key) = kept {
            return Request::with_key(key);
        }
        let request = Request::new()?;
        write_whole(&path, &request.key.serialize_pem(), 0o600)?;
        Ok(request)
    }

    fn with_key(key: KeyPair) -> Result<Request, RenewalError> {
        let mut params = CertificateParams::default();
        // The issuer decides the name of the certificate; a request only proves its key.
        params
            .distinguished_name
            .push(DnType::CommonName, "gateway");
        let request_pem = params.serialize_request(&key)?.pem()?;
        Ok(Request { key, request_pem })
    }

    /// Signs the request with the key in force; its owner may have the next certificate.
    pub fn proof(&self, key_file: &Path) -> Result<Vec<u8>, RenewalError> {
        let pem = fs::read_to_string(key_file).map_err(|source| RenewalError::Io {
            path: key_file.to_owned(),
            source,
        })?;
        Ok(KeyPair::from_pem(&pem)?.sign(proven(&self.request_pem).as_bytes())?)
    }

    /// Puts key and certificate in force. The certificate must be for this key.
    pub fn install(
        &self,
        certificate_pem: &str,
        files: &IdentityFiles,
    ) -> Result<(), RenewalError> {
        let leaf = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|error| RenewalError::Certificate(error.to_string()))?;
        if public_key(&leaf)? != self.key.der_bytes() {
            return Err(RenewalError::Certificate(
                "it is for another key".to_owned(),
            ));
        }
        write_whole(&next(&files.key), &self.key.serialize_pem(), 0o600)?;
        // From now on the new pair is complete beside the old one, and `finish` can do the rest.
        write_whole(&next(&files.cert), certificate_pem, 0o644)?;
        finish(files)?;
        let path = asked(&files.key);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(RenewalError::Io { path, source })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Completes an interrupted installation, if there is one. Must be called before the files are
/// read.
pub fn finish(files: &IdentityFiles) -> Result<(), RenewalError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RenewalError::Io { path, source }
    };
    let (key, cert) = (next(&files.key), next(&files.cert));
    // The certificate is written last and removed last.
    if !cert.exists() {
        return Ok(());
    }
    if key.exists() {
        fs::rename(&key, &files.key).map_err(io(&key))?;
    }
    fs::rename(&cert, &files.cert).map_err(io(&cert))
}

/// Fingerprint of a certificate in PEM.
pub fn fingerprint(pem: &str) -> Result<Fingerprint, RenewalError> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| RenewalError::Certificate(error.to_string()))?;
    Ok(Fingerprint::of(&certificate))
}

/// Stores the authority that is trusted from now on.
pub fn write_authority(pem: &str, files: &IdentityFiles) -> Result<(), RenewalError> {
    Ok(write_whole(&files.ca, pem, 0o644)?)
}

/// Checks that the proof of the request was made with the key of the certificate.
pub fn check_proof(
    certificate: &CertificateDer<'_>,
    request_pem: &str,
    proof: &[u8],
) -> Result<(), RenewalError> {
    let provider = rustls::crypto::ring::default_provider();
    let key = public_key(certificate)?;
    let algorithms = provider
        .signature_verification_algorithms
        .mapping
        .iter()
        .find(|(scheme, _)| *scheme == SignatureScheme::ECDSA_NISTP256_SHA256)
        .map(|(_, algorithms)| *algorithms)
        .unwrap_or_default();
    let message = proven(request_pem);
    let is_proven = algorithms.iter().any(|algorithm| {
        algorithm
            .verify_signature(&key, message.as_bytes(), proof)
            .is_ok()
    });
    is_proven.then_some(()).ok_or(RenewalError::Proof)
}

fn proven(request_pem: &str) -> String {
    format!("{PURPOSE}{request_pem}")
}

fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, RenewalError> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| RenewalError::Certificate(error.to_string()))?;
    Ok(parsed.public_key().subject_public_key.data.to_vec())
}

fn next(path: &Path) -> PathBuf {
    beside(path, ".next")
}

fn asked(key: &Path) -> PathBuf {
    beside(key, ".asked")
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(ending);
    PathBuf::from(beside)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tls::authority::LocalAuthority;
    use crate::tls::{Identity, PeerId};

    #[test]
    fn a_crash_at_any_moment_leaves_a_pair_that_fits() {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let id = PeerId::gateway("t", "gw");
        let files = authority.issue(&id, &[]).unwrap();
        // Interrupted after each step of `install`: nothing, the new key, both new files, the key
        // in force.
        for step in 0..4 {
            let request = Request::new().unwrap();
            let proof = request.proof(&files.key).unwrap();
            let old = fs::read_to_string(&files.cert).unwrap();
            let certificate = authority.sign(&request.request_pem, &id).unwrap().pem;
            if step > 0 {
                write_whole(&next(&files.key), &request.key.serialize_pem(), 0o600).unwrap();
            }
            if step > 1 {
                write_whole(&next(&files.cert), &certificate, 0o644).unwrap();
            }
            if step > 2 {
                fs::rename(next(&files.key), &files.key).unwrap();
            }
            finish(&files).unwrap();
            Identity::load(&files)
                .unwrap()
                .vouched_for(std::time::SystemTime::now())
                .unwrap();
            let now = fs::read_to_string(&files.cert).unwrap();
            assert_eq!(now, if step > 1 { certificate } else { old.clone() });
            let leaf = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            check_proof(&leaf(&old), &request.request_pem, &proof).unwrap();
            let other = Request::new().unwrap().request_pem;
            assert!(check_proof(&leaf(&old), &other, &proof).is_err());
        }
    }

    #[test]
    fn a_repeated_request_has_the_same_key_until_it_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let id = PeerId::gateway("t", "gw");
        let files = authority.issue(&id, &[]).unwrap();
        let lost = Request::kept(&files).unwrap();
        let signed = authority.sign(&lost.request_pem, &id).unwrap();
        let again = Request::kept(&files).unwrap();
        again.install(&signed.pem, &files).unwrap();
        Identity::load(&files).unwrap();
        assert!(
            Request::kept(&files)
                .unwrap()
                .install(&signed.pem, &files)
                .is_err()
        );
    }

    #[test]
    fn a_certificate_for_another_key_is_not_installed() {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let id = PeerId::gateway("t", "gw");
        let files = authority.issue(&id, &[]).unwrap();
        let others = authority
            .sign(&Request::new().unwrap().request_pem, &id)
            .unwrap();
        let request = Request::new().unwrap();
        assert!(request.install(&others.pem, &files).is_err());
        Identity::load(&files).unwrap();
        assert!(authority.sign("no request", &id).is_err());
    }
}
