//! The content of the store at the end.

use contracts::alerts::Alert;
use contracts::query::Proof;
use contracts::vitals::Metric;
use prost::Message;
use store::completeness::prove;
use store::{AlertsQuery, AlertsStore, QueryError, Scope, TimescaleOptions, TimescaleStore};
use testkit::timescale_server::PASSWORD;

use crate::{
    facts::{Raised, Row},
    scenario::{METRICS, wearers},
};

/// A run steps its clocks by a day.
const PROOF_US: i64 = 2 * 86_400 * 1_000_000;
/// Alerts that are read; a run makes some thousands.
const ALERTS_MAX: usize = 1_000_000;
const ROWS: &str = "SELECT h.device, p.id, e.metric, s.sensor_sequence,
        (extract(epoch FROM s.time) * 1000000)::bigint, s.value,
        (extract(epoch FROM s.ingest_time) * 1000000)::bigint
    FROM samples s
    JOIN series e ON e.key = s.series
    JOIN streams t ON t.key = e.stream
    JOIN device_heads h ON h.key = t.device
    JOIN patients p ON p.key = e.patient";

const TRANSITIONS: &str =
    "SELECT payload FROM alert_transitions ORDER BY patient, rule, id, revision";

#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    #[error("the database: {0}")]
    Database(#[from] tokio_postgres::Error),
    #[error("the store: {0}")]
    Store(#[from] QueryError),
    #[error("the store does not open: {0}")]
    Open(String),
}

pub(super) async fn rows(url: &str) -> Result<Vec<Row>, FoundError> {
    let mut config: tokio_postgres::Config = url.parse()?;
    config.password(PASSWORD);
    let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let rows = client.query(ROWS, &[]).await?;
    let rows = rows.iter().map(|row| Row {
        device: row.get(0),
        patient: row.get(1),
        metric: metric_name(row.get(2)),
        number: row
            .get::<_, Option<i64>>(3)
            .unwrap_or_default()
            .cast_unsigned(),
        time_us: row.get(4),
        value: row.get(5),
        arrived_us: row.get(6),
    });
    Ok(rows.collect())
}

pub(super) async fn alerts(url: &str) -> Result<Vec<Raised>, FoundError> {
    let mut options = TimescaleOptions::new(url, PASSWORD);
    options.migrate = false;
    let store = TimescaleStore::open(&options).await;
    let store = store.map_err(|error| FoundError::Open(error.to_string()))?;
    let query = AlertsQuery {
        include_resolved: true,
        limit: ALERTS_MAX,
        ..AlertsQuery::default()
    };
    let alerts = store.alerts(&Scope::Service, &query).await?;
    Ok(alerts.into_iter().map(raised).collect())
}

/// The proof of each patient over the last days, as `braid proof` gives it.
pub(super) async fn proofs(url: &str) -> Result<Vec<Proof>, FoundError> {
    let mut options = TimescaleOptions::new(url, PASSWORD);
    options.migrate = false;
    let store = TimescaleStore::open(&options).await;
    let store = store.map_err(|error| FoundError::Open(error.to_string()))?;
    let now_us = contracts::now_us();
    let range = (now_us - PROOF_US, now_us + PROOF_US);
    let mut proofs = Vec::new();
    for (_, patient) in wearers() {
        proofs.extend(prove(&store, &Scope::Service, patient, range, now_us).await?);
    }
    Ok(proofs)
}

/// Every stored transition, a line each, for the folder of a run that failed.
pub(super) async fn transitions(url: &str) -> Result<String, FoundError> {
    let mut config: tokio_postgres::Config = url.parse()?;
    config.password(PASSWORD);
    let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let rows = client.query(TRANSITIONS, &[]).await?;
    let mut text = String::new();
    for row in rows {
        let payload: Vec<u8> = row.get(0);
        match Alert::decode(payload.as_slice()) {
            Ok(alert) => text.push_str(&format!("{alert:?}\n")),
            Err(error) => text.push_str(&format!("unreadable: {error}\n")),
        }
    }
    Ok(text)
}

fn raised(alert: Alert) -> Raised {
    let state = alert
        .state()
        .as_str_name()
        .trim_start_matches("ALERT_STATE_");
    Raised {
        state: state.to_lowercase(),
        id: alert.id,
        patient: alert.patient,
        gateway: alert.gateway,
        rule: alert.rule,
        since_us: alert.since_us,
        changed_us: alert.changed_us,
        acknowledged_by: alert.acknowledged_by,
    }
}

fn metric_name(code: i32) -> &'static str {
    let known = METRICS
        .iter()
        .find(|(metric, _, _)| Metric::try_from(code).is_ok_and(|code| code == *metric));
    known.map_or("of no sensor here", |(_, name, _)| name)
}
