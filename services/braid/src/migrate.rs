//! `braid migrate`: brings the store's schema up to date, with rights that the services need not
//! have.

use store::TimescaleStore;

use crate::engines::{StoreChoice, StoreUrl};
use crate::process::{self, Failure};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  BRAID_STORE_PASSWORD=... braid migrate --store-ca ca.pem \\\n      --store postgres://owner@timescaledb:5432/braid"
)]
pub struct MigrateCommand {
    #[command(flatten)]
    store: StoreChoice,
}

impl MigrateCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(async move {
            let config = self.store.config();
            match &config.store {
                StoreUrl::Embedded(dir) => {
                    config.open_now().await?;
                    println!("{}: up to date", dir.display());
                }
                StoreUrl::Timescale(url) => {
                    let applied = TimescaleStore::migrate(&config.options(url)?)
                        .await
                        .map_err(Failure::other)?;
                    match applied.to - applied.from {
                        0 => println!("up to date, version {}", applied.to),
                        _ => println!("migrated from version {} to {}", applied.from, applied.to),
                    }
                }
            }
            Ok(())
        })?
    }
}
