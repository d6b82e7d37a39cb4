//! Integer keys of texts that repeat, cached. Rows of these tables are never removed or renumbered.
//! So a committed key stays valid, also one that another process has made.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension};

/// Entries of each cache. A full cache is emptied, and filled again from the tables.
const CACHE_MAX: usize = 100_000;

#[derive(Default)]
pub struct Keys {
    patients: HashMap<String, i64>,
    gateways: HashMap<String, i64>,
    units: HashMap<String, i64>,
    /// By device, then stream, so that a look-up borrows.
    streams: HashMap<String, HashMap<String, i64>>,
}

impl Keys {
    pub fn clear(&mut self) {
        *self = Keys::default();
    }

    /// An unknown patient is entered without a tenant: only services see it until it is registered.
    pub fn patient(&mut self, connection: &Connection, id: &str) -> rusqlite::Result<i64> {
        cached(&mut self.patients, id, || {
            find_or_insert(
                connection,
                "SELECT key FROM patients WHERE id = ?1",
                "INSERT INTO patients (id, tenant, name, spo2_scale) VALUES (?1, '', ?1, 1)",
                [id],
            )
        })
    }

    pub fn gateway(&mut self, connection: &Connection, id: &str) -> rusqlite::Result<i64> {
        cached(&mut self.gateways, id, || {
            find_or_insert(
                connection,
                "SELECT key FROM gateways WHERE id = ?1",
                "INSERT INTO gateways (id, tenant) VALUES (?1, '')",
                [id],
            )
        })
    }

    pub fn unit(&mut self, connection: &Connection, unit: &str) -> rusqlite::Result<i64> {
        cached(&mut self.units, unit, || {
            find_or_insert(
                connection,
                "SELECT key FROM units WHERE unit = ?1",
                "INSERT INTO units (unit) VALUES (?1)",
                [unit],
            )
        })
    }

    pub fn stream(
        &mut self,
        connection: &Connection,
        device: &str,
        stream: &str,
    ) -> rusqlite::Result<i64> {
        if !self.streams.contains_key(device) {
            if self.streams.len() >= CACHE_MAX {
                self.streams.clear();
            }
            self.streams.insert(device.to_owned(), HashMap::new());
        }
        let streams = self.streams.entry(device.to_owned()).or_default();
        cached(streams, stream, || {
            find_or_insert(
                connection,
                "SELECT key FROM streams WHERE device = ?1 AND stream = ?2",
                "INSERT INTO streams (device, stream) VALUES (?1, ?2)",
                [device, stream],
            )
        })
    }
}

fn cached(
    cache: &mut HashMap<String, i64>,
    text: &str,
    find: impl FnOnce() -> rusqlite::Result<i64>,
) -> rusqlite::Result<i64> {
    if let Some(key) = cache.get(text) {
        return Ok(*key);
    }
    let key = find()?;
    if cache.len() >= CACHE_MAX {
        cache.clear();
    }
    cache.insert(text.to_owned(), key);
    Ok(key)
}

fn find_or_insert<const N: usize>(
    connection: &Connection,
    find: &str,
    insert: &str,
    texts: [&str; N],
) -> rusqlite::Result<i64> {
    let found = connection
        .prepare_cached(find)?
        .query_row(rusqlite::params_from_iter(texts), |row| row.get(0))
        .optional()?;
    if let Some(key) = found {
        return Ok(key);
    }
    connection
        .prepare_cached(insert)?
        .execute(rusqlite::params_from_iter(texts))?;
    Ok(connection.last_insert_rowid())
}
