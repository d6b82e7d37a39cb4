//! Author and reason of a decision, or of a look at patients' data, on the command line.
//!
//! The author is proven by the password of an account. A name without proof is a claim, and the log
//! names the system's user beside it, because anybody with a shell can type any name.

use std::fs;

use service_kit::Secret;
use store::Store;
use vitals::{PERSON_BYTES_MAX, validate_text};

use crate::process::Failure;

/// Bytes of the machine's name in the log; a longer one is cut.
const HOST_BYTES_MAX: usize = 40;

/// The person who acts.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct By {
    /// Person who acts, for the audit log: an account with --by-password, else a name that is
    /// marked as said by the system's user. Absent: the system's user.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Password of the account in --by, which proves the person.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "BRAID_BY_PASSWORD",
        requires = "by"
    )]
    by_password: Option<Secret>,
}

impl By {
    #[cfg(test)]
    pub fn named(name: &str) -> By {
        By {
            by: Some(name.to_owned()),
            by_password: None,
        }
    }

    /// The author for the log. A wrong password is refused.
    pub async fn who(&self, store: &dyn Store, tenant: &str) -> Result<String, Failure> {
        let Some(name) = self.by.as_deref().map(str::trim) else {
            return Ok(format!("{} (system user)", system_user()));
        };
        validate_text("by", name, PERSON_BYTES_MAX, "\"Eve Nurse\"").map_err(Failure::other)?;
        let Some(password) = &self.by_password else {
            return Ok(format!("{name} (said by {}, system user)", system_user()));
        };
        let proven = dashboard::accounts::verify(store, name, password.expose()).await;
        match proven.map_err(Failure::other)? {
            Some(account) if account.tenant == tenant => Ok(account.name),
            _ => Err(Failure::other(format!(
                "--by-password is not the password of an account {name:?} of tenant {tenant:?}"
            ))),
        }
    }
}

/// Author and reason of a decision.
#[derive(Debug, Clone, clap::Args)]
pub struct Signed {
    #[command(flatten)]
    pub by: By,
    /// Reason, stored with the decision.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// `root@ward-pc`, by the kernel's number of the user and not by a variable.
fn system_user() -> String {
    let number = rustix::process::getuid().as_raw();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = name_of(number, &users).unwrap_or_else(|| format!("user {number}"));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().take(HOST_BYTES_MAX).collect();
    contracts::text::line(&format!("{user}@{host}")).into_owned()
}

/// The name of a user in the form of `/etc/passwd`.
fn name_of(number: u32, users: &str) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, of) = (fields.next()?, fields.nth(1)?);
        (of.parse() == Ok(number)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::{Role, SqliteStore};

    use super::*;

    #[tokio::test]
    async fn a_name_without_proof_is_marked_and_a_wrong_password_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let put = dashboard::accounts::set_password(
            &store,
            "eve",
            "home",
            "the right password",
            Role::Clinician,
        );
        put.await.unwrap();
        let who = async |by: Option<&str>, password: Option<&str>, tenant: &str| {
            let by = By {
                by: by.map(str::to_owned),
                by_password: password.map(Secret::new),
            };
            by.who(&store, tenant).await.map_err(|it| it.to_string())
        };
        let user = system_user();
        let nobody = who(None, None, "home").await.unwrap();
        assert_eq!(nobody, format!("{user} (system user)"));
        let said = who(Some("eve"), None, "home").await.unwrap();
        assert_eq!(said, format!("eve (said by {user}, system user)"));
        let proven = who(Some("eve"), Some("the right password"), "home").await;
        assert_eq!(proven.unwrap(), "eve");
        for (name, password, tenant) in [
            ("eve", "another password", "home"),
            ("ann", "the right password", "home"),
            ("eve", "the right password", "ward"),
        ] {
            let refused = who(Some(name), Some(password), tenant).await.unwrap_err();
            assert!(refused.contains("is not the password"), "{refused}");
        }
        assert!(who(Some(" "), None, "home").await.is_err());
    }

    #[test]
    fn a_user_is_named_by_the_number_of_the_kernel() {
        let users = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbroken\n";
        assert_eq!(name_of(0, users).as_deref(), Some("root"));
        assert_eq!(name_of(1000, users).as_deref(), Some("ann"));
        assert_eq!(name_of(7, users), None);
    }
}
