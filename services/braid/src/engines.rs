//! The bus and the store of a service.

mod bus;
mod store;

use std::path::Path;
use std::sync::Arc;

use ::bus::Bus;
use ::store::Store;
use serde::Serialize;
use service_kit::{ConfigError, Context, LISTENER};

pub use self::bus::{BusChoice, BusConfig};
use self::bus::{BusUrl, open_embedded};
use self::store::OtherStore;
use self::store::open_store;
pub use self::store::{
    STORE_FILE, StoreChoice, StoreConfig, StoreUrl, default_url, refused as store_refusal,
};

/// Flags of every service with bus and store; use with `#[command(flatten)]`.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub struct EnginesConfig {
    #[command(flatten)]
    pub bus: BusConfig,
    #[command(flatten)]
    pub store: StoreConfig,
}

impl EnginesConfig {
    /// The embedded engines in this directory, unless others are named.
    pub fn in_directory(mut self, data: &Path) -> EnginesConfig {
        let unnamed = default_url();
        if self.bus.bus.to_string() == unnamed {
            self.bus.bus = BusUrl::Embedded(data.to_owned());
        }
        if self.store.store.to_string() == unnamed {
            self.store.store = StoreUrl::Embedded(data.to_owned());
        }
        self
    }

    /// Opens both; several processes may open the same directory. Waits for servers that do not
    /// answer; `None` if the service is asked to end before they do.
    pub async fn open(&self, context: &Context) -> Result<Option<Engines>, ConfigError> {
        // The answering engines are not enough for readiness: the service must listen as well.
        context.health().check(LISTENER);
        // Concurrently, so that both report what they wait for.
        let (bus, store) = tokio::try_join!(self.bus.open(context), self.store.open(context))?;
        Ok(bus.zip(store).map(|(bus, store)| Engines { bus, store }))
    }
}

/// Flags of commands for people that need both; use with `#[command(flatten)]`.
#[derive(Clone, Debug, clap::Args)]
pub struct EnginesChoice {
    #[command(flatten)]
    bus: BusChoice,
    #[command(flatten)]
    store: OtherStore,
}

impl EnginesChoice {
    pub async fn open(&self) -> Result<Engines, ConfigError> {
        let store = self.store.config(&self.bus.data);
        let (bus, store) = tokio::try_join!(self.bus.open(), store.open_now())?;
        Ok(Engines { bus, store })
    }
}

/// The engines that the services of a process share.
#[derive(Clone)]
pub struct Engines {
    pub bus: Arc<dyn Bus>,
    pub store: Arc<dyn Store>,
}

impl Engines {
    pub fn open(bus_dir: &Path, store_dir: &Path) -> Result<Engines, ConfigError> {
        Ok(Engines {
            bus: open_embedded(bus_dir)?,
            store: open_store(store_dir)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(clap::Parser)]
    #[command(
        mut_arg("store", |arg| arg.default_value(default_url())),
        mut_arg("bus", |arg| arg.default_value(default_url()))
    )]
    struct Line {
        #[command(flatten)]
        engines: EnginesConfig,
    }

    #[test]
    fn a_data_directory_is_the_default_of_both_engines() {
        let engines = |flags: &[&str]| {
            let line = ["doctor"].iter().chain(flags);
            let engines = Line::parse_from(line).engines;
            let engines = engines.in_directory(Path::new("/ward"));
            [engines.bus.bus.to_string(), engines.store.store.to_string()]
        };
        assert_eq!(engines(&[]), ["sqlite:/ward", "sqlite:/ward"]);
        assert_eq!(
            engines(&["--bus", "sqlite:/other"]),
            ["sqlite:/other", "sqlite:/ward"]
        );
    }
}
