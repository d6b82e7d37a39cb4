//! The first start in a data directory: the lock, the authority, identities, the administrator's
//! password.
//!
//! The authority and the password stay; the leaf certificates are issued again at every start, so
//! they never expire.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use dashboard::accounts::{self, Ensured, FIRST_ACCOUNT};
use service_kit::tls::authority::LocalAuthority;
use service_kit::tls::{IdentityFiles, PeerId};
use service_kit::{ConfigError, Secret};
use store::{DEFAULT_TENANT, Role, Store};

use crate::identity::FOLDER;
use crate::password;
use crate::process::Failure;

/// Identity of the command line towards a running `braid up`.
pub const OPERATOR: &str = "operator";
pub struct Start {
    pub data: PathBuf,
    authority: LocalAuthority,
    password_file: PathBuf,
    sign_in_code: Secret,
    /// Held while the process runs.
    _lock: File,
}

/// Locks the data directory for this process and creates what is missing in it.
pub fn prepare(data: &Path) -> Result<Start, Failure> {
    let unusable = |reason: String| {
        Failure::Config(ConfigError::new(
            "data",
            format!("{}: {reason}", data.display()),
            "--data ./data",
        ))
    };
    private_files::folder(data).map_err(|error| unusable(error.to_string()))?;
    let lock = private_files::options()
        .create(true)
        .truncate(true)
        .write(true)
        .open(data.join("up.lock"));
    let lock = lock.map_err(|error| unusable(error.to_string()))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(unusable("another `braid up` is running on it".to_owned()));
        }
        Err(TryLockError::Error(error)) => return Err(unusable(error.to_string())),
    }
    let identities = data.join(FOLDER);
    let authority = LocalAuthority::open_or_create(&identities).map_err(Failure::other)?;
    let start = Start {
        data: data.to_owned(),
        authority,
        password_file: identities.join("admin.password"),
        sign_in_code: Secret::new(password::letters(32)),
        _lock: lock,
    };
    start.service(OPERATOR)?;
    Ok(start)
}

impl Start {
    pub fn service(&self, noun: &str) -> Result<IdentityFiles, Failure> {
        self.issue(&PeerId::service(noun))
    }

    pub fn gateway(&self, id: &str) -> Result<IdentityFiles, Failure> {
        self.issue(&PeerId::gateway(DEFAULT_TENANT, id))
    }

    /// A new code per start; the page accepts it once.
    pub fn sign_in_code(&self) -> Secret {
        self.sign_in_code.clone()
    }

    /// The administrator's password, generated on the first start and kept beside the keys. `None`:
    /// the account has another one, which a person has set or a backup has brought.
    pub async fn ensure_account(&self, store: &dyn Store) -> Result<Option<Secret>, Failure> {
        let password = password::kept_in(&self.password_file)?;
        let (name, text) = (FIRST_ACCOUNT, password.expose());
        let ensured = accounts::ensure(store, name, text, Role::Administrator).await;
        let is_right = match ensured.map_err(Failure::other)? {
            Ensured::Created => true,
            Ensured::Existed => {
                let verified = accounts::verify(store, name, text).await;
                verified.map_err(Failure::other)?.is_some()
            }
        };
        Ok(is_right.then_some(password))
    }

    fn issue(&self, id: &PeerId) -> Result<IdentityFiles, Failure> {
        self.authority.issue(id, &[]).map_err(Failure::other)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::SqliteStore;

    use super::*;

    #[tokio::test]
    async fn a_password_that_the_account_does_not_have_is_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let start = prepare(dir.path()).unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let first = start.ensure_account(&store).await.unwrap().unwrap();
        let again = start.ensure_account(&store).await.unwrap().unwrap();
        assert_eq!(first.expose(), again.expose());
        // As after a restore into an empty directory.
        std::fs::remove_file(&start.password_file).unwrap();
        assert!(start.ensure_account(&store).await.unwrap().is_none());
    }
}
