//! Certificates for the endpoints of kernel time: a throw-away authority, as a test deployment
//! would have.

use std::path::Path;

use service_kit::tls::authority::{AuthorityError, LocalAuthority};
use service_kit::tls::{Identity, IdentityError, IdentityFiles, PeerId, install_provider};
use tempfile::TempDir;

/// Name in the server's certificate.
pub const SERVER_NAME: &str = "proxy.lab";

#[derive(Debug, thiserror::Error)]
pub enum IdentitiesError {
    #[error("cannot make a temporary directory")]
    Directory(#[from] std::io::Error),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

pub struct Identities {
    pub server_files: IdentityFiles,
    pub server: Identity,
    pub client: Identity,
    _dir: TempDir,
}

impl Identities {
    pub fn new() -> Result<Self, IdentitiesError> {
        install_provider();
        let dir = tempfile::tempdir()?;
        let path: &Path = dir.path();
        let authority = LocalAuthority::open_or_create(path)?;
        let server_files = authority.issue(&PeerId::service("proxy"), &[SERVER_NAME.to_owned()])?;
        let client_files = authority.issue(&PeerId::gateway("lab", "gateway"), &[])?;
        Ok(Self {
            server: Identity::load(&server_files)?,
            client: Identity::load(&client_files)?,
            server_files,
            _dir: dir,
        })
    }
}
