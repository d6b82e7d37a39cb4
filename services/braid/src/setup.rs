//! `braid setup`: prepares the store of an installation of separate services. Every run does what
//! is missing.

use serde::Serialize;
use service_kit::{ConfigError, Secret};
use store::{Role, TimescaleStore};

use crate::demonstration_ward::DemonstrationWard;
use crate::engines::{StoreConfig, StoreUrl};
use crate::process::{self, Failure};

/// Simulated patients; one feed sends for all, and keeps 8,192 samples while its gateway is away.
const PATIENTS_MAX: u32 = 1_000;

#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(
    after_help = "Example:\n  braid setup --store postgres://braid@timescaledb/braid \\\n      --config braid.toml --patients 3"
)]
pub struct SetupCommand {
    #[command(flatten)]
    store: StoreConfig,
    /// Password of the first administrator, who is created if there is none of that name.
    #[arg(long, value_name = "PASSWORD")]
    admin_password: Option<Secret>,
    /// Simulated patients to enter into the register, with their devices.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    patients: u32,
    /// Prefix of their names and their devices', to distinguish several swarms.
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,
    /// The gateway of their devices.
    #[arg(long, value_name = "ID", default_value = "gw-1")]
    gateway: String,
}

impl SetupCommand {
    pub fn run(self) -> Result<(), Failure> {
        validate_patients(self.patients)?;
        process::block_on(async move {
            if let StoreUrl::Timescale(url) = &self.store.store {
                let applied = TimescaleStore::migrate(&self.store.options(url)?)
                    .await
                    .map_err(Failure::other)?;
                println!("schema: version {}", applied.to);
            }
            let store = self.store.open_now().await?;
            if let Some(password) = &self.admin_password {
                let name = dashboard::accounts::FIRST_ACCOUNT;
                dashboard::accounts::ensure(
                    store.as_ref(),
                    name,
                    password.expose(),
                    Role::Administrator,
                )
                .await
                .map_err(Failure::other)?;
                println!("administrator: {name}");
            }
            DemonstrationWard::behind(&self.gateway, &self.label, self.patients)
                .register(store.as_ref())
                .await?;
            println!("simulated patients: {}", self.patients);
            Ok(())
        })?
    }
}

pub fn validate_patients(patients: u32) -> Result<(), ConfigError> {
    if patients > PATIENTS_MAX {
        return Err(ConfigError::new(
            "patients",
            format!("{patients} are more than the {PATIENTS_MAX} that one process simulates"),
            "--patients 3",
        ));
    }
    Ok(())
}
