//! The sessions of this replica's requests: a copy of the store's, which decides.
//!
//! A session that is not in the copy is looked up when it is used. Those of the copy are compared
//! with the store every [`RECHECK_INTERVAL`]. While the store does not answer, the copy holds as it
//! is and nothing else is admitted. An absent store must not sign out the ward's screens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use service_kit::Shutdown;
use store::{
    Account, QueryError, Role, SESSIONS_MAX, SessionKey, SessionKind, Store, StoredSession,
    WriteError,
};

use crate::accounts::KIOSK_PREFIX;

/// Sessions of the copy. When reached, the session that would expire first leaves the copy, and is
/// looked up again when it is used.
const KNOWN_MAX: usize = SESSIONS_MAX;
/// A session that has ended elsewhere, or whose account was removed or changed, ends here within
/// this time.
const RECHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A signed-in person; an extension of every authenticated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Person {
    pub name: String,
    pub tenant: String,
    pub role: Role,
    /// A wall display, which nobody has signed in at.
    pub is_kiosk: bool,
    /// The reason of this request, if the person gave one.
    pub reason: String,
}

impl Person {
    /// Viewers only look. Acknowledging and cutting links need a clinician or an administrator.
    pub(crate) fn may_act(&self) -> bool {
        self.role >= Role::Clinician
    }

    /// The wall display's own name.
    pub(crate) fn kiosk(&self) -> Option<&str> {
        let name = self.name.strip_prefix(KIOSK_PREFIX)?;
        self.is_kiosk.then_some(name)
    }

    /// Whether the person decides about teams and rules.
    pub(crate) fn is_administrator(&self) -> bool {
        self.role == Role::Administrator
    }
}

/// SHA-256 of the token.
pub(crate) type Key = SessionKey;

pub(crate) fn person_of(session: &StoredSession) -> Person {
    let is_kiosk = session.kind == SessionKind::Kiosk;
    let prefix = if is_kiosk { KIOSK_PREFIX } else { "" };
    Person {
        name: format!("{prefix}{}", session.name),
        tenant: session.tenant.clone(),
        // A display only looks, whatever its row says.
        role: if is_kiosk { Role::Viewer } else { session.role },
        is_kiosk,
        reason: String::new(),
    }
}

/// The copy. Sans-IO: keys and times are handed in.
#[derive(Default)]
struct Known {
    table: HashMap<Key, (Person, i64)>,
}

impl Known {
    fn add(&mut self, session: &StoredSession, now_us: i64) {
        self.table.retain(|_, (_, expires_us)| *expires_us > now_us);
        if self.table.len() >= KNOWN_MAX && !self.table.contains_key(&session.key) {
            let first = self.table.iter().min_by_key(|(key, it)| (it.1, **key));
            if let Some(key) = first.map(|(key, _)| *key) {
                self.table.remove(&key);
            }
        }
        let it = (person_of(session), session.expires_us);
        self.table.insert(session.key, it);
    }

    fn person(&self, key: &Key, now_us: i64) -> Option<&Person> {
        let (person, expires_us) = self.table.get(key)?;
        (*expires_us > now_us).then_some(person)
    }

    /// Removes the `asked` keys that are not `in_force`. Keys that were added meanwhile stay.
    fn recheck(&mut self, asked: &[Key], in_force: &[StoredSession]) {
        for key in asked {
            match in_force.iter().find(|session| session.key == *key) {
                Some(session) => {
                    if let Some(it) = self.table.get_mut(key) {
                        it.1 = session.expires_us;
                    }
                }
                None => {
                    self.table.remove(key);
                }
            }
        }
    }
}

pub(crate) struct Sessions {
    store: Arc<dyn Store>,
    known: Mutex<Known>,
}

impl Sessions {
    pub(crate) fn new(store: Arc<dyn Store>) -> Sessions {
        Sessions {
            store,
            known: Mutex::default(),
        }
    }

    pub(crate) async fn open(
        &self,
        key: Key,
        account: &Account,
        now_us: i64,
        expires_us: i64,
    ) -> Result<(), WriteError> {
        let session = StoredSession {
            key,
            kind: SessionKind::Person,
            name: account.name.clone(),
            tenant: account.tenant.clone(),
            role: account.role,
            password_hash: account.password_hash.clone(),
            opened_us: now_us,
            expires_us,
        };
        self.admit(&session, now_us).await
    }

    pub(crate) async fn admit(
        &self,
        session: &StoredSession,
        now_us: i64,
    ) -> Result<(), WriteError> {
        self.store.open_session(session).await?;
        self.known.lock().add(session, now_us);
        Ok(())
    }

    /// An error: the session is not in the copy, and the store does not answer.
    pub(crate) async fn person(
        &self,
        key: &Key,
        now_us: i64,
    ) -> Result<Option<Person>, QueryError> {
        if let Some(person) = self.known.lock().person(key, now_us) {
            return Ok(Some(person.clone()));
        }
        let found = self.store.sessions_in_force(&[*key], now_us).await?;
        let Some(session) = found.first() else {
            return Ok(None);
        };
        self.known.lock().add(session, now_us);
        Ok(Some(person_of(session)))
    }

    /// Ends here even if the store does not answer.
    pub(crate) async fn close(&self, key: &Key, now_us: i64) -> Result<Option<Person>, WriteError> {
        self.known.lock().table.remove(key);
        let closed = self.store.close_session(key, now_us).await?;
        Ok(closed.as_ref().map(person_of))
    }

    async fn recheck(&self, now_us: i64) -> Result<(), QueryError> {
        let asked: Vec<Key> = self.known.lock().table.keys().copied().collect();
        if !asked.is_empty() {
            let in_force = self.store.sessions_in_force(&asked, now_us).await?;
            self.known.lock().recheck(&asked, &in_force);
        }
        Ok(())
    }

    /// Ends what the store no longer has.
    pub(crate) async fn keep_checked(self: Arc<Self>, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                () = tokio::time::sleep(RECHECK_INTERVAL) => {}
            }
            if let Err(error) = self.recheck(contracts::now_us()).await {
                tracing::warn!(%error, "sessions could not be checked");
            }
            let count = self.known.lock().table.len();
            metrics::gauge!("braid_dashboard_sessions").set(count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(n: usize, expires_us: i64) -> StoredSession {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_be_bytes());
        StoredSession {
            key,
            kind: SessionKind::Person,
            name: format!("p{n}"),
            tenant: "default".to_owned(),
            role: Role::Clinician,
            password_hash: "h".to_owned(),
            opened_us: 0,
            expires_us,
        }
    }

    #[test]
    fn what_the_store_has_ended_ends_and_what_came_meanwhile_stays() {
        let [ada, ben, eve] = [1, 2, 3].map(|n| session(n, 100));
        let mut known = Known::default();
        known.add(&ada, 0);
        known.add(&ben, 0);
        let asked = [ada.key, ben.key];
        known.add(&eve, 0);
        known.recheck(&asked, std::slice::from_ref(&ben));
        assert_eq!(known.person(&ada.key, 0), None);
        assert!(known.person(&ben.key, 99).is_some());
        assert!(known.person(&eve.key, 0).is_some());
        assert_eq!(known.person(&ben.key, 100), None, "expired");
    }

    #[test]
    fn the_copy_is_bounded() {
        let mut known = Known::default();
        for n in 0..KNOWN_MAX {
            let it = session(n, 1_000);
            known.table.insert(it.key, (person_of(&it), it.expires_us));
        }
        let last = session(KNOWN_MAX, 2_000);
        known.add(&last, 0);
        assert_eq!(known.table.len(), KNOWN_MAX);
        assert!(known.person(&session(0, 0).key, 0).is_none());
        assert!(known.person(&last.key, 0).is_some());
    }

    #[test]
    fn only_viewers_may_not_act() {
        let person = |role| Person {
            name: String::new(),
            tenant: String::new(),
            role,
            is_kiosk: false,
            reason: String::new(),
        };
        assert!(!person(Role::Viewer).may_act());
        assert!(person(Role::Clinician).may_act());
        assert!(person(Role::Administrator).may_act());
        assert!(person(Role::Administrator).is_administrator());
        assert!(!person(Role::Clinician).is_administrator());
    }
}
