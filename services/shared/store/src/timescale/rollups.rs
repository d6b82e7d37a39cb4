//! Roll-ups of one minute and one hour, made by the store where TimescaleDB's edition has no
//! continuous aggregates.
//!
//! Each write marks the stretch of device time that it changed in the device's head row, under a
//! lock that it holds anyway. A step takes some devices under the same lock, computes the stretch
//! anew from the samples and moves the mark. So a roll-up is always a function of the rows: late
//! data are counted, and a repeated or interrupted step changes nothing.

use deadpool_postgres::Transaction;

use super::{
    Ages,
    fault::Fault,
    retention,
    time::{HOUR_US, MINUTE_US, Micros},
};

/// Devices of one step: writers of these wait for it, some tens of milliseconds at a full load.
const DEVICES_MAX: i64 = 20;
/// Rows of one device in one step; a longer backfill takes several steps.
const STRETCH_US: i64 = 6 * HOUR_US;
/// A bucket that has ended is left alone for so long, so that most of its rows are there and it is
/// computed once.
const SETTLE_US: i64 = 10_000_000;

struct Level {
    bucket_us: i64,
    stretch_us: i64,
    find: &'static str,
    fill: &'static str,
    mark: &'static str,
}

const MINUTES: Level = Level {
    bucket_us: MINUTE_US,
    stretch_us: STRETCH_US,
    find: "SELECT key, stale_from, stale_to FROM device_heads WHERE stale_from < $1 ORDER BY key LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED",
    // The times of the whole step besides those of each device let the planner leave out chunks.
    fill: "INSERT INTO vitals_1m
        SELECT r.series, time_bucket(INTERVAL '1 minute', r.time), count(*), sum(r.value), min(r.value), first(r.time, r.value),
            max(r.value), last(r.time, r.value)
        FROM unnest($1::int[], $2::timestamptz[], $3::timestamptz[]) AS w (device, from_time, to_time)
            JOIN streams t ON t.device = w.device JOIN series e ON e.stream = t.key
            JOIN samples r ON r.series = e.key AND r.time >= w.from_time AND r.time < w.to_time AND r.time >= $4 AND r.time < $5
        GROUP BY 1, 2
        ON CONFLICT (series, bucket) DO UPDATE SET count = excluded.count, sum = excluded.sum, min = excluded.min,
            min_at = excluded.min_at, max = excluded.max, max_at = excluded.max_at",
    mark: "UPDATE device_heads h SET stale_from = CASE WHEN w.to_time <= h.stale_to THEN w.to_time END,
            stale_to = CASE WHEN w.to_time <= h.stale_to THEN h.stale_to END,
            stale_hours_from = least(h.stale_hours_from, w.from_time),
            stale_hours_to = greatest(h.stale_hours_to, w.to_time - INTERVAL '1 microsecond')
        FROM unnest($1::int[], $2::timestamptz[], $3::timestamptz[]) AS w (key, from_time, to_time) WHERE h.key = w.key",
};

const HOURS: Level = Level {
    bucket_us: HOUR_US,
    stretch_us: 60 * STRETCH_US,
    find: "SELECT key, stale_hours_from, stale_hours_to FROM device_heads WHERE stale_hours_from < $1 ORDER BY key LIMIT $2
        FOR NO KEY UPDATE SKIP LOCKED",
    fill: "INSERT INTO vitals_1h
        SELECT r.series, time_bucket(INTERVAL '1 hour', r.bucket), sum(r.count)::bigint, sum(r.sum), min(r.min),
            first(r.min_at, r.min), max(r.max), last(r.max_at, r.max)
        FROM unnest($1::int[], $2::timestamptz[], $3::timestamptz[]) AS w (device, from_time, to_time)
            JOIN streams t ON t.device = w.device JOIN series e ON e.stream = t.key
            JOIN vitals_1m r ON r.series = e.key AND r.bucket >= w.from_time AND r.bucket < w.to_time AND r.bucket >= $4 AND r.bucket < $5
        GROUP BY 1, 2
        ON CONFLICT (series, bucket) DO UPDATE SET count = excluded.count, sum = excluded.sum, min = excluded.min,
            min_at = excluded.min_at, max = excluded.max, max_at = excluded.max_at",
    mark: "UPDATE device_heads h SET stale_hours_from = CASE WHEN w.to_time <= h.stale_hours_to THEN w.to_time END,
            stale_hours_to = CASE WHEN w.to_time <= h.stale_hours_to THEN h.stale_hours_to END
        FROM unnest($1::int[], $2::timestamptz[], $3::timestamptz[]) AS w (key, from_time, to_time) WHERE h.key = w.key",
};

/// Some devices of each level; returns how many had something to do.
pub async fn step(transaction: &Transaction<'_>, now_us: i64, ages: &Ages) -> Result<u64, Fault> {
    // Minutes are computed only where all samples are kept, hours only where all minutes are: what
    // was computed while the rows were there outlives them.
    let minutes = MINUTES
        .step(
            transaction,
            now_us,
            retention::cutoff(now_us, ages.vitals).0,
        )
        .await?;
    let hours = HOURS
        .step(
            transaction,
            now_us,
            retention::cutoff(now_us, ages.minutes).0,
        )
        .await?;
    Ok(minutes + hours)
}

impl Level {
    async fn step(
        &self,
        transaction: &Transaction<'_>,
        now_us: i64,
        oldest_us: i64,
    ) -> Result<u64, Fault> {
        let floor = |us: i64| us.div_euclid(self.bucket_us).saturating_mul(self.bucket_us);
        let horizon_us = floor(now_us - SETTLE_US);
        let find = transaction.prepare_cached(self.find).await?;
        let rows = transaction
            .query(&find, &[&Micros::clamped(horizon_us), &DEVICES_MAX])
            .await?;
        let (mut keys, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            let stale_to = floor(row.get::<_, Micros>(2).0).saturating_add(self.bucket_us);
            // Nothing is computed before `oldest`, but the mark moves over it.
            let begin = floor(row.get::<_, Micros>(1).0)
                .max(floor(oldest_us).saturating_add(self.bucket_us));
            let end = stale_to
                .min(horizon_us)
                .min(begin.saturating_add(self.stretch_us));
            keys.push(row.get::<_, i32>(0));
            from.push(Micros::clamped(begin));
            to.push(Micros::clamped(end.max(begin.min(stale_to))));
        }
        let (Some(least), Some(greatest)) = (from.iter().min(), to.iter().max()) else {
            return Ok(0);
        };
        let fill = transaction.prepare_cached(self.fill).await?;
        transaction
            .execute(&fill, &[&keys, &from, &to, least, greatest])
            .await?;
        let mark = transaction.prepare_cached(self.mark).await?;
        transaction.execute(&mark, &[&keys, &from, &to]).await?;
        Ok(rows.len() as u64)
    }
}
