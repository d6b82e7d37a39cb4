use async_trait::async_trait;
use contracts::paths::PathReport;
use prost::Message;

use super::{SqliteStore, progress};
use crate::{
    PathsQuery, PathsStore, Progress, QueryError, Scope, WriteError, Written, paths::own,
    vitals::future_us,
};

/// Reports of a query that sets no limit.
const LIMIT_DEFAULT: usize = 10_000;

/// SQLite's integers are signed; only equality matters here.
const fn bits(value: u64) -> i64 {
    value.cast_signed()
}

#[async_trait]
impl PathsStore for SqliteStore {
    async fn write_paths(
        &self,
        reports: Vec<PathReport>,
        progress: Vec<Progress>,
    ) -> Result<Written, WriteError> {
        self.write(move |writing| {
            let connection = writing.connection;
            progress::advance(connection, &progress)?;
            let future_us = future_us();
            let mut written = Written::default();
            for report in &reports {
                let gateway = writing.keys.gateway(connection, &report.gateway)?;
                let payload = report.encode_to_vec();
                let inserted = connection
                    .prepare_cached("INSERT OR IGNORE INTO paths VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
                    .execute((
                        gateway,
                        &report.path,
                        report.end,
                        bits(report.session),
                        bits(report.sequence),
                        report.time_us,
                        &payload,
                    ))?;
                if inserted == 0 {
                    written.duplicate += 1;
                    continue;
                }
                written.new += 1;
                connection
                    .prepare_cached(
                        "INSERT INTO latest_paths VALUES (?1, ?2, ?3, ?4, ?5)
                         ON CONFLICT DO UPDATE SET time_us = excluded.time_us, payload = excluded.payload
                             WHERE excluded.time_us >= time_us OR (time_us > ?6 AND excluded.time_us <= ?6)",
                    )?
                    .execute((
                        gateway,
                        &report.path,
                        report.end,
                        report.time_us,
                        &payload,
                        future_us,
                    ))?;
            }
            Ok(written)
        })
        .await
    }

    async fn paths(
        &self,
        scope: &Scope,
        query: &PathsQuery,
    ) -> Result<Vec<PathReport>, QueryError> {
        let (tenant, query) = (scope.as_tenant().map(str::to_owned), query.clone());
        self.read(move |connection| {
            let limit = if query.limit == 0 {
                LIMIT_DEFAULT
            } else {
                query.limit
            };
            // Two statements, because one with `OR ... IS NULL` uses neither index.
            let gateway = if query.gateway.is_some() {
                "g.id = ?2"
            } else {
                "?2 IS NULL"
            };
            let reports: Vec<(Vec<u8>, String)> = connection
                .prepare_cached(&format!(
                    "SELECT r.payload, g.tenant FROM paths r JOIN gateways g ON g.key = r.gateway
                     WHERE {gateway} AND (?1 IS NULL OR g.tenant = ?1) AND r.time_us >= ?3 AND r.time_us < ?4
                     ORDER BY r.time_us DESC LIMIT ?5"
                ))?
                .query_map(
                    (tenant, query.gateway, query.from_us, query.to_us, limit),
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )?
                .collect::<rusqlite::Result<_>>()?;
            let reports = reports.iter().rev();
            Ok(reports.filter_map(|(payload, owner)| own(payload, owner)).collect())
        })
        .await
    }

    async fn latest_paths(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<PathReport>, QueryError> {
        let (tenant, gateway) = (
            scope.as_tenant().map(str::to_owned),
            gateway.map(str::to_owned),
        );
        self.read(move |connection| {
            let reports: Vec<(Vec<u8>, String)> = connection
                .prepare_cached(
                    "SELECT r.payload, g.tenant FROM latest_paths r JOIN gateways g ON g.key = r.gateway
                     WHERE (?1 IS NULL OR g.tenant = ?1) AND (?2 IS NULL OR g.id = ?2) ORDER BY g.id, r.path, r.end_of",
                )?
                .query_map((tenant, gateway), |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let reports = reports.iter();
            Ok(reports.filter_map(|(payload, owner)| own(payload, owner)).collect())
        })
        .await
    }
}
