//! Which bus and which store a service runs on.

mod store;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bus::{Bus, EmbeddedBus, EmbeddedOptions};
use serde::{Serialize, Serializer};
use service_kit::{ConfigError, Context};

use self::store::open_store;
pub use self::store::{StoreChoice, StoreConfig, StoreUrl};
use ::store::Store;

/// `sqlite:DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineUrl {
    dir: PathBuf,
}

impl FromStr for EngineUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<EngineUrl, String> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err("names no engine: write sqlite:DIRECTORY".to_owned());
        };
        match scheme {
            "sqlite" if !rest.is_empty() => Ok(EngineUrl { dir: rest.into() }),
            "sqlite" => Err("names no directory: write sqlite:DIRECTORY".to_owned()),
            "kafka" | "postgres" | "postgresql" => Err(format!(
                "{scheme} is not in this build, which has the embedded engine: write sqlite:DIRECTORY"
            )),
            other => Err(format!("{other} is no engine: write sqlite:DIRECTORY")),
        }
    }
}

impl Serialize for EngineUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("sqlite:{}", self.dir.display()))
    }
}

/// `#[command(flatten)]` of every service that stands on bus and store.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct EnginesConfig {
    /// Bus to publish to and to consume from.
    #[arg(long, value_name = "URL", default_value = "sqlite:./data")]
    pub bus: EngineUrl,
    #[command(flatten)]
    pub store: StoreConfig,
}

impl EnginesConfig {
    /// Opens both; several processes may open the same directory. Waits for a server that does not answer; `None` when the
    /// service is asked to end before it does.
    pub async fn open(&self, context: &Context) -> Result<Option<Engines>, ConfigError> {
        let Some(store) = self.store.open(context).await? else {
            return Ok(None);
        };
        Ok(Some(Engines {
            bus: open_bus(&self.bus.dir)?,
            store,
        }))
    }
}

/// What the services of a process share.
#[derive(Clone)]
pub struct Engines {
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn Store>,
}

impl Engines {
    pub fn open(bus_dir: &Path, store_dir: &Path) -> Result<Engines, ConfigError> {
        Ok(Engines {
            bus: open_bus(bus_dir)?,
            store: open_store(store_dir)?,
        })
    }
}

fn open_bus(dir: &Path) -> Result<Arc<dyn Bus>, ConfigError> {
    let bus = EmbeddedBus::open(dir, EmbeddedOptions::default()).map_err(|error| {
        ConfigError::new(
            "bus",
            format!("{}: {error}", dir.display()),
            "--bus sqlite:./data",
        )
    })?;
    Ok(Arc::new(bus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engines_that_are_built_in_are_accepted() {
        assert_eq!(
            "sqlite:/a/b".parse::<EngineUrl>().map(|url| url.dir),
            Ok("/a/b".into())
        );
        for text in [
            "",
            "/a/b",
            "sqlite:",
            "kafka://b:9092",
            "postgres://u:secret@h/d",
            "mysql:x",
        ] {
            let refused = text.parse::<EngineUrl>();
            assert!(
                refused
                    .as_ref()
                    .is_err_and(|reason| reason.contains("sqlite:")),
                "{text}"
            );
            assert!(!format!("{refused:?}").contains("secret"));
        }
    }
}
