//! Why the store cannot be used.

use thiserror::Error;
use tokio_postgres::error::SqlState;

use super::fault;

/// Oldest TimescaleDB whose functions the schema uses.
pub(super) const EXTENSION_LEAST: (u32, u32) = (2, 13);

/// Why the store cannot be used. Only [`OpenError::Unreachable`] passes by waiting.
#[derive(Debug, Clone, Error)]
pub enum OpenError {
    #[error("{0}")]
    Url(String),
    #[error("TimescaleDB at {address} does not answer: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("TimescaleDB at {address} refuses the user or the password: {reason}")]
    Credentials { address: String, reason: String },
    #[error("there is no such database at {address}: {reason}")]
    NoDatabase { address: String, reason: String },
    #[error("no trusted connection to {address}: {reason}")]
    Tls { address: String, reason: String },
    #[error("the extension timescaledb is not in the database and cannot be created: {0}")]
    Extension(String),
    #[error(
        "the extension timescaledb is version {found}; at least {}.{} is needed: ALTER EXTENSION timescaledb UPDATE",
        EXTENSION_LEAST.0,
        EXTENSION_LEAST.1
    )]
    ExtensionOld { found: String },
    #[error(
        "the schema is version {found}, and this program knows {known}: run the newer program, or one of that version"
    )]
    Newer { found: i32, known: i32 },
    #[error("the schema is version {found}, and this program needs {known}: run `braid migrate`")]
    Older { found: i32, known: i32 },
    #[error(
        "migration {version} was applied with another content than this program has: this is another program's database"
    )]
    Changed { version: i32 },
    #[error("migration {version} failed: {reason}")]
    Migration { version: i32, reason: String },
}

impl OpenError {
    /// Waiting may help; every other error needs a person's change.
    pub fn may_pass(&self) -> bool {
        matches!(self, OpenError::Unreachable { .. })
    }

    pub(super) fn from_server(address: &str, error: &tokio_postgres::Error) -> OpenError {
        let (address, reason) = (address.to_owned(), fault::explain(error));
        let Some(code) = error.code() else {
            return without_code(address, reason, error);
        };
        match *code {
            SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                OpenError::Credentials { address, reason }
            }
            SqlState::INVALID_CATALOG_NAME => OpenError::NoDatabase { address, reason },
            _ => OpenError::Unreachable { address, reason },
        }
    }
}

fn without_code(address: String, reason: String, error: &tokio_postgres::Error) -> OpenError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(inner) = cause {
        // An io::Error shows its content only by `get_ref`.
        let io = inner
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        if inner.is::<rustls::Error>() || io.is_some_and(|e| e.is::<rustls::Error>()) {
            return OpenError::Tls { address, reason };
        }
        cause = inner.source();
    }
    if reason.contains("server does not support TLS") {
        return OpenError::Tls { address, reason };
    }
    if reason.contains("password missing") {
        return OpenError::Credentials { address, reason };
    }
    OpenError::Unreachable { address, reason }
}
