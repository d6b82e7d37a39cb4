use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::SqliteStore;
use crate::{
    ASKED_MAX, ASKED_US, Asked, ISLANDS_MAX, Island, JournalSpan, LedgerRun, LedgersStore,
    QueryError, SENSOR_JUMPS_MAX, SensorJump, StreamStored, WriteError,
};

/// Both kinds of rows of a stream.
const ROWS: &str = "(SELECT sequence, time_us FROM samples WHERE stream = ?1 AND sequence BETWEEN ?2 AND ?3
     UNION ALL SELECT sequence, time_us FROM waveforms WHERE stream = ?1 AND sequence BETWEEN ?2 AND ?3)";

/// Readings of one patient in a stretch, by the index of series.
const OF_PATIENT: &str = "SELECT r.stream, r.sequence, r.time_us, r.sensor_sequence FROM patients p JOIN latest l ON l.patient = p.key
         JOIN samples r ON r.patient = p.key AND r.metric = l.metric
     WHERE p.id = ?1 AND r.time_us >= ?2 AND r.time_us < ?3
     UNION ALL SELECT r.stream, r.sequence, r.time_us, r.sensor_sequence FROM patients p JOIN latest l ON l.patient = p.key
         JOIN waveforms r ON r.patient = p.key AND r.metric = l.metric
     WHERE p.id = ?1 AND r.time_us >= ?2 AND r.time_us < ?3";

/// The greatest stored sequence below `below` whose time is before `from_us`.
fn before(
    connection: &Connection,
    stream: i64,
    below: u64,
    from_us: i64,
) -> rusqlite::Result<Option<u64>> {
    let select = |table: &str| {
        connection
            .prepare_cached(&format!(
                "SELECT sequence FROM {table} WHERE stream = ?1 AND sequence < ?2 AND time_us < ?3
                 ORDER BY sequence DESC LIMIT 1"
            ))?
            .query_row((stream, below.cast_signed(), from_us), |row| row.get(0))
            .optional()
    };
    Ok(select("samples")?.max(select("waveforms")?))
}

/// The greatest stored sequence whose time is before `to_us`, whosever it is.
fn last(connection: &Connection, stream: i64, to_us: i64) -> rusqlite::Result<Option<u64>> {
    before(connection, stream, i64::MAX.cast_unsigned(), to_us)
}

fn least(connection: &Connection, stream: i64) -> rusqlite::Result<Option<u64>> {
    after(connection, stream, 0)
}

/// The least stored sequence above `above`.
fn after(connection: &Connection, stream: i64, above: u64) -> rusqlite::Result<Option<u64>> {
    let select = |table: &str| {
        connection
            .prepare_cached(&format!(
                "SELECT min(sequence) FROM {table} WHERE stream = ?1 AND sequence > ?2"
            ))?
            .query_row((stream, above), |row| row.get::<_, Option<u64>>(0))
    };
    let found = [select("samples")?, select("waveforms")?];
    Ok(found.into_iter().flatten().min())
}

fn islands(
    connection: &Connection,
    stream: i64,
    first: u64,
    last: u64,
) -> rusqlite::Result<Vec<Island>> {
    connection
        .prepare_cached(&format!(
            "SELECT min(sequence), max(sequence), min(time_us), max(time_us) FROM
                 (SELECT sequence, time_us, sequence - row_number() OVER (ORDER BY sequence) AS island FROM {ROWS})
             GROUP BY island ORDER BY 1 LIMIT ?4"
        ))?
        .query_map((stream, first, last, ISLANDS_MAX + 1), |row| {
            Ok(Island {
                first: row.get(0)?,
                last: row.get(1)?,
                from_us: row.get(2)?,
                to_us: row.get(3)?,
            })
        })?
        .collect()
}

fn asked(row: &Row<'_>) -> rusqlite::Result<Asked> {
    Ok(Asked {
        device: row.get(0)?,
        stream: row.get(1)?,
        first: row.get(2)?,
        last: row.get(3)?,
        from_us: row.get(4)?,
        to_us: row.get(5)?,
    })
}

#[async_trait]
impl LedgersStore for SqliteStore {
    async fn ledger_runs(&self, devices: &[String]) -> Result<Vec<LedgerRun>, QueryError> {
        let devices = devices.to_vec();
        self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT r.gateway, r.journal, r.device, r.stream, r.first, r.next, j.since_us, j.as_of_us, j.waiting
                 FROM ledgers r JOIN journals j ON j.gateway = r.gateway AND j.journal = r.journal
                 WHERE r.device = ?1 ORDER BY r.stream, r.first, r.gateway, j.since_us",
            )?;
            let mut runs = Vec::new();
            for device in devices {
                let rows = select.query_map([device], |row| {
                    Ok(LedgerRun {
                        gateway: row.get(0)?,
                        journal: row.get::<_, i64>(1)?.cast_unsigned(),
                        device: row.get(2)?,
                        stream: row.get(3)?,
                        first: row.get(4)?,
                        next: row.get(5)?,
                        since_us: row.get(6)?,
                        as_of_us: row.get(7)?,
                        waiting: row.get(8)?,
                    })
                })?;
                for run in rows {
                    runs.push(run?);
                }
            }
            Ok(runs)
        })
        .await
    }

    async fn journals(&self, gateways: &[String]) -> Result<Vec<JournalSpan>, QueryError> {
        let gateways = gateways.to_vec();
        self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT gateway, journal, since_us, as_of_us FROM journals WHERE gateway = ?1
                 ORDER BY since_us, journal",
            )?;
            let mut found = Vec::new();
            for gateway in gateways {
                let rows = select.query_map([gateway], |row| {
                    Ok(JournalSpan {
                        gateway: row.get(0)?,
                        journal: row.get::<_, i64>(1)?.cast_unsigned(),
                        since_us: row.get(2)?,
                        as_of_us: row.get(3)?,
                    })
                })?;
                for span in rows {
                    found.push(span?);
                }
            }
            Ok(found)
        })
        .await
    }

    async fn stored_sequences(
        &self,
        patient: &str,
        others: &[(String, String)],
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<StreamStored>, QueryError> {
        let (patient, others) = (patient.to_owned(), others.to_vec());
        self.read(move |connection| {
            let mut streams: Vec<(i64, u64, Option<(u64, u64)>)> = connection
                .prepare_cached(&format!(
                    "SELECT stream, count(*), min(sequence), max(sequence) FROM ({OF_PATIENT}) GROUP BY stream"
                ))?
                .query_map((&patient, from_us, to_us), |row| {
                    Ok((row.get(0)?, row.get(1)?, Some((row.get(2)?, row.get(3)?))))
                })?
                .collect::<rusqlite::Result<_>>()?;
            for (device, stream) in others {
                let key: Option<i64> = connection
                    .prepare_cached("SELECT key FROM streams WHERE device = ?1 AND stream = ?2")?
                    .query_row((device, stream), |row| row.get(0))
                    .optional()?;
                if let Some(key) = key
                    && streams.iter().all(|(known, ..)| *known != key)
                {
                    streams.push((key, 0, None));
                }
            }
            let mut found = Vec::new();
            for (key, stored, within) in streams {
                let below = within.map_or(i64::MAX.cast_unsigned(), |(first, _)| first);
                let before = before(connection, key, below, from_us)?;
                // A later wearer's samples belong to the same run.
                let last = last(connection, key, to_us)?;
                let after = after(connection, key, last.unwrap_or_default())?;
                let first = match before.or(within.map(|(first, _)| first)) {
                    None => least(connection, key)?,
                    first => first,
                };
                let (Some(first), Some(last)) = (first, after.or(last)) else {
                    continue;
                };
                let mut islands = islands(connection, key, first, last)?;
                let is_cut = islands.len() > ISLANDS_MAX;
                islands.truncate(ISLANDS_MAX);
                let (device, stream) = connection
                    .prepare_cached("SELECT device, stream FROM streams WHERE key = ?1")?
                    .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))?;
                found.push(StreamStored {
                    device,
                    stream,
                    stored,
                    islands,
                    is_cut,
                });
            }
            found.sort_by(|a, b| (&a.device, &a.stream).cmp(&(&b.device, &b.stream)));
            Ok(found)
        })
        .await
    }

    async fn sensor_jumps(
        &self,
        patient: &str,
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<SensorJump>, QueryError> {
        let patient = patient.to_owned();
        self.read(move |connection| {
            let mut select = connection.prepare_cached(&format!(
                "SELECT s.device, s.stream, j.before + 1, j.number - 1, j.before_us, j.time_us FROM
                     (SELECT stream, time_us, sensor_sequence AS number,
                          lag(sensor_sequence) OVER w AS before, lag(time_us) OVER w AS before_us
                      FROM ({OF_PATIENT}) WHERE sensor_sequence IS NOT NULL
                      WINDOW w AS (PARTITION BY stream ORDER BY time_us, sensor_sequence)) j
                     JOIN streams s ON s.key = j.stream
                 WHERE j.number > j.before + 1 ORDER BY j.before_us, j.stream LIMIT ?4"
            ))?;
            let rows = select.query_map((patient, from_us, to_us, SENSOR_JUMPS_MAX), |row| {
                Ok(SensorJump {
                    device: row.get(0)?,
                    stream: row.get(1)?,
                    first: row.get(2)?,
                    last: row.get(3)?,
                    from_us: row.get(4)?,
                    to_us: row.get(5)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn ask_again(
        &self,
        gateway: &str,
        asked: Vec<Asked>,
        now_us: i64,
    ) -> Result<(), WriteError> {
        let gateway = gateway.to_owned();
        self.write(move |writing| {
            let connection = writing.connection;
            connection
                .prepare_cached(
                    "DELETE FROM asked WHERE gateway = ?1 AND (asked_us < ?2 OR asked_us > ?3)",
                )?
                .execute((&gateway, now_us - ASKED_US, now_us))?;
            let held: usize = connection
                .prepare_cached("SELECT count(*) FROM asked WHERE gateway = ?1")?
                .query_row([&gateway], |row| row.get(0))?;
            let mut insert = connection.prepare_cached(
                "INSERT OR REPLACE INTO asked VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?;
            for it in asked.iter().take(ASKED_MAX.saturating_sub(held)) {
                insert.execute((
                    &gateway, &it.device, &it.stream, it.first, it.last, it.from_us, it.to_us,
                    now_us,
                ))?;
            }
            Ok(())
        })
        .await
    }

    async fn asked_again(&self, gateway: &str, now_us: i64) -> Result<Vec<Asked>, QueryError> {
        let gateway = gateway.to_owned();
        self.read(move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT device, stream, first, last, from_us, to_us FROM asked WHERE gateway = ?1 AND asked_us >= ?2
                 ORDER BY device, stream, first LIMIT ?3",
            )?;
            let rows = select.query_map((gateway, now_us - ASKED_US, ASKED_MAX), asked)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }
}
