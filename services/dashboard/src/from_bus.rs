//! Follows the ends of `vitals`, `alerts` and `paths` for the live view. Without a group: every replica sees everything.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, Consumer, Delivery, Event, Topic};
use consumer_health::Seen;
use contracts::{alerts::Alert, paths::PathsRecord, vitals::VitalsRecord};
use prost::Message;
use service_kit::{Backoff, CheckHandle, Context, Shutdown, telemetry::continue_trace};

use crate::live::Live;
use crate::system::Readers;

/// Records taken in one step.
const RECORDS_MAX: usize = 512;
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What to do about a bus that went away. The page stays in service: it says that it is not up to date.
const AWAY: &str = "see why the bus does not answer; the page says that it is not up to date";

/// Spawns one task per topic; each is a readiness check of its own until its first record could come.
pub fn follow_all(bus: &Arc<dyn Bus>, live: &Arc<Live>, context: &Context) -> Readers {
    let readers = Readers::default();
    for (topic, check, seen) in [
        (Topic::Vitals, "bus-vitals", &readers.vitals),
        (Topic::Alerts, "bus-alerts", &readers.alerts),
        (Topic::Paths, "bus-paths", &readers.paths),
    ] {
        let health = context.health();
        let following = follow(
            bus.clone(),
            topic,
            live.clone(),
            Arc::clone(seen),
            health.check_at_start(check, AWAY),
            context.shutdown().clone(),
        );
        // A ward that nobody brings up to date any more would look as if all was well.
        context.tasks().spawn(health.watch(check, following));
    }
    readers
}

async fn follow(
    bus: Arc<dyn Bus>,
    topic: Topic,
    live: Arc<Live>,
    seen: Arc<Seen>,
    check: CheckHandle,
    shutdown: Shutdown,
) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    while !shutdown.is_requested() {
        // The ends first: the reader begins at them or later.
        let begun = async {
            let ends = bus
                .extents(topic)
                .await
                .map_err(|error| error.to_string())?;
            let consumer = bus.tail(topic).await.map_err(|error| error.to_string())?;
            Ok((ends, consumer))
        };
        match begun.await {
            Ok((ends, consumer)) => {
                seen.begin(&ends);
                check.ok();
                backoff.reset();
                // What was published between the last tail and this one is in the store.
                live.missed.notify_one();
                tokio::select! {
                    () = shutdown.requested() => return,
                    reason = drain(consumer, topic, &live, &seen) => check.failing(reason),
                }
            }
            Err::<_, String>(reason) => check.failing(reason),
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = backoff.wait() => {}
        }
    }
}

/// Ends with the reason why the tail broke.
async fn drain(mut consumer: Box<dyn Consumer>, topic: Topic, live: &Live, seen: &Seen) -> String {
    loop {
        match consumer.next(RECORDS_MAX).await {
            Ok(Event::Batch(deliveries)) => {
                metrics::counter!("braid_dashboard_records_total", "topic" => topic.name())
                    .increment(deliveries.len() as u64);
                for delivery in deliveries {
                    take(&delivery, live);
                    seen.passed(delivery.partition, delivery.offset + 1);
                }
            }
            Ok(Event::Assigned(_) | Event::Revoked(_)) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// The last hop of a traced sample: the first one of the record stands for all.
fn show(record: &VitalsRecord) {
    if let Some(traced) = record
        .samples
        .iter()
        .find(|sample| !sample.traceparent.is_empty())
    {
        let span = tracing::info_span!("show", samples = record.samples.len());
        continue_trace(&span, &traced.traceparent);
    }
}

fn take(delivery: &Delivery, live: &Live) {
    let value = delivery.value.clone();
    let taken = match delivery.topic {
        Topic::Vitals => VitalsRecord::decode(value).map(|record| {
            show(&record);
            live.on_samples(&delivery.key, record.samples);
        }),
        Topic::Alerts => Alert::decode(value).map(|alert| live.on_alert(alert)),
        Topic::Paths => {
            PathsRecord::decode(value).map(|record| live.on_paths(&delivery.key, record.reports))
        }
        Topic::DeadLetters => Ok(()),
    };
    if let Err(error) = taken {
        // Whoever stores the topic puts the record among the dead letters; here it is only not shown.
        metrics::counter!("braid_dashboard_records_unreadable_total", "topic" => delivery.topic.name()).increment(1);
        tracing::warn!(topic = %delivery.topic, offset = delivery.offset, %error, "a record cannot be read");
    }
}
