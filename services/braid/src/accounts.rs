//! `braid accounts`: people who sign in with a password, and wall displays. A changed or removed
//! account loses its sessions within seconds.

mod kiosk;
mod logged;

use serde_json::json;
use service_kit::Secret;
use store::{Role, Scope, Store};

use self::logged::audit;
use crate::audit::Asker;
use crate::process::{self, Failure};
use crate::signed::By;
use crate::tenancy::Tenancy;

#[derive(Debug, clap::Subcommand)]
pub enum AccountsCommand {
    /// Make an account, or set its password and role.
    #[command(
        after_help = "Example:\n  BRAID_ACCOUNT_PASSWORD=\"$(openssl rand -base64 12)\" braid accounts put eve \\\n      --role clinician --by \"Ada Operator\""
    )]
    Put {
        /// The account; unique over all tenants.
        #[arg(value_name = "NAME")]
        name: String,
        /// Each role includes the rights of the role before it.
        #[arg(long, value_name = "ROLE", value_parser = ["viewer", "clinician", "administrator"])]
        role: String,
        /// The password; a variable is not visible to other users of this machine.
        #[arg(long, value_name = "PASSWORD", env = "BRAID_ACCOUNT_PASSWORD")]
        password: Secret,
        #[command(flatten)]
        by: By,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// List the accounts of a tenant.
    List {
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        asker: Asker,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Remove an account.
    Remove {
        /// The account; unique over all tenants.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        by: By,
        #[command(flatten)]
        tenancy: Tenancy,
    },
    /// Wall displays: screens that only show the ward of a tenant, without an end.
    #[command(subcommand)]
    Kiosk(kiosk::KioskCommand),
}

impl AccountsCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(self.on_store())?
    }

    async fn on_store(self) -> Result<(), Failure> {
        match self {
            Self::Put {
                name,
                role,
                password,
                by,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                let role = Role::from_name(&role).ok_or_else(|| Failure::other("no such role"))?;
                own(&*store, &name, &tenancy.tenant, false).await?;
                audit(
                    &*store,
                    &tenancy.tenant,
                    &by,
                    "put account",
                    &name,
                    role.name(),
                )
                .await?;
                let password = password.expose();
                dashboard::accounts::set_password(&*store, &name, &tenancy.tenant, password, role)
                    .await
                    .map_err(Failure::other)?;
                println!("{name} is {} of {:?}", role.name(), tenancy.tenant);
                Ok(())
            }
            Self::List {
                json,
                asker,
                tenancy,
            } => {
                let store = tenancy.store.open().await?;
                asker
                    .reads(&*store, &tenancy.tenant, "read accounts", "", String::new())
                    .await?;
                let accounts = store.accounts(&Scope::Tenant(tenancy.tenant)).await;
                let accounts = accounts.map_err(Failure::other)?;
                if json {
                    let listed = accounts
                        .iter()
                        .map(|it| json!({"name": it.name, "role": it.role.name()}));
                    return process::json(&listed.collect::<Vec<_>>());
                }
                for account in accounts {
                    println!("{}  {}", account.name, account.role.name());
                }
                Ok(())
            }
            Self::Remove { name, by, tenancy } => {
                let store = tenancy.store.open().await?;
                own(&*store, &name, &tenancy.tenant, true).await?;
                audit(&*store, &tenancy.tenant, &by, "remove account", &name, "").await?;
                store.remove_account(&name).await.map_err(Failure::other)?;
                println!("{name} is removed");
                Ok(())
            }
            Self::Kiosk(command) => command.on_store().await,
        }
    }
}

/// Names are unique over all tenants: an account of another tenant is not touched.
async fn own(store: &dyn Store, name: &str, tenant: &str, required: bool) -> Result<(), Failure> {
    let known = store.account(name).await.map_err(Failure::other)?;
    match known {
        Some(account) if account.tenant != tenant => Err(Failure::other(format!(
            "{name:?} is taken by another tenant"
        ))),
        None if required => Err(Failure::other(format!("there is no account {name:?}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;
    use store::{AuditQuery, SqliteStore};

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
        command: AccountsCommand,
    }

    #[test]
    fn an_account_is_made_changed_and_removed_by_its_own_tenant() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_str().unwrap();
        let run = |tenant: &str, args: &[&str]| {
            let options = ["--tenant", tenant, "--data", data];
            let line = [&["accounts"], args, &options].concat();
            Line::parse_from(line).command.run()
        };
        let put = |tenant: &str, password: &str, role: &str| {
            let signed = ["--by", "ada", "--password", password, "--role", role];
            run(tenant, &[&["put", "eve"], &signed[..]].concat())
        };
        let role_by = |password: &str| {
            process::block_on(async {
                let store = SqliteStore::open(dir.path()).unwrap();
                let verified = dashboard::accounts::verify(&store, "eve", password).await;
                verified
                    .unwrap()
                    .map(|account| (account.tenant, account.role))
            })
            .unwrap()
        };
        put("home", "the first password", "viewer").unwrap();
        assert_eq!(
            role_by("the first password"),
            Some(("home".into(), Role::Viewer))
        );
        put("home", "the second password", "clinician").unwrap();
        assert_eq!(role_by("the first password"), None);
        assert_eq!(
            role_by("the second password"),
            Some(("home".into(), Role::Clinician))
        );
        put("ward", "another's password", "administrator").unwrap_err();
        put("home", "short", "viewer").unwrap_err();
        run("ward", &["remove", "eve", "--by", "mallory"]).unwrap_err();
        assert!(role_by("the second password").is_some());
        run("home", &["remove", "eve", "--by", "ada"]).unwrap();
        assert_eq!(role_by("the second password"), None);
        run("home", &["remove", "eve", "--by", "ada"]).unwrap_err();
        let log = process::block_on(async {
            let store = SqliteStore::open(dir.path()).unwrap();
            let query = AuditQuery {
                patient: None,
                from_us: 0,
                to_us: i64::MAX,
                limit: 0,
            };
            let log = store::Accounts::audit(&store, &Scope::tenant("home"), &query).await;
            log.unwrap()
        })
        .unwrap();
        let actions: Vec<&str> = log.iter().map(|row| row.action.as_str()).collect();
        assert_eq!(actions.first(), Some(&"remove account"));
        assert_eq!(actions.iter().filter(|it| **it == "put account").count(), 3);
        assert!(log.iter().all(|row| row.who.starts_with("ada (said by ")));
    }
}
