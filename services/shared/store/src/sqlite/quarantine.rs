use async_trait::async_trait;
use contracts::vitals::Quarantined;
use rusqlite::Connection;

use super::{SqliteStore, accounts::insert_audit};
use crate::{
    AuditEntry, CASES_LISTED_MAX, QuarantineCase, QuarantineEntry, QuarantineFill, QuarantineQuery,
    QuarantineStore, QuarantineTotals, QueryError, Scope, WriteError, error::readable,
    quarantine::Columns,
};

/// Returns how many are new.
pub fn insert(connection: &Connection, entries: &[Quarantined]) -> Result<u64, WriteError> {
    let mut new = 0;
    for entry in entries {
        let columns = Columns::of(entry)?;
        new += connection
            .prepare_cached(
                "INSERT OR IGNORE INTO quarantine (tenant, gateway, device, identity, kind, time_us, arrived_us, payload)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute((
                &entry.tenant,
                &entry.gateway,
                &columns.device,
                &columns.identity,
                &entry.kind,
                columns.time_us,
                entry.arrived_us,
                &columns.payload,
            ))?;
    }
    Ok(new as u64)
}

#[async_trait]
impl QuarantineStore for SqliteStore {
    async fn quarantine_cases(&self, scope: &Scope) -> Result<Vec<QuarantineCase>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT tenant, gateway, device, kind, count(*), sum(length(payload)), min(time_us), max(time_us), max(arrived_us)
                 FROM quarantine WHERE ?1 IS NULL OR tenant = ?1 GROUP BY tenant, gateway, device, kind
                 ORDER BY max(arrived_us) DESC, device LIMIT ?2",
            )?;
            let rows = statement.query_map((tenant, CASES_LISTED_MAX), |row| {
                Ok(QuarantineCase {
                    tenant: row.get(0)?,
                    gateway: row.get(1)?,
                    device: row.get(2)?,
                    kind: row.get(3)?,
                    entries: row.get(4)?,
                    bytes: row.get(5)?,
                    first_us: row.get(6)?,
                    last_us: row.get(7)?,
                    arrived_us: row.get(8)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn quarantine_totals(&self, scope: &Scope) -> Result<QuarantineTotals, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        self.read(move |connection| {
            let totals = connection
                .prepare_cached(
                    "SELECT count(*), coalesce(sum(entries), 0) FROM
                         (SELECT count(*) AS entries FROM quarantine WHERE ?1 IS NULL OR tenant = ?1
                          GROUP BY tenant, gateway, device, kind)",
                )?
                .query_row([tenant], |row| {
                    Ok(QuarantineTotals {
                        cases: row.get(0)?,
                        entries: row.get(1)?,
                    })
                })?;
            Ok(totals)
        })
        .await
    }

    async fn quarantine_fill(&self) -> Result<Vec<QuarantineFill>, QueryError> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT tenant, gateway, count(*), sum(length(payload)) FROM quarantine GROUP BY tenant, gateway",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(QuarantineFill {
                    tenant: row.get(0)?,
                    gateway: row.get(1)?,
                    entries: row.get(2)?,
                    bytes: row.get(3)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn quarantined(
        &self,
        scope: &Scope,
        query: &QuarantineQuery,
    ) -> Result<Vec<QuarantineEntry>, QueryError> {
        let (tenant, query) = (scope.as_tenant().map(str::to_owned), query.clone());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, payload FROM quarantine
                 WHERE device = ?2 AND key > ?6 AND (?1 IS NULL OR tenant = ?1) AND (?3 IS NULL OR gateway = ?3)
                     AND time_us >= ?4 AND time_us < ?5
                 ORDER BY key LIMIT ?7",
            )?;
            let rows = statement.query_map(
                (
                    tenant,
                    query.device,
                    query.gateway,
                    query.from_us,
                    query.until_us,
                    query.after,
                    query.limit,
                ),
                |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)),
            )?;
            let mut entries = Vec::new();
            for row in rows {
                let (key, payload) = row?;
                entries.extend(
                    readable("quarantined", &payload)
                        .map(|quarantined| QuarantineEntry { key, quarantined }),
                );
            }
            Ok(entries)
        })
        .await
    }

    async fn settle_quarantined(
        &self,
        scope: &Scope,
        keys: Vec<i64>,
        audit: AuditEntry,
    ) -> Result<u64, WriteError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        self.write(move |writing| {
            let mut settled = 0;
            let mut delete = writing.connection.prepare_cached(
                "DELETE FROM quarantine WHERE key = ?2 AND (?1 IS NULL OR tenant = ?1)",
            )?;
            for key in keys {
                settled += delete.execute((&tenant, key))? as u64;
            }
            insert_audit(writing.connection, &[audit])?;
            Ok(settled)
        })
        .await
    }
}
