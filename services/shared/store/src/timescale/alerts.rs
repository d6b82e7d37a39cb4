use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;
use bus::Topic;
use bytes::Bytes;
use contracts::{
    alerts::{Alert, AlertState},
    canary::NAME as CANARY,
};
use deadpool_postgres::Transaction;
use prost::Message;
use tokio_postgres::{Row, types::ToSql};

use super::{
    COMMIT_WITHOUT_DISK, TimescaleStore, fault::Fault, progress, time::Micros, transaction,
};
use crate::{
    AlertsBatch, AlertsQuery, AlertsStore, OpenAlerts, OutboxEntry, Progress, QueryError,
    RuleState, Scope, WriteError, Written,
    alerts::{ALERT, order},
    error::readable,
    notices::urgency_of,
};

const PENDING: i32 = AlertState::Pending as i32;
const ACTIVE: i32 = AlertState::Active as i32;
const LATCHED: i32 = AlertState::Latched as i32;
const RESOLVED: i32 = AlertState::Resolved as i32;

/// An alert belongs to the tenant of its patient; one without a patient to that of its gateway.
pub(super) const IN_SCOPE: &str = "($1::text IS NULL
    OR EXISTS (SELECT 1 FROM patients p WHERE p.id = a.patient AND p.tenant = $1)
    OR (a.patient = '' AND EXISTS (SELECT 1 FROM gateways g WHERE g.id = a.gateway AND g.tenant = $1)))";

/// Stores transitions, and returns which of them are new, in the order given.
pub(super) async fn transitions<'a>(
    transaction: &Transaction<'_>,
    transitions: &'a [Alert],
) -> Result<Vec<&'a Alert>, Fault> {
    if transitions.is_empty() {
        return Ok(Vec::new());
    }
    // In order of the key, as everybody locks; of two with one key the first one given.
    let mut order: Vec<usize> = (0..transitions.len()).collect();
    order.sort_by_key(|n| (&transitions[*n].id, transitions[*n].revision, *n));
    let sorted: Vec<&Alert> = order.iter().map(|n| &transitions[*n]).collect();
    let ids: Vec<&str> = sorted.iter().map(|a| a.id.as_str()).collect();
    let revisions: Vec<i64> = sorted.iter().map(|a| i64::from(a.revision)).collect();
    let patients: Vec<&str> = sorted.iter().map(|a| a.patient.as_str()).collect();
    let rules: Vec<&str> = sorted.iter().map(|a| a.rule.as_str()).collect();
    let priorities: Vec<i32> = sorted.iter().map(|a| a.priority).collect();
    let states: Vec<i32> = sorted.iter().map(|a| a.state).collect();
    let changed: Vec<Micros> = sorted
        .iter()
        .map(|a| Micros::clamped(a.changed_us))
        .collect();
    let payloads: Vec<Vec<u8>> = sorted.iter().map(|a| a.encode_to_vec()).collect();
    let statement = transaction
        .prepare_cached(
            "INSERT INTO alert_transitions
             SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::int[], $6::int[], $7::timestamptz[], $8::bytea[])
             ON CONFLICT (id, revision) DO NOTHING RETURNING id, revision",
        )
        .await?;
    let rows = transaction
        .query(
            &statement,
            &[
                &ids,
                &revisions,
                &patients,
                &rules,
                &priorities,
                &states,
                &changed,
                &payloads,
            ],
        )
        .await?;
    let mut inserted: HashSet<(String, i64)> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut new = Vec::new();
    let mut there = Vec::new();
    for (n, alert) in sorted.iter().enumerate() {
        if inserted.remove(&(alert.id.clone(), i64::from(alert.revision))) {
            new.push(order[n]);
        } else {
            there.push(n);
        }
    }
    refuse_conflicts(transaction, &sorted, &payloads, &there).await?;
    new.sort_unstable();
    Ok(new.into_iter().map(|n| &transitions[n]).collect())
}

/// A row that exists already must be the same.
async fn refuse_conflicts(
    transaction: &Transaction<'_>,
    sorted: &[&Alert],
    payloads: &[Vec<u8>],
    there: &[usize],
) -> Result<(), Fault> {
    if there.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = there.iter().map(|n| sorted[*n].id.as_str()).collect();
    let revisions: Vec<i64> = there
        .iter()
        .map(|n| i64::from(sorted[*n].revision))
        .collect();
    let payloads: Vec<&[u8]> = there.iter().map(|n| payloads[*n].as_slice()).collect();
    let rows = transaction
        .query(
            "SELECT DISTINCT w.id FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS w (id, revision, payload)
                 JOIN alert_transitions t USING (id, revision) WHERE t.payload <> w.payload ORDER BY 1",
            &[&ids, &revisions, &payloads],
        )
        .await?;
    if rows.is_empty() {
        Ok(())
    } else {
        Err(Fault::Conflict(rows.iter().map(|row| row.get(0)).collect()))
    }
}

pub(super) async fn present(transaction: &Transaction<'_>, new: &[&Alert]) -> Result<(), Fault> {
    if new.is_empty() {
        return Ok(());
    }
    let mut last: BTreeMap<&str, &Alert> = BTreeMap::new();
    for alert in new {
        let there = last.entry(alert.id.as_str()).or_insert(alert);
        if alert.revision > there.revision {
            *there = alert;
        }
    }
    let ids: Vec<&str> = last.keys().copied().collect();
    let patients: Vec<&str> = last.values().map(|a| a.patient.as_str()).collect();
    let gateways: Vec<&str> = last.values().map(|a| a.gateway.as_str()).collect();
    let states: Vec<i32> = last.values().map(|a| a.state).collect();
    let since: Vec<i64> = last.values().map(|a| a.since_us).collect();
    let changed: Vec<i64> = last.values().map(|a| a.changed_us).collect();
    let revisions: Vec<i64> = last.values().map(|a| i64::from(a.revision)).collect();
    let payloads: Vec<Vec<u8>> = last.values().map(|a| a.encode_to_vec()).collect();
    let priorities: Vec<i32> = last.values().map(|a| a.priority).collect();
    let upsert = transaction
        .prepare_cached(
            "INSERT INTO alerts (id, patient, gateway, state, since_us, changed_us, revision, payload, priority)
             SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[],
                 $9::int[])
             ON CONFLICT (id) DO UPDATE SET patient = excluded.patient, gateway = excluded.gateway, state = excluded.state,
                 since_us = excluded.since_us, changed_us = excluded.changed_us, revision = excluded.revision,
                 payload = excluded.payload, priority = excluded.priority WHERE excluded.revision > alerts.revision",
        )
        .await?;
    let outbox: Vec<Vec<u8>> = new.iter().map(|a| a.encode_to_vec()).collect();
    let urgencies: Vec<i32> = new.iter().map(|a| urgency_of(a)).collect();
    let append = transaction
        .prepare_cached(
            "INSERT INTO outbox (payload, urgency) SELECT payload, urgency
                 FROM unnest($1::bytea[], $2::int[]) WITH ORDINALITY AS w (payload, urgency, n) ORDER BY n",
        )
        .await?;
    let upsert_row: [&(dyn ToSql + Sync); 9] = [
        &ids,
        &patients,
        &gateways,
        &states,
        &since,
        &changed,
        &revisions,
        &payloads,
        &priorities,
    ];
    let append_row: [&(dyn ToSql + Sync); 2] = [&outbox, &urgencies];
    tokio::try_join!(
        transaction.execute(&upsert, &upsert_row),
        transaction.execute(&append, &append_row)
    )?;
    Ok(())
}

async fn states(transaction: &Transaction<'_>, states: &[RuleState]) -> Result<(), Fault> {
    if states.is_empty() {
        return Ok(());
    }
    // In order of the key, as everybody locks; of two with one key the last one given.
    let last: BTreeMap<(&str, i32, &str), &Bytes> = states
        .iter()
        .map(|s| {
            let key = (s.topic.name(), s.partition.cast_signed(), s.key.as_str());
            (key, &s.state)
        })
        .collect();
    let columns = |empty: bool| {
        let rows = || {
            last.iter()
                .filter(move |(_, state)| state.is_empty() == empty)
        };
        (
            rows().map(|(k, _)| k.0).collect::<Vec<_>>(),
            rows().map(|(k, _)| k.1).collect::<Vec<_>>(),
            rows().map(|(k, _)| k.2).collect::<Vec<_>>(),
            rows()
                .map(|(_, state)| state.as_ref())
                .collect::<Vec<&[u8]>>(),
        )
    };
    let (topics, parts, keys, _) = columns(true);
    if !topics.is_empty() {
        let statement = transaction
            .prepare_cached(
                "DELETE FROM rule_states s USING unnest($1::text[], $2::int[], $3::text[]) AS w (topic, part, key)
                 WHERE s.topic = w.topic AND s.part = w.part AND s.key = w.key",
            )
            .await?;
        transaction
            .execute(&statement, &[&topics, &parts, &keys])
            .await?;
    }
    let (topics, parts, keys, values) = columns(false);
    if !topics.is_empty() {
        let statement = transaction
            .prepare_cached(
                "INSERT INTO rule_states SELECT * FROM unnest($1::text[], $2::int[], $3::text[], $4::bytea[])
                 ON CONFLICT (topic, part, key) DO UPDATE SET state = excluded.state",
            )
            .await?;
        transaction
            .execute(&statement, &[&topics, &parts, &keys, &values])
            .await?;
    }
    Ok(())
}

fn decode(row: &Row) -> Option<Alert> {
    readable(ALERT, row.get(0))
}

impl TimescaleStore {
    async fn entries(&self, sql: &str, limit: usize) -> Result<Vec<OutboxEntry>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection.prepare_cached(sql).await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = connection.query(&statement, &[&limit]).await?;
        let entry = |row: &Row| OutboxEntry {
            id: row.get::<_, i64>(1).cast_unsigned(),
            alert: decode(row),
        };
        Ok(rows.iter().map(entry).collect())
    }
}

#[async_trait]
impl AlertsStore for TimescaleStore {
    async fn write_alerts(
        &self,
        batch: AlertsBatch,
        advance: Vec<Progress>,
    ) -> Result<Written, WriteError> {
        let new = transaction!(self, tx => async {
            progress::hold(tx, &advance).await?;
            let new = transitions(tx, &batch.transitions).await?;
            // None of these depends on another's answer: they go out together, because an alert
            // waits.
            tokio::try_join!(
                present(tx, &new),
                states(tx, &batch.states),
                progress::advance(tx, &advance)
            )?;
            Ok::<_, Fault>(new.len() as u64)
        })?;
        Ok(Written {
            new,
            duplicate: batch.transitions.len() as u64 - new,
        })
    }

    async fn rule_states(
        &self,
        topic: Topic,
        partition: u32,
    ) -> Result<Vec<RuleState>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT key, state FROM rule_states WHERE topic = $1 AND part = $2 ORDER BY key COLLATE \"C\"",
                &[&topic.name(), &partition.cast_signed()],
            )
            .await?;
        let state = |row: &Row| RuleState {
            topic,
            partition,
            key: row.get(0),
            state: Bytes::from(row.get::<_, Vec<u8>>(1)),
        };
        Ok(rows.iter().map(state).collect())
    }

    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, QueryError> {
        let all = "SELECT payload, id FROM outbox ORDER BY id LIMIT $1";
        self.entries(all, limit).await
    }

    async fn urgent_outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, QueryError> {
        let urgent = "SELECT payload, id FROM outbox WHERE urgency >= 3 ORDER BY id LIMIT $1";
        self.entries(urgent, limit).await
    }

    async fn clear_outbox(&self, ids: &[u64]) -> Result<(), WriteError> {
        let ids: Vec<i64> = ids.iter().map(|id| id.cast_signed()).collect();
        transaction!(self, tx => async {
            // Entries that a crash brings back are published once more, which consumers of the
            // topic must bear anyway.
            tx.batch_execute(COMMIT_WITHOUT_DISK).await?;
            let statement = tx.prepare_cached("DELETE FROM outbox WHERE id = ANY($1)").await?;
            tx.execute(&statement, &[&ids]).await?;
            Ok::<_, Fault>(())
        })
    }

    async fn alert(&self, scope: &Scope, id: &str) -> Result<Option<Alert>, QueryError> {
        let row = self
            .reader()
            .await?
            .query_opt(
                &format!("SELECT payload FROM alerts a WHERE a.id = $2 AND {IN_SCOPE}"),
                &[&scope.as_tenant(), &id],
            )
            .await?;
        let payload: Option<&[u8]> = row.as_ref().map(|row| row.get(0));
        Ok(payload.map(Alert::decode).transpose()?)
    }

    async fn alerts(&self, scope: &Scope, query: &AlertsQuery) -> Result<Vec<Alert>, QueryError> {
        let patient = match query.patient {
            Some(_) => "a.patient = $2",
            None => &format!("$2::text IS NULL AND NOT starts_with(a.patient, '{CANARY}')"),
        };
        let connection = self.reader().await?;
        let mut alerts = Vec::new();
        let mut room = query.limit();
        for resolved in query.parts() {
            let (equals, order) = (if *resolved { "=" } else { "<>" }, order(*resolved));
            let statement = connection
                .prepare_cached(&format!(
                    "SELECT payload FROM alerts a WHERE a.state {equals} {RESOLVED} AND {patient} AND {IN_SCOPE}
                     ORDER BY {order}, id COLLATE \"C\" LIMIT $3"
                ))
                .await?;
            let limit = i64::try_from(room).unwrap_or(i64::MAX);
            let rows = connection
                .query(&statement, &[&scope.as_tenant(), &query.patient, &limit])
                .await?;
            room = room.saturating_sub(rows.len());
            alerts.extend(rows.iter().filter_map(decode));
        }
        Ok(alerts)
    }

    async fn open_alerts(
        &self,
        scope: &Scope,
        patient: Option<&str>,
    ) -> Result<Vec<OpenAlerts>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(&format!(
                "SELECT coalesce(p.tenant, g.tenant, ''), a.priority, count(*), count(*) FILTER (WHERE a.state IN ({ACTIVE}, {LATCHED}))
                 FROM alerts a LEFT JOIN patients p ON p.id = a.patient LEFT JOIN gateways g ON g.id = a.gateway AND a.patient = ''
                 WHERE a.state NOT IN ({PENDING}, {RESOLVED}) AND (a.patient = $2 OR $2::text IS NULL AND NOT starts_with(a.patient, '{CANARY}')) AND {IN_SCOPE}
                 GROUP BY 1, 2 ORDER BY 2 DESC, 1"
            ))
            .await?;
        let rows = connection
            .query(&statement, &[&scope.as_tenant(), &patient])
            .await?;
        let count = |row: &Row, column| row.get::<_, i64>(column).cast_unsigned();
        let open = |row: &Row| OpenAlerts {
            tenant: row.get(0),
            priority: row.get(1),
            open: count(row, 2),
            unacknowledged: count(row, 3),
        };
        Ok(rows.iter().map(open).collect())
    }

    async fn alert_history(&self, scope: &Scope, id: &str) -> Result<Vec<Alert>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT t.payload FROM alerts a JOIN alert_transitions t ON t.id = a.id
                     WHERE a.id = $2 AND {IN_SCOPE} ORDER BY t.revision"
                ),
                &[&scope.as_tenant(), &id],
            )
            .await?;
        Ok(rows.iter().filter_map(decode).collect())
    }
}
