use async_trait::async_trait;
use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use super::{TimescaleStore, fault::Fault, transaction};
use crate::sessions::{key_of, too_many_kiosks};
use crate::{
    KIOSK_RENEWAL_PAUSE_US, KIOSKS_PER_TENANT_MAX, QueryError, Role, SESSIONS_MAX,
    SESSIONS_PER_ACCOUNT_MAX, Scope, SessionKey, SessionKind, SessionsStore, StoredSession,
    TOKENS_PER_KIOSK_MAX, WriteError,
};

const COLUMNS: &str = "key, kind, name, tenant, role, password_hash, opened_us, expires_us";

fn session(row: &Row) -> StoredSession {
    StoredSession {
        key: key_of(row.get(0)),
        kind: SessionKind::from_name(row.get(1)),
        name: row.get(2),
        tenant: row.get(3),
        // A role of a newer version gets the least that there is.
        role: Role::from_name(row.get(4)).unwrap_or(Role::Viewer),
        password_hash: row.get(5),
        opened_us: row.get(6),
        expires_us: row.get(7),
    }
}

fn rows_kept(max: usize) -> i64 {
    i64::try_from(max - 1).unwrap_or(i64::MAX)
}

/// One at a time, so that replicas keep the bounds together, and what is ended is not renewed.
async fn lock(tx: &Transaction<'_>) -> Result<(), Fault> {
    let lock = "LOCK TABLE sessions IN SHARE ROW EXCLUSIVE MODE";
    Ok(tx.batch_execute(lock).await?)
}

/// Leaves room for one more.
async fn make_room(tx: &Transaction<'_>, session: &StoredSession) -> Result<(), Fault> {
    lock(tx).await?;
    let expired = "DELETE FROM sessions WHERE expires_us <= $1";
    tx.execute(expired, &[&session.opened_us]).await?;
    if session.kind != SessionKind::Person {
        let others = "SELECT count(DISTINCT name) FROM sessions
             WHERE kind <> 'person' AND tenant = $1 AND name <> $2";
        let row = tx
            .query_one(others, &[&session.tenant, &session.name])
            .await?;
        if row.get::<_, i64>(0) >= KIOSKS_PER_TENANT_MAX as i64 {
            return Err(Fault::Invalid(too_many_kiosks()));
        }
        return Ok(());
    }
    let of_account = rows_kept(SESSIONS_PER_ACCOUNT_MAX);
    tx.execute(
        "DELETE FROM sessions WHERE key IN (SELECT key FROM sessions
             WHERE kind = 'person' AND tenant = $1 AND name = $2
             ORDER BY expires_us DESC, key DESC OFFSET $3)",
        &[&session.tenant, &session.name, &of_account],
    )
    .await?;
    tx.execute(
        "DELETE FROM sessions WHERE key IN (SELECT key FROM sessions WHERE kind = 'person'
             ORDER BY expires_us DESC, key DESC OFFSET $1)",
        &[&rows_kept(SESSIONS_MAX)],
    )
    .await?;
    Ok(())
}

#[async_trait]
impl SessionsStore for TimescaleStore {
    async fn open_session(&self, session: &StoredSession) -> Result<(), WriteError> {
        transaction!(self, tx => async {
            make_room(tx, session).await?;
            tx.execute(
                "INSERT INTO sessions VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (key) DO UPDATE
                     SET kind = excluded.kind, name = excluded.name, tenant = excluded.tenant, role = excluded.role,
                         password_hash = excluded.password_hash, opened_us = excluded.opened_us,
                         expires_us = excluded.expires_us",
                &[
                    &&session.key[..],
                    &session.kind.name(),
                    &session.name,
                    &session.tenant,
                    &session.role.name(),
                    &session.password_hash,
                    &session.opened_us,
                    &session.expires_us,
                ],
            )
            .await?;
            Ok::<_, Fault>(())
        })
    }

    async fn sessions_in_force(
        &self,
        keys: &[SessionKey],
        now_us: i64,
    ) -> Result<Vec<StoredSession>, QueryError> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {COLUMNS} FROM sessions AS s
                     WHERE key = ANY ($1::bytea[]) AND expires_us > $2 AND kind IN ('person', 'kiosk')
                         AND (password_hash = '' OR EXISTS (SELECT 1 FROM accounts AS a WHERE a.name = s.name
                             AND a.tenant = s.tenant AND a.role = s.role AND a.password_hash = s.password_hash))"
                ),
                &[&keys, &now_us],
            )
            .await?;
        Ok(rows.iter().map(session).collect())
    }

    async fn close_session(
        &self,
        key: &SessionKey,
        now_us: i64,
    ) -> Result<Option<StoredSession>, WriteError> {
        transaction!(self, tx => async {
            let delete = format!("DELETE FROM sessions WHERE key = $1 RETURNING {COLUMNS}");
            let row = tx.query_opt(&delete, &[&&key[..]]).await?;
            let closed = row.as_ref().map(session);
            Ok::<_, Fault>(closed.filter(|session| session.expires_us > now_us))
        })
    }

    async fn renew_kiosk(
        &self,
        shown: &SessionKey,
        next: &SessionKey,
        now_us: i64,
    ) -> Result<bool, WriteError> {
        transaction!(self, tx => async {
            lock(tx).await?;
            let held = format!(
                "SELECT {COLUMNS} FROM sessions WHERE key = $1 AND kind = 'kiosk' AND expires_us > $2"
            );
            let Some(row) = tx.query_opt(&held, &[&&shown[..], &now_us]).await? else {
                return Ok::<_, Fault>(false);
            };
            let held = session(&row);
            let of_kiosk = "kind = 'kiosk' AND tenant = $1 AND name = $2";
            let newest = format!("SELECT max(opened_us) FROM sessions WHERE {of_kiosk}");
            let newest = tx.query_one(&newest, &[&held.tenant, &held.name]).await?;
            if newest.get::<_, i64>(0) > now_us.saturating_sub(KIOSK_RENEWAL_PAUSE_US) {
                return Ok(false);
            }
            tx.execute(
                &format!("DELETE FROM sessions WHERE {of_kiosk} AND opened_us < $3"),
                &[&held.tenant, &held.name, &held.opened_us],
            )
            .await?;
            let kept = rows_kept(TOKENS_PER_KIOSK_MAX - 1);
            tx.execute(
                &format!(
                    "DELETE FROM sessions WHERE key IN (SELECT key FROM sessions
                         WHERE {of_kiosk} AND key <> $3 ORDER BY opened_us DESC, key DESC OFFSET $4)"
                ),
                &[&held.tenant, &held.name, &&shown[..], &kept],
            )
            .await?;
            tx.execute(
                "INSERT INTO sessions SELECT $2::bytea, kind, name, tenant, role, password_hash, $3::bigint, expires_us
                     FROM sessions WHERE key = $1",
                &[&&shown[..], &&next[..], &now_us],
            )
            .await?;
            Ok(true)
        })
    }

    async fn kiosks(&self, scope: &Scope, now_us: i64) -> Result<Vec<StoredSession>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT {COLUMNS} FROM sessions
                     WHERE kind <> 'person' AND ($1::text IS NULL OR tenant = $1) AND expires_us > $2
                     ORDER BY tenant COLLATE \"C\", name COLLATE \"C\", opened_us DESC, key"
                ),
                &[&scope.as_tenant(), &now_us],
            )
            .await?;
        Ok(rows.iter().map(session).collect())
    }

    async fn revoke_kiosk(&self, tenant: &str, name: &str) -> Result<bool, WriteError> {
        transaction!(self, tx => async {
            let revoke = "DELETE FROM sessions WHERE kind <> 'person' AND tenant = $1 AND name = $2";
            let ended = tx.execute(revoke, &[&tenant, &name]).await?;
            Ok::<_, Fault>(ended > 0)
        })
    }
}
