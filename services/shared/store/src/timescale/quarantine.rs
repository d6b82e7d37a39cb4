use async_trait::async_trait;
use contracts::vitals::Quarantined;
use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use super::{TimescaleStore, accounts::insert_audit, fault::Fault, transaction};
use crate::{
    AuditEntry, CASES_LISTED_MAX, QuarantineCase, QuarantineEntry, QuarantineFill, QuarantineQuery,
    QuarantineStore, QuarantineTotals, QueryError, Scope, WriteError, error::readable,
    quarantine::Columns,
};

/// `Invalid` for what has no entry.
pub fn columns(entries: &[Quarantined]) -> Result<Vec<Columns>, WriteError> {
    entries.iter().map(Columns::of).collect()
}

/// Returns how many are new.
pub async fn insert(
    transaction: &Transaction<'_>,
    entries: &[Quarantined],
    columns: &[Columns],
) -> Result<u64, Fault> {
    if entries.is_empty() {
        return Ok(0);
    }
    let text = |of: fn(&Quarantined) -> &str| entries.iter().map(of).collect::<Vec<&str>>();
    let arrived: Vec<i64> = entries.iter().map(|it| it.arrived_us).collect();
    let devices: Vec<&str> = columns.iter().map(|it| it.device.as_str()).collect();
    let identities: Vec<&str> = columns.iter().map(|it| it.identity.as_str()).collect();
    let times: Vec<i64> = columns.iter().map(|it| it.time_us).collect();
    let payloads: Vec<&[u8]> = columns.iter().map(|it| it.payload.as_slice()).collect();
    // In one order, so that two writers of the same entries do not wait for each other in a circle.
    let statement = transaction
        .prepare_cached(
            "INSERT INTO quarantine (tenant, gateway, device, identity, kind, time_us, arrived_us, payload)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bytea[])
                 AS w (tenant, gateway, device, identity, kind, time_us, arrived_us, payload)
             ORDER BY gateway, device, identity ON CONFLICT DO NOTHING",
        )
        .await?;
    Ok(transaction
        .execute(
            &statement,
            &[
                &text(|it| &it.tenant),
                &text(|it| &it.gateway),
                &devices,
                &identities,
                &text(|it| &it.kind),
                &times,
                &arrived,
                &payloads,
            ],
        )
        .await?)
}

#[async_trait]
impl QuarantineStore for TimescaleStore {
    async fn quarantine_cases(&self, scope: &Scope) -> Result<Vec<QuarantineCase>, QueryError> {
        let limit = i64::try_from(CASES_LISTED_MAX).unwrap_or(i64::MAX);
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT tenant, gateway, device, kind, count(*), sum(octet_length(payload))::bigint, min(time_us), max(time_us),
                     max(arrived_us)
                 FROM quarantine WHERE $1::text IS NULL OR tenant = $1 GROUP BY tenant, gateway, device, kind
                 ORDER BY max(arrived_us) DESC, device COLLATE \"C\" LIMIT $2",
                &[&scope.as_tenant(), &limit],
            )
            .await?;
        let case = |row: &Row| QuarantineCase {
            tenant: row.get(0),
            gateway: row.get(1),
            device: row.get(2),
            kind: row.get(3),
            entries: row.get::<_, i64>(4).cast_unsigned(),
            bytes: row.get::<_, i64>(5).cast_unsigned(),
            first_us: row.get(6),
            last_us: row.get(7),
            arrived_us: row.get(8),
        };
        Ok(rows.iter().map(case).collect())
    }

    async fn quarantine_totals(&self, scope: &Scope) -> Result<QuarantineTotals, QueryError> {
        let row = self
            .reader()
            .await?
            .query_one(
                "SELECT count(*), coalesce(sum(entries), 0)::bigint FROM
                     (SELECT count(*) AS entries FROM quarantine WHERE $1::text IS NULL OR tenant = $1
                      GROUP BY tenant, gateway, device, kind) AS c",
                &[&scope.as_tenant()],
            )
            .await?;
        Ok(QuarantineTotals {
            cases: row.get::<_, i64>(0).cast_unsigned(),
            entries: row.get::<_, i64>(1).cast_unsigned(),
        })
    }

    async fn quarantine_fill(&self) -> Result<Vec<QuarantineFill>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT tenant, gateway, count(*), sum(octet_length(payload))::bigint FROM quarantine GROUP BY tenant, gateway",
                &[],
            )
            .await?;
        let fill = |row: &Row| QuarantineFill {
            tenant: row.get(0),
            gateway: row.get(1),
            entries: row.get::<_, i64>(2).cast_unsigned(),
            bytes: row.get::<_, i64>(3).cast_unsigned(),
        };
        Ok(rows.iter().map(fill).collect())
    }

    async fn quarantined(
        &self,
        scope: &Scope,
        query: &QuarantineQuery,
    ) -> Result<Vec<QuarantineEntry>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT key, payload FROM quarantine
                 WHERE device = $2 AND key > $6 AND ($1::text IS NULL OR tenant = $1) AND ($3::text IS NULL OR gateway = $3)
                     AND time_us >= $4 AND time_us < $5
                 ORDER BY key LIMIT $7",
                &[
                    &scope.as_tenant(),
                    &query.device,
                    &query.gateway,
                    &query.from_us,
                    &query.until_us,
                    &query.after,
                    &i64::try_from(query.limit).unwrap_or(i64::MAX),
                ],
            )
            .await?;
        let entry = |row: &Row| {
            let key = row.get(0);
            readable("quarantined", row.get(1))
                .map(|quarantined| QuarantineEntry { key, quarantined })
        };
        Ok(rows.iter().filter_map(entry).collect())
    }

    async fn settle_quarantined(
        &self,
        scope: &Scope,
        keys: Vec<i64>,
        audit: AuditEntry,
    ) -> Result<u64, WriteError> {
        let audit = [audit];
        transaction!(self, tx => async {
            let settled = tx
                .execute(
                    "DELETE FROM quarantine WHERE key = ANY($2) AND ($1::text IS NULL OR tenant = $1)",
                    &[&scope.as_tenant(), &keys],
                )
                .await?;
            insert_audit(tx, &audit).await?;
            Ok::<_, Fault>(settled)
        })
    }
}
