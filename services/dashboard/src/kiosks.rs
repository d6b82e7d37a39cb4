//! Kiosks, which are wall displays: each has a session that only reads and has no end.
//!
//! An administrator makes a code. The browser of the display exchanges it once for a token, and
//! gets a newer token while the display is in use.

use rand::RngExt;
use store::{
    QueryError, Role, Scope, SessionKey, SessionKind, SessionsStore, StoredSession, WriteError,
};

use crate::accounts::NAME_BYTES_MAX;
use crate::tokens::key_of;

/// An administrator walks to the display within this time.
pub const CODE_US: i64 = 900_000_000;
/// Letters of a code: 80 bits.
const CODE_LETTERS: usize = 16;
const GROUP_LETTERS: usize = 4;
/// Without those that look alike.
const ALPHABET: &[u8; 32] = b"23456789abcdefghijkmnpqrstuvwxyz";
/// Bytes of a code as a person types it.
const TYPED_BYTES_MAX: usize = 64;
/// The time of a session that has no end.
const NO_END_US: i64 = i64::MAX;

#[derive(Debug, thiserror::Error)]
pub enum KioskError {
    #[error(
        "a wall display's name has 1 to {NAME_BYTES_MAX} bytes in one line, for example \"hall\""
    )]
    Name,
    #[error("there is a wall display {0:?} already: choose another name, or revoke it first")]
    Taken(String),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Opens the display once.
pub struct Code {
    pub text: String,
    pub until_us: i64,
}

/// Refuses a name that no display can have, or that another display has.
pub async fn check(
    store: &(impl SessionsStore + ?Sized),
    tenant: &str,
    name: &str,
    now_us: i64,
) -> Result<(), KioskError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !contracts::text::is_plain(name) {
        return Err(KioskError::Name);
    }
    let known = store.kiosks(&Scope::tenant(tenant), now_us).await?;
    let is_open = |it: &StoredSession| it.kind == SessionKind::Kiosk && it.name == name;
    if known.iter().any(is_open) {
        return Err(KioskError::Taken(name.to_owned()));
    }
    Ok(())
}

/// Makes a code. An earlier one of the same name ends.
pub async fn add(
    store: &(impl SessionsStore + ?Sized),
    tenant: &str,
    name: &str,
    now_us: i64,
) -> Result<Code, KioskError> {
    check(store, tenant, name, now_us).await?;
    let random: [u8; CODE_LETTERS] = rand::rng().random();
    let letters = random.map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]));
    let groups = letters.chunks(GROUP_LETTERS);
    let groups: Vec<String> = groups.map(|group| group.iter().collect()).collect();
    let until_us = now_us.saturating_add(CODE_US);
    let code: String = letters.iter().collect();
    let session = StoredSession {
        kind: SessionKind::KioskCode,
        opened_us: now_us,
        expires_us: until_us,
        ..kiosk(key_of(&code), tenant, name)
    };
    store.revoke_kiosk(tenant, name).await?;
    store.open_session(&session).await?;
    Ok(Code {
        text: groups.join("-"),
        until_us,
    })
}

/// `None`: no code has this form, so the store is not asked.
pub(crate) fn code_key(typed: &str) -> Option<SessionKey> {
    if typed.len() > TYPED_BYTES_MAX {
        return None;
    }
    let letters = typed.chars().filter(|it| *it != '-' && *it != ' ');
    let code: String = letters.map(|it| it.to_ascii_lowercase()).collect();
    let is_code = code.len() == CODE_LETTERS && code.bytes().all(|it| ALPHABET.contains(&it));
    is_code.then(|| key_of(&code))
}

/// The session that the display `code` gets.
pub(crate) fn opened(code: &StoredSession, key: SessionKey, now_us: i64) -> StoredSession {
    StoredSession {
        opened_us: now_us,
        ..kiosk(key, &code.tenant, &code.name)
    }
}

fn kiosk(key: SessionKey, tenant: &str, name: &str) -> StoredSession {
    StoredSession {
        key,
        kind: SessionKind::Kiosk,
        name: name.to_owned(),
        tenant: tenant.to_owned(),
        role: Role::Viewer,
        // A display has no account.
        password_hash: String::new(),
        opened_us: 0,
        expires_us: NO_END_US,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::SqliteStore;

    use super::*;

    #[tokio::test]
    async fn a_code_is_typed_in_groups_and_a_name_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let former = add(&store, "home", "hall", 0).await.unwrap();
        let code = add(&store, "home", "hall", 1).await.unwrap();
        assert_eq!(code.until_us, 1 + CODE_US);
        let key = code_key(&code.text.to_uppercase().replace('-', " ")).unwrap();
        let former = code_key(&former.text).unwrap();
        assert_eq!(store.close_session(&former, 2).await.unwrap(), None);
        let taken = store.close_session(&key, 2).await.unwrap().unwrap();
        store
            .open_session(&opened(&taken, [7; 32], 2))
            .await
            .unwrap();
        let again = add(&store, "home", "hall", 3).await;
        assert!(matches!(again, Err(KioskError::Taken(_))));
        add(&store, "ward", "hall", 3).await.unwrap();
        let long = "h".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "a\nb", &long] {
            let refused = add(&store, "home", name, 3).await;
            assert!(matches!(refused, Err(KioskError::Name)), "{name:?}");
        }
    }

    #[test]
    fn what_is_no_code_asks_no_store() {
        let long = "a".repeat(TYPED_BYTES_MAX + 1);
        for typed in ["", "abcd", "abcd-efgh-ijkm-npql", "eyJ.eyJ.sig", &long] {
            assert_eq!(code_key(typed), None, "{typed}");
        }
    }
}
