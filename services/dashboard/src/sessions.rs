//! The table of sessions. Sans-IO: keys and times are handed in.
//!
//! Only the owner has the token; this table holds its hash.

use std::collections::HashMap;

use store::{Account, Role};

/// Sessions of one replica. When reached, the session that would expire first ends.
pub(crate) const SESSIONS_MAX: usize = 2_000;
/// Sessions of one account; beyond it the oldest ends. So a leaked password cannot end everybody
/// else's sessions.
pub(crate) const SESSIONS_PER_ACCOUNT_MAX: usize = 32;

/// A signed-in person; an extension of every authenticated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Person {
    pub name: String,
    pub tenant: String,
    pub role: Role,
    /// The reason of this request, if the person gave one.
    pub reason: String,
}

impl Person {
    /// Viewers only look. Acknowledging and cutting links need a clinician or an administrator.
    pub(crate) fn may_act(&self) -> bool {
        self.role >= Role::Clinician
    }

    /// Whether the person decides about teams and rules.
    pub(crate) fn is_administrator(&self) -> bool {
        self.role == Role::Administrator
    }
}

/// SHA-256 of the token.
pub(crate) type Key = [u8; 32];

struct Session {
    person: Person,
    /// Hash of the account's password at sign-in. Another value now means that the password was
    /// changed.
    password_hash: String,
    expires_us: i64,
}

#[derive(Default)]
pub(crate) struct Sessions {
    table: HashMap<Key, Session>,
}

impl Sessions {
    pub(crate) fn open(&mut self, key: Key, account: &Account, now_us: i64, expires_us: i64) {
        self.table.retain(|_, session| session.expires_us > now_us);
        let of_account = |session: &Session| session.person.name == account.name;
        if self.table.values().filter(|s| of_account(s)).count() >= SESSIONS_PER_ACCOUNT_MAX {
            self.end_first(of_account);
        }
        if self.table.len() >= SESSIONS_MAX {
            self.end_first(|_| true);
        }
        self.table.insert(
            key,
            Session {
                person: Person {
                    name: account.name.clone(),
                    tenant: account.tenant.clone(),
                    role: account.role,
                    reason: String::new(),
                },
                password_hash: account.password_hash.clone(),
                expires_us,
            },
        );
    }

    fn end_first(&mut self, of: impl Fn(&Session) -> bool) {
        let first = self
            .table
            .iter()
            .filter(|(_, session)| of(session))
            .min_by_key(|(key, session)| (session.expires_us, **key))
            .map(|(key, _)| *key);
        if let Some(key) = first {
            self.table.remove(&key);
        }
    }

    pub(crate) fn person(&self, key: &Key, now_us: i64) -> Option<&Person> {
        let session = self.table.get(key)?;
        (session.expires_us > now_us).then_some(&session.person)
    }

    pub(crate) fn close(&mut self, key: &Key) -> Option<Person> {
        self.table.remove(key).map(|session| session.person)
    }

    /// Names with a session, to be looked up in the store again. People of a provider have no
    /// account there.
    pub(crate) fn names(&self) -> Vec<String> {
        let with_account = self.table.values().filter(|s| !s.password_hash.is_empty());
        let mut names: Vec<_> = with_account.map(|s| s.person.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Ends the sessions of `name` that its present account (`None`: removed) does not justify.
    pub(crate) fn recheck(&mut self, name: &str, account: Option<&Account>) {
        self.table.retain(|_, session| {
            session.person.name != name
                || account.is_some_and(|account| {
                    account.role == session.person.role
                        && account.tenant == session.person.tenant
                        && account.password_hash == session.password_hash
                })
        });
    }

    pub(crate) fn count(&self) -> usize {
        self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> Account {
        Account {
            name: name.to_owned(),
            tenant: "default".to_owned(),
            role: Role::Clinician,
            password_hash: "h".to_owned(),
            created_us: 0,
        }
    }

    fn key(n: u16) -> Key {
        let mut key = [0; 32];
        key[..2].copy_from_slice(&n.to_be_bytes());
        key
    }

    #[test]
    fn a_session_ends_at_its_time_and_on_sign_out() {
        let mut sessions = Sessions::default();
        sessions.open(key(1), &account("ada"), 0, 100);
        assert_eq!(
            sessions.person(&key(1), 99).map(|p| p.name.as_str()),
            Some("ada")
        );
        assert_eq!(sessions.person(&key(1), 100), None);
        assert_eq!(sessions.person(&key(2), 0), None);
        assert!(sessions.close(&key(1)).is_some());
        assert_eq!(sessions.person(&key(1), 0), None);
    }

    #[test]
    fn one_account_cannot_crowd_out_another() {
        let mut sessions = Sessions::default();
        sessions.open(key(0), &account("ada"), 0, 10);
        for n in 1..=(SESSIONS_PER_ACCOUNT_MAX as u16 * 3) {
            sessions.open(key(n), &account("mallory"), 0, 1_000 + i64::from(n));
        }
        assert!(sessions.person(&key(0), 0).is_some());
        assert_eq!(sessions.count(), SESSIONS_PER_ACCOUNT_MAX + 1);
        assert!(sessions.person(&key(1), 0).is_none(), "the oldest went");
    }

    #[test]
    fn the_table_is_bounded() {
        let mut sessions = Sessions::default();
        for n in 0..(SESSIONS_MAX as u16 + 50) {
            sessions.open(key(n), &account(&format!("p{n}")), 0, 1_000 + i64::from(n));
        }
        assert_eq!(sessions.count(), SESSIONS_MAX);
        assert!(sessions.person(&key(49), 0).is_none());
        assert!(sessions.person(&key(50), 0).is_some());
    }

    #[test]
    fn removal_and_change_of_an_account_end_its_sessions() {
        for (now, alive) in [
            (None, false),
            (Some(account("ada")), true),
            (
                Some(Account {
                    role: Role::Viewer,
                    ..account("ada")
                }),
                false,
            ),
            (
                Some(Account {
                    password_hash: "new".to_owned(),
                    ..account("ada")
                }),
                false,
            ),
        ] {
            let mut sessions = Sessions::default();
            sessions.open(key(1), &account("ada"), 0, 100);
            sessions.open(key(2), &account("bob"), 0, 100);
            sessions.recheck("ada", now.as_ref());
            assert_eq!(sessions.person(&key(1), 0).is_some(), alive);
            assert!(sessions.person(&key(2), 0).is_some());
        }
    }

    #[test]
    fn only_viewers_may_not_act() {
        let person = |role| Person {
            name: String::new(),
            tenant: String::new(),
            role,
            reason: String::new(),
        };
        assert!(!person(Role::Viewer).may_act());
        assert!(person(Role::Clinician).may_act());
        assert!(person(Role::Administrator).may_act());
        assert!(person(Role::Administrator).is_administrator());
        assert!(!person(Role::Clinician).is_administrator());
    }
}
