//! `braid setup`: prepares the store of an installation of separate services. Every run does what
//! is missing.

use std::path::PathBuf;

use contracts::alerts::Document as Stored;
use dashboard::explain::SUBJECT;
use serde::Serialize;
use service_kit::{ConfigError, Secret};
use store::{DEFAULT_TENANT, Role, STEERING, Scope, Store, TimescaleStore};
use tunnel::steering_rules::Document;

use crate::decisions;
use crate::demonstration_ward::DemonstrationWard;
use crate::engines::{StoreConfig, StoreUrl};
use crate::process::{self, Failure};
use crate::steering;

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
    /// Steering document, as TOML or JSON, that is put in force unless one was ever put.
    #[arg(long, value_name = "FILE")]
    steering: Option<PathBuf>,
}

impl SetupCommand {
    pub fn run(self) -> Result<(), Failure> {
        validate_patients(self.patients)?;
        let steering = self.steering.as_deref().map(steering::read).transpose()?;
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
            if let Some(document) = steering {
                put_first_steering(store.as_ref(), &document).await?;
            }
            Ok(())
        })?
    }
}

/// Leaves what people have put, also where they took it back.
async fn put_first_steering(store: &dyn Store, document: &Document) -> Result<(), Failure> {
    let scope = Scope::tenant(DEFAULT_TENANT);
    let history = store.stored_history(&scope, STEERING, SUBJECT, 1).await;
    if let Some(newest) = history.map_err(Failure::other)?.first() {
        println!("steering: version {} stays", newest.version);
        return Ok(());
    }
    let first = Stored {
        kind: STEERING.to_owned(),
        tenant: DEFAULT_TENANT.to_owned(),
        subject: SUBJECT.to_owned(),
        version: 1,
        author: "braid setup".to_owned(),
        reason: "the first document of the installation".to_owned(),
        at_us: contracts::now_us(),
        until_us: 0,
        body: document.to_json(),
    };
    match decisions::put_version(store, &first).await? {
        true => println!("steering: version 1 is put"),
        false => println!("steering: a version was put meanwhile"),
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::SqliteStore;

    use super::*;

    #[tokio::test]
    async fn a_first_steering_document_never_replaces_one_that_people_put() {
        let dir = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(&dir.path().join("braid.db")).unwrap();
        let of = |freshness_ms| Document {
            freshness_ms: Some(freshness_ms),
            ..Document::default()
        };
        for freshness_ms in [500, 900] {
            put_first_steering(store, &of(freshness_ms)).await.unwrap();
        }
        let scope = Scope::tenant(DEFAULT_TENANT);
        let history = store
            .stored_history(&scope, STEERING, SUBJECT, 9)
            .await
            .unwrap();
        let [only] = history.as_slice() else {
            panic!("{history:?}");
        };
        assert!(only.document.as_ref().unwrap().body.contains("500"));
    }
}
