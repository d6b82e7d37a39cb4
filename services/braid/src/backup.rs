//! `braid backup`: a copy of the embedded store, its way back, and the list of what must not come
//! back with it. `infra/backup/backup.py` does the same for TimescaleDB.

use std::path::{Path, PathBuf};

use bus::EmbeddedBus;
use store::{removals, sqlite::backup};

use crate::process::Failure;

/// Name of the list in the folder of the backups.
const LIST: &str = "removed.jsonl";

#[derive(Debug, clap::Subcommand)]
pub enum BackupCommand {
    /// Copy the store at one moment, while services run. Also completes the list of removals.
    #[command(after_help = "Example:\n  braid backup make /backups/2026-11-22")]
    Make(Copied),
    /// Compare a copy with its manifest.
    #[command(after_help = "Example:\n  braid backup check /backups/2026-11-22")]
    Check {
        /// The copy.
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Put a copy in the place of the store, with the services stopped. Gateways, accounts,
    /// intervals and patients that were revoked, removed, ended or erased stay so, and notices are
    /// not repeated.
    #[command(after_help = "Example:\n  braid backup restore /backups/2026-11-22")]
    Restore(Copied),
    /// Complete the list of what was revoked, removed or ended. Run it often, for example every
    /// minute, onto another disk.
    #[command(after_help = "Example:\n  braid backup removed /backups/removed.jsonl")]
    Removed {
        /// The list. It is created if it is missing, and lines are only appended.
        #[arg(value_name = "FILE")]
        list: PathBuf,
        #[command(flatten)]
        data: Data,
    },
}

#[derive(Debug, clap::Args)]
pub struct Data {
    /// Data directory of the embedded store.
    #[arg(long, value_name = "DIR", env = "BRAID_DATA", default_value = "./data")]
    data: PathBuf,
}

#[derive(Debug, clap::Args)]
pub struct Copied {
    /// The copy.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    #[command(flatten)]
    data: Data,
    /// List of what was revoked, removed or ended. Default: `removed.jsonl` beside the copy.
    #[arg(long, value_name = "FILE")]
    removed: Option<PathBuf>,
}

impl Copied {
    fn list(&self) -> PathBuf {
        match &self.removed {
            Some(list) => list.clone(),
            None => self.folder.with_file_name(LIST),
        }
    }
}

impl BackupCommand {
    pub fn run(self) -> Result<(), Failure> {
        match self {
            BackupCommand::Make(copied) => make(&copied),
            BackupCommand::Check { folder } => {
                let manifest = backup::check(&folder).map_err(Failure::other)?;
                println!("{}: whole, {} rows", folder.display(), manifest.rows());
                Ok(())
            }
            BackupCommand::Restore(copied) => restore(&copied),
            BackupCommand::Removed { list, data } => {
                let known = complete(&list, &data.data)?;
                println!("{}: {known} removals", list.display());
                Ok(())
            }
        }
    }
}

fn make(copied: &Copied) -> Result<(), Failure> {
    let made = backup::make(&copied.data.data, &copied.folder, contracts::now_us());
    let manifest = made.map_err(Failure::other)?;
    let known = complete(&copied.list(), &copied.data.data)?;
    println!(
        "{}: {} rows; {}: {known} removals",
        copied.folder.display(),
        manifest.rows(),
        copied.list().display()
    );
    Ok(())
}

/// The number of removals that the list has now.
fn complete(list: &Path, data: &Path) -> Result<usize, Failure> {
    let found = backup::removals(data).map_err(Failure::other)?;
    let known = removals::append(list, found).map_err(Failure::other)?;
    Ok(known.len())
}

fn restore(copied: &Copied) -> Result<(), Failure> {
    let (data, list) = (&copied.data.data, copied.list());
    if EmbeddedBus::is_open(data) {
        return Err(Failure::other(format!(
            "{} is in use: stop the services first",
            data.display()
        )));
    }
    // Acts up to the loss, if the present store can still be read.
    match backup::removals(data) {
        Ok(found) => {
            removals::append(&list, found).map_err(Failure::other)?;
        }
        Err(error) => eprintln!(
            "the present store cannot be read ({error}): what was revoked or removed since the last entry of {} comes back",
            list.display()
        ),
    }
    let known = removals::read(&list).map_err(Failure::other)?;
    let restored = backup::restore(data, &copied.folder, &known, contracts::now_us());
    let manifest = restored.map_err(Failure::other)?;
    println!(
        "{}: restored, {} rows; {} removals done again; the store of before is in store-before-restore",
        data.display(),
        manifest.rows(),
        known.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use contracts::patients::Operation;
    use store::{Account, Accounts, Change, PatientsStore, Role, SqliteStore};

    use super::*;
    use crate::process;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: BackupCommand,
    }

    #[test]
    fn what_was_removed_or_erased_stays_so_over_a_restore() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let copy = dir.path().join("copies/monday");
        std::fs::create_dir(dir.path().join("copies")).unwrap();
        let run = |args: &[&str]| {
            let line = [&["backup"], args, &["--data", data.to_str().unwrap()]].concat();
            Line::parse_from(line).command.run()
        };
        let copy = copy.to_str().unwrap();
        let account = |name: &str| Account {
            name: name.to_owned(),
            tenant: "home".to_owned(),
            role: Role::Viewer,
            password_hash: String::new(),
            created_us: 1,
        };
        let names = || {
            process::block_on(async {
                let store = SqliteStore::open(&data).unwrap();
                let accounts = store.accounts(&store::Scope::Service).await.unwrap();
                accounts.into_iter().map(|it| it.name).collect::<Vec<_>>()
            })
            .unwrap()
        };
        let change = async |store: &SqliteStore, operation: Operation| {
            let change = contracts::patients::Change {
                patient: "ada".to_owned(),
                operation: operation.into(),
                ..Default::default()
            };
            let by = Change::by_program("mistake");
            let changed = store.change_patients("home", &[change], &by).await;
            changed.unwrap();
        };
        let has_record = || {
            process::block_on(async {
                let store = SqliteStore::open(&data).unwrap();
                let record = store.patient_record(&store::Scope::Service, "ada");
                record.await.unwrap().is_some()
            })
            .unwrap()
        };
        process::block_on(async {
            let store = SqliteStore::open(&data).unwrap();
            store.put_account(&account("eve")).await.unwrap();
            store.put_account(&account("bob")).await.unwrap();
            change(&store, Operation::Expect).await;
        })
        .unwrap();
        assert!(has_record());
        run(&["make", copy]).unwrap();
        let check = Line::parse_from(["backup", "check", copy]);
        check.command.run().unwrap();
        process::block_on(async {
            let store = SqliteStore::open(&data).unwrap();
            store.remove_account("eve").await.unwrap();
            change(&store, Operation::Erase).await;
        })
        .unwrap();
        let bus = EmbeddedBus::open(&data, bus::EmbeddedOptions::default()).unwrap();
        let in_use = run(&["restore", copy]).unwrap_err().to_string();
        assert!(in_use.contains("stop the services first"), "{in_use}");
        drop(bus);
        run(&["restore", copy]).unwrap();
        assert_eq!(names(), ["bob"]);
        assert!(!has_record());

        // The data directory is lost; the list beside the copy is not.
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::create_dir(&data).unwrap();
        run(&["restore", copy]).unwrap();
        assert_eq!(names(), ["bob"]);
        assert!(!has_record());
    }
}
