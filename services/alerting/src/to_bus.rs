//! Publishes the outbox: every stored transition goes to the topic `alerts`, at least once, in
//! stored order.

use std::{sync::Arc, time::Duration};

use bus::{Bus, PublishError, Record, Topic};
use contracts::alerts::Alert;
use prost::Message;
use service_kit::{Backoff, Context};
use store::Store;
use tokio::sync::Notify;

use crate::turns::SILENCE_MAX;

/// Entries of one round. More wait in the store.
const ROUND_ENTRIES_MAX: usize = 256;
/// Poll interval for transitions of another member, and of a round that failed.
const POLL: Duration = Duration::from_millis(500);

pub(crate) async fn run(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    outbox: Arc<Notify>,
    context: Context,
) {
    let check = context.health().check("outbox");
    let turns = context.health().progress("outbox", SILENCE_MAX);
    let shutdown = context.shutdown().clone();
    let mut backoff = Backoff::for_reconnect();
    loop {
        turns.beat();
        match round(bus.as_ref(), store.as_ref()).await {
            Ok(full) => {
                check.ok();
                backoff.reset();
                if full {
                    continue;
                }
                // A last round after the shutdown request publishes everything stored before it.
                if shutdown.is_requested() {
                    return;
                }
                tokio::select! {
                    () = shutdown.requested() => {}
                    () = outbox.notified() => {}
                    () = tokio::time::sleep(POLL) => {}
                }
            }
            Err(reason) => {
                check.failing(reason);
                tokio::select! {
                    () = shutdown.requested() => return,
                    () = backoff.wait() => {}
                }
            }
        }
    }
}

/// True: more entries may wait.
async fn round(bus: &dyn Bus, store: &dyn Store) -> Result<bool, String> {
    let entries = store
        .outbox(ROUND_ENTRIES_MAX)
        .await
        .map_err(|error| error.to_string())?;
    if entries.is_empty() {
        return Ok(false);
    }
    let full = entries.len() >= ROUND_ENTRIES_MAX;
    let ids: Vec<u64> = entries.iter().map(|entry| entry.id).collect();
    let alerts: Vec<Alert> = entries.into_iter().filter_map(|it| it.alert).collect();
    if alerts.len() < ids.len() {
        let rows = (ids.len() - alerts.len()) as u64;
        tracing::error!(
            rows,
            "unreadable alerts are not published; they notify nobody"
        );
        metrics::counter!("braid_alerting_unpublishable_total").increment(rows);
    }
    match publish(bus, &alerts).await {
        Err(error) if !error.is_retryable() => one_by_one(bus, &alerts).await,
        published => published,
    }
    .map_err(|error| error.to_string())?;
    metrics::counter!("braid_alerting_published_total").increment(ids.len() as u64);
    store
        .clear_outbox(&ids)
        .await
        .map_err(|error| error.to_string())?;
    Ok(full)
}

async fn publish(bus: &dyn Bus, alerts: &[Alert]) -> Result<(), PublishError> {
    let records = alerts.iter().map(record).collect();
    bus.publish(Topic::Alerts, records).await
}

/// Publishes each alert alone. One that the bus will never accept stays in the store and on the
/// page, and blocks no other.
async fn one_by_one(bus: &dyn Bus, alerts: &[Alert]) -> Result<(), PublishError> {
    for alert in alerts {
        match publish(bus, std::slice::from_ref(alert)).await {
            Err(error) if !error.is_retryable() => {
                tracing::error!(alert = alert.id, revision = alert.revision, %error, "the bus refuses this alert; it notifies nobody");
                metrics::counter!("braid_alerting_unpublishable_total").increment(1);
            }
            published => published?,
        }
    }
    Ok(())
}

fn record(alert: &Alert) -> Record {
    let record = Record::new(alert.patient.clone(), alert.encode_to_vec());
    if alert.traceparent.is_empty() {
        return record;
    }
    record.header("traceparent", alert.traceparent.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bus::{EmbeddedBus, EmbeddedOptions, Event};
    use store::{AlertsBatch, SqliteStore};

    use super::*;

    #[tokio::test]
    async fn an_alert_that_the_bus_will_never_take_holds_up_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let bus = EmbeddedBus::open(directory.path(), EmbeddedOptions::default()).unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        let transitions = ["one", "too-large", "other"].map(|id| Alert {
            id: id.into(),
            patient: "ada".into(),
            revision: 1,
            summary: "x".repeat(if id == "too-large" { 2 << 20 } else { 1 }),
            ..Alert::default()
        });
        let batch = AlertsBatch {
            transitions: transitions.to_vec(),
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        assert_eq!(round(&bus, store).await, Ok(false));
        assert_eq!(store.outbox(10).await.unwrap().len(), 0);
        let mut told = bus.read_back(Topic::Alerts).await.unwrap();
        let Event::Batch(batch) = told.next(10).await.unwrap() else {
            panic!()
        };
        let ids = batch.iter().map(|it| Alert::decode(it.value.clone()));
        let ids: Vec<String> = ids.map(|alert| alert.unwrap().id).collect();
        assert_eq!(ids, ["one", "other"]);
    }
}
