//! `braid accounts kiosk`: wall displays, each opened by a code that works once.

use dashboard::kiosks;
use serde_json::json;
use store::{Scope, SessionKind};

use super::logged::audit;
use crate::audit::Asker;
use crate::process::{self, Failure};
use crate::signed::By;
use crate::tenancy::Tenancy;

const MINUTE_US: i64 = 60_000_000;

#[derive(Debug, clap::Subcommand)]
pub enum KioskCommand {
    /// Make a code for a wall display. It works once, within 15 minutes. A display only reads, has
    /// no end, and is revoked by its name.
    #[command(
        after_help = "Example:\n  braid accounts kiosk add hall --page https://braid.example --by \"Ada Operator\""
    )]
    Add {
        /// Name of the display, unique in its tenant; the page shows it.
        #[arg(value_name = "NAME")]
        name: String,
        /// Address of the dashboard, for the printed link.
        #[arg(long, value_name = "URL", default_value = "")]
        page: String,
        #[command(flatten)]
        by: By,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List the wall displays of a tenant, and codes that wait for one.
    List {
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// End a wall display, or its code. The display shows it within seconds.
    #[command(after_help = "Example:\n  braid accounts kiosk revoke hall --by \"Ada Operator\"")]
    Revoke {
        /// Name of the display.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        by: By,
        #[command(flatten)]
        tenancy: Tenancy,
    },
}

/// A display, or a code that waits for one.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    is_open: bool,
    /// When the display got its newest token, or when the code ends.
    at_us: i64,
}

impl KioskCommand {
    pub async fn on_store(self) -> Result<(), Failure> {
        match self {
            Self::Add {
                name,
                page,
                by,
                tenancy,
            } => add(&name, &page, &by, &tenancy).await,
            Self::List {
                json,
                asker,
                tenancy,
            } => list(json, &asker, &tenancy).await,
            Self::Revoke { name, by, tenancy } => revoke(&name, &by, &tenancy).await,
        }
    }
}

async fn add(name: &str, page: &str, by: &By, tenancy: &Tenancy) -> Result<(), Failure> {
    let (store, tenant) = (tenancy.store.open().await?, &tenancy.tenant);
    let now_us = contracts::now_us();
    let free = kiosks::check(&*store, tenant, name, now_us).await;
    free.map_err(Failure::other)?;
    audit(&*store, tenant, by, "add kiosk", name, "").await?;
    let added = kiosks::add(&*store, tenant, name, now_us).await;
    let code = added.map_err(Failure::other)?;
    let minutes = (code.until_us - now_us) / MINUTE_US;
    let page = match page.trim_end_matches('/') {
        "" => "PAGE",
        page => page,
    };
    println!("{page}/?kiosk={}", code.text);
    println!(
        "Open this on the display {name} of {tenant:?} within {minutes} minutes, until {}. It works once.",
        process::when(code.until_us)
    );
    if page == "PAGE" {
        println!("PAGE is the address of the dashboard; --page prints the whole link.");
    }
    Ok(())
}

async fn list(json: bool, asker: &Asker, tenancy: &Tenancy) -> Result<(), Failure> {
    let (store, tenant) = (tenancy.store.open().await?, &tenancy.tenant);
    asker
        .reads(&*store, tenant, "read kiosks", "", String::new())
        .await?;
    let scope = Scope::tenant(tenant.clone());
    let known = store.kiosks(&scope, contracts::now_us()).await;
    let mut listed: Vec<Listed> = Vec::new();
    // A display may hold two tokens for a while; the newest is first.
    for it in known.map_err(Failure::other)? {
        let is_open = it.kind == SessionKind::Kiosk;
        if listed.last().is_none_or(|last| last.name != it.name) {
            listed.push(Listed {
                at_us: if is_open { it.opened_us } else { it.expires_us },
                name: it.name,
                is_open,
            });
        }
    }
    if json {
        let rows = listed.iter().map(|it| {
            let (state, at) = match it.is_open {
                true => ("open", "renewed_us"),
                false => ("code", "until_us"),
            };
            json!({"name": it.name, "state": state, at: it.at_us})
        });
        return process::json(&rows.collect::<Vec<_>>());
    }
    for it in listed {
        let when = process::when(it.at_us);
        match it.is_open {
            true => println!("{}  open, renewed {when}", it.name),
            false => println!("{}  waits for its code until {when}", it.name),
        }
    }
    Ok(())
}

async fn revoke(name: &str, by: &By, tenancy: &Tenancy) -> Result<(), Failure> {
    let (store, tenant) = (tenancy.store.open().await?, &tenancy.tenant);
    let scope = Scope::tenant(tenant.clone());
    let known = store.kiosks(&scope, contracts::now_us()).await;
    let known = known.map_err(Failure::other)?;
    if !known.iter().any(|it| it.name == name) {
        return Err(Failure::other(format!(
            "there is no wall display {name:?} in tenant {tenant:?}: see `braid accounts kiosk list`"
        )));
    }
    audit(&*store, tenant, by, "revoke kiosk", name, "").await?;
    let revoked = store.revoke_kiosk(tenant, name).await;
    revoked.map_err(Failure::other)?;
    println!("{name} is revoked");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use store::{Accounts, AuditQuery, Role, SessionsStore, SqliteStore, StoredSession};

    use super::super::AccountsCommand;
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        command: AccountsCommand,
    }

    #[test]
    fn a_display_is_added_listed_and_revoked_by_its_own_tenant() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_str().unwrap();
        let run = |tenant: &str, args: &[&str]| {
            let options = ["--by", "ada", "--tenant", tenant, "--data", data];
            let line = [&["accounts", "kiosk"], args, &options].concat();
            Line::parse_from(line).command.run()
        };
        let known = || {
            process::block_on(async {
                let store = SqliteStore::open(dir.path()).unwrap();
                let known = store.kiosks(&Scope::Service, contracts::now_us()).await;
                known.unwrap()
            })
            .unwrap()
        };
        run("home", &["add", "hall"]).unwrap();
        run("home", &["add", "two\nlines"]).unwrap_err();
        let code = known();
        let [code] = &code[..] else {
            panic!("one code: {code:?}");
        };
        assert_eq!(
            (code.kind, &*code.name, &*code.tenant, code.role),
            (SessionKind::KioskCode, "hall", "home", Role::Viewer)
        );
        let minutes = (code.expires_us - code.opened_us) / MINUTE_US;
        assert_eq!(minutes, 15, "as the help says");
        run("home", &["list"]).unwrap();
        process::block_on(async {
            let store = SqliteStore::open(dir.path()).unwrap();
            let opened = StoredSession {
                kind: SessionKind::Kiosk,
                expires_us: i64::MAX,
                ..code.clone()
            };
            store.open_session(&opened).await.unwrap();
        })
        .unwrap();
        let taken = run("home", &["add", "hall"]).unwrap_err().to_string();
        assert!(taken.contains("revoke it first"), "{taken}");
        run("home", &["list", "--json"]).unwrap();
        let other = run("ward", &["revoke", "hall"]).unwrap_err().to_string();
        assert!(other.contains("there is no wall display"), "{other}");
        assert_eq!(known().len(), 1);
        run("home", &["revoke", "hall"]).unwrap();
        assert_eq!(known(), []);
        let log = process::block_on(async {
            let store = SqliteStore::open(dir.path()).unwrap();
            let query = AuditQuery {
                patient: None,
                from_us: 0,
                to_us: i64::MAX,
                limit: 0,
            };
            let scope = Scope::tenant("home");
            Accounts::audit(&store, &scope, &query).await.unwrap()
        })
        .unwrap();
        let actions: Vec<&str> = log.iter().map(|row| row.action.as_str()).rev().collect();
        assert_eq!(
            actions,
            ["add kiosk", "read kiosks", "read kiosks", "revoke kiosk"]
        );
        assert!(log.iter().all(|row| row.who.starts_with("ada (said by ")));
    }
}
