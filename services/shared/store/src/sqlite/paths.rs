use std::collections::BTreeSet;

use async_trait::async_trait;
use contracts::paths::PathReport;
use prost::Message;

use super::{SqliteStore, progress};
use crate::{
    LatestPathKey, LatestPathsPage, PATHS_PER_GATEWAY_MAX, PathsQuery, PathsStore, Progress,
    QueryError, Scope, WriteError, Written, paths::own, vitals::future_us,
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
            // Gateways that have a path more.
            let mut grown = BTreeSet::new();
            for report in &reports {
                let gateway = writing.keys.gateway(connection, &report.gateway)?;
                let payload = report.encode_to_vec();
                let inserted = connection
                    .prepare_cached(
                        "INSERT OR IGNORE INTO paths VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    )?
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
                let latest = (gateway, &report.path, report.end, report.time_us, &payload);
                let known = connection
                    .prepare_cached(
                        "UPDATE latest_paths SET time_us = ?4, payload = ?5
                         WHERE gateway = ?1 AND path = ?2 AND end_of = ?3
                             AND (?4 >= time_us OR (time_us > ?6 AND ?4 <= ?6))",
                    )?
                    .execute((
                        gateway,
                        &report.path,
                        report.end,
                        report.time_us,
                        &payload,
                        future_us,
                    ))?;
                if known == 0 {
                    let new = connection
                        .prepare_cached(
                            "INSERT OR IGNORE INTO latest_paths VALUES (?1, ?2, ?3, ?4, ?5)",
                        )?
                        .execute(latest)?;
                    if new > 0 {
                        grown.insert(gateway);
                    }
                }
            }
            for gateway in grown {
                connection
                    .prepare_cached(
                        "DELETE FROM latest_paths WHERE gateway = ?1 AND path NOT IN
                             (SELECT path FROM latest_paths WHERE gateway = ?1 GROUP BY path
                              ORDER BY max(time_us) DESC, path LIMIT ?2)",
                    )?
                    .execute((gateway, PATHS_PER_GATEWAY_MAX))?;
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

    async fn latest_paths_page(
        &self,
        scope: &Scope,
        from_us: i64,
        after: &LatestPathKey,
        limit: usize,
    ) -> Result<LatestPathsPage, QueryError> {
        let (tenant, after) = (scope.as_tenant().map(str::to_owned), after.clone());
        self.read(move |connection| {
            let rows: Vec<(LatestPathKey, Vec<u8>, String)> = connection
                .prepare_cached(
                    "SELECT g.id, r.path, r.end_of, r.payload, g.tenant
                     FROM gateways g JOIN latest_paths r ON r.gateway = g.key
                     WHERE (?1 IS NULL OR g.tenant = ?1) AND r.time_us >= ?2 AND g.id >= ?3
                         AND (g.id, r.path, r.end_of) > (?3, ?4, ?5)
                     ORDER BY g.id, r.path, r.end_of LIMIT ?6",
                )?
                .query_map(
                    (
                        tenant,
                        from_us,
                        &after.gateway,
                        &after.path,
                        after.end,
                        limit,
                    ),
                    |row| {
                        let key = LatestPathKey {
                            gateway: row.get(0)?,
                            path: row.get(1)?,
                            end: row.get(2)?,
                        };
                        Ok((key, row.get(3)?, row.get(4)?))
                    },
                )?
                .collect::<rusqlite::Result<_>>()?;
            let next = rows.last().filter(|_| rows.len() >= limit);
            let next = next.map(|(key, _, _)| key.clone());
            let reports = rows
                .iter()
                .filter_map(|(_, payload, owner)| own(payload, owner));
            Ok((reports.collect(), next))
        })
        .await
    }
}
