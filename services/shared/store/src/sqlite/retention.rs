//! Removes what is too old, in steps small enough that a write between them waits for few
//! milliseconds.
//!
//! Too old by a slow clock: see [`bus::slow_clock`].

use std::time::{Duration, Instant};

use bus::slow_clock::follow;
use contracts::alerts::AlertState;
use rusqlite::Connection;

use super::{ledger_rows, transaction::in_transaction};
use crate::Expire;

/// Rows of one kind removed in one transaction.
pub const STEP: usize = 2000;

const DAY: u64 = 24 * 3600;

const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How long each kind is kept.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    pub vitals_age: Duration,
    pub waveforms_age: Duration,
    pub paths_age: Duration,
    pub alerts_age: Duration,
    pub audit_age: Duration,
}

impl Default for SqliteOptions {
    /// Vitals 90 days, waveforms 3, paths 14, alerts and audit 3 years.
    fn default() -> SqliteOptions {
        SqliteOptions {
            vitals_age: Duration::from_secs(90 * DAY),
            waveforms_age: Duration::from_secs(3 * DAY),
            paths_age: Duration::from_secs(14 * DAY),
            alerts_age: Duration::from_secs(3 * 365 * DAY),
            audit_age: Duration::from_secs(3 * 365 * DAY),
        }
    }
}

pub struct Retention {
    ages: [(Expire, Duration); 5],
    /// When the clock was last looked at, and what came of it.
    followed: Option<(Instant, i64)>,
}

impl Retention {
    pub fn new(options: SqliteOptions) -> Retention {
        Retention {
            ages: [
                (Expire::Vitals, options.vitals_age),
                (Expire::Waveforms, options.waveforms_age),
                (Expire::Paths, options.paths_age),
                (Expire::Alerts, options.alerts_age),
                (Expire::Audit, options.audit_age),
            ],
            followed: None,
        }
    }

    /// One step of each kind; true when something is left.
    pub fn step(&mut self, connection: &Connection) -> bool {
        let passed = self.followed.map(|(at, _)| at.elapsed());
        if passed.is_none_or(|passed| passed >= LOOK_EVERY) {
            match follow(connection, contracts::now_us(), passed.unwrap_or_default()) {
                Ok(now_us) => self.followed = Some((Instant::now(), now_us)),
                Err(e) => tracing::warn!(error = %e, "old rows were not removed"),
            }
        }
        self.followed
            .is_some_and(|(_, now_us)| self.step_at(connection, now_us))
    }

    fn step_at(&self, connection: &Connection, now_us: i64) -> bool {
        let mut more = false;
        for (what, age) in &self.ages {
            let before = before_us(now_us, *age);
            match in_transaction(connection, || expire(connection, *what, before)) {
                Ok(removed) => {
                    more |= removed >= STEP;
                    metrics::counter!("braid_store_expired_rows_total", "kind" => name(*what))
                        .increment(removed as u64);
                }
                Err(e) => {
                    tracing::warn!(kind = name(*what), error = %e, "old rows were not removed")
                }
            }
        }
        more
    }
}

fn name(what: Expire) -> &'static str {
    match what {
        Expire::Vitals => "vitals",
        Expire::Waveforms => "waveforms",
        Expire::Paths => "paths",
        Expire::Alerts => "alerts",
        Expire::CanaryAlerts => "canary alerts",
        Expire::Audit => "audit",
    }
}

fn before_us(now_us: i64, age: Duration) -> i64 {
    let age_us = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    now_us.saturating_sub(age_us).max(0)
}

/// Removes at most [`STEP`] rows (alerts: with all their transitions), and returns how many.
pub fn expire(connection: &Connection, what: Expire, before_us: i64) -> rusqlite::Result<usize> {
    match what {
        Expire::Vitals => {
            ledger_rows::expire(connection, before_us)?;
            series(
                connection,
                "DELETE FROM samples WHERE (stream, sequence) IN (SELECT stream, sequence FROM samples
                     WHERE patient = ?1 AND metric = ?2 AND time_us < ?3 LIMIT ?4)",
                before_us,
            )
        }
        Expire::Waveforms => series(
            connection,
            "DELETE FROM waveforms WHERE key IN (SELECT key FROM waveforms
                 WHERE patient = ?1 AND metric = ?2 AND time_us < ?3 LIMIT ?4)",
            before_us,
        ),
        Expire::Paths => {
            // Not counted, since the reports themselves are.
            connection
                .prepare_cached(
                    "DELETE FROM latest_paths WHERE (gateway, path, end_of) IN
                         (SELECT gateway, path, end_of FROM latest_paths WHERE time_us < ?1 LIMIT ?2)",
                )?
                .execute((before_us, STEP))?;
            connection
                .prepare_cached(
                    "DELETE FROM paths WHERE (gateway, path, end_of, session, sequence) IN
                         (SELECT gateway, path, end_of, session, sequence FROM paths WHERE time_us < ?1 LIMIT ?2)",
                )?
                .execute((before_us, STEP))
        }
        Expire::Audit => connection
            .prepare_cached(
                "DELETE FROM audit WHERE key IN (SELECT key FROM audit WHERE time_us < ?1 LIMIT ?2)",
            )?
            .execute((before_us, STEP)),
        Expire::Alerts | Expire::CanaryAlerts => {
            let of = (what == Expire::CanaryAlerts).then_some(contracts::canary::NAME);
            // since <= changed, so the index on since narrows it.
            let ids: Vec<String> = connection
                .prepare_cached(
                    "SELECT id FROM alerts WHERE since_us < ?1 AND changed_us < ?1 AND state = ?2
                         AND (?4 IS NULL OR substr(patient, 1, length(?4)) = ?4) LIMIT ?3",
                )?
                .query_map((before_us, AlertState::Resolved as i32, STEP, of), |row| {
                    row.get(0)
                })?
                .collect::<rusqlite::Result<_>>()?;
            let mut transitions =
                connection.prepare_cached("DELETE FROM alert_transitions WHERE id = ?1")?;
            let mut outcomes = connection.prepare_cached(
                "DELETE FROM notice_outcomes WHERE id IN (SELECT id FROM notices WHERE alert = ?1)",
            )?;
            let mut notices =
                connection.prepare_cached("DELETE FROM notices WHERE alert = ?1")?;
            let mut alerts = connection.prepare_cached("DELETE FROM alerts WHERE id = ?1")?;
            for id in &ids {
                outcomes.execute([id])?;
                notices.execute([id])?;
                transitions.execute([id])?;
                alerts.execute([id])?;
            }
            Ok(ids.len())
        }
    }
}

fn series(connection: &Connection, delete: &str, before_us: i64) -> rusqlite::Result<usize> {
    let series: Vec<(i64, i32)> = connection
        .prepare_cached("SELECT patient, metric FROM latest")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut delete = connection.prepare_cached(delete)?;
    let mut removed = 0;
    for (patient, metric) in series {
        if removed >= STEP {
            break;
        }
        removed += delete.execute((patient, metric, before_us, STEP - removed))?;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn a_clock_that_is_ahead_removes_nothing_but_hours() {
        const DAY_US: i64 = DAY as i64 * 1_000_000;
        let dir = tempfile::tempdir().unwrap();
        let connection = schema::open_writer(dir.path()).unwrap();
        let retention = Retention::new(SqliteOptions::default());
        let row = "INSERT INTO audit (time_us, tenant, who, action, patient, detail) VALUES (?1, '', '', '', '', '')";
        let start_us = 2000 * DAY_US;
        connection.execute(row, [start_us - 1000 * DAY_US]).unwrap();
        let left = |at_us, passed| {
            let now_us = follow(&connection, at_us, passed).unwrap();
            retention.step_at(&connection, now_us);
            connection
                .query_row("SELECT count(*) FROM audit", [], |row| row.get::<_, i64>(0))
                .unwrap()
        };
        assert_eq!(left(start_us, Duration::ZERO), 1);
        // Ten minutes, over several starts, half a year ahead.
        for _ in 0..10 {
            assert_eq!(left(start_us + 180 * DAY_US, Duration::ZERO), 1);
            assert_eq!(left(start_us + 180 * DAY_US, Duration::from_secs(60)), 1);
        }
        assert_eq!(left(start_us, Duration::from_secs(60)), 1, "right again");
        assert_eq!(left(DAY_US, Duration::from_secs(60)), 1, "a start in 1970");
        // Switched off for half a year: it is too old, and goes once that was followed.
        let later_us = start_us + 180 * DAY_US;
        assert_eq!(left(later_us, Duration::ZERO), 1);
        assert_eq!(left(later_us, Duration::from_secs(8 * DAY)), 0);
        // A first start that was ahead is no rule.
        let ahead_us = later_us + 1000 * DAY_US;
        follow(&connection, ahead_us, Duration::from_secs(1000 * DAY)).unwrap();
        connection.execute(row, [later_us]).unwrap();
        assert_eq!(left(later_us, Duration::from_secs(42 * DAY)), 1);
        assert_eq!(left(ahead_us + DAY_US, Duration::from_secs(60)), 1);
    }
}
