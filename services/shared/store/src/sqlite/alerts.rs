use async_trait::async_trait;
use bus::Topic;
use bytes::Bytes;
use contracts::{
    alerts::{Alert, AlertState},
    canary::NAME as CANARY,
};
use prost::Message;
use rusqlite::{Connection, OptionalExtension};

use super::{SqliteStore, progress, writer::Writing};
use crate::{
    AlertsBatch, AlertsQuery, AlertsStore, OpenAlerts, OutboxEntry, Progress, QueryError,
    RuleState, Scope, WriteError, Written,
    alerts::{ALERT, order},
    error::readable,
    notices::urgency_of,
};

/// An alert belongs to the tenant of its patient; one without a patient to that of its gateway.
pub(super) const IN_SCOPE: &str = "(?1 IS NULL
    OR EXISTS (SELECT 1 FROM patients p WHERE p.id = a.patient AND p.tenant = ?1)
    OR (a.patient = '' AND EXISTS (SELECT 1 FROM gateways g WHERE g.id = a.gateway AND g.tenant = ?1)))";

const CANARY_LENGTH: usize = CANARY.len();
const PENDING: i32 = AlertState::Pending as i32;
const ACTIVE: i32 = AlertState::Active as i32;
const LATCHED: i32 = AlertState::Latched as i32;
const RESOLVED: i32 = AlertState::Resolved as i32;

pub(super) fn write(writing: &Writing<'_>, batch: &AlertsBatch) -> Result<Written, WriteError> {
    let connection = writing.connection;
    let mut written = Written::default();
    let mut conflicts = Vec::new();
    for alert in &batch.transitions {
        let payload = alert.encode_to_vec();
        let inserted = connection
            .prepare_cached("INSERT OR IGNORE INTO alert_transitions VALUES (?1, ?2, ?3)")?
            .execute((&alert.id, alert.revision, &payload))?;
        if inserted == 0 {
            let there: Vec<u8> = connection
                .prepare_cached(
                    "SELECT payload FROM alert_transitions WHERE id = ?1 AND revision = ?2",
                )?
                .query_row((&alert.id, alert.revision), |row| row.get(0))?;
            if there == payload {
                written.duplicate += 1;
            } else {
                conflicts.push(alert.id.clone());
            }
            continue;
        }
        written.new += 1;
        connection
            .prepare_cached(
                "INSERT INTO alerts (id, patient, gateway, state, since_us, changed_us, revision, payload, priority)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
                 ON CONFLICT DO UPDATE SET patient = excluded.patient, gateway = excluded.gateway, state = excluded.state,
                     since_us = excluded.since_us, changed_us = excluded.changed_us, revision = excluded.revision,
                     payload = excluded.payload, priority = excluded.priority WHERE excluded.revision > revision",
            )?
            .execute((
                &alert.id,
                &alert.patient,
                &alert.gateway,
                alert.state,
                alert.since_us,
                alert.changed_us,
                alert.revision,
                &payload,
                alert.priority,
            ))?;
        connection
            .prepare_cached("INSERT INTO outbox (payload, urgency) VALUES (?1, ?2)")?
            .execute((&payload, urgency_of(alert)))?;
    }
    if !conflicts.is_empty() {
        return Err(WriteError::Conflict(conflicts));
    }
    for state in &batch.states {
        if state.state.is_empty() {
            connection
                .prepare_cached(
                    "DELETE FROM rule_states WHERE topic = ?1 AND part = ?2 AND key = ?3",
                )?
                .execute((state.topic.name(), state.partition, &state.key))?;
        } else {
            connection
                .prepare_cached("INSERT OR REPLACE INTO rule_states VALUES (?1, ?2, ?3, ?4)")?
                .execute((
                    state.topic.name(),
                    state.partition,
                    &state.key,
                    state.state.as_ref(),
                ))?;
        }
    }
    Ok(written)
}

/// Payloads of rows whose only column they are.
fn decode(payloads: Vec<Vec<u8>>) -> Vec<Alert> {
    let payloads = payloads.iter();
    payloads.filter_map(|it| readable(ALERT, it)).collect()
}

fn outbox(
    connection: &Connection,
    sql: &str,
    limit: usize,
) -> Result<Vec<OutboxEntry>, QueryError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([limit])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(OutboxEntry {
            id: row.get(0)?,
            alert: readable(
                ALERT,
                row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?,
            ),
        });
    }
    Ok(entries)
}

#[async_trait]
impl AlertsStore for SqliteStore {
    async fn write_alerts(
        &self,
        batch: AlertsBatch,
        progress: Vec<Progress>,
    ) -> Result<Written, WriteError> {
        self.write(move |writing| {
            progress::advance(writing.connection, &progress)?;
            write(writing, &batch)
        })
        .await
    }

    async fn rule_states(
        &self,
        topic: Topic,
        partition: u32,
    ) -> Result<Vec<RuleState>, QueryError> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT key, state FROM rule_states WHERE topic = ?1 AND part = ?2 ORDER BY key",
            )?;
            let rows = statement.query_map((topic.name(), partition), |row| {
                Ok(RuleState {
                    topic,
                    partition,
                    key: row.get(0)?,
                    state: Bytes::from(row.get::<_, Vec<u8>>(1)?),
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, QueryError> {
        self.read(move |connection| {
            let all = "SELECT id, payload FROM outbox ORDER BY id LIMIT ?1";
            outbox(connection, all, limit)
        })
        .await
    }

    async fn urgent_outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, QueryError> {
        self.read(move |connection| {
            let urgent = "SELECT id, payload FROM outbox WHERE urgency >= 3 ORDER BY id LIMIT ?1";
            outbox(connection, urgent, limit)
        })
        .await
    }

    async fn clear_outbox(&self, ids: &[u64]) -> Result<(), WriteError> {
        let ids = ids.to_vec();
        self.write(move |writing| {
            let mut delete = writing
                .connection
                .prepare_cached("DELETE FROM outbox WHERE id = ?1")?;
            for id in ids {
                delete.execute([id])?;
            }
            Ok(())
        })
        .await
    }

    async fn alert(&self, scope: &Scope, id: &str) -> Result<Option<Alert>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| {
            let payload: Option<Vec<u8>> = connection
                .prepare_cached(&format!(
                    "SELECT payload FROM alerts a WHERE a.id = ?2 AND {IN_SCOPE}"
                ))?
                .query_row((tenant, id), |row| row.get(0))
                .optional()?;
            Ok(payload.map(|p| Alert::decode(p.as_slice())).transpose()?)
        })
        .await
    }

    async fn alerts(&self, scope: &Scope, query: &AlertsQuery) -> Result<Vec<Alert>, QueryError> {
        let (tenant, query) = (scope.as_tenant().map(str::to_owned), query.clone());
        self.read(move |connection| {
            let mut payloads: Vec<Vec<u8>> = Vec::new();
            for resolved in query.parts() {
                let room = query.limit() - payloads.len();
                let (equals, order) = (if *resolved { "=" } else { "<>" }, order(*resolved));
                let mut statement = connection.prepare_cached(&format!(
                    "SELECT payload FROM alerts a
                     WHERE a.state {equals} {RESOLVED} AND (a.patient = ?2 OR ?2 IS NULL AND substr(a.patient, 1, {CANARY_LENGTH}) <> '{CANARY}') AND {IN_SCOPE}
                     ORDER BY {order}, id LIMIT ?3"
                ))?;
                let rows = statement.query_map((&tenant, &query.patient, room), |row| row.get(0))?;
                for payload in rows {
                    payloads.push(payload?);
                }
            }
            Ok(decode(payloads))
        })
        .await
    }

    async fn open_alerts(
        &self,
        scope: &Scope,
        patient: Option<&str>,
    ) -> Result<Vec<OpenAlerts>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        let patient = patient.map(str::to_owned);
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT coalesce(p.tenant, g.tenant, '') AS owner, a.priority, count(*), sum(a.state IN ({ACTIVE}, {LATCHED}))
                 FROM alerts a LEFT JOIN patients p ON p.id = a.patient LEFT JOIN gateways g ON g.id = a.gateway AND a.patient = ''
                 WHERE a.state NOT IN ({PENDING}, {RESOLVED}) AND (a.patient = ?2 OR ?2 IS NULL AND substr(a.patient, 1, {CANARY_LENGTH}) <> '{CANARY}') AND {IN_SCOPE}
                 GROUP BY owner, a.priority ORDER BY a.priority DESC, owner"
            ))?;
            let rows = statement.query_map((tenant, patient), |row| {
                Ok(OpenAlerts {
                    tenant: row.get(0)?,
                    priority: row.get(1)?,
                    open: row.get(2)?,
                    unacknowledged: row.get(3)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn alert_history(&self, scope: &Scope, id: &str) -> Result<Vec<Alert>, QueryError> {
        let (tenant, id) = (scope.as_tenant().map(str::to_owned), id.to_owned());
        self.read(move |connection| {
            let payloads = connection
                .prepare_cached(&format!(
                    "SELECT t.payload FROM alerts a JOIN alert_transitions t ON t.id = a.id
                     WHERE a.id = ?2 AND {IN_SCOPE} ORDER BY t.revision"
                ))?
                .query_map((tenant, id), |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            Ok(decode(payloads))
        })
        .await
    }
}
