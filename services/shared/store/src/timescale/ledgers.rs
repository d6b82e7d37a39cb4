use std::collections::BTreeMap;

use async_trait::async_trait;
use contracts::vitals::Ledger;
use deadpool_postgres::{Object, Transaction};
use tokio_postgres::Row;

use super::{TimescaleStore, fault::Fault, time::Micros, transaction};
use crate::{
    ASKED_MAX, ASKED_US, Asked, ISLANDS_MAX, Island, JournalSpan, LedgerRun, LedgersStore,
    QueryError, SENSOR_JUMPS_MAX, SensorJump, StreamStored, WriteError,
};

/// How far from the stretch samples are looked for whose sequences lie between its own. A sensor
/// that was out of reach sends what it stored. An older sample counts as missing.
const LATE_US: i64 = 31 * 86_400 * 1_000_000;

/// Each table in one statement, in order of the key, as everybody locks.
pub async fn enter(transaction: &Transaction<'_>, ledgers: &[Ledger]) -> Result<(), Fault> {
    if ledgers.is_empty() {
        return Ok(());
    }
    // A statement may touch a row once.
    let mut journals: BTreeMap<(&str, i64), (i64, i64, i64)> = BTreeMap::new();
    let mut runs: BTreeMap<(&str, &str, &str, i64, i64), i64> = BTreeMap::new();
    for ledger in ledgers {
        let (gateway, journal) = (ledger.gateway.as_str(), ledger.journal.cast_signed());
        let waiting = i64::try_from(ledger.waiting).unwrap_or(i64::MAX);
        let of_journal =
            journals
                .entry((gateway, journal))
                .or_insert((ledger.at_us, ledger.at_us, waiting));
        of_journal.0 = of_journal.0.min(ledger.at_us);
        if ledger.at_us >= of_journal.1 {
            (of_journal.1, of_journal.2) = (ledger.at_us, waiting);
        }
        for it in &ledger.streams {
            let (device, stream) = (it.device.as_str(), it.stream.as_str());
            let key = (
                device,
                stream,
                gateway,
                journal,
                it.first_sequence.cast_signed(),
            );
            let next = runs.entry(key).or_default();
            *next = (*next).max(it.next_sequence.cast_signed());
        }
    }
    let gateways: Vec<&str> = journals.keys().map(|key| key.0).collect();
    let numbers: Vec<i64> = journals.keys().map(|key| key.1).collect();
    let since: Vec<i64> = journals.values().map(|it| it.0).collect();
    let as_of: Vec<i64> = journals.values().map(|it| it.1).collect();
    let waiting: Vec<i64> = journals.values().map(|it| it.2).collect();
    let statement = transaction
        .prepare_cached(
            "INSERT INTO journals AS j SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
             ON CONFLICT (gateway, journal) DO UPDATE SET since_us = least(j.since_us, excluded.since_us),
                 as_of_us = greatest(j.as_of_us, excluded.as_of_us),
                 waiting = CASE WHEN excluded.as_of_us >= j.as_of_us THEN excluded.waiting ELSE j.waiting END",
        )
        .await?;
    transaction
        .execute(&statement, &[&gateways, &numbers, &since, &as_of, &waiting])
        .await?;
    let devices: Vec<&str> = runs.keys().map(|key| key.0).collect();
    let streams: Vec<&str> = runs.keys().map(|key| key.1).collect();
    let gateways: Vec<&str> = runs.keys().map(|key| key.2).collect();
    let numbers: Vec<i64> = runs.keys().map(|key| key.3).collect();
    let firsts: Vec<i64> = runs.keys().map(|key| key.4).collect();
    let nexts: Vec<i64> = runs.values().copied().collect();
    let statement = transaction
        .prepare_cached(
            "INSERT INTO ledgers AS l SELECT * FROM
                 unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
             ON CONFLICT (device, stream, gateway, journal, first) DO UPDATE SET next = greatest(l.next, excluded.next)",
        )
        .await?;
    transaction
        .execute(
            &statement,
            &[&devices, &streams, &gateways, &numbers, &firsts, &nexts],
        )
        .await?;
    Ok(())
}

/// Samples of the series $1, as one table.
macro_rules! of_series {
    ($where:literal) => {
        concat!(
            "(SELECT series, sequence, time, sensor_sequence FROM samples WHERE series = ANY($1) AND ", $where,
            " UNION ALL SELECT series, sequence, time, sensor_sequence FROM waveforms WHERE series = ANY($1) AND ", $where, ") r"
        )
    };
}

const COUNTED: &str = concat!(
    "SELECT e.stream, count(*) FROM ",
    of_series!("time >= $2 AND time < $3"),
    " JOIN series e ON e.key = r.series GROUP BY e.stream"
);
const NAMED: &str = "SELECT t.key, h.device, t.stream, (SELECT array_agg(e.key) FROM series e WHERE e.stream = t.key)
    FROM streams t JOIN device_heads h ON h.key = t.device
    WHERE t.key = ANY($1) OR (h.device, t.stream) IN (SELECT * FROM unnest($2::text[], $3::text[]))
    ORDER BY h.device COLLATE \"C\", t.stream COLLATE \"C\"";
const BEFORE: &str = concat!(
    "SELECT sequence, time FROM ",
    of_series!("time < $2 AND sequence < $3"),
    " ORDER BY time DESC, sequence DESC LIMIT 1"
);
const AFTER: &str = concat!(
    "SELECT sequence, time FROM ",
    of_series!("time >= $2 AND sequence > $3"),
    " ORDER BY time, sequence LIMIT 1"
);
const WITHIN: &str = concat!(
    "SELECT min(sequence), max(sequence) FROM ",
    of_series!("time >= $2 AND time < $3")
);
const ISLANDS: &str = concat!(
    "SELECT min(sequence), max(sequence), min(time), max(time) FROM
         (SELECT sequence, time, sequence - row_number() OVER (ORDER BY sequence) AS island FROM
              (SELECT DISTINCT ON (sequence) sequence, time FROM ",
    of_series!("time >= $2 AND time < $3 AND sequence BETWEEN $4 AND $5"),
    " ORDER BY sequence, time) one) i GROUP BY island ORDER BY 1 LIMIT $6"
);
const JUMPS: &str = concat!(
    "SELECT h.device, t.stream, j.before + 1, j.number - 1, j.before_time, j.time FROM
         (SELECT e.stream, r.time, r.sensor_sequence AS number, lag(r.sensor_sequence) OVER w AS before,
              lag(r.time) OVER w AS before_time
          FROM ",
    of_series!("time >= $2 AND time < $3 AND sensor_sequence IS NOT NULL"),
    " JOIN series e ON e.key = r.series
          WINDOW w AS (PARTITION BY e.stream ORDER BY r.time, r.sensor_sequence)) j
         JOIN streams t ON t.key = j.stream JOIN device_heads h ON h.key = t.device
     WHERE j.number > j.before + 1 ORDER BY j.before_time, j.stream LIMIT $4"
);

struct Stream {
    series: Vec<i32>,
}

async fn edge(
    connection: &Object,
    sql: &str,
    series: &[i32],
    time_us: i64,
    sequence: i64,
) -> Result<Option<(i64, i64)>, QueryError> {
    let statement = connection.prepare_cached(sql).await?;
    let row = connection
        .query_opt(&statement, &[&series, &Micros::clamped(time_us), &sequence])
        .await?;
    Ok(row.map(|row| (row.get(0), row.get::<_, Micros>(1).0)))
}

impl Stream {
    async fn islands(
        &self,
        connection: &Object,
        from_us: i64,
        to_us: i64,
    ) -> Result<Option<Vec<Island>>, QueryError> {
        // Whosever they are: a later wearer's samples belong to the same run.
        let within = connection.prepare_cached(WITHIN).await?;
        let (from, to) = (Micros::clamped(from_us), Micros::clamped(to_us));
        let within = connection
            .query_one(&within, &[&self.series, &from, &to])
            .await?;
        let (least, greatest): (Option<i64>, Option<i64>) = (within.get(0), within.get(1));
        let below = least.unwrap_or(i64::MAX);
        let before = edge(connection, BEFORE, &self.series, from_us, below).await?;
        let last = greatest.or(before.map(|it| it.0));
        let above = last.unwrap_or_default();
        let after = edge(connection, AFTER, &self.series, to_us, above).await?;
        let first = before.map(|it| it.0).or(least).or(after.map(|it| it.0));
        let (Some(first), Some(last)) = (first, after.map(|it| it.0).or(last)) else {
            return Ok(None);
        };
        let near = (
            before.map_or(from_us, |it| it.1),
            after.map_or(to_us, |it| it.1.max(to_us)).saturating_add(1),
        );
        let islands = self.between(connection, near, (first, last)).await?;
        if islands.len() <= 1 {
            return Ok(Some(islands));
        }
        let far = (
            near.0.saturating_sub(LATE_US),
            near.1.saturating_add(LATE_US),
        );
        Ok(Some(self.between(connection, far, (first, last)).await?))
    }

    async fn between(
        &self,
        connection: &Object,
        times: (i64, i64),
        sequences: (i64, i64),
    ) -> Result<Vec<Island>, QueryError> {
        let statement = connection.prepare_cached(ISLANDS).await?;
        let limit = ISLANDS_MAX as i64 + 1;
        let (from, to) = (Micros::clamped(times.0), Micros::clamped(times.1));
        let rows = connection
            .query(
                &statement,
                &[&self.series, &from, &to, &sequences.0, &sequences.1, &limit],
            )
            .await?;
        let island = |row: &Row| Island {
            first: row.get::<_, i64>(0).cast_unsigned(),
            last: row.get::<_, i64>(1).cast_unsigned(),
            from_us: row.get::<_, Micros>(2).0,
            to_us: row.get::<_, Micros>(3).0,
        };
        Ok(rows.iter().map(island).collect())
    }
}

async fn series_of(connection: &Object, patient: &str) -> Result<Vec<i32>, QueryError> {
    let statement = connection
        .prepare_cached(
            "SELECT e.key FROM series e JOIN patients p ON p.key = e.patient WHERE p.id = $1",
        )
        .await?;
    let rows = connection.query(&statement, &[&patient]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[async_trait]
impl LedgersStore for TimescaleStore {
    async fn ledger_runs(&self, devices: &[String]) -> Result<Vec<LedgerRun>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT r.gateway, r.journal, r.device, r.stream, r.first, r.next, j.since_us, j.as_of_us, j.waiting
                 FROM ledgers r JOIN journals j ON j.gateway = r.gateway AND j.journal = r.journal
                 WHERE r.device = ANY($1) ORDER BY r.device, r.stream, r.first, r.gateway, j.since_us",
            )
            .await?;
        let rows = connection.query(&statement, &[&devices]).await?;
        let run = |row: &Row| LedgerRun {
            gateway: row.get(0),
            journal: row.get::<_, i64>(1).cast_unsigned(),
            device: row.get(2),
            stream: row.get(3),
            first: row.get::<_, i64>(4).cast_unsigned(),
            next: row.get::<_, i64>(5).cast_unsigned(),
            since_us: row.get(6),
            as_of_us: row.get(7),
            waiting: row.get::<_, i64>(8).cast_unsigned(),
        };
        Ok(rows.iter().map(run).collect())
    }

    async fn journals(&self, gateways: &[String]) -> Result<Vec<JournalSpan>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT gateway, journal, since_us, as_of_us FROM journals WHERE gateway = ANY($1)
                 ORDER BY gateway, since_us, journal",
            )
            .await?;
        let rows = connection.query(&statement, &[&gateways]).await?;
        let span = |row: &Row| JournalSpan {
            gateway: row.get(0),
            journal: row.get::<_, i64>(1).cast_unsigned(),
            since_us: row.get(2),
            as_of_us: row.get(3),
        };
        Ok(rows.iter().map(span).collect())
    }

    async fn stored_sequences(
        &self,
        patient: &str,
        others: &[(String, String)],
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<StreamStored>, QueryError> {
        let connection = self.reader().await?;
        let range = (Micros::clamped(from_us), Micros::clamped(to_us));
        let own = series_of(&connection, patient).await?;
        let counted = connection.prepare_cached(COUNTED).await?;
        let rows = connection
            .query(&counted, &[&own, &range.0, &range.1])
            .await?;
        let counts: BTreeMap<i32, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let named = connection.prepare_cached(NAMED).await?;
        let keys: Vec<i32> = counts.keys().copied().collect();
        let (devices, streams): (Vec<&str>, Vec<&str>) = others
            .iter()
            .map(|(device, stream)| (device.as_str(), stream.as_str()))
            .unzip();
        let rows = connection
            .query(&named, &[&keys, &devices, &streams])
            .await?;
        let mut found = Vec::new();
        for row in rows {
            let count = counts.get(&row.get(0));
            let stream = Stream {
                series: row.get::<_, Option<Vec<i32>>>(3).unwrap_or_default(),
            };
            let Some(mut islands) = stream.islands(&connection, from_us, to_us).await? else {
                continue;
            };
            let is_cut = islands.len() > ISLANDS_MAX;
            islands.truncate(ISLANDS_MAX);
            found.push(StreamStored {
                device: row.get(1),
                stream: row.get(2),
                stored: count.map_or(0, |it| it.cast_unsigned()),
                islands,
                is_cut,
            });
        }
        Ok(found)
    }

    async fn sensor_jumps(
        &self,
        patient: &str,
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<SensorJump>, QueryError> {
        let connection = self.reader().await?;
        let own = series_of(&connection, patient).await?;
        let statement = connection.prepare_cached(JUMPS).await?;
        let (from, to) = (Micros::clamped(from_us), Micros::clamped(to_us));
        let limit = SENSOR_JUMPS_MAX as i64;
        let rows = connection
            .query(&statement, &[&own, &from, &to, &limit])
            .await?;
        let jump = |row: &Row| SensorJump {
            device: row.get(0),
            stream: row.get(1),
            first: row.get::<_, i64>(2).cast_unsigned(),
            last: row.get::<_, i64>(3).cast_unsigned(),
            from_us: row.get::<_, Micros>(4).0,
            to_us: row.get::<_, Micros>(5).0,
        };
        Ok(rows.iter().map(jump).collect())
    }

    async fn ask_again(
        &self,
        gateway: &str,
        asked: Vec<Asked>,
        now_us: i64,
    ) -> Result<(), WriteError> {
        let oldest = now_us - ASKED_US;
        transaction!(self, tx => async {
            tx.execute(
                "DELETE FROM asked WHERE gateway = $1 AND (asked_us < $2 OR asked_us > $3)",
                &[&gateway, &oldest, &now_us],
            )
            .await?;
            let held: i64 = tx
                .query_one("SELECT count(*) FROM asked WHERE gateway = $1", &[&gateway])
                .await?
                .get(0);
            let room = ASKED_MAX.saturating_sub(usize::try_from(held).unwrap_or(ASKED_MAX));
            for it in asked.iter().take(room) {
                tx.execute(
                    "INSERT INTO asked VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
                     ON CONFLICT (gateway, device, stream, first) DO UPDATE SET last = excluded.last,
                         from_us = excluded.from_us, to_us = excluded.to_us, asked_us = excluded.asked_us",
                    &[
                        &gateway,
                        &it.device,
                        &it.stream,
                        &it.first.cast_signed(),
                        &it.last.cast_signed(),
                        &it.from_us,
                        &it.to_us,
                        &now_us,
                    ],
                )
                .await?;
            }
            Ok::<_, Fault>(())
        })
    }

    async fn asked_again(&self, gateway: &str, now_us: i64) -> Result<Vec<Asked>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT device, stream, first, last, from_us, to_us FROM asked WHERE gateway = $1 AND asked_us >= $2
                 ORDER BY device, stream, first LIMIT $3",
            )
            .await?;
        let (oldest, limit) = (now_us - ASKED_US, ASKED_MAX as i64);
        let rows = connection
            .query(&statement, &[&gateway, &oldest, &limit])
            .await?;
        let asked = |row: &Row| Asked {
            device: row.get(0),
            stream: row.get(1),
            first: row.get::<_, i64>(2).cast_unsigned(),
            last: row.get::<_, i64>(3).cast_unsigned(),
            from_us: row.get(4),
            to_us: row.get(5),
        };
        Ok(rows.iter().map(asked).collect())
    }
}
