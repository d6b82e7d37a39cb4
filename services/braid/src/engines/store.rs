//! `--store`: SQLite in a directory, or TimescaleDB.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use service_kit::{Backoff, CheckHandle, ConfigError, Context, Secret};
use store::timescale::OpenError;
use store::{SqliteStore, Store, TimescaleOptions, TimescaleStore};

/// File of the embedded store in its directory.
pub const STORE_FILE: &str = "store.db";
const EXAMPLE: &str = "--store postgres://braid@timescaledb:5432/braid";

/// `sqlite:DIR` or `postgres://USER@HOST:PORT/DATABASE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    Embedded(PathBuf),
    Timescale(String),
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreUrl, String> {
        const CHOICE: &str = "write sqlite:DIRECTORY or postgres://USER@HOST:PORT/DATABASE";
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(format!("names no engine: {CHOICE}"));
        };
        match scheme {
            "sqlite" if !rest.is_empty() => Ok(StoreUrl::Embedded(rest.into())),
            "sqlite" => Err(format!("names no directory: {CHOICE}")),
            "postgres" | "postgresql" => {
                // Checks without asking the server; TLS needs the other flags.
                match TimescaleStore::address(&TimescaleOptions::new(text, "")) {
                    Err(OpenError::Url(reason)) => Err(format!("{reason}: {CHOICE}")),
                    _ => Ok(StoreUrl::Timescale(text.to_owned())),
                }
            }
            other => Err(format!("{other} is no engine: {CHOICE}")),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Embedded(dir) => write!(f, "sqlite:{}", dir.display()),
            StoreUrl::Timescale(url) => f.write_str(url),
        }
    }
}

impl Serialize for StoreUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Flags of every command with a store; use with `#[command(flatten)]`.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct StoreConfig {
    /// Store of rows, register and accounts: sqlite:DIRECTORY or
    /// postgres://USER@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL", default_value = "sqlite:./data")]
    pub store: StoreUrl,
    /// Password of the URL's user.
    #[arg(long, value_name = "PASSWORD", default_value = "")]
    pub store_password: Secret,
    /// PEM file of the authorities for the database server's certificate; needed unless the server
    /// is on this machine or the URL contains sslmode=disable.
    #[arg(long, value_name = "FILE")]
    pub store_ca: Option<PathBuf>,
    /// Leave the schema unchanged and refuse an old one, for a user who may not create tables: run
    /// `braid migrate` before.
    #[arg(long)]
    pub store_no_migrate: bool,
}

impl StoreConfig {
    /// Waits for a server that does not answer and reports why; `None` if the service is asked to
    /// end before it does.
    pub async fn open(&self, context: &Context) -> Result<Option<Arc<dyn Store>>, ConfigError> {
        let url = match &self.store {
            StoreUrl::Embedded(dir) => return open_store(dir).map(Some),
            StoreUrl::Timescale(url) => url,
        };
        let options = self.options(url)?;
        let mut waiting: Option<CheckHandle> = None;
        let mut backoff = Backoff::for_reconnect();
        loop {
            let failure = tokio::select! {
                opened = TimescaleStore::open(&options) => match opened {
                    Ok(store) => {
                        if let Some(check) = waiting {
                            check.ok();
                        }
                        return Ok(Some(Arc::new(store)));
                    }
                    Err(failure) => failure,
                },
                () = context.shutdown().requested() => return Ok(None),
            };
            if !failure.may_pass() {
                return Err(refused(&failure));
            }
            tracing::warn!(attempt = backoff.attempts() + 1, "waiting: {failure}");
            waiting
                .get_or_insert_with(|| context.health().check("store"))
                .failing(failure.to_string());
            tokio::select! {
                () = backoff.wait() => {}
                () = context.shutdown().requested() => return Ok(None),
            }
        }
    }

    /// The same for a command that cannot wait: a server that does not answer is a failure.
    pub async fn open_now(&self) -> Result<Arc<dyn Store>, ConfigError> {
        match &self.store {
            StoreUrl::Embedded(dir) => {
                let (store, begun) = begin_store(dir)?;
                if let Some(begun) = begun {
                    eprintln!("braid: {begun}");
                }
                Ok(store)
            }
            StoreUrl::Timescale(url) => {
                let store = TimescaleStore::open(&self.options(url)?).await;
                Ok(Arc::new(store.map_err(|failure| refused(&failure))?))
            }
        }
    }

    pub fn options(&self, url: &str) -> Result<TimescaleOptions, ConfigError> {
        let tls_roots = match &self.store_ca {
            None => None,
            Some(path) => Some(std::fs::read(path).map_err(|error| {
                ConfigError::new(
                    "store_ca",
                    format!("{}: {error}", path.display()),
                    "--store-ca ca.pem",
                )
            })?),
        };
        let options = TimescaleOptions {
            tls_roots,
            migrate: !self.store_no_migrate,
            ..TimescaleOptions::new(url, self.store_password.expose())
        };
        TimescaleStore::address(&options).map_err(|failure| refused(&failure))?;
        Ok(options)
    }
}

/// Flags of commands for people: the store in the data directory, or that of `--store`; use with
/// `#[command(flatten)]`.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreChoice {
    /// Data directory of the embedded store.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    data: PathBuf,
    #[command(flatten)]
    other: OtherStore,
}

/// Flags of a store other than the one in the data directory.
#[derive(Clone, Debug, clap::Args)]
pub struct OtherStore {
    /// Another store: sqlite:DIRECTORY or postgres://USER@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL", env = "BRAID_STORE")]
    store: Option<StoreUrl>,
    /// Password of the URL's user.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "BRAID_STORE_PASSWORD",
        default_value = ""
    )]
    store_password: Secret,
    /// PEM file of the authorities for the database server's certificate.
    #[arg(long, value_name = "FILE", env = "BRAID_STORE_CA")]
    store_ca: Option<PathBuf>,
}

impl OtherStore {
    /// `data`: the directory of the embedded store.
    pub fn config(&self, data: &Path) -> StoreConfig {
        StoreConfig {
            store: self
                .store
                .clone()
                .unwrap_or_else(|| StoreUrl::Embedded(data.to_owned())),
            store_password: self.store_password.clone(),
            store_ca: self.store_ca.clone(),
            store_no_migrate: false,
        }
    }
}

impl StoreChoice {
    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn config(&self) -> StoreConfig {
        self.other.config(&self.data)
    }

    /// Also takes the store's catalogue of metrics into this process, so that rules and readings of
    /// added metrics can be read.
    pub async fn open(&self) -> Result<Arc<dyn Store>, ConfigError> {
        let store = self.config().open_now().await?;
        match store::take_catalogue(&*store).await {
            Ok(catalogue) => {
                for damaged in catalogue.damaged {
                    eprintln!("braid: {damaged}");
                }
            }
            Err(error) => eprintln!("braid: added metrics are not known: {error}"),
        }
        Ok(store)
    }
}

pub fn refused(failure: &OpenError) -> ConfigError {
    let (field, example) = match failure {
        OpenError::Credentials { .. } => ("store_password", "BRAID_INGEST_STORE_PASSWORD=..."),
        OpenError::Tls { .. } => ("store_ca", "--store-ca ca.pem"),
        OpenError::Older { .. } | OpenError::Migration { .. } => (
            "store",
            "braid migrate --store postgres://owner@timescaledb:5432/braid",
        ),
        _ => ("store", EXAMPLE),
    };
    ConfigError::new(field, failure.to_string(), example)
}

pub fn open_store(dir: &Path) -> Result<Arc<dyn Store>, ConfigError> {
    let (store, begun) = begin_store(dir)?;
    if let Some(begun) = begun {
        // Expected at a first start, and otherwise a warning.
        tracing::warn!("{begun}");
    }
    Ok(store)
}

/// Also returns a message if the store is new: after a mistyped directory the empty store must not
/// pass for an existing one.
fn begin_store(dir: &Path) -> Result<(Arc<dyn Store>, Option<String>), ConfigError> {
    let is_new = !dir.join(STORE_FILE).exists();
    let store = SqliteStore::open(dir).map_err(|error| {
        ConfigError::new(
            "store",
            format!("{}: {error}", dir.display()),
            "--store sqlite:./data",
        )
    })?;
    let begun = is_new.then(|| {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        format!(
            "there was no store in {}: a new, empty one is begun",
            dir.display()
        )
    });
    Ok((Arc::new(store), begun))
}

/// Default of `--store` and `--bus` of commands for people, equal to that of `braid up`.
pub fn default_url() -> String {
    let data = std::env::var("BRAID_DATA").unwrap_or_else(|_| "./data".to_owned());
    format!("sqlite:{data}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_engines_are_named_by_their_urls() {
        assert_eq!("sqlite:/a/b".parse(), Ok(StoreUrl::Embedded("/a/b".into())));
        let url = "postgres://u@h:5432/d";
        assert_eq!(url.parse(), Ok(StoreUrl::Timescale(url.to_owned())));
        for text in [
            "",
            "/a/b",
            "sqlite:",
            "mysql:x",
            "postgres://u:secret@h/d",
            "postgres://h",
        ] {
            let refused = text.parse::<StoreUrl>();
            assert!(
                refused
                    .as_ref()
                    .is_err_and(|reason| reason.contains("sqlite:") && reason.contains("postgres:")),
                "{text}: {refused:?}"
            );
            assert!(!format!("{refused:?}").contains("secret"));
        }
    }

    #[test]
    fn a_server_elsewhere_needs_an_authority() {
        let config = StoreConfig {
            store: StoreUrl::Embedded(".".into()),
            store_password: Secret::new(""),
            store_ca: None,
            store_no_migrate: false,
        };
        let refused = config.options("postgres://u@db.example/d");
        assert!(refused.is_err_and(|e| e.field == "store_ca"));
        assert!(config.options("postgres://u@127.0.0.1/d").is_ok());
    }
}
