//! Tables of the embedded store, as migrations that are applied in order and never changed once
//! released.
//!
//! - Texts that repeat (patients, gateways, streams, units) have integer keys, so that a sample
//!   takes some 40 bytes.
//! - `samples` is clustered by its identity, so a duplicate is a failed insert without further
//!   cost. One covering index by (patient, metric, time) serves every query of series.
//! - Waveforms are rows of a table of their own, because kilobytes in a clustered table would spoil
//!   its fan-out.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use contracts::alerts::{Alert, AlertState};
use prost::Message;
use rusqlite::{Connection, TransactionBehavior};
use thiserror::Error;

pub const FILE: &str = "store.db";

/// The database and what SQLite keeps beside it. SQLite makes those with the mode of the database.
pub fn files(dir: &Path) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|suffix| dir.join(format!("{FILE}{suffix}")))
}

/// A writer of another process holds the lock for one transaction; a longer wait means that it
/// hangs, and is reported as an error.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pages in the write-ahead log before the writer copies them into the database: 32 MiB.
const CHECKPOINT_PAGES: u32 = 8192;
/// Page caches, in KiB. A full one drops the page that was used longest ago, and reads it again
/// from the file when it is wanted. A database grows for as long as people are watched, so every
/// cache fills up, and its bound is what the process grows by. The writer's holds the right edges
/// of both trees of five hundred streams.
const WRITER_CACHE_KIB: i32 = 4 << 10;
const READER_CACHE_KIB: i32 = 1 << 10;

#[derive(Debug, Error)]
pub enum OpenError {
    #[error("cannot use the data directory {path}: {reason}")]
    Directory { path: String, reason: String },
    #[error(
        "{FILE} has schema version {found}; this program knows up to {known}: use a newer program"
    )]
    Newer { found: usize, known: usize },
    #[error("{FILE}: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

/// Version n is after the n-th migration.
const MIGRATIONS: &[&str] = &["
CREATE TABLE patients (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    -- Empty: known from data only, not registered.
    tenant TEXT NOT NULL, name TEXT NOT NULL, spo2_scale INTEGER NOT NULL);
CREATE INDEX patients_tenant ON patients (tenant, id);
CREATE TABLE gateways (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL);
CREATE TABLE devices (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, gateway TEXT NOT NULL, patient TEXT NOT NULL,
    registered_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX devices_gateway ON devices (gateway);

CREATE TABLE streams (key INTEGER PRIMARY KEY, device TEXT NOT NULL, stream TEXT NOT NULL, UNIQUE (device, stream));
CREATE TABLE units (key INTEGER PRIMARY KEY, unit TEXT NOT NULL UNIQUE);
-- Times as device time and the steps from there to the gateway's and to ingest's clock: small numbers take few bytes.
CREATE TABLE samples (stream INTEGER NOT NULL, sequence INTEGER NOT NULL, patient INTEGER NOT NULL, gateway INTEGER NOT NULL,
    metric INTEGER NOT NULL, unit INTEGER NOT NULL, time_us INTEGER NOT NULL, gateway_step_us INTEGER NOT NULL,
    ingest_step_us INTEGER NOT NULL, value REAL NOT NULL, traceparent TEXT, sensor_sequence INTEGER,
    PRIMARY KEY (stream, sequence)) WITHOUT ROWID;
CREATE INDEX samples_series ON samples (patient, metric, time_us, value);
CREATE TABLE waveforms (key INTEGER PRIMARY KEY, stream INTEGER NOT NULL, sequence INTEGER NOT NULL, patient INTEGER NOT NULL,
    gateway INTEGER NOT NULL, metric INTEGER NOT NULL, unit INTEGER NOT NULL, time_us INTEGER NOT NULL,
    gateway_step_us INTEGER NOT NULL, ingest_step_us INTEGER NOT NULL, period_us INTEGER NOT NULL, readings BLOB NOT NULL,
    traceparent TEXT, sensor_sequence INTEGER);
CREATE UNIQUE INDEX waveforms_identity ON waveforms (stream, sequence);
CREATE INDEX waveforms_series ON waveforms (patient, metric, time_us);
-- Which series exist, and the newest value of each; value is NULL for waveforms. longest_us is the length of the longest waveform:
-- a stretch is searched from this much earlier.
CREATE TABLE latest (patient INTEGER NOT NULL, metric INTEGER NOT NULL, value REAL, time_us INTEGER NOT NULL,
    ingest_us INTEGER NOT NULL, stream INTEGER NOT NULL, gateway INTEGER NOT NULL, longest_us INTEGER NOT NULL,
    PRIMARY KEY (patient, metric)) WITHOUT ROWID;
CREATE TABLE gaps (stream INTEGER NOT NULL, first_sequence INTEGER NOT NULL, last_sequence INTEGER NOT NULL,
    patient INTEGER NOT NULL, gateway INTEGER NOT NULL, from_us INTEGER NOT NULL, to_us INTEGER NOT NULL,
    PRIMARY KEY (stream, first_sequence, last_sequence)) WITHOUT ROWID;
CREATE INDEX gaps_patient ON gaps (patient, from_us);

-- Payloads are encoded braid.alerts.v1.Alert.
CREATE TABLE alert_transitions (id TEXT NOT NULL, revision INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (id, revision)) WITHOUT ROWID;
CREATE TABLE alerts (id TEXT PRIMARY KEY, patient TEXT NOT NULL, gateway TEXT NOT NULL, state INTEGER NOT NULL,
    since_us INTEGER NOT NULL, changed_us INTEGER NOT NULL, revision INTEGER NOT NULL, payload BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX alerts_since ON alerts (since_us);
CREATE INDEX alerts_patient ON alerts (patient, since_us);
CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL);
CREATE TABLE rule_states (topic TEXT NOT NULL, part INTEGER NOT NULL, key TEXT NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (topic, part, key)) WITHOUT ROWID;

-- Payloads are encoded braid.paths.v1.PathReport; session and sequence are u64 kept bit for bit.
CREATE TABLE paths (gateway INTEGER NOT NULL, path TEXT NOT NULL, end_of INTEGER NOT NULL, session INTEGER NOT NULL,
    sequence INTEGER NOT NULL, time_us INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (gateway, path, end_of, session, sequence)) WITHOUT ROWID;
CREATE INDEX paths_time ON paths (time_us);
CREATE INDEX paths_gateway ON paths (gateway, time_us);
CREATE TABLE latest_paths (gateway INTEGER NOT NULL, path TEXT NOT NULL, end_of INTEGER NOT NULL, time_us INTEGER NOT NULL,
    payload BLOB NOT NULL, PRIMARY KEY (gateway, path, end_of)) WITHOUT ROWID;

CREATE TABLE accounts (name TEXT PRIMARY KEY, tenant TEXT NOT NULL, role TEXT NOT NULL, password_hash TEXT NOT NULL,
    created_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE audit (key INTEGER PRIMARY KEY, time_us INTEGER NOT NULL, tenant TEXT NOT NULL, who TEXT NOT NULL,
    action TEXT NOT NULL, patient TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX audit_time ON audit (time_us);

CREATE TABLE progress (grp TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, epoch INTEGER NOT NULL,
    next_offset INTEGER, PRIMARY KEY (grp, topic, part)) WITHOUT ROWID;
CREATE TABLE probe (id INTEGER PRIMARY KEY, count INTEGER NOT NULL);
INSERT INTO probe VALUES (1, 0);
", "
-- Payloads are encoded braid.alerts.v1.{Document, Notice, NoticeOutcome}. until_us of what holds for good is the largest number.
CREATE TABLE documents (key INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, tenant TEXT NOT NULL, subject TEXT NOT NULL,
    version INTEGER NOT NULL, until_us INTEGER NOT NULL, payload BLOB NOT NULL, UNIQUE (kind, tenant, subject, version));
CREATE INDEX documents_until ON documents (kind, until_us);
CREATE TABLE notices (id TEXT PRIMARY KEY, alert TEXT NOT NULL, payload BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX notices_alert ON notices (alert);
CREATE TABLE notice_outcomes (id TEXT PRIMARY KEY, payload BLOB NOT NULL) WITHOUT ROWID;
-- Notices without an outcome. due_us is also the end of the lease of whoever delivers; a lane keeps its order.
CREATE TABLE notice_queue (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, channel TEXT NOT NULL,
    lane TEXT NOT NULL, due_us INTEGER NOT NULL, attempts INTEGER NOT NULL);
CREATE INDEX notice_queue_due ON notice_queue (channel, due_us);
CREATE INDEX notice_queue_lane ON notice_queue (channel, lane, seq);
-- Alerts that somebody is yet to be told of: the timer of each. due_us NULL: waits for the alert's end only.
CREATE TABLE watches (alert TEXT PRIMARY KEY, version INTEGER NOT NULL, due_us INTEGER, state BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX watches_due ON watches (due_us);
CREATE TRIGGER documents_immutable BEFORE UPDATE ON documents BEGIN SELECT RAISE(ABORT, 'documents are never changed'); END;
CREATE TRIGGER notices_immutable BEFORE UPDATE ON notices BEGIN SELECT RAISE(ABORT, 'notices are never changed'); END;
CREATE TRIGGER notice_outcomes_immutable BEFORE UPDATE ON notice_outcomes
    BEGIN SELECT RAISE(ABORT, 'outcomes are never changed'); END;
", "
CREATE TRIGGER audit_immutable BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is never changed'); END;
", "
-- An alert whose priority is not known counts as one of the highest.
ALTER TABLE alerts ADD COLUMN priority INTEGER NOT NULL DEFAULT 3;
CREATE INDEX alerts_open ON alerts (priority, since_us) WHERE state <> 5;
", "
-- Who wore what, and at which gateway, are intervals. `devices` has one row for each device that was ever assigned: its tenant, and
-- when its assignments were changed last.
ALTER TABLE devices RENAME TO devices_before;
CREATE TABLE devices (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, changed_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX devices_changed ON devices (changed_us);
-- From inclusive, until exclusive; the greatest number goes on, the least has no known beginning.
CREATE TABLE assignments (device TEXT NOT NULL, from_us INTEGER NOT NULL, until_us INTEGER NOT NULL CHECK (until_us > from_us),
    gateway TEXT NOT NULL, patient TEXT NOT NULL, author TEXT NOT NULL, reason TEXT NOT NULL, entered_us INTEGER NOT NULL,
    PRIMARY KEY (device, from_us)) WITHOUT ROWID;
CREATE INDEX assignments_gateway ON assignments (gateway, until_us);
CREATE INDEX assignments_patient ON assignments (patient);
-- What was measured before a device was registered is nobody's: it may have been with somebody else, whose row was replaced.
INSERT INTO devices SELECT id, tenant, registered_us FROM devices_before;
INSERT INTO assignments SELECT id, min(registered_us, 9223372036854775806), 9223372036854775807, gateway, patient, 'migration',
    'registered before assignments had times', registered_us FROM devices_before;
DROP TABLE devices_before;
-- What nobody can be said to have worn: kept apart until it is assigned or discarded by hand. Payloads are encoded
-- braid.vitals.v1.Quarantined.
CREATE TABLE quarantine (key INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, gateway TEXT NOT NULL, device TEXT NOT NULL,
    identity TEXT NOT NULL, kind TEXT NOT NULL, time_us INTEGER NOT NULL, arrived_us INTEGER NOT NULL, payload BLOB NOT NULL,
    UNIQUE (device, gateway, identity));
", "
-- Whose share of the queue a notice takes: its alert's gateway or, without one, its patient.
-- Rows of an older version share one.
ALTER TABLE notice_queue ADD COLUMN share TEXT NOT NULL DEFAULT '';
", "
-- The log that a position is of; '' was stored before positions had one. read_us: when the bus took the last record that was read.
ALTER TABLE progress ADD COLUMN log TEXT NOT NULL DEFAULT '';
ALTER TABLE progress ADD COLUMN read_us INTEGER;
-- Records that a group may never get, because its position was of a log that is gone. from_us NULL: unknown. log: the one found.
CREATE TABLE log_gaps (grp TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, from_us INTEGER, to_us INTEGER NOT NULL,
    log TEXT NOT NULL, PRIMARY KEY (grp, topic, part, to_us)) WITHOUT ROWID;
-- Restores of this database from a backup that was made at made_us.
CREATE TABLE restores (restored_us INTEGER PRIMARY KEY, made_us INTEGER NOT NULL);
-- What was deleted by hand; a restore deletes it again. from_us: 0 for an account.
CREATE TABLE removals (kind TEXT NOT NULL, subject TEXT NOT NULL, from_us INTEGER NOT NULL, removed_us INTEGER NOT NULL,
    PRIMARY KEY (kind, subject, from_us, removed_us)) WITHOUT ROWID;
CREATE TRIGGER accounts_removed AFTER DELETE ON accounts BEGIN
    INSERT OR IGNORE INTO removals VALUES ('account', OLD.name, 0, CAST(unixepoch('subsec') * 1000000 AS INTEGER)); END;
CREATE TRIGGER assignments_removed AFTER DELETE ON assignments BEGIN
    INSERT OR IGNORE INTO removals VALUES ('assignment', OLD.device, OLD.from_us, CAST(unixepoch('subsec') * 1000000 AS INTEGER)); END;
", "
-- What is silent: the open alert of each subject, and the newest arrivals when its silence began.
CREATE TABLE silent (subject TEXT PRIMARY KEY, alert TEXT NOT NULL UNIQUE, reading_us INTEGER NOT NULL,
    report_us INTEGER NOT NULL) WITHOUT ROWID;
-- One row: when silence was last judged and nothing had arrived.
CREATE TABLE silent_look (id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL);
", "
-- The most urgent notices are taken first, and of one urgency the shares take turns. Rows of an older version count as most urgent.
-- A row in hand is leased; other rows that were tried have failed.
ALTER TABLE notice_queue ADD COLUMN urgency INTEGER NOT NULL DEFAULT 3;
ALTER TABLE notice_queue ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE notice_queue ADD COLUMN in_hand INTEGER NOT NULL DEFAULT 0;
DROP INDEX notice_queue_due;
CREATE INDEX notice_queue_fresh ON notice_queue (channel, urgency, turn, seq) WHERE attempts = 0;
CREATE INDEX notice_queue_tried ON notice_queue (channel, urgency, due_us, seq) WHERE attempts > 0;
CREATE INDEX notice_queue_share ON notice_queue (channel, urgency, share, turn) WHERE attempts = 0;
ALTER TABLE outbox ADD COLUMN urgency INTEGER NOT NULL DEFAULT 3;
CREATE INDEX outbox_urgent ON outbox (id) WHERE urgency >= 3;
-- Heartbeats of channels: the last one of each recipient, and when somebody confirmed one. A token is kept as its hash.
CREATE TABLE proofs (channel TEXT NOT NULL, tenant TEXT NOT NULL, recipient TEXT NOT NULL, settings TEXT NOT NULL, token TEXT NOT NULL,
    sent_us INTEGER NOT NULL, confirmed_us INTEGER, confirmed_by TEXT NOT NULL, PRIMARY KEY (channel, tenant, recipient)) WITHOUT ROWID;
CREATE UNIQUE INDEX proofs_token ON proofs (token);
", "
-- Sessions of people and of wall displays; key is the hash of the token.
CREATE TABLE sessions (key BLOB PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, tenant TEXT NOT NULL, role TEXT NOT NULL,
    password_hash TEXT NOT NULL, opened_us INTEGER NOT NULL, expires_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX sessions_name ON sessions (tenant, name);
CREATE INDEX sessions_expires ON sessions (expires_us);
", "
-- The stay of a patient. status: braid.patients.v1.PatientStatus; patients of an older version are admitted. record: the encoded
-- braid.patients.v1.Patient, whose columns count where both have a value. revision: the number of changes.
ALTER TABLE patients ADD COLUMN status INTEGER NOT NULL DEFAULT 2;
ALTER TABLE patients ADD COLUMN status_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE patients ADD COLUMN merged_into TEXT NOT NULL DEFAULT '';
ALTER TABLE patients ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE patients ADD COLUMN record BLOB NOT NULL DEFAULT x'';
CREATE INDEX patients_status ON patients (status, status_us);
CREATE INDEX patients_merged ON patients (merged_into) WHERE merged_into <> '';
-- Names of patients in other systems.
CREATE TABLE patient_identifiers (tenant TEXT NOT NULL, system TEXT NOT NULL, value TEXT NOT NULL, patient TEXT NOT NULL,
    PRIMARY KEY (tenant, system, value)) WITHOUT ROWID;
CREATE INDEX patient_identifiers_patient ON patient_identifiers (patient);
", "
-- Why samples are lost: braid.vitals.v1.GapCause.
ALTER TABLE gaps ADD COLUMN cause INTEGER NOT NULL DEFAULT 0;
-- Accounts of gateways: each journal, and the sequences that it gave each stream. A journal is a u64 kept bit for bit.
CREATE TABLE journals (gateway TEXT NOT NULL, journal INTEGER NOT NULL, since_us INTEGER NOT NULL, as_of_us INTEGER NOT NULL,
    waiting INTEGER NOT NULL, PRIMARY KEY (gateway, journal)) WITHOUT ROWID;
CREATE INDEX journals_as_of ON journals (as_of_us);
CREATE TABLE ledgers (device TEXT NOT NULL, stream TEXT NOT NULL, gateway TEXT NOT NULL, journal INTEGER NOT NULL,
    first INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (device, stream, gateway, journal, first)) WITHOUT ROWID;
-- What gateways are to send again.
CREATE TABLE asked (gateway TEXT NOT NULL, device TEXT NOT NULL, stream TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    from_us INTEGER NOT NULL, to_us INTEGER NOT NULL, asked_us INTEGER NOT NULL,
    PRIMARY KEY (gateway, device, stream, first)) WITHOUT ROWID;
"];
/// The first version whose alerts have a priority.
const ALERTS_WITH_PRIORITY: usize = 4;

/// Opens for writing, creating and migrating as needed. Several processes may do so at once: one
/// migrates, the others wait.
pub fn open_writer(dir: &Path) -> Result<Connection, OpenError> {
    let mut connection = Connection::open(dir.join(FILE))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    switch_to_wal(&connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // The log file is cut back to this after a checkpoint.
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(128);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: usize = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = MIGRATIONS.len();
    if found > known {
        return Err(OpenError::Newer { found, known });
    }
    for migration in &MIGRATIONS[found..] {
        transaction.execute_batch(migration)?;
    }
    if found < ALERTS_WITH_PRIORITY {
        fill_in_priorities(&transaction)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    transaction.commit()?;
    Ok(connection)
}

pub fn open_reader(dir: &Path) -> Result<Connection, OpenError> {
    let connection = Connection::open(dir.join(FILE))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Two processes that open a new file at once both try to switch, and SQLite does not apply the
/// busy timeout to that.
#[expect(
    clippy::disallowed_methods,
    reason = "opening is documented as blocking, and SQLite offers nothing to wait on here"
)]
fn switch_to_wal(connection: &Connection) -> rusqlite::Result<()> {
    let mut tries = 0;
    loop {
        let mode: rusqlite::Result<String> =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0));
        match mode {
            Err(e)
                if tries < 100
                    && e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) =>
            {
                tries += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            mode => return mode.map(drop),
        }
    }
}

/// Fills in the priority of alerts that are older than its column. Resolved ones are never ordered
/// by it.
fn fill_in_priorities(connection: &Connection) -> rusqlite::Result<()> {
    let mut open = connection.prepare(&format!(
        "SELECT id, payload FROM alerts WHERE state <> {}",
        AlertState::Resolved as i32
    ))?;
    let mut update = connection.prepare("UPDATE alerts SET priority = ?2 WHERE id = ?1")?;
    let mut rows = open.query([])?;
    while let Some(row) = rows.next()? {
        let (id, payload): (String, Vec<u8>) = (row.get(0)?, row.get(1)?);
        if let Ok(alert) = Alert::decode(payload.as_slice()) {
            update.execute((id, alert.priority))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use contracts::alerts::Alert;
    use contracts::vitals::Priority;
    use prost::Message;

    use super::*;

    #[tokio::test]
    async fn a_register_without_times_becomes_one_with_assignments() {
        use crate::{Of, Register, Scope, SqliteStore};
        const BEFORE: usize = 4;
        let dir = tempfile::tempdir().unwrap();
        let old = Connection::open(dir.path().join(FILE)).unwrap();
        for migration in &MIGRATIONS[..BEFORE] {
            old.execute_batch(migration).unwrap();
        }
        old.pragma_update(None, "user_version", BEFORE).unwrap();
        old.execute_batch(
            "INSERT INTO patients (id, tenant, name, spo2_scale) VALUES ('ada', 'one', 'Ada', 2);
             INSERT INTO devices VALUES ('belt', 'one', 'gw', 'ada', 1700000000000000);
             INSERT INTO devices VALUES ('clip', 'two', 'gw-2', 'ben', 9223372036854775807);",
        )
        .unwrap();
        drop(old);
        let store = SqliteStore::open(dir.path()).unwrap();
        let found = store.assignments(&Scope::Service, Of::Everything).await;
        let found = found.unwrap();
        let worn = |n: usize| (&*found[n].device, &*found[n].patient, found[n].from_us);
        assert_eq!(worn(0), ("belt", "ada", 1_700_000_000_000_000));
        assert_eq!(worn(1), ("clip", "ben", i64::MAX - 1), "a clock far ahead");
        assert!(
            found
                .iter()
                .all(|it| it.is_open() && it.entered.author == "migration")
        );
        let of_one = store.devices(&Scope::tenant("one"), Some("gw")).await;
        assert_eq!(of_one.unwrap().len(), 1);
    }

    #[test]
    fn alerts_of_an_older_schema_get_their_priority() {
        let dir = tempfile::tempdir().unwrap();
        let connection = Connection::open(dir.path().join(FILE)).unwrap();
        for migration in &MIGRATIONS[..ALERTS_WITH_PRIORITY - 1] {
            connection.execute_batch(migration).unwrap();
        }
        let older = ALERTS_WITH_PRIORITY - 1;
        connection
            .pragma_update(None, "user_version", older)
            .unwrap();
        let low = Alert {
            id: "low".into(),
            priority: Priority::Low.into(),
            ..Alert::default()
        };
        let insert = "INSERT INTO alerts VALUES (?1, '', '', 2, 0, 0, 1, ?2)";
        connection
            .execute(insert, (&low.id, low.encode_to_vec()))
            .unwrap();
        connection
            .execute(insert, ("unreadable", [0xff_u8]))
            .unwrap();
        drop(connection);
        let connection = open_writer(dir.path()).unwrap();
        let priority = |id: &str| -> i32 {
            let select = "SELECT priority FROM alerts WHERE id = ?1";
            connection
                .query_row(select, [id], |row| row.get(0))
                .unwrap()
        };
        assert_eq!(priority("low"), Priority::Low as i32);
        assert_eq!(priority("unreadable"), Priority::High as i32);
    }

    #[test]
    fn a_connection_grows_by_its_named_cache_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let cache = |connection: Connection| -> i32 {
            connection
                .pragma_query_value(None, "cache_size", |row| row.get(0))
                .unwrap()
        };
        // Below zero means KiB, above it pages.
        assert_eq!(cache(open_writer(dir.path()).unwrap()), -WRITER_CACHE_KIB);
        assert_eq!(cache(open_reader(dir.path()).unwrap()), -READER_CACHE_KIB);
    }
}
