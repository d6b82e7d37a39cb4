//! A certificate authority in a data directory, for the embedded shape and for tests.
//!
//! `ca.pem` and `ca.key` are made once; leaves are ECDSA P-256. A gateway's certificate is a
//! client's only and names no host, so it can never be used as a service.
//!
//! Beside it stands an authority for gateways alone, `gateways.pem` and `gateways.key`, for a
//! service that issues certificates to gateways and is reachable by browsers. Its certificate
//! permits clients only, and no host or address, so a stolen key cannot make a server.
//! [`Identity`](super::Identity) accepts only gateways from an authority for clients.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CidrSubnet, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{Fingerprint, IdentityFiles, PeerId};

const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const LEAF_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// Base names of the files of both authorities.
const ALL: &str = "ca";
const GATEWAYS: &str = "gateways";
/// The issuer that a front names for certificates of the authority for gateways.
pub const GATEWAYS_NAME: &str = "Braid authority for gateways";
/// Certificates are valid from this much before now, because clocks differ.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3600);

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("certificate authority in {}: {source}", dir.display())]
    Certificate { dir: PathBuf, source: rcgen::Error },
    #[error("{0:?} is not a host name or an address")]
    HostName(String),
    #[error("the request for a certificate cannot be read: {0}")]
    Request(String),
    #[error("the certificate is not valid for this authority: {0}")]
    InvalidCertificate(String),
    #[error("{0} is not a gateway, and this authority is only for gateways")]
    GatewaysOnly(String),
}

/// A certificate for a key of another machine.
#[derive(Clone, Debug)]
pub struct Signed {
    /// The public key of the certificate.
    pub key: Vec<u8>,
    pub pem: String,
    pub fingerprint: Fingerprint,
    pub until: SystemTime,
}

pub struct LocalAuthority {
    dir: PathBuf,
    name: &'static str,
    issuer: Issuer<'static, KeyPair>,
}

impl LocalAuthority {
    /// Opens the authority in `dir`, or makes it on first use.
    pub fn open_or_create(dir: &Path) -> Result<LocalAuthority, AuthorityError> {
        LocalAuthority::make(dir, ALL, authority("Braid local authority"))
    }

    /// Opens the authority for gateways in `dir`, or makes it on first use.
    pub fn open_or_create_for_gateways(dir: &Path) -> Result<LocalAuthority, AuthorityError> {
        let mut params = authority(GATEWAYS_NAME);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: Vec::new(),
            excluded_subtrees: vec![
                GeneralSubtree::DnsName(String::new()),
                GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([0; 4], 0)),
                GeneralSubtree::IpAddress(CidrSubnet::from_v6_prefix([0; 16], 0)),
            ],
        });
        LocalAuthority::make(dir, GATEWAYS, params)
    }

    /// Opens the authority that a folder issues with: the authority for gateways if it exists,
    /// otherwise the general one.
    pub fn open(dir: &Path) -> Result<LocalAuthority, AuthorityError> {
        let is_for_gateways = dir.join(GATEWAYS).with_extension("key").exists();
        LocalAuthority::load(dir, if is_for_gateways { GATEWAYS } else { ALL })
    }

    fn make(
        dir: &Path,
        name: &'static str,
        mut params: CertificateParams,
    ) -> Result<LocalAuthority, AuthorityError> {
        fs::create_dir_all(dir).map_err(|source| AuthorityError::Io {
            path: dir.to_owned(),
            source,
        })?;
        let (cert_path, key_path) = paths(dir, name);
        let certificate_error = |source| AuthorityError::Certificate {
            dir: dir.to_owned(),
            source,
        };
        // The certificate is written last, so its presence means that both files are complete.
        if !cert_path.exists() {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(certificate_error)?;
            limit_validity(&mut params, CA_LIFETIME);
            let certificate = params.self_signed(&key).map_err(certificate_error)?;
            write_whole(&key_path, &key.serialize_pem(), 0o600)?;
            write_whole(&cert_path, &certificate.pem(), 0o644)?;
        }
        LocalAuthority::load(dir, name)
    }

    fn load(dir: &Path, name: &'static str) -> Result<LocalAuthority, AuthorityError> {
        let certificate_error = |source| AuthorityError::Certificate {
            dir: dir.to_owned(),
            source,
        };
        let (cert_path, key_path) = paths(dir, name);
        let key = KeyPair::from_pem(&read(&key_path)?).map_err(certificate_error)?;
        let issuer =
            Issuer::from_ca_cert_pem(&read(&cert_path)?, key).map_err(certificate_error)?;
        Ok(LocalAuthority {
            dir: dir.to_owned(),
            name,
            issuer,
        })
    }

    /// Certificate and key that this authority signs with.
    pub fn own_files(&self) -> (PathBuf, PathBuf) {
        paths(&self.dir, self.name)
    }

    /// Makes processes that have these files trust another authority as well.
    pub fn introduce(
        &self,
        other: &LocalAuthority,
        files: &IdentityFiles,
    ) -> Result<(), AuthorityError> {
        let both = [read(&self.own_files().0)?, read(&other.own_files().0)?].concat();
        write_whole(&files.ca, &both, 0o644)
    }

    /// The general authority, which gateways trust whichever authority issued to them.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Writes a fresh certificate and key for `id` as `<dir>/<name>.pem` and `.key`. `hosts` are
    /// DNS names and addresses of a service. `localhost`, `127.0.0.1` and the noun are always among
    /// them. A gateway has no hosts.
    pub fn issue(&self, id: &PeerId, hosts: &[String]) -> Result<IdentityFiles, AuthorityError> {
        self.issue_in(&self.dir, id, hosts)
    }

    /// The same into another folder, which gets its own copy of `ca.pem`.
    pub fn issue_in(
        &self,
        dir: &Path,
        id: &PeerId,
        hosts: &[String],
    ) -> Result<IdentityFiles, AuthorityError> {
        let certificate_error = |source| AuthorityError::Certificate {
            dir: self.dir.clone(),
            source,
        };
        fs::create_dir_all(dir).map_err(|source| AuthorityError::Io {
            path: dir.to_owned(),
            source,
        })?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(certificate_error)?;
        let params = self.leaf(id, hosts)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(certificate_error)?;

        let files = IdentityFiles::in_dir(dir, id.name());
        if dir != self.dir {
            write_whole(&files.ca, &read(&self.ca_file())?, 0o644)?;
        }
        write_whole(&files.key, &key.serialize_pem(), 0o600)?;
        write_whole(&files.cert, &certificate.pem(), 0o644)?;
        Ok(files)
    }

    /// A certificate for the key of a request. All other content of the request is ignored.
    pub fn sign(&self, request_pem: &str, id: &PeerId) -> Result<Signed, AuthorityError> {
        let refused = |error: rcgen::Error| AuthorityError::Request(error.to_string());
        // Also proves that the requester has the key.
        let mut request =
            CertificateSigningRequestParams::from_pem(request_pem).map_err(refused)?;
        if request.public_key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(AuthorityError::Request(
                "its key is not on the curve P-256".to_owned(),
            ));
        }
        request.params = self.leaf(id, &[])?;
        let until = request.params.not_after.into();
        let certificate = request.signed_by(&self.issuer).map_err(refused)?;
        Ok(Signed {
            key: request.public_key.der_bytes().to_vec(),
            pem: certificate.pem(),
            fingerprint: Fingerprint::of(certificate.der()),
            until,
        })
    }

    pub fn certificate_pem(&self) -> Result<String, AuthorityError> {
        read(&self.ca_file())
    }

    /// Fingerprint of the authority's own certificate.
    pub fn fingerprint(&self) -> Result<Fingerprint, AuthorityError> {
        Ok(Fingerprint::of(&parse(&self.certificate_pem()?)?))
    }

    /// The certificate, if this or the general authority issued it to a client and it is valid at
    /// `now`.
    pub fn vouches_for(
        &self,
        certificate_pem: &str,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let leaf = parse(certificate_pem)?;
        let refused =
            |error: &dyn std::fmt::Display| AuthorityError::InvalidCertificate(error.to_string());
        let mut roots = rustls::RootCertStore::empty();
        // Certificates of the general authority, from before there was one for gateways, stay valid
        // until they expire.
        for file in [self.own_files().0, self.ca_file()] {
            roots
                .add(parse(&read(&file)?)?)
                .map_err(|error| refused(&error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| refused(&error))?;
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        verifier
            .verify_client_cert(&leaf, &[], UnixTime::since_unix_epoch(now))
            .map_err(|error| refused(&error))?;
        Ok(leaf)
    }

    fn leaf(&self, id: &PeerId, hosts: &[String]) -> Result<CertificateParams, AuthorityError> {
        let certificate_error = |source| AuthorityError::Certificate {
            dir: self.dir.clone(),
            source,
        };
        if self.name == GATEWAYS && matches!(id, PeerId::Service { .. }) {
            return Err(AuthorityError::GatewaysOnly(id.to_string()));
        }
        let mut params = CertificateParams::default();
        // Kafka knows the services by this name, and a tenant may name its gateways freely.
        let name = match id {
            PeerId::Service { noun } => noun.clone(),
            PeerId::Gateway(gateway) => format!("gateway {}", gateway.id),
        };
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let uri = Ia5String::try_from(id.to_string()).map_err(certificate_error)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        if let PeerId::Service { noun } = id {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
            let always = [noun.clone(), "localhost".to_owned(), "127.0.0.1".to_owned()];
            for host in always.iter().chain(hosts) {
                let name = host_name(host)?;
                if !params.subject_alt_names.contains(&name) {
                    params.subject_alt_names.push(name);
                }
            }
        }
        params.use_authority_key_identifier_extension = true;
        limit_validity(&mut params, LEAF_LIFETIME);
        Ok(params)
    }
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn paths(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let file = dir.join(name);
    (file.with_extension("pem"), file.with_extension("key"))
}

fn parse(pem: &str) -> Result<CertificateDer<'static>, AuthorityError> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| AuthorityError::InvalidCertificate(error.to_string()))
}

fn host_name(host: &str) -> Result<SanType, AuthorityError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let refused = || AuthorityError::HostName(host.to_owned());
    if rustls_pki_types::DnsName::try_from(host).is_err() {
        return Err(refused());
    }
    Ok(SanType::DnsName(
        Ia5String::try_from(host).map_err(|_| refused())?,
    ))
}

fn limit_validity(params: &mut CertificateParams, lifetime: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_TOLERANCE).into();
    params.not_after = (now + lifetime).into();
}

fn read(path: &Path) -> Result<String, AuthorityError> {
    fs::read_to_string(path).map_err(|source| AuthorityError::Io {
        path: path.to_owned(),
        source,
    })
}

/// Writes a new file and renames it, so that a reader never sees a partial file.
pub(super) fn write_whole(path: &Path, content: &str, mode: u32) -> Result<(), AuthorityError> {
    use std::os::unix::fs::OpenOptionsExt;
    let error = |source| AuthorityError::Io {
        path: path.to_owned(),
        source,
    };
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&beside)
        .map_err(error)?;
    file.write_all(content.as_bytes()).map_err(error)?;
    file.sync_all().map_err(error)?;
    fs::rename(&beside, path).map_err(error)
}
