//! Integer keys of repeated texts, cached. A row of these tables is never renumbered, and only path
//! sessions are removed. So a committed row stays valid in every process. Keys are created before
//! and outside of the transaction that needs them. An undone write leaves at most a name without
//! rows.
//!
//! A gateway has at most [`SESSIONS_PER_GATEWAY_MAX`] path sessions beyond those of its head, and
//! the oldest are removed. Their reports stay and name the path in their payload. A process that
//! still caches a removed key writes reports of that session without its name.

use std::collections::{BTreeSet, HashMap as StdHashMap};

use contracts::vitals::Sample;
use deadpool_postgres::Object;
use foldhash::fast::RandomState;
use prost::Message;
use tokio_postgres::types::ToSql;

use super::{fault::Fault, ledger::Head};

/// Entries of each cache; beyond it is emptied and filled anew from the tables.
const CACHE_MAX: usize = 100_000;
/// Path sessions of one gateway besides the newest in its head; beyond it the oldest are removed.
/// A gateway with three paths that reconnects every minute makes as many in two days.
pub const SESSIONS_PER_GATEWAY_MAX: i64 = 10_000;

/// Several look-ups for each sample: the standard library's hash took 7 % of ingest's time. Hashed
/// texts were admitted before, and the seed is of this process.
type HashMap<K, V> = StdHashMap<K, V, RandomState>;

#[derive(Default)]
pub struct Keys {
    patients: HashMap<String, i32>,
    gateways: HashMap<String, i32>,
    devices: HashMap<String, Device>,
    /// By (gateway, path, end, session).
    sessions: HashMap<(i32, String, i32, i64), i32>,
}

struct Device {
    key: i32,
    streams: HashMap<String, Stream>,
}

struct Stream {
    key: i32,
    /// One, unless the device moved between patients or gateways.
    series: Vec<Series>,
}

struct Series {
    patient: String,
    gateway: String,
    metric: i32,
    unit: String,
    key: i32,
    longest_us: i64,
}

/// Keys of the rows that a sample belongs to.
#[derive(Debug, Clone, Copy)]
pub struct SampleKeys {
    pub device: i32,
    pub stream: i32,
    pub series: i32,
    /// Length of the series' longest waveform as far as this process knows.
    pub longest_us: i64,
}

/// Texts without a key yet, in order, so that two processes that make them at once lock alike.
#[derive(Default)]
pub struct Missing {
    patients: BTreeSet<String>,
    gateways: BTreeSet<String>,
    devices: BTreeSet<String>,
    streams: BTreeSet<(i32, String)>,
    series: BTreeSet<(i32, i32, i32, i32, String)>,
    sessions: BTreeSet<(i32, String, i32, i64)>,
    /// Keys of the devices whose streams or series are missing.
    names: HashMap<i32, String>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.patients.is_empty()
            && self.gateways.is_empty()
            && self.devices.is_empty()
            && self.streams.is_empty()
            && self.series.is_empty()
            && self.sessions.is_empty()
    }
}

impl Keys {
    pub fn of_sample(&self, sample: &Sample, missing: &mut Missing) -> Option<SampleKeys> {
        let (device, stream) = self.stream(&sample.device, &sample.stream, missing)?;
        let found = stream.series.iter().find(|s| {
            s.metric == sample.metric
                && s.patient == sample.patient
                && s.gateway == sample.gateway
                && s.unit == sample.unit
        });
        if let Some(series) = found {
            return Some(SampleKeys {
                device,
                stream: stream.key,
                series: series.key,
                longest_us: series.longest_us,
            });
        }
        let patient = self.patient(&sample.patient, missing);
        let gateway = self.gateway(&sample.gateway, missing);
        if let (Some(patient), Some(gateway)) = (patient, gateway) {
            missing.names.insert(device, sample.device.clone());
            missing.series.insert((
                stream.key,
                patient,
                gateway,
                sample.metric,
                sample.unit.clone(),
            ));
        }
        None
    }

    fn stream(&self, device: &str, stream: &str, missing: &mut Missing) -> Option<(i32, &Stream)> {
        let Some(known) = self.devices.get(device) else {
            missing.devices.insert(device.to_owned());
            return None;
        };
        let Some(found) = known.streams.get(stream) else {
            missing.names.insert(known.key, device.to_owned());
            missing.streams.insert((known.key, stream.to_owned()));
            return None;
        };
        Some((known.key, found))
    }

    pub fn stream_key(&self, device: &str, stream: &str, missing: &mut Missing) -> Option<i32> {
        self.stream(device, stream, missing).map(|(_, s)| s.key)
    }

    pub fn patient(&self, id: &str, missing: &mut Missing) -> Option<i32> {
        let key = self.patients.get(id).copied();
        if key.is_none() {
            missing.patients.insert(id.to_owned());
        }
        key
    }

    pub fn gateway(&self, id: &str, missing: &mut Missing) -> Option<i32> {
        let key = self.gateways.get(id).copied();
        if key.is_none() {
            missing.gateways.insert(id.to_owned());
        }
        key
    }

    /// Gateway and session of path reports.
    pub fn session(
        &self,
        gateway: &str,
        path: &str,
        end: i32,
        session: u64,
        missing: &mut Missing,
    ) -> Option<(i32, i32)> {
        let gateway = self.gateway(gateway, missing)?;
        let key = (gateway, path.to_owned(), end, session.cast_signed());
        match self.sessions.get(&key) {
            Some(found) => Some((gateway, *found)),
            None => {
                missing.sessions.insert(key);
                None
            }
        }
    }

    /// Remembers a longer waveform of a series, after it was stored.
    pub fn lengthen(&mut self, sample: &Sample, longest_us: i64) {
        let stream = self
            .devices
            .get_mut(&sample.device)
            .and_then(|device| device.streams.get_mut(&sample.stream));
        for series in stream.into_iter().flat_map(|s| &mut s.series) {
            series.longest_us = series.longest_us.max(longest_us);
        }
    }

    pub fn trim(&mut self) {
        if self.patients.len() > CACHE_MAX {
            self.patients.clear();
        }
        if self.gateways.len() > CACHE_MAX {
            self.gateways.clear();
        }
        if self.devices.len() > CACHE_MAX {
            self.devices.clear();
        }
        if self.sessions.len() > CACHE_MAX {
            self.sessions.clear();
        }
    }
}

pub async fn make(
    keys: &parking_lot::Mutex<Keys>,
    connection: &Object,
    missing: &Missing,
) -> Result<(), Fault> {
    if !missing.patients.is_empty() {
        let ids: Vec<&String> = missing.patients.iter().collect();
        let rows = find_or_insert(
            connection,
            "SELECT id, key FROM patients WHERE id = ANY($1)",
            // Without a tenant: only services see it until it is registered.
            "INSERT INTO patients (id, tenant, name, spo2_scale) SELECT id, '', id, 1 FROM unnest($1::text[]) AS id
             ON CONFLICT (id) DO NOTHING",
            &[&ids],
            ids.len(),
        )
        .await?;
        let found = rows.iter().map(|row| (row.get(0), row.get(1)));
        keys.lock().patients.extend(found);
    }
    if !missing.gateways.is_empty() {
        let ids: Vec<&String> = missing.gateways.iter().collect();
        let rows = find_or_insert(
            connection,
            "SELECT id, key FROM gateways WHERE id = ANY($1)",
            "INSERT INTO gateways (id, tenant) SELECT id, '' FROM unnest($1::text[]) AS id ON CONFLICT (id) DO NOTHING",
            &[&ids],
            ids.len(),
        )
        .await?;
        let found = rows.iter().map(|row| (row.get(0), row.get(1)));
        keys.lock().gateways.extend(found);
    }
    if !missing.devices.is_empty() {
        let names: Vec<&String> = missing.devices.iter().collect();
        let rows = find_or_insert(
            connection,
            "SELECT device, key FROM device_heads WHERE device = ANY($1)",
            "INSERT INTO device_heads (device) SELECT * FROM unnest($1::text[]) ON CONFLICT (device) DO NOTHING",
            &[&names],
            names.len(),
        )
        .await?;
        let mut keys = keys.lock();
        for row in &rows {
            let key = row.get(1);
            keys.devices.entry(row.get(0)).or_insert_with(|| Device {
                key,
                streams: HashMap::default(),
            });
        }
    }
    if !missing.streams.is_empty() {
        let devices: Vec<i32> = missing.streams.iter().map(|s| s.0).collect();
        let names: Vec<&String> = missing.streams.iter().map(|s| &s.1).collect();
        let rows = find_or_insert(
            connection,
            "SELECT s.device, s.stream, s.key FROM unnest($1::int[], $2::text[]) AS w (device, stream)
                 JOIN streams s USING (device, stream)",
            "INSERT INTO streams (device, stream) SELECT * FROM unnest($1::int[], $2::text[]) ON CONFLICT (device, stream) DO NOTHING",
            &[&devices, &names],
            names.len(),
        )
        .await?;
        let mut keys = keys.lock();
        for row in &rows {
            let device = missing
                .names
                .get(&row.get::<_, i32>(0))
                .and_then(|name| keys.devices.get_mut(name));
            if let Some(device) = device {
                let key = row.get(2);
                device.streams.entry(row.get(1)).or_insert_with(|| Stream {
                    key,
                    series: Vec::new(),
                });
            }
        }
    }
    if !missing.series.is_empty() {
        make_series(keys, connection, missing).await?;
    }
    if !missing.sessions.is_empty() {
        make_sessions(keys, connection, missing).await?;
    }
    Ok(())
}

async fn make_series(
    keys: &parking_lot::Mutex<Keys>,
    connection: &Object,
    missing: &Missing,
) -> Result<(), Fault> {
    let streams: Vec<i32> = missing.series.iter().map(|s| s.0).collect();
    let patients: Vec<i32> = missing.series.iter().map(|s| s.1).collect();
    let gateways: Vec<i32> = missing.series.iter().map(|s| s.2).collect();
    let metrics: Vec<i32> = missing.series.iter().map(|s| s.3).collect();
    let units: Vec<&String> = missing.series.iter().map(|s| &s.4).collect();
    let rows = find_or_insert(
        connection,
        "SELECT t.device, t.stream, p.id, g.id, e.metric, e.unit, e.key, e.longest_us
         FROM unnest($1::int[], $2::int[], $3::int[], $4::int[], $5::text[]) AS w (stream, patient, gateway, metric, unit)
             JOIN series e USING (stream, patient, gateway, metric, unit) JOIN streams t ON t.key = e.stream
             JOIN patients p ON p.key = e.patient JOIN gateways g ON g.key = e.gateway",
        "INSERT INTO series (stream, patient, gateway, metric, unit)
         SELECT * FROM unnest($1::int[], $2::int[], $3::int[], $4::int[], $5::text[])
         ON CONFLICT (stream, patient, gateway, metric, unit) DO NOTHING",
        &[&streams, &patients, &gateways, &metrics, &units],
        streams.len(),
    )
    .await?;
    let mut keys = keys.lock();
    for row in &rows {
        let stream = missing
            .names
            .get(&row.get::<_, i32>(0))
            .and_then(|name| keys.devices.get_mut(name))
            .and_then(|device| device.streams.get_mut(row.get::<_, &str>(1)));
        let key = row.get(6);
        if let Some(stream) = stream
            && stream.series.iter().all(|s| s.key != key)
        {
            stream.series.push(Series {
                patient: row.get(2),
                gateway: row.get(3),
                metric: row.get(4),
                unit: row.get(5),
                key,
                longest_us: row.get(7),
            });
        }
    }
    Ok(())
}

async fn make_sessions(
    keys: &parking_lot::Mutex<Keys>,
    connection: &Object,
    missing: &Missing,
) -> Result<(), Fault> {
    let gateways: Vec<i32> = missing.sessions.iter().map(|s| s.0).collect();
    let paths: Vec<&String> = missing.sessions.iter().map(|s| &s.1).collect();
    let ends: Vec<i32> = missing.sessions.iter().map(|s| s.2).collect();
    let sessions: Vec<i64> = missing.sessions.iter().map(|s| s.3).collect();
    let heads = connection
        .prepare_cached(
            "INSERT INTO gateway_heads (key) SELECT DISTINCT * FROM unnest($1::int[]) ORDER BY 1 ON CONFLICT (key) DO NOTHING",
        )
        .await?;
    connection.execute(&heads, &[&gateways]).await?;
    let rows = find_or_insert(
        connection,
        "SELECT s.gateway, s.path, s.end_of, s.session, s.key
         FROM unnest($1::int[], $2::text[], $3::int[], $4::bigint[]) AS w (gateway, path, end_of, session)
             JOIN path_sessions s USING (gateway, path, end_of, session)",
        "INSERT INTO path_sessions (gateway, path, end_of, session)
         SELECT * FROM unnest($1::int[], $2::text[], $3::int[], $4::bigint[])
         ON CONFLICT (gateway, path, end_of, session) DO NOTHING",
        &[&gateways, &paths, &ends, &sessions],
        paths.len(),
    )
    .await?;
    let found = rows
        .iter()
        .map(|row| ((row.get(0), row.get(1), row.get(2), row.get(3)), row.get(4)));
    keys.lock().sessions.extend(found);
    let removed = trim_sessions(connection, &gateways, SESSIONS_PER_GATEWAY_MAX).await?;
    if !removed.is_empty() {
        keys.lock().sessions.retain(|_, key| !removed.contains(key));
    }
    Ok(())
}

/// Removes the oldest sessions of these gateways beyond `kept`, and what is stored of their
/// sequences. Sessions in a head reported last and stay.
async fn trim_sessions(
    connection: &Object,
    gateways: &[i32],
    kept: i64,
) -> Result<BTreeSet<i32>, Fault> {
    let heads = connection
        .prepare_cached("SELECT head FROM gateway_heads WHERE key = ANY($1)")
        .await?;
    let mut newest: Vec<i32> = Vec::new();
    for row in connection.query(&heads, &[&gateways]).await? {
        let head = Head::decode(row.get::<_, &[u8]>(0))
            .map_err(|e| Fault::Unavailable(format!("a head cannot be read: {e}")))?;
        newest.extend(head.streams.iter().map(|session| session.stream));
    }
    let remove = connection
        .prepare_cached(
            "WITH old AS (SELECT s.key FROM unnest($1::int[]) AS w (gateway),
                 LATERAL (SELECT key FROM path_sessions WHERE gateway = w.gateway
                     AND key <> ALL($2::int[]) ORDER BY key DESC OFFSET $3 LIMIT 10000) AS s),
             gone AS (DELETE FROM path_sessions s USING old WHERE s.key = old.key),
             runs AS (DELETE FROM session_runs r USING old WHERE r.stream = old.key)
             SELECT DISTINCT key FROM old",
        )
        .await?;
    let removed = connection
        .query(&remove, &[&gateways, &newest, &kept])
        .await?;
    Ok(removed.iter().map(|row| row.get(0)).collect())
}

async fn find_or_insert(
    connection: &Object,
    find: &str,
    insert: &str,
    values: &[&(dyn ToSql + Sync)],
    wanted: usize,
) -> Result<Vec<tokio_postgres::Row>, Fault> {
    let find = connection.prepare_cached(find).await?;
    let rows = connection.query(&find, values).await?;
    if rows.len() >= wanted {
        return Ok(rows);
    }
    let insert = connection.prepare_cached(insert).await?;
    connection.execute(&insert, values).await?;
    Ok(connection.query(&find, values).await?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::paths::PathReport;
    use testkit::timescale_server::{PASSWORD, TimescaleServer};

    use super::*;
    use crate::{PathsQuery, PathsStore, Scope, TimescaleOptions, TimescaleStore};

    const START_US: i64 = 1_780_000_000_000_000;

    fn report(session: u64) -> PathReport {
        PathReport {
            gateway: "gw".into(),
            path: "wifi".into(),
            session,
            sequence: 1,
            time_us: START_US + session.cast_signed(),
            interval_ms: 1000,
            ..PathReport::default()
        }
    }

    #[tokio::test]
    async fn a_gateway_has_a_bounded_number_of_path_sessions() {
        let url = TimescaleServer::shared().database().await;
        let options = TimescaleOptions::new(&url, PASSWORD);
        let store = TimescaleStore::open(&options).await.unwrap();
        let session_max = 1500 + SESSIONS_PER_GATEWAY_MAX.unsigned_abs();
        for first in (0..session_max).step_by(1000) {
            let sessions = first..(first + 1000).min(session_max);
            let reports = sessions.map(report).collect();
            let written = store.write_paths(reports, Vec::new()).await.unwrap();
            assert_eq!(written.duplicate, 0);
        }
        // The newest is known, also beside a session that was removed.
        let again = vec![report(session_max - 1)];
        let written = store.write_paths(again, Vec::new()).await.unwrap();
        assert_eq!((written.new, written.duplicate), (0, 1));
        let client = store.writer().await.unwrap();
        let count = async |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            client.query_one(&sql, &[]).await.unwrap().get(0)
        };
        let kept = count("path_sessions").await;
        let most = SESSIONS_PER_GATEWAY_MAX + 64;
        assert!(kept <= most, "{kept}");
        assert!(count("session_runs").await <= most);
        let total = i64::try_from(session_max).unwrap();
        assert_eq!(count("paths_view").await, total, "reports stay");
        let query = PathsQuery {
            gateway: Some("gw".into()),
            from_us: 0,
            to_us: i64::MAX,
            limit: 20_000,
        };
        let stored = store.paths(&Scope::Service, &query).await.unwrap();
        assert_eq!(stored.len(), usize::try_from(total).unwrap());
        assert!(stored.iter().all(|it| it.path == "wifi"));
    }
}
