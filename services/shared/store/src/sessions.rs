//! Sessions of signed-in people and of wall displays. A row holds the hash of its token, never the
//! token.

use async_trait::async_trait;

use crate::{
    Role, Scope,
    error::{QueryError, WriteError},
};

/// SHA-256 of a token.
pub type SessionKey = [u8; 32];

/// Sessions of people in one store. When reached, the one that would expire first ends.
pub const SESSIONS_MAX: usize = 10_000;
/// Sessions of one account; beyond it the one that would expire first ends. So a leaked password
/// cannot end everybody else's sessions.
pub const SESSIONS_PER_ACCOUNT_MAX: usize = 32;
/// Wall displays of one tenant; a further one is refused, and none ever gives way.
pub const KIOSKS_PER_TENANT_MAX: usize = 200;
/// Tokens of one wall display. When reached, the oldest that was never shown again ends.
pub const TOKENS_PER_KIOSK_MAX: usize = 4;
/// A wall display gets at most one token in this time. So two tabs get one, and a display in wrong
/// hands writes rarely.
pub const KIOSK_RENEWAL_PAUSE_US: i64 = 60_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionKind {
    Person,
    /// A wall display.
    Kiosk,
    /// A code that a wall display exchanges once. It opens nothing by itself.
    KioskCode,
}

impl SessionKind {
    pub const fn name(self) -> &'static str {
        match self {
            SessionKind::Person => "person",
            SessionKind::Kiosk => "kiosk",
            SessionKind::KioskCode => "kiosk-code",
        }
    }

    /// A kind of a newer version opens nothing.
    pub(crate) fn from_name(name: &str) -> SessionKind {
        [SessionKind::Person, SessionKind::Kiosk]
            .into_iter()
            .find(|kind| kind.name() == name)
            .unwrap_or(SessionKind::KioskCode)
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct StoredSession {
    pub key: SessionKey,
    pub kind: SessionKind,
    /// Account, or the name of a wall display, which is unique in its tenant.
    pub name: String,
    pub tenant: String,
    pub role: Role,
    /// Hash of the account's password at sign-in; empty for who has no account here. The session
    /// ends when the account's hash, role or tenant becomes another.
    pub password_hash: String,
    pub opened_us: i64,
    pub expires_us: i64,
}

impl std::fmt::Debug for StoredSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredSession")
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("tenant", &self.tenant)
            .field("role", &self.role)
            .field("expires_us", &self.expires_us)
            .finish_non_exhaustive()
    }
}

pub(crate) fn too_many_kiosks() -> String {
    format!("the tenant has {KIOSKS_PER_TENANT_MAX} wall displays already; revoke one first")
}

pub(crate) fn key_of(bytes: &[u8]) -> SessionKey {
    bytes.try_into().unwrap_or_default()
}

#[async_trait]
pub trait SessionsStore: Send + Sync {
    /// Adds it, within the bounds above, and removes what has expired at `opened_us`. `Invalid`
    /// beyond [`KIOSKS_PER_TENANT_MAX`].
    async fn open_session(&self, session: &StoredSession) -> Result<(), WriteError>;

    /// Those of `keys` that hold at `now_us`: neither ended nor expired, and of an account that is
    /// still as it was. Never a code.
    async fn sessions_in_force(
        &self,
        keys: &[SessionKey],
        now_us: i64,
    ) -> Result<Vec<StoredSession>, QueryError>;

    /// Ends the session, or takes the code. `None`: there is none, or it has expired.
    async fn close_session(
        &self,
        key: &SessionKey,
        now_us: i64,
    ) -> Result<Option<StoredSession>, WriteError>;

    /// Adds a token, by its `next` key, for the display that shows `shown`. The tokens before
    /// `shown` end. `shown` goes on, because the answer may be lost. False: no display shows it, or
    /// the display got another within [`KIOSK_RENEWAL_PAUSE_US`].
    async fn renew_kiosk(
        &self,
        shown: &SessionKey,
        next: &SessionKey,
        now_us: i64,
    ) -> Result<bool, WriteError>;

    /// Wall displays and codes that hold at `now_us`, by tenant and name, the newest first.
    async fn kiosks(&self, scope: &Scope, now_us: i64) -> Result<Vec<StoredSession>, QueryError>;

    /// Ends the display's session and its code. False: there is no such display.
    async fn revoke_kiosk(&self, tenant: &str, name: &str) -> Result<bool, WriteError>;
}
