use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use contracts::vitals::{Gap, Sample, Waveform, sample::Reading};
use deadpool_postgres::Transaction;
use prost::Message;
use tokio_postgres::Row;

use super::{
    TimescaleStore,
    copy::{Copying, Rows},
    fault::Fault,
    keys::SampleKeys,
    ledger::{DEVICES, Head, Latest, Locked, Wanted},
    ledgers,
    lookup, progress, quarantine,
    series::{self, Which},
    time::Micros,
    transaction,
};
use crate::{
    LatestVital, LatestVitalsPage, Progress, QueryError, Scope, SeriesPoints, SeriesQuery,
    VitalsBatch, VitalsStore, WriteError, Written, vitals::future_us,
};

pub const COPY_SAMPLES: &str = "COPY samples (time, gateway_time, ingest_time, sequence, value, series, sensor_sequence, traceparent)
    FROM STDIN (FORMAT binary)";
const COPY_WAVEFORMS: &str =
    "COPY waveforms (time, gateway_time, ingest_time, sequence, series, period_us, sensor_sequence,
    traceparent, readings) FROM STDIN (FORMAT binary)";

/// The plan of a batch without the database: the samples by device, stream and sequence, each pair
/// once.
struct Plan {
    sample_keys: Vec<SampleKeys>,
    wanted: Vec<Wanted>,
    /// For each sequence of each of `wanted`, the first sample that has it.
    indices: Vec<Vec<u32>>,
    /// (stream, patient, gateway) of each gap.
    gaps: Vec<(i32, i32, i32)>,
}

impl Plan {
    fn new(batch: &VitalsBatch, sample_keys: Vec<SampleKeys>, gaps: Vec<(i32, i32, i32)>) -> Plan {
        let mut order: Vec<(i32, i32, i64, u32)> = (0_u32..)
            .zip(batch.samples.iter().zip(&sample_keys))
            .map(|(index, (sample, keys))| {
                (
                    keys.device,
                    keys.stream,
                    sample.sequence.cast_signed(),
                    index,
                )
            })
            .collect();
        order.sort_unstable();
        order.dedup_by_key(|(device, stream, sequence, _)| (*device, *stream, *sequence));
        let mut wanted: Vec<Wanted> = Vec::new();
        let mut indices: Vec<Vec<u32>> = Vec::new();
        for (owner, stream, sequence, index) in order {
            match (wanted.last_mut(), indices.last_mut()) {
                (Some(last), Some(of_last)) if last.stream == stream => {
                    last.sequences.push(sequence);
                    of_last.push(index);
                }
                _ => {
                    wanted.push(Wanted {
                        owner,
                        stream,
                        sequences: vec![sequence],
                    });
                    indices.push(vec![index]);
                }
            }
        }
        Plan {
            sample_keys,
            wanted,
            indices,
            gaps,
        }
    }

    /// Indices of the new samples of the n-th of `wanted`; `new` is part of its sequences, in
    /// order.
    fn admitted<'a>(&'a self, n: usize, new: &'a [i64]) -> impl Iterator<Item = usize> + 'a {
        let mut new = new.iter().peekable();
        self.wanted[n]
            .sequences
            .iter()
            .zip(&self.indices[n])
            .filter(move |(sequence, _)| new.next_if_eq(sequence).is_some())
            .map(|(_, index)| *index as usize)
    }
}

/// Refuses what no server could keep, before anything is written.
fn check(batch: &VitalsBatch) -> Result<(), WriteError> {
    for sample in &batch.samples {
        let why = match &sample.reading {
            None => "it has no reading",
            Some(Reading::Value(value)) if value.is_nan() => "its value is not a number",
            _ if sample.sequence > i64::MAX as u64 => "its sequence is beyond 9223372036854775807",
            _ if !has_times(&[
                sample.device_time_us,
                sample.gateway_time_us,
                sample.ingest_time_us,
            ]) =>
            {
                "one of its times is outside 1 AD to 287168 AD"
            }
            _ => continue,
        };
        return Err(WriteError::Invalid(format!(
            "sample {} of {}/{}: {why}",
            sample.sequence, sample.device, sample.stream
        )));
    }
    for gap in &batch.gaps {
        if gap.last_sequence > i64::MAX as u64
            || gap.first_sequence > gap.last_sequence
            || !has_times(&[gap.from_time_us, gap.to_time_us])
        {
            return Err(WriteError::Invalid(format!(
                "gap {} to {} of {}/{}: beyond what can be kept",
                gap.first_sequence, gap.last_sequence, gap.device, gap.stream
            )));
        }
    }
    Ok(())
}

fn has_times(times: &[i64]) -> bool {
    times.iter().all(|us| Micros::exact(*us).is_some())
}

/// Everything that the new rows of a batch change beside themselves.
#[derive(Default)]
struct Changes {
    new: u64,
    /// Stretch of the new single values of each device.
    stale: HashMap<i32, (i64, i64)>,
    touched: Vec<i32>,
    /// Longest waveform of a series that is longer than what was known, with a sample of it.
    longest: HashMap<i32, (i64, usize)>,
}

fn length_us(waveform: &Waveform) -> i64 {
    i64::from(waveform.period_us) * waveform.values.len() as i64
}

/// Sends the rows of the new samples, and returns what they change. The heads take up the newest
/// values.
async fn write_rows(
    transaction: &Transaction<'_>,
    batch: &VitalsBatch,
    plan: &Plan,
    new: &[Vec<i64>],
    locked: &mut Locked,
) -> Result<Changes, Fault> {
    let (mut samples, mut waveforms) = (Copying::new(8), Rows::new(9));
    let mut changes = Changes::default();
    let future_us = future_us();
    for (n, new) in new.iter().enumerate() {
        if new.is_empty() {
            continue;
        }
        let owner = plan.wanted[n].owner;
        if changes.touched.last() != Some(&owner) {
            changes.touched.push(owner);
        }
        changes.new += new.len() as u64;
        let mut newest: Option<Latest> = None;
        for index in plan.admitted(n, new) {
            let (sample, keys) = (&batch.samples[index], &plan.sample_keys[index]);
            let time = sample.device_time_us;
            match &sample.reading {
                Some(Reading::Value(value)) => {
                    value_row(&mut samples.rows, sample, *keys, *value);
                    let stale = changes.stale.entry(owner).or_insert((time, time));
                    *stale = (stale.0.min(time), stale.1.max(time));
                    let latest = Latest {
                        series: keys.series,
                        time_us: time,
                        ingest_step_us: sample.ingest_time_us.wrapping_sub(time),
                        value: *value,
                    };
                    match &newest {
                        Some(n) if n.series == latest.series && n.time_us > time => {}
                        Some(n) if n.series == latest.series => newest = Some(latest),
                        _ => {
                            observe(locked, owner, newest.replace(latest), future_us);
                        }
                    }
                }
                Some(Reading::Waveform(waveform)) => {
                    common(&mut waveforms, sample)
                        .int4(keys.series)
                        .int4(waveform.period_us.cast_signed())
                        .optional_int8(sample.sensor_sequence.map(u64::cast_signed))
                        .text_or_null(&sample.traceparent)
                        .float4s(&waveform.values);
                    let length = length_us(waveform);
                    let longest = changes.longest.get(&keys.series);
                    if length > longest.map_or(keys.longest_us, |(us, _)| *us) {
                        changes.longest.insert(keys.series, (length, index));
                    }
                }
                // Refused before.
                None => {}
            }
        }
        observe(locked, owner, newest, future_us);
        samples.push(transaction, COPY_SAMPLES).await?;
    }
    samples.finish(transaction, COPY_SAMPLES).await?;
    waveforms.send(transaction, COPY_WAVEFORMS).await?;
    Ok(changes)
}

fn observe(locked: &mut Locked, owner: i32, latest: Option<Latest>, future_us: i64) {
    if let (Some(head), Some(latest)) = (locked.heads.get_mut(&owner), latest) {
        head.observe(latest, future_us);
    }
}

/// One row of [`COPY_SAMPLES`].
pub fn value_row(rows: &mut Rows, sample: &Sample, keys: SampleKeys, value: f64) {
    common(rows, sample)
        .float8(value)
        .int4(keys.series)
        .optional_int8(sample.sensor_sequence.map(u64::cast_signed))
        .text_or_null(&sample.traceparent);
}

fn common<'a>(rows: &'a mut Rows, sample: &Sample) -> &'a mut Rows {
    rows.row()
        .time(Micros(sample.device_time_us))
        .time(Micros(sample.gateway_time_us))
        .time(Micros(sample.ingest_time_us))
        .int8(sample.sequence.cast_signed())
}

async fn write_heads(
    transaction: &Transaction<'_>,
    locked: &Locked,
    changes: &Changes,
    mark_stale: bool,
) -> Result<(), Fault> {
    let (mut heads, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
    for owner in &changes.touched {
        heads.push(
            locked
                .heads
                .get(owner)
                .map(Head::encode_to_vec)
                .unwrap_or_default(),
        );
        let stale = changes.stale.get(owner).filter(|_| mark_stale);
        from.push(stale.map(|(from, _)| Micros(*from)));
        to.push(stale.map(|(_, to)| Micros(*to)));
    }
    if heads.is_empty() {
        return Ok(());
    }
    let statement = transaction
        .prepare_cached(
            "UPDATE device_heads h SET head = w.head, stale_from = least(h.stale_from, w.from_time),
                 stale_to = greatest(h.stale_to, w.to_time)
             FROM unnest($1::int[], $2::bytea[], $3::timestamptz[], $4::timestamptz[]) AS w (key, head, from_time, to_time)
             WHERE h.key = w.key",
        )
        .await?;
    transaction
        .execute(&statement, &[&changes.touched, &heads, &from, &to])
        .await?;
    Ok(())
}

async fn write_longest(transaction: &Transaction<'_>, changes: &Changes) -> Result<(), Fault> {
    if changes.longest.is_empty() {
        return Ok(());
    }
    let keys: Vec<i32> = changes.longest.keys().copied().collect();
    let lengths: Vec<i64> = changes.longest.values().map(|(us, _)| *us).collect();
    transaction
        .execute(
            "UPDATE series e SET longest_us = w.length_us FROM unnest($1::int[], $2::bigint[]) AS w (key, length_us)
             WHERE e.key = w.key AND e.longest_us < w.length_us",
            &[&keys, &lengths],
        )
        .await?;
    Ok(())
}

async fn write_gaps(
    transaction: &Transaction<'_>,
    gaps: &[Gap],
    keys: &[(i32, i32, i32)],
) -> Result<u64, Fault> {
    if gaps.is_empty() {
        return Ok(0);
    }
    let mut order: Vec<usize> = (0..gaps.len()).collect();
    order.sort_unstable_by_key(|n| (keys[*n].0, gaps[*n].first_sequence, gaps[*n].last_sequence));
    let column = |of: &dyn Fn(usize) -> i64| order.iter().map(|n| of(*n)).collect::<Vec<i64>>();
    let key = |of: &dyn Fn(usize) -> i32| order.iter().map(|n| of(*n)).collect::<Vec<i32>>();
    let time = |of: &dyn Fn(usize) -> i64| {
        order
            .iter()
            .map(|n| Micros(of(*n)))
            .collect::<Vec<Micros>>()
    };
    Ok(transaction
        .execute(
            "INSERT INTO gaps SELECT * FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::int[], $5::int[], $6::timestamptz[],
                 $7::timestamptz[], $8::int[]) ON CONFLICT DO NOTHING",
            &[
                &key(&|n| keys[n].0),
                &column(&|n| gaps[n].first_sequence.cast_signed()),
                &column(&|n| gaps[n].last_sequence.cast_signed()),
                &key(&|n| keys[n].1),
                &key(&|n| keys[n].2),
                &time(&|n| gaps[n].from_time_us),
                &time(&|n| gaps[n].to_time_us),
                &key(&|n| gaps[n].cause),
            ],
        )
        .await?)
}

impl TimescaleStore {
    async fn plan(&self, batch: &VitalsBatch) -> Result<Plan, Fault> {
        let (sample_keys, gaps) = lookup::resolve(self, |keys, missing| {
            let sample_keys: Vec<Option<SampleKeys>> = batch
                .samples
                .iter()
                .map(|sample| keys.of_sample(sample, missing))
                .collect();
            let gaps: Vec<Option<(i32, i32, i32)>> = batch
                .gaps
                .iter()
                .map(|gap| {
                    let stream = keys.stream_key(&gap.device, &gap.stream, missing);
                    let patient = keys.patient(&gap.patient, missing);
                    let gateway = keys.gateway(&gap.gateway, missing);
                    Some((stream?, patient?, gateway?))
                })
                .collect();
            let sample_keys = sample_keys
                .into_iter()
                .collect::<Option<Vec<SampleKeys>>>()?;
            Some((sample_keys, gaps.into_iter().collect::<Option<Vec<_>>>()?))
        })
        .await?;
        Ok(Plan::new(batch, sample_keys, gaps))
    }

    /// Keys of the samples, made when they are not there.
    pub(super) async fn sample_keys(&self, batch: &VitalsBatch) -> Result<Vec<SampleKeys>, Fault> {
        Ok(self.plan(batch).await?.sample_keys)
    }
}

#[async_trait]
impl VitalsStore for TimescaleStore {
    async fn write_vitals(
        &self,
        batch: Arc<VitalsBatch>,
        advance: Vec<Progress>,
    ) -> Result<Written, WriteError> {
        check(&batch)?;
        let apart = quarantine::columns(&batch.quarantined)?;
        let plan = self.plan(&batch).await.map_err(Fault::into_write)?;
        let mark_stale = !self.applied.continuous;
        let (new, longest) = transaction!(self, tx => async {
            // Sent together: claims are locked before heads, as by everybody.
            let ((), (mut locked, new)) =
                futures::try_join!(progress::hold(tx, &advance), DEVICES.admit(tx, &plan.wanted))?;
            let changes = write_rows(tx, &batch, &plan, &new, &mut locked).await?;
            // Sent together: the server works them off in this order.
            let (gaps, apart, ..) = futures::try_join!(
                write_gaps(tx, &batch.gaps, &plan.gaps),
                quarantine::insert(tx, &batch.quarantined, &apart),
                write_heads(tx, &locked, &changes, mark_stale),
                DEVICES.settle(tx, &locked),
                write_longest(tx, &changes),
                progress::advance(tx, &advance),
                ledgers::enter(tx, &batch.ledgers),
            )?;
            Ok::<_, Fault>((changes.new + gaps + apart, changes.longest))
        })?;
        if !longest.is_empty() {
            let mut keys = self.keys.lock();
            for (us, index) in longest.into_values() {
                keys.lengthen(&batch.samples[index], us);
            }
        }
        Ok(Written {
            new,
            duplicate: batch.len() - new,
        })
    }

    async fn latest_vitals(
        &self,
        scope: &Scope,
        patient: Option<&str>,
    ) -> Result<Vec<LatestVital>, QueryError> {
        let which = patient.map_or(Which::All, Which::One);
        series::latest(&self.reader().await?, scope, which).await
    }

    async fn latest_vitals_page(
        &self,
        scope: &Scope,
        after: &str,
        patients: usize,
    ) -> Result<LatestVitalsPage, QueryError> {
        let connection = self.reader().await?;
        let Some((last, count)) = series::page(&connection, scope, after, patients).await? else {
            return Ok((Vec::new(), None));
        };
        let which = Which::Between(after, &last);
        let values = series::latest(&connection, scope, which).await?;
        Ok((values, (count >= patients).then_some(last)))
    }

    async fn which_sent(&self, devices: &[String]) -> Result<Vec<String>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT h.device FROM device_heads h WHERE h.device = ANY($1)
                     AND EXISTS (SELECT 1 FROM streams t WHERE t.device = h.key)",
            )
            .await?;
        let rows = connection.query(&statement, &[&devices]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn series(
        &self,
        scope: &Scope,
        query: &SeriesQuery,
    ) -> Result<Vec<SeriesPoints>, QueryError> {
        series::read(&self.reader().await?, scope, query).await
    }

    async fn samples(
        &self,
        scope: &Scope,
        patient: &str,
        from_us: i64,
        to_us: i64,
        limit: usize,
    ) -> Result<Vec<Sample>, QueryError> {
        let connection = self.reader().await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let range = (Micros::clamped(from_us), Micros::clamped(to_us));
        let keys: Vec<i32> = series::of_patient(&connection, scope, patient)
            .await?
            .iter()
            .map(|s| s.key)
            .collect();
        let values = connection.prepare_cached(SAMPLES).await?;
        let rows = connection
            .query(&values, &[&keys, &range.0, &range.1, &limit])
            .await?;
        let mut samples: Vec<Sample> = rows
            .iter()
            .map(|row| sample(row, Reading::Value(row.get(12))))
            .collect();
        let waveforms = connection.prepare_cached(WAVEFORMS).await?;
        let rows = connection
            .query(&waveforms, &[&keys, &range.0, &range.1, &limit])
            .await?;
        samples.extend(rows.iter().map(|row| {
            let waveform = Waveform {
                period_us: row.get::<_, i32>(12).cast_unsigned(),
                values: row.get(13),
            };
            sample(row, Reading::Waveform(waveform))
        }));
        samples.sort_by_key(|sample| sample.device_time_us);
        samples.truncate(limit as usize);
        Ok(samples)
    }

    async fn gaps(
        &self,
        scope: &Scope,
        patient: &str,
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<Gap>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT h.device, s.stream, r.first_sequence, r.last_sequence, r.from_time, r.to_time, p.id, g.id,
                     r.cause
                 FROM patients p JOIN gaps r ON r.patient = p.key JOIN streams s ON s.key = r.stream
                     JOIN device_heads h ON h.key = s.device JOIN gateways g ON g.key = r.gateway
                 WHERE p.id = $1 AND ($2::text IS NULL OR p.tenant = $2) AND r.from_time < $4 AND r.to_time >= $3
                 ORDER BY r.from_time, r.stream, r.first_sequence",
            )
            .await?;
        let rows = connection
            .query(
                &statement,
                &[
                    &patient,
                    &scope.as_tenant(),
                    &Micros::clamped(from_us),
                    &Micros::clamped(to_us),
                ],
            )
            .await?;
        let gap = |row: &Row| Gap {
            device: row.get(0),
            stream: row.get(1),
            first_sequence: row.get::<_, i64>(2).cast_unsigned(),
            last_sequence: row.get::<_, i64>(3).cast_unsigned(),
            from_time_us: row.get::<_, Micros>(4).0,
            to_time_us: row.get::<_, Micros>(5).0,
            patient: row.get(6),
            gateway: row.get(7),
            cause: row.get(8),
        };
        Ok(rows.iter().map(gap).collect())
    }

    async fn stream_count(&self, device: &str, stream: &str) -> Result<(u64, u64), QueryError> {
        let connection = self.reader().await?;
        // An array, so that the index of each chunk is used.
        let row = connection
            .query_one(
                "WITH k AS (SELECT array_agg(e.key) AS keys FROM series e JOIN streams t ON t.key = e.stream
                     JOIN device_heads h ON h.key = t.device WHERE h.device = $1 AND t.stream = $2)
                 SELECT count(*), coalesce(max(sequence), 0) FROM (
                     SELECT sequence FROM samples WHERE series = ANY((SELECT keys FROM k)::int[])
                     UNION ALL SELECT sequence FROM waveforms WHERE series = ANY((SELECT keys FROM k)::int[])) rows",
                &[&device, &stream],
            )
            .await?;
        Ok((
            row.get::<_, i64>(0).cast_unsigned(),
            row.get::<_, i64>(1).cast_unsigned(),
        ))
    }
}

macro_rules! select_rows {
    ($table:literal, $own:literal) => {
        concat!(
            "SELECT h.device, t.stream, r.sequence, e.metric, e.unit, r.time, r.gateway_time, r.ingest_time, p.id, g.id,
                 r.traceparent, r.sensor_sequence, ", $own, "
             FROM (SELECT * FROM ", $table, " WHERE series = ANY($1) AND time >= $2 AND time < $3
                   ORDER BY time, series, sequence LIMIT $4) r
                 JOIN series e ON e.key = r.series JOIN streams t ON t.key = e.stream JOIN device_heads h ON h.key = t.device
                 JOIN patients p ON p.key = e.patient JOIN gateways g ON g.key = e.gateway
             ORDER BY r.time, r.series, r.sequence"
        )
    };
}
const SAMPLES: &str = select_rows!("samples", "r.value");
const WAVEFORMS: &str = select_rows!("waveforms", "r.period_us, r.readings");

fn sample(row: &Row, reading: Reading) -> Sample {
    Sample {
        device: row.get(0),
        stream: row.get(1),
        sequence: row.get::<_, i64>(2).cast_unsigned(),
        metric: row.get(3),
        unit: row.get(4),
        device_time_us: row.get::<_, Micros>(5).0,
        gateway_time_us: row.get::<_, Micros>(6).0,
        gateway_uptime_us: 0,
        gateway_boot: 0,
        gateway_behind_us: None,
        ingest_time_us: row.get::<_, Micros>(7).0,
        patient: row.get(8),
        gateway: row.get(9),
        traceparent: row.get::<_, Option<String>>(10).unwrap_or_default(),
        sensor_sequence: row.get::<_, Option<i64>>(11).map(i64::cast_unsigned),
        reading: Some(reading),
        // The bus has the offset; rows keep the time that is right beside the gateway's own.
        device_offset_us: None,
    }
}
