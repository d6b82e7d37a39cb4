use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use contracts::vitals::{Gap, Metric, Sample, Waveform, sample::Reading};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, ledger_rows, progress, quarantine, series, writer::Writing};
use crate::{
    LatestVital, LatestVitalsPage, Progress, QueryError, Scope, SeriesPoints, SeriesQuery,
    VitalsBatch, VitalsStore, WriteError, Written, vitals::future_us,
};

/// The newest row of one (patient, metric) in a batch, so that `latest` is touched once per batch
/// and series.
struct Newest {
    value: Option<f64>,
    time_us: i64,
    ingest_us: i64,
    stream: i64,
    gateway: i64,
    longest_us: i64,
}

type NewestOf = HashMap<(i64, i32), Newest>;

fn write(writing: &mut Writing<'_>, batch: &VitalsBatch) -> Result<Written, WriteError> {
    let mut new = 0;
    let mut newest = NewestOf::new();
    for sample in &batch.samples {
        new += insert_sample(writing, sample, &mut newest)?;
    }
    for gap in &batch.gaps {
        new += insert_gap(writing, gap)?;
    }
    new += quarantine::insert(writing.connection, &batch.quarantined)?;
    ledger_rows::enter(writing.connection, &batch.ledgers)?;
    let mut update = writing.connection.prepare_cached(
        "INSERT INTO latest VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT DO UPDATE SET value = excluded.value, time_us = excluded.time_us, ingest_us = excluded.ingest_us,
             stream = excluded.stream, gateway = excluded.gateway
         WHERE excluded.time_us >= time_us OR (time_us > ?9 AND excluded.time_us <= ?9)",
    )?;
    let future_us = future_us();
    let mut lengthen = writing.connection.prepare_cached(
        "UPDATE latest SET longest_us = ?3 WHERE patient = ?1 AND metric = ?2 AND longest_us < ?3",
    )?;
    for ((patient, metric), row) in newest {
        update.execute((
            patient,
            metric,
            row.value,
            row.time_us,
            row.ingest_us,
            row.stream,
            row.gateway,
            row.longest_us,
            future_us,
        ))?;
        if row.longest_us > 0 {
            lengthen.execute((patient, metric, row.longest_us))?;
        }
    }
    Ok(Written {
        new,
        duplicate: batch.len() - new,
    })
}

fn insert_sample(
    writing: &mut Writing<'_>,
    sample: &Sample,
    newest: &mut NewestOf,
) -> Result<u64, WriteError> {
    let connection = writing.connection;
    let stream = writing
        .keys
        .stream(connection, &sample.device, &sample.stream)?;
    let patient = writing.keys.patient(connection, &sample.patient)?;
    let gateway = writing.keys.gateway(connection, &sample.gateway)?;
    let unit = writing.keys.unit(connection, &sample.unit)?;
    let time = sample.device_time_us;
    let gateway_step = sample.gateway_time_us.wrapping_sub(time);
    let ingest_step = sample.ingest_time_us.wrapping_sub(time);
    let traceparent = (!sample.traceparent.is_empty()).then_some(&sample.traceparent);
    let (inserted, value, length_us) = match &sample.reading {
        // SQLite would keep a NaN as NULL.
        Some(Reading::Value(value)) if value.is_nan() => {
            return Err(invalid(sample, "its value is not a number"));
        }
        Some(Reading::Value(value)) => {
            let inserted = connection
                .prepare_cached("INSERT OR IGNORE INTO samples VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)")?
                .execute(rusqlite::params![
                    stream,
                    sample.sequence,
                    patient,
                    gateway,
                    sample.metric,
                    unit,
                    time,
                    gateway_step,
                    ingest_step,
                    value,
                    traceparent,
                    sample.sensor_sequence
                ])?;
            (inserted, Some(*value), 0)
        }
        Some(Reading::Waveform(waveform)) => {
            let length_us = i64::from(waveform.period_us) * waveform.values.len() as i64;
            let readings: Vec<u8> = waveform
                .values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            let inserted = connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO waveforms VALUES (NULL, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
                )?
                .execute(rusqlite::params![
                    stream,
                    sample.sequence,
                    patient,
                    gateway,
                    sample.metric,
                    unit,
                    time,
                    gateway_step,
                    ingest_step,
                    waveform.period_us,
                    readings,
                    traceparent,
                    sample.sensor_sequence
                ])?;
            (inserted, None, length_us)
        }
        None => return Err(invalid(sample, "it has no reading")),
    };
    if inserted > 0 {
        let row = newest.entry((patient, sample.metric)).or_insert(Newest {
            value,
            time_us: time,
            ingest_us: sample.ingest_time_us,
            stream,
            gateway,
            longest_us: 0,
        });
        row.longest_us = row.longest_us.max(length_us);
        if time >= row.time_us {
            *row = Newest {
                value,
                time_us: time,
                ingest_us: sample.ingest_time_us,
                stream,
                gateway,
                longest_us: row.longest_us,
            };
        }
    }
    Ok(inserted as u64)
}

fn invalid(sample: &Sample, why: &str) -> WriteError {
    WriteError::Invalid(format!(
        "sample {} of {}/{}: {why}",
        sample.sequence, sample.device, sample.stream
    ))
}

fn insert_gap(writing: &mut Writing<'_>, gap: &Gap) -> Result<u64, WriteError> {
    let connection = writing.connection;
    let stream = writing.keys.stream(connection, &gap.device, &gap.stream)?;
    let patient = writing.keys.patient(connection, &gap.patient)?;
    let gateway = writing.keys.gateway(connection, &gap.gateway)?;
    let inserted = connection
        .prepare_cached("INSERT OR IGNORE INTO gaps VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?
        .execute((
            stream,
            gap.first_sequence,
            gap.last_sequence,
            patient,
            gateway,
            gap.from_time_us,
            gap.to_time_us,
            gap.cause,
        ))?;
    Ok(inserted as u64)
}

const SAMPLE_COLUMNS: &str = "s.device, s.stream, r.sequence, r.metric, u.unit, r.time_us, r.gateway_step_us, r.ingest_step_us,
    p.id, g.id, r.traceparent, r.sensor_sequence";
const SAMPLE_JOINS: &str = "JOIN streams s ON s.key = r.stream JOIN units u ON u.key = r.unit
    JOIN patients p ON p.key = r.patient JOIN gateways g ON g.key = r.gateway";

fn sample(row: &Row<'_>, reading: Reading) -> rusqlite::Result<Sample> {
    let time: i64 = row.get(5)?;
    Ok(Sample {
        device: row.get(0)?,
        stream: row.get(1)?,
        sequence: row.get(2)?,
        metric: row.get(3)?,
        unit: row.get(4)?,
        device_time_us: time,
        gateway_time_us: time.wrapping_add(row.get(6)?),
        gateway_uptime_us: 0,
        gateway_boot: 0,
        gateway_behind_us: None,
        ingest_time_us: time.wrapping_add(row.get(7)?),
        patient: row.get(8)?,
        gateway: row.get(9)?,
        traceparent: row.get::<_, Option<String>>(10)?.unwrap_or_default(),
        sensor_sequence: row.get(11)?,
        reading: Some(reading),
        // The bus has the offset; rows keep the time that is right beside the gateway's own.
        device_offset_us: None,
    })
}

/// The newest values of those patients, by tenant and two more parameters.
fn latest(
    connection: &Connection,
    which: &str,
    parameters: (Option<String>, Option<String>, Option<String>),
) -> Result<Vec<LatestVital>, QueryError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT p.id, l.metric, l.value, l.time_us, l.ingest_us, s.device, g.id
         FROM patients p JOIN latest l ON l.patient = p.key
             JOIN streams s ON s.key = l.stream JOIN gateways g ON g.key = l.gateway
         WHERE l.value IS NOT NULL AND (?1 IS NULL OR p.tenant = ?1) AND {which}
         ORDER BY p.id, l.metric",
    ))?;
    let rows = statement.query_map(parameters, |row| {
        Ok(LatestVital {
            patient: row.get(0)?,
            metric: Metric::try_from(row.get::<_, i32>(1)?).unwrap_or_default(),
            value: row.get(2)?,
            device_time_us: row.get(3)?,
            ingest_time_us: row.get(4)?,
            device: row.get(5)?,
            gateway: row.get(6)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

#[async_trait]
impl VitalsStore for SqliteStore {
    async fn write_vitals(
        &self,
        batch: Arc<VitalsBatch>,
        progress: Vec<Progress>,
    ) -> Result<Written, WriteError> {
        self.write(move |writing| {
            progress::advance(writing.connection, &progress)?;
            write(writing, &batch)
        })
        .await
    }

    async fn latest_vitals(
        &self,
        scope: &Scope,
        patient: Option<&str>,
    ) -> Result<Vec<LatestVital>, QueryError> {
        let (tenant, patient) = (
            scope.as_tenant().map(str::to_owned),
            patient.map(str::to_owned),
        );
        self.read(move |connection| {
            let which = "(?2 IS NULL OR p.id = ?2) AND ?3 IS NULL";
            latest(connection, which, (tenant, patient, None))
        })
        .await
    }

    async fn latest_vitals_page(
        &self,
        scope: &Scope,
        after: &str,
        patients: usize,
    ) -> Result<LatestVitalsPage, QueryError> {
        let (tenant, after) = (scope.as_tenant().map(str::to_owned), after.to_owned());
        self.read(move |connection| {
            let (last, count): (Option<String>, usize) = connection
                .prepare_cached(
                    "SELECT max(id), count(*) FROM (SELECT id FROM patients
                         WHERE id > ?2 AND (?1 IS NULL OR tenant = ?1) ORDER BY id LIMIT ?3)",
                )?
                .query_row((&tenant, &after, patients), |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            let Some(last) = last else {
                return Ok((Vec::new(), None));
            };
            let which = "p.id > ?2 AND p.id <= ?3";
            let values = latest(connection, which, (tenant, Some(after), Some(last.clone())))?;
            Ok((values, (count >= patients).then_some(last)))
        })
        .await
    }

    async fn which_sent(&self, devices: &[String]) -> Result<Vec<String>, QueryError> {
        let devices = devices.to_vec();
        self.read(move |connection| {
            let mut statement =
                connection.prepare_cached("SELECT 1 FROM streams WHERE device = ?1 LIMIT 1")?;
            let mut sent = Vec::new();
            for device in devices {
                if statement.exists([&device])? {
                    sent.push(device);
                }
            }
            Ok(sent)
        })
        .await
    }

    async fn series(
        &self,
        scope: &Scope,
        query: &SeriesQuery,
    ) -> Result<Vec<SeriesPoints>, QueryError> {
        let (tenant, query) = (scope.as_tenant().map(str::to_owned), query.clone());
        self.read(move |connection| {
            match patient_key(connection, tenant.as_deref(), &query.patient)? {
                None => Ok(Vec::new()),
                Some(patient) => Ok(series::read(connection, patient, &query)?),
            }
        })
        .await
    }

    async fn samples(
        &self,
        scope: &Scope,
        patient: &str,
        from_us: i64,
        to_us: i64,
        limit: usize,
    ) -> Result<Vec<Sample>, QueryError> {
        let (tenant, patient) = (scope.as_tenant().map(str::to_owned), patient.to_owned());
        self.read(move |connection| {
            let Some(key) = patient_key(connection, tenant.as_deref(), &patient)? else {
                return Ok(Vec::new());
            };
            let range = (key, from_us, to_us, limit);
            let mut samples: Vec<Sample> = connection
                .prepare_cached(&format!(
                    "SELECT {SAMPLE_COLUMNS}, r.value FROM samples r {SAMPLE_JOINS}
                     WHERE r.patient = ?1 AND r.time_us >= ?2 AND r.time_us < ?3 ORDER BY r.time_us LIMIT ?4"
                ))?
                .query_map(range, |row| sample(row, Reading::Value(row.get(12)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let waveforms = connection
                .prepare_cached(&format!(
                    "SELECT {SAMPLE_COLUMNS}, r.period_us, r.readings FROM waveforms r {SAMPLE_JOINS}
                     WHERE r.patient = ?1 AND r.time_us >= ?2 AND r.time_us < ?3 ORDER BY r.time_us LIMIT ?4"
                ))?
                .query_map(range, |row| {
                    let waveform = Waveform {
                        period_us: row.get(12)?,
                        values: series::readings(row.get_ref(13)?.as_blob()?).collect(),
                    };
                    sample(row, Reading::Waveform(waveform))
                })?
                .collect::<rusqlite::Result<Vec<Sample>>>()?;
            samples.extend(waveforms);
            samples.sort_by_key(|sample| sample.device_time_us);
            samples.truncate(limit);
            Ok(samples)
        })
        .await
    }

    async fn gaps(
        &self,
        scope: &Scope,
        patient: &str,
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<Gap>, QueryError> {
        let (tenant, patient) = (scope.as_tenant().map(str::to_owned), patient.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT s.device, s.stream, r.first_sequence, r.last_sequence, r.from_us, r.to_us, p.id, g.id,
                     r.cause
                 FROM patients p JOIN gaps r ON r.patient = p.key JOIN streams s ON s.key = r.stream
                     JOIN gateways g ON g.key = r.gateway
                 WHERE p.id = ?1 AND (?2 IS NULL OR p.tenant = ?2) AND r.from_us < ?4 AND r.to_us >= ?3
                 ORDER BY r.from_us, r.stream, r.first_sequence",
            )?;
            let rows = statement.query_map((patient, tenant, from_us, to_us), |row| {
                Ok(Gap {
                    device: row.get(0)?,
                    stream: row.get(1)?,
                    first_sequence: row.get(2)?,
                    last_sequence: row.get(3)?,
                    from_time_us: row.get(4)?,
                    to_time_us: row.get(5)?,
                    patient: row.get(6)?,
                    gateway: row.get(7)?,
                    cause: row.get(8)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn stream_count(&self, device: &str, stream: &str) -> Result<(u64, u64), QueryError> {
        let (device, stream) = (device.to_owned(), stream.to_owned());
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT count(*), ifnull(max(sequence), 0) FROM
                     (SELECT sequence FROM samples WHERE stream = (SELECT key FROM streams WHERE device = ?1 AND stream = ?2)
                      UNION ALL
                      SELECT sequence FROM waveforms WHERE stream = (SELECT key FROM streams WHERE device = ?1 AND stream = ?2))",
            )?;
            Ok(statement.query_row((device, stream), |row| Ok((row.get(0)?, row.get(1)?)))?)
        })
        .await
    }
}

fn patient_key(
    connection: &rusqlite::Connection,
    tenant: Option<&str>,
    id: &str,
) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT key FROM patients WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2)")?
        .query_row((id, tenant), |row| row.get(0))
        .optional()
}
