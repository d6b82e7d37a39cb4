use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::SqliteStore;
use crate::sessions::{key_of, too_many_kiosks};
use crate::{
    KIOSK_RENEWAL_PAUSE_US, KIOSKS_PER_TENANT_MAX, QueryError, Role, SESSIONS_MAX,
    SESSIONS_PER_ACCOUNT_MAX, Scope, SessionKey, SessionKind, SessionsStore, StoredSession,
    TOKENS_PER_KIOSK_MAX, WriteError,
};

const COLUMNS: &str = "key, kind, name, tenant, role, password_hash, opened_us, expires_us";

fn session(row: &Row<'_>) -> rusqlite::Result<StoredSession> {
    let (key, kind, role): (Vec<u8>, String, String) = (row.get(0)?, row.get(1)?, row.get(4)?);
    Ok(StoredSession {
        key: key_of(&key),
        kind: SessionKind::from_name(&kind),
        name: row.get(2)?,
        tenant: row.get(3)?,
        // A role of a newer version gets the least that there is.
        role: Role::from_name(&role).unwrap_or(Role::Viewer),
        password_hash: row.get(5)?,
        opened_us: row.get(6)?,
        expires_us: row.get(7)?,
    })
}

/// Leaves room for one more.
fn make_room(connection: &Connection, session: &StoredSession) -> Result<(), WriteError> {
    connection.execute(
        "DELETE FROM sessions WHERE expires_us <= ?1",
        [session.opened_us],
    )?;
    if session.kind != SessionKind::Person {
        let others: usize = connection.query_row(
            "SELECT count(DISTINCT name) FROM sessions WHERE kind <> 'person' AND tenant = ?1 AND name <> ?2",
            (&session.tenant, &session.name),
            |row| row.get(0),
        )?;
        if others >= KIOSKS_PER_TENANT_MAX {
            return Err(WriteError::Invalid(too_many_kiosks()));
        }
        return Ok(());
    }
    connection.execute(
        "DELETE FROM sessions WHERE key IN (SELECT key FROM sessions
             WHERE kind = 'person' AND tenant = ?1 AND name = ?2
             ORDER BY expires_us DESC, key DESC LIMIT -1 OFFSET ?3)",
        (&session.tenant, &session.name, SESSIONS_PER_ACCOUNT_MAX - 1),
    )?;
    connection.execute(
        "DELETE FROM sessions WHERE key IN (SELECT key FROM sessions WHERE kind = 'person'
             ORDER BY expires_us DESC, key DESC LIMIT -1 OFFSET ?1)",
        [SESSIONS_MAX - 1],
    )?;
    Ok(())
}

#[async_trait]
impl SessionsStore for SqliteStore {
    async fn open_session(&self, session: &StoredSession) -> Result<(), WriteError> {
        let session = session.clone();
        self.write(move |writing| {
            make_room(writing.connection, &session)?;
            writing
                .connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO sessions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute((
                    &session.key[..],
                    session.kind.name(),
                    &session.name,
                    &session.tenant,
                    session.role.name(),
                    &session.password_hash,
                    session.opened_us,
                    session.expires_us,
                ))?;
            Ok(())
        })
        .await
    }

    async fn sessions_in_force(
        &self,
        keys: &[SessionKey],
        now_us: i64,
    ) -> Result<Vec<StoredSession>, QueryError> {
        let keys = keys.to_vec();
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM sessions AS s
                 WHERE key = ?1 AND expires_us > ?2 AND kind IN ('person', 'kiosk')
                     AND (password_hash = '' OR EXISTS (SELECT 1 FROM accounts AS a WHERE a.name = s.name
                         AND a.tenant = s.tenant AND a.role = s.role AND a.password_hash = s.password_hash))"
            ))?;
            let mut found = Vec::new();
            for key in keys {
                let row = statement.query_row((&key[..], now_us), session);
                found.extend(row.optional()?);
            }
            Ok(found)
        })
        .await
    }

    async fn close_session(
        &self,
        key: &SessionKey,
        now_us: i64,
    ) -> Result<Option<StoredSession>, WriteError> {
        let key = *key;
        self.write(move |writing| {
            let delete = format!("DELETE FROM sessions WHERE key = ?1 RETURNING {COLUMNS}");
            let mut statement = writing.connection.prepare_cached(&delete)?;
            let closed = statement.query_row([&key[..]], session).optional()?;
            Ok(closed.filter(|session| session.expires_us > now_us))
        })
        .await
    }

    async fn renew_kiosk(
        &self,
        shown: &SessionKey,
        next: &SessionKey,
        now_us: i64,
    ) -> Result<bool, WriteError> {
        let (shown, next) = (*shown, *next);
        self.write(move |writing| {
            let connection = writing.connection;
            let held = format!(
                "SELECT {COLUMNS} FROM sessions WHERE key = ?1 AND kind = 'kiosk' AND expires_us > ?2"
            );
            let held = connection.query_row(&held, (&shown[..], now_us), session);
            let Some(held) = held.optional()? else {
                return Ok(false);
            };
            let of_kiosk = "kind = 'kiosk' AND tenant = ?1 AND name = ?2";
            let newest: i64 = connection.query_row(
                &format!("SELECT max(opened_us) FROM sessions WHERE {of_kiosk}"),
                (&held.tenant, &held.name),
                |row| row.get(0),
            )?;
            if newest > now_us.saturating_sub(KIOSK_RENEWAL_PAUSE_US) {
                return Ok(false);
            }
            connection.execute(
                &format!("DELETE FROM sessions WHERE {of_kiosk} AND opened_us < ?3"),
                (&held.tenant, &held.name, held.opened_us),
            )?;
            connection.execute(
                &format!(
                    "DELETE FROM sessions WHERE key IN (SELECT key FROM sessions
                         WHERE {of_kiosk} AND key <> ?3
                         ORDER BY opened_us DESC, key DESC LIMIT -1 OFFSET ?4)"
                ),
                (&held.tenant, &held.name, &shown[..], TOKENS_PER_KIOSK_MAX - 2),
            )?;
            connection.execute(
                "INSERT INTO sessions SELECT ?2, kind, name, tenant, role, password_hash, ?3, expires_us
                     FROM sessions WHERE key = ?1",
                (&shown[..], &next[..], now_us),
            )?;
            Ok(true)
        })
        .await
    }

    async fn kiosks(&self, scope: &Scope, now_us: i64) -> Result<Vec<StoredSession>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM sessions
                 WHERE kind <> 'person' AND (?1 IS NULL OR tenant = ?1) AND expires_us > ?2
                 ORDER BY tenant, name, opened_us DESC, key"
            ))?;
            let rows = statement.query_map((tenant, now_us), session)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn revoke_kiosk(&self, tenant: &str, name: &str) -> Result<bool, WriteError> {
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        self.write(move |writing| {
            let ended = writing.connection.execute(
                "DELETE FROM sessions WHERE kind <> 'person' AND tenant = ?1 AND name = ?2",
                (tenant, name),
            )?;
            Ok(ended > 0)
        })
        .await
    }
}
