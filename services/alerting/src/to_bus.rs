//! Publishes the outbox: every stored transition goes to the topic `alerts`, at least once, in the order of storing.

use std::{sync::Arc, time::Duration};

use bus::{Bus, Record, Topic};
use prost::Message;
use service_kit::{Backoff, Context};
use store::{OutboxEntry, Store};
use tokio::sync::Notify;

/// Entries of one round; more wait in the store.
const ROUND_ENTRIES_MAX: usize = 256;
/// Another member's transitions, and those of a round that failed, are found after so long at the latest.
const POLL: Duration = Duration::from_millis(500);

pub(crate) async fn run(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    outbox: Arc<Notify>,
    context: Context,
) {
    let check = context.health().check("outbox");
    let shutdown = context.shutdown().clone();
    let mut backoff = Backoff::for_reconnect();
    loop {
        match round(bus.as_ref(), store.as_ref()).await {
            Ok(full) => {
                check.ok();
                backoff.reset();
                if full {
                    continue;
                }
                // A last round after the request publishes what was stored before it.
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

/// True when there may be more.
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
    let records: Vec<Record> = entries.iter().map(record).collect();
    bus.publish(Topic::Alerts, records)
        .await
        .map_err(|error| error.to_string())?;
    metrics::counter!("braid_alerting_published_total").increment(ids.len() as u64);
    store
        .clear_outbox(&ids)
        .await
        .map_err(|error| error.to_string())?;
    Ok(full)
}

fn record(entry: &OutboxEntry) -> Record {
    let alert = &entry.alert;
    let record = Record::new(alert.patient.clone(), alert.encode_to_vec());
    if alert.traceparent.is_empty() {
        return record;
    }
    record.header("traceparent", alert.traceparent.clone())
}
