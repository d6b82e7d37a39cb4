use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use contracts::paths::PathReport;
use deadpool_postgres::Transaction;
use prost::Message;
use tokio_postgres::Row;

use super::{
    TimescaleStore,
    copy::Rows,
    fault::Fault,
    ledger::{GATEWAYS, Head, Locked, Wanted},
    lookup, path_steering, progress,
    time::Micros,
    transaction,
};
use crate::{
    LatestPathKey, LatestPathsPage, PATHS_PER_GATEWAY_MAX, PathsQuery, PathsStore, Progress,
    QueryError, Scope, WriteError, Written, paths::own, vitals::future_us,
};

/// Reports of a query that sets no limit.
const LIMIT_DEFAULT: usize = 10_000;
const COPY: &str = "COPY paths (time, sequence, sent_bytes, received_bytes, sent_packets, lost_packets, rtt_ms, gateway, session,
    interval_ms, state, payload, steering) FROM STDIN (FORMAT binary)";

fn check(report: &PathReport) -> Result<(), WriteError> {
    let why = if report.sequence > i64::MAX as u64 {
        "its sequence is beyond 9223372036854775807"
    } else if Micros::exact(report.time_us).is_none() {
        "its time is outside 1 AD to 287168 AD"
    } else {
        return Ok(());
    };
    Err(WriteError::Invalid(format!(
        "report {} of {}/{}: {why}",
        report.sequence, report.gateway, report.path
    )))
}

/// The new ones of the reports, each once.
async fn admit<'a>(
    transaction: &Transaction<'_>,
    reports: &'a [PathReport],
    keys: &[(i32, i32)],
) -> Result<(Locked, Vec<(&'a PathReport, i32, i32)>), Fault> {
    let mut order: Vec<(i32, i32, i64, usize)> = keys
        .iter()
        .zip(reports)
        .enumerate()
        .map(|(n, ((gateway, session), report))| {
            (*gateway, *session, report.sequence.cast_signed(), n)
        })
        .collect();
    order.sort_unstable();
    order.dedup_by_key(|(_, session, sequence, _)| (*session, *sequence));
    let mut wanted: Vec<Wanted> = Vec::new();
    for (owner, stream, sequence, _) in &order {
        match wanted.last_mut() {
            Some(last) if last.stream == *stream => last.sequences.push(*sequence),
            _ => wanted.push(Wanted {
                owner: *owner,
                stream: *stream,
                sequences: vec![*sequence],
            }),
        }
    }
    let (locked, new) = GATEWAYS.admit(transaction, &wanted).await?;
    let mut new: Vec<(i32, i64)> = wanted
        .iter()
        .zip(new)
        .flat_map(|(w, new)| new.into_iter().map(|sequence| (w.stream, sequence)))
        .collect();
    new.sort_unstable();
    let admitted = order
        .iter()
        .filter(|(_, session, sequence, _)| new.binary_search(&(*session, *sequence)).is_ok())
        .map(|(gateway, session, _, n)| (&reports[*n], *gateway, *session))
        .collect();
    Ok((locked, admitted))
}

fn rows(admitted: &[(&PathReport, i32, i32)]) -> Rows {
    let mut rows = Rows::new(13);
    for (report, gateway, session) in admitted {
        rows.row()
            .time(Micros(report.time_us))
            .int8(report.sequence.cast_signed())
            .int8(report.sent_bytes.cast_signed())
            .int8(report.received_bytes.cast_signed())
            .int8(report.sent_packets.cast_signed())
            .int8(report.lost_packets.cast_signed())
            .float8(report.rtt_ms)
            .int4(*gateway)
            .int4(*session)
            .int4(report.interval_ms.cast_signed())
            .int4(report.state)
            .bytes(&report.encode_to_vec());
        match path_steering::binary(report) {
            Some(steering) => rows.bytes(&steering),
            None => rows.null(),
        };
    }
    rows
}

async fn write_heads(transaction: &Transaction<'_>, locked: &Locked) -> Result<(), Fault> {
    let keys: Vec<i32> = locked.heads.keys().copied().collect();
    let heads: Vec<Vec<u8>> = locked.heads.values().map(Head::encode_to_vec).collect();
    let statement = transaction
        .prepare_cached(
            "UPDATE gateway_heads h SET head = w.head FROM unnest($1::int[], $2::bytea[]) AS w (key, head) WHERE h.key = w.key",
        )
        .await?;
    transaction.execute(&statement, &[&keys, &heads]).await?;
    Ok(())
}

async fn write_latest(
    transaction: &Transaction<'_>,
    admitted: &[(&PathReport, i32, i32)],
) -> Result<(), Fault> {
    // In order of the key, as everybody locks; of reports of one time the later one counts.
    let mut newest: BTreeMap<(i32, &str, i32), &PathReport> = BTreeMap::new();
    for (report, gateway, _) in admitted {
        let there = newest
            .entry((*gateway, report.path.as_str(), report.end))
            .or_insert(report);
        if report.time_us >= there.time_us {
            *there = report;
        }
    }
    if newest.is_empty() {
        return Ok(());
    }
    let gateways: Vec<i32> = newest.keys().map(|k| k.0).collect();
    let paths: Vec<&str> = newest.keys().map(|k| k.1).collect();
    let ends: Vec<i32> = newest.keys().map(|k| k.2).collect();
    let times: Vec<Micros> = newest.values().map(|r| Micros(r.time_us)).collect();
    let payloads: Vec<Vec<u8>> = newest.values().map(|r| r.encode_to_vec()).collect();
    let statement = transaction
        .prepare_cached(
            "INSERT INTO latest_paths SELECT * FROM unnest($1::int[], $2::text[], $3::int[], $4::timestamptz[], $5::bytea[])
             ON CONFLICT (gateway, path, end_of) DO UPDATE SET time = excluded.time, payload = excluded.payload
                 WHERE excluded.time >= latest_paths.time OR (latest_paths.time > $6::timestamptz AND excluded.time <= $6::timestamptz)
             RETURNING gateway, xmax = 0",
        )
        .await?;
    let future = Micros(future_us());
    let written = transaction
        .query(
            &statement,
            &[&gateways, &paths, &ends, &times, &payloads, &future],
        )
        .await?;
    // A row without `xmax` is a new one: its gateway has a path more.
    let grown = written.iter().filter(|row| row.get(1));
    let grown: BTreeSet<i32> = grown.map(|row| row.get(0)).collect();
    if grown.is_empty() {
        return Ok(());
    }
    let grown: Vec<i32> = grown.into_iter().collect();
    let statement = transaction
        .prepare_cached(
            "DELETE FROM latest_paths l USING
                 (SELECT gateway, path, row_number() OVER (PARTITION BY gateway ORDER BY max(time) DESC, path) AS place
                  FROM latest_paths WHERE gateway = ANY($1) GROUP BY gateway, path) AS p
             WHERE l.gateway = p.gateway AND l.path = p.path AND p.place > $2",
        )
        .await?;
    let kept = i64::try_from(PATHS_PER_GATEWAY_MAX).unwrap_or(i64::MAX);
    transaction.execute(&statement, &[&grown, &kept]).await?;
    Ok(())
}

#[async_trait]
impl PathsStore for TimescaleStore {
    async fn write_paths(
        &self,
        reports: Vec<PathReport>,
        advance: Vec<Progress>,
    ) -> Result<Written, WriteError> {
        reports.iter().try_for_each(check)?;
        let keys = lookup::resolve(self, |keys, missing| {
            let found: Vec<Option<(i32, i32)>> = reports
                .iter()
                .map(|r| keys.session(&r.gateway, &r.path, r.end, r.session, missing))
                .collect();
            found.into_iter().collect::<Option<Vec<_>>>()
        })
        .await
        .map_err(Fault::into_write)?;
        let new = transaction!(self, tx => async {
            progress::hold(tx, &advance).await?;
            let (locked, admitted) = admit(tx, &reports, &keys).await?;
            if !admitted.is_empty() {
                rows(&admitted).send(tx, COPY).await?;
                futures::try_join!(
                    write_heads(tx, &locked),
                    GATEWAYS.settle(tx, &locked),
                    write_latest(tx, &admitted),
                )?;
            }
            progress::advance(tx, &advance).await?;
            Ok::<_, Fault>(admitted.len() as u64)
        })?;
        Ok(Written {
            new,
            duplicate: reports.len() as u64 - new,
        })
    }

    async fn paths(
        &self,
        scope: &Scope,
        query: &PathsQuery,
    ) -> Result<Vec<PathReport>, QueryError> {
        let limit = if query.limit == 0 {
            LIMIT_DEFAULT
        } else {
            query.limit
        };
        // Two statements, because one with `OR ... IS NULL` uses neither index.
        let gateway = if query.gateway.is_some() {
            "r.gateway = (SELECT key FROM gateways WHERE id = $2)"
        } else {
            "$2::text IS NULL"
        };
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(&format!(
                "SELECT r.payload, g.tenant FROM paths r JOIN gateways g ON g.key = r.gateway
                 WHERE {gateway} AND ($1::text IS NULL OR g.tenant = $1) AND r.time >= $3 AND r.time < $4
                 ORDER BY r.time DESC, r.session DESC, r.sequence DESC LIMIT $5"
            ))
            .await?;
        let rows = connection
            .query(
                &statement,
                &[
                    &scope.as_tenant(),
                    &query.gateway,
                    &Micros::clamped(query.from_us),
                    &Micros::clamped(query.to_us),
                    &i64::try_from(limit).unwrap_or(i64::MAX),
                ],
            )
            .await?;
        Ok(decode(rows.iter().rev()))
    }

    async fn latest_paths(
        &self,
        scope: &Scope,
        gateway: Option<&str>,
    ) -> Result<Vec<PathReport>, QueryError> {
        let connection = self.reader().await?;
        let rows = connection
            .query(
                "SELECT r.payload, g.tenant FROM latest_paths r JOIN gateways g ON g.key = r.gateway
                 WHERE ($1::text IS NULL OR g.tenant = $1) AND ($2::text IS NULL OR g.id = $2)
                 ORDER BY g.id COLLATE \"C\", r.path COLLATE \"C\", r.end_of",
                &[&scope.as_tenant(), &gateway],
            )
            .await?;
        Ok(decode(rows.iter()))
    }

    async fn latest_paths_page(
        &self,
        scope: &Scope,
        from_us: i64,
        after: &LatestPathKey,
        limit: usize,
    ) -> Result<LatestPathsPage, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT r.payload, g.tenant, g.id, r.path, r.end_of
                 FROM gateways g JOIN latest_paths r ON r.gateway = g.key
                 WHERE ($1::text IS NULL OR g.tenant = $1) AND r.time >= $2
                     AND (g.id COLLATE \"C\", r.path COLLATE \"C\", r.end_of) > ($3, $4, $5)
                 ORDER BY g.id COLLATE \"C\", r.path COLLATE \"C\", r.end_of LIMIT $6",
            )
            .await?;
        let rows = connection
            .query(
                &statement,
                &[
                    &scope.as_tenant(),
                    &Micros::clamped(from_us),
                    &after.gateway,
                    &after.path,
                    &after.end,
                    &i64::try_from(limit).unwrap_or(i64::MAX),
                ],
            )
            .await?;
        let next = rows.last().filter(|_| rows.len() >= limit);
        let next = next.map(|row| LatestPathKey {
            gateway: row.get(2),
            path: row.get(3),
            end: row.get(4),
        });
        Ok((decode(rows.iter()), next))
    }
}

fn decode<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<PathReport> {
    rows.filter_map(|row| own(row.get(0), row.get(1))).collect()
}
