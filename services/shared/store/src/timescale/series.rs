//! Queries of charts: the newest values, and series thinned to the points that can be drawn.

use std::{collections::HashMap, pin::pin};

use contracts::vitals::Metric;
use deadpool_postgres::Object;
use futures::TryStreamExt;
use prost::Message;
use tokio_postgres::types::ToSql;

use super::{
    ledger::Head,
    time::{HOUR_US, MINUTE_US, Micros},
};
use crate::{LatestVital, QueryError, Scope, SeriesPoints, SeriesQuery, thinning::Thinner};

pub struct Series {
    pub key: i32,
    pub metric: i32,
    longest_us: i64,
    device: i32,
}

/// Every series of a patient that the scope may see, by metric.
pub async fn of_patient(
    connection: &Object,
    scope: &Scope,
    patient: &str,
) -> Result<Vec<Series>, QueryError> {
    let statement = connection
        .prepare_cached(
            "SELECT e.key, e.metric, e.longest_us, t.device FROM patients p JOIN series e ON e.patient = p.key
                 JOIN streams t ON t.key = e.stream
             WHERE p.id = $1 AND ($2::text IS NULL OR p.tenant = $2) ORDER BY e.metric, e.key",
        )
        .await?;
    let rows = connection
        .query(&statement, &[&patient, &scope.as_tenant()])
        .await?;
    let series = |row: &tokio_postgres::Row| Series {
        key: row.get(0),
        metric: row.get(1),
        longest_us: row.get(2),
        device: row.get(3),
    };
    Ok(rows.iter().map(series).collect())
}

/// The patients or devices of the newest values.
#[derive(Clone, Copy)]
pub enum Which<'a> {
    All,
    One(&'a str),
    /// From exclusive, to inclusive.
    Between(&'a str, &'a str),
}

/// The last of the `patients` patients that follow `after`, and how many there are; `None`: none.
pub async fn page(
    connection: &Object,
    scope: &Scope,
    after: &str,
    patients: usize,
) -> Result<Option<(String, usize)>, QueryError> {
    let statement = connection
        .prepare_cached(
            "SELECT max(id COLLATE \"C\"), count(*) FROM (SELECT id FROM patients
                 WHERE id COLLATE \"C\" > $2 AND ($1::text IS NULL OR tenant = $1) ORDER BY id COLLATE \"C\" LIMIT $3) AS p",
        )
        .await?;
    let limit = i64::try_from(patients).unwrap_or(i64::MAX);
    let row = connection
        .query_one(&statement, &[&scope.as_tenant(), &after, &limit])
        .await?;
    let count = usize::try_from(row.get::<_, i64>(1)).unwrap_or_default();
    Ok(row.get::<_, Option<String>>(0).map(|last| (last, count)))
}

pub async fn latest(
    connection: &Object,
    scope: &Scope,
    which: Which<'_>,
) -> Result<Vec<LatestVital>, QueryError> {
    // A statement for each, because one with `OR ... IS NULL` uses no index.
    let (which, from, to) = match which {
        Which::All => ("$2::text IS NULL AND $3::text IS NULL", None, None),
        Which::One(patient) => ("p.id = $2 AND $3::text IS NULL", Some(patient), None),
        Which::Between(from, to) => (
            "p.id COLLATE \"C\" > $2 AND p.id COLLATE \"C\" <= $3",
            Some(from),
            Some(to),
        ),
    };
    let statement = connection
        .prepare_cached(&format!(
            "SELECT e.key, p.id, e.metric, h.device, g.id, h.key FROM patients p JOIN series e ON e.patient = p.key
                 JOIN streams t ON t.key = e.stream JOIN device_heads h ON h.key = t.device JOIN gateways g ON g.key = e.gateway
             WHERE ($1::text IS NULL OR p.tenant = $1) AND {which}"
        ))
        .await?;
    let rows = connection
        .query(&statement, &[&scope.as_tenant(), &from, &to])
        .await?;
    let mut devices: Vec<i32> = rows.iter().map(|row| row.get(5)).collect();
    devices.sort_unstable();
    devices.dedup();
    let heads = connection
        .prepare_cached("SELECT head FROM device_heads WHERE key = ANY($1)")
        .await?;
    let mut values = HashMap::new();
    for row in connection.query(&heads, &[&devices]).await? {
        let head = Head::decode(row.get::<_, &[u8]>(0))?;
        values.extend(
            head.latest
                .into_iter()
                .map(|latest| (latest.series, latest)),
        );
    }
    let mut newest: Vec<LatestVital> = rows
        .iter()
        .filter_map(|row| {
            let latest = values.get(&row.get::<_, i32>(0))?;
            Some(LatestVital {
                patient: row.get(1),
                metric: metric(row.get(2)),
                value: latest.value,
                device_time_us: latest.time_us,
                ingest_time_us: latest.time_us.wrapping_add(latest.ingest_step_us),
                device: row.get(3),
                gateway: row.get(4),
            })
        })
        .collect();
    // If several devices measure the same metric, the newest value counts.
    newest.sort_by(|a, b| {
        let of = |v: &LatestVital| {
            (
                v.metric.number(),
                std::cmp::Reverse((v.device_time_us, v.ingest_time_us)),
            )
        };
        (&a.patient, of(a)).cmp(&(&b.patient, of(b)))
    });
    newest.dedup_by(|later, first| later.patient == first.patient && later.metric == first.metric);
    Ok(newest)
}

/// Where the points of a stretch are read from.
enum Source {
    Samples,
    /// Table of roll-ups, until when it holds everything, and the length of its buckets.
    Rollup(&'static str, i64, i64),
}

pub async fn read(
    connection: &Object,
    scope: &Scope,
    query: &SeriesQuery,
) -> Result<Vec<SeriesPoints>, QueryError> {
    let all = of_patient(connection, scope, &query.patient).await?;
    let metrics: Vec<i32> = if query.metrics.is_empty() {
        let mut metrics: Vec<i32> = all.iter().map(|s| s.metric).collect();
        metrics.dedup();
        metrics
    } else {
        query.metrics.iter().map(|it| it.number()).collect()
    };
    let source = source(connection, &all, query).await?;
    let mut points = Vec::with_capacity(metrics.len());
    for wanted in metrics {
        let of_metric = || all.iter().filter(move |s| s.metric == wanted);
        let keys: Vec<i32> = of_metric().map(|s| s.key).collect();
        if keys.is_empty() {
            continue;
        }
        let mut thinner = Thinner::new(query.from_us, query.to_us, query.points);
        values(connection, &keys, query, &source, &mut thinner).await?;
        let longest_us = of_metric().map(|s| s.longest_us).max().unwrap_or(0);
        if longest_us > 0 {
            waveforms(connection, &keys, query, longest_us, &mut thinner).await?;
        }
        let (times_us, values) = thinner.finish();
        if !times_us.is_empty() {
            points.push(SeriesPoints {
                metric: metric(wanted),
                times_us,
                values,
            });
        }
    }
    Ok(points)
}

/// A roll-up keeps the extremes of each bucket with their times. If a slice of the chart spans two
/// buckets, roll-ups show the same as samples and need a hundredth of the rows.
async fn source(
    connection: &Object,
    all: &[Series],
    query: &SeriesQuery,
) -> Result<Source, QueryError> {
    let slices = (query.points / 2).max(1) as u64;
    let slice_us = query.to_us.abs_diff(query.from_us) / slices;
    let (table, bucket_us, stale) = if slice_us >= 2 * HOUR_US as u64 {
        ("vitals_1h", HOUR_US, "least(stale_from, stale_hours_from)")
    } else if slice_us >= 2 * MINUTE_US as u64 {
        ("vitals_1m", MINUTE_US, "stale_from")
    } else {
        return Ok(Source::Samples);
    };
    let mut devices: Vec<i32> = all.iter().map(|s| s.device).collect();
    devices.dedup();
    let row = connection
        .query_one(
            &format!("SELECT min({stale}) FROM device_heads WHERE key = ANY($1)"),
            &[&devices],
        )
        .await?;
    // In the edition that keeps roll-ups by itself nothing is ever marked stale, and they are
    // complete.
    let until = row.get::<_, Option<Micros>>(0).map_or(i64::MAX, |time| {
        time.0.div_euclid(bucket_us).saturating_mul(bucket_us)
    });
    Ok(Source::Rollup(table, until, bucket_us))
}

async fn values(
    connection: &Object,
    keys: &[i32],
    query: &SeriesQuery,
    source: &Source,
    thinner: &mut Thinner,
) -> Result<(), QueryError> {
    let mut from_us = query.from_us;
    if let Source::Rollup(table, until_us, bucket_us) = source {
        // Whole buckets only: what an end of the stretch cuts comes from the samples.
        let floor = |us: i64| us.div_euclid(*bucket_us).saturating_mul(*bucket_us);
        let first_us = floor(query.from_us.saturating_add(bucket_us - 1));
        let until_us = (*until_us).min(floor(query.to_us));
        if first_us < until_us {
            buckets(connection, table, keys, (first_us, until_us), thinner).await?;
            samples(connection, keys, (query.from_us, first_us), thinner).await?;
            from_us = until_us;
        }
    }
    samples(connection, keys, (from_us, query.to_us), thinner).await
}

async fn buckets(
    connection: &Object,
    table: &str,
    keys: &[i32],
    (from_us, to_us): (i64, i64),
    thinner: &mut Thinner,
) -> Result<(), QueryError> {
    let sql = format!(
        "SELECT min_at, min, max_at, max FROM {table} WHERE series = ANY($1) AND bucket >= $2 AND bucket < $3"
    );
    each(
        connection,
        &sql,
        &[&keys, &Micros::clamped(from_us), &Micros::clamped(to_us)],
        |row| {
            let least = (row.get::<_, Micros>(0).0, row.get::<_, f64>(1));
            let greatest = (row.get::<_, Micros>(2).0, row.get::<_, f64>(3));
            thinner.push(least.0, least.1);
            if greatest != least {
                thinner.push(greatest.0, greatest.1);
            }
            Ok(())
        },
    )
    .await
}

async fn samples(
    connection: &Object,
    keys: &[i32],
    (from_us, to_us): (i64, i64),
    thinner: &mut Thinner,
) -> Result<(), QueryError> {
    if from_us >= to_us {
        return Ok(());
    }
    each(
        connection,
        "SELECT time, value FROM samples WHERE series = ANY($1) AND time >= $2 AND time < $3",
        &[&keys, &Micros::clamped(from_us), &Micros::clamped(to_us)],
        |row| {
            thinner.push(row.get::<_, Micros>(0).0, row.get(1));
            Ok(())
        },
    )
    .await
}

async fn waveforms(
    connection: &Object,
    keys: &[i32],
    query: &SeriesQuery,
    longest_us: i64,
    thinner: &mut Thinner,
) -> Result<(), QueryError> {
    let from = Micros::clamped(query.from_us.saturating_sub(longest_us));
    each(
        connection,
        "SELECT time, period_us, readings FROM waveforms WHERE series = ANY($1) AND time >= $2 AND time < $3 ORDER BY time",
        &[&keys, &from, &Micros::clamped(query.to_us)],
        |row| {
            let mut time = row.get::<_, Micros>(0).0;
            let period = i64::from(row.get::<_, i32>(1));
            for value in row.get::<_, Vec<f32>>(2) {
                if (query.from_us..query.to_us).contains(&time) {
                    thinner.push(time, f64::from(value));
                }
                time = time.saturating_add(period);
            }
            Ok(())
        },
    )
    .await
}

/// Row by row, so that a long stretch does not stand in memory.
async fn each(
    connection: &Object,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
    mut take: impl FnMut(&tokio_postgres::Row) -> Result<(), QueryError>,
) -> Result<(), QueryError> {
    let statement = connection.prepare_cached(sql).await?;
    let rows = connection
        .query_raw(&statement, values.iter().copied())
        .await?;
    let mut rows = pin!(rows);
    while let Some(row) = rows.try_next().await? {
        take(&row)?;
    }
    Ok(())
}

pub fn metric(key: i32) -> Metric {
    Metric::from_number(key)
}
