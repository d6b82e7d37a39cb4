//! Follows the ends of `vitals`, `alerts` and `paths` for the live view. Without a group, because
//! every replica needs all records.

use std::collections::BTreeMap;
use std::sync::Arc;

use bus::{Bus, Delivery, Extent, Topic};
use consumer::Follower;
use consumer_health::Seen;
use contracts::{alerts::Alert, paths::PathsRecord, vitals::VitalsRecord};
use prost::Message;
use service_kit::{CheckHandle, Context, Shutdown, telemetry::continue_trace};

use crate::live::Live;
use crate::system::Readers;

/// Records taken in one step.
const RECORDS_MAX: usize = 512;

/// Advice for a bus that is away. The page stays in service and says that it is not up to date.
const AWAY: &str = "see why the bus does not answer; the page says that it is not up to date";

/// Spawns one task for each topic. Each is a readiness check until its first record could arrive.
pub(crate) fn follow_all(bus: &Arc<dyn Bus>, live: &Arc<Live>, context: &Context) -> Readers {
    let readers = Readers::default();
    for (topic, check, seen) in [
        (Topic::Vitals, "bus-vitals", &readers.vitals),
        (Topic::Alerts, "bus-alerts", &readers.alerts),
        (Topic::Paths, "bus-paths", &readers.paths),
    ] {
        let health = context.health();
        let following = Following {
            topic,
            live: Arc::clone(live),
            seen: Arc::clone(seen),
            check: health.check_at_start(check, AWAY),
        };
        let following = follow(Arc::clone(bus), following, context.shutdown().clone());
        // A ward view that is no longer updated would look as if all was well.
        context.tasks().spawn(health.watch(check, following));
    }
    readers
}

/// Follows one topic until shutdown.
async fn follow(bus: Arc<dyn Bus>, mut following: Following, shutdown: Shutdown) {
    let topic = following.topic;
    consumer::tail(&*bus, topic, RECORDS_MAX, &mut following, &shutdown).await;
}

struct Following {
    topic: Topic,
    live: Arc<Live>,
    seen: Arc<Seen>,
    check: CheckHandle,
}

impl Follower for Following {
    fn on_begun(&mut self, ends: &BTreeMap<u32, Extent>) {
        self.seen.begin(ends);
        self.check.ok();
        // Records published between the last tail and this one are in the store.
        self.live.missed.notify_one();
    }

    fn on_records(&mut self, deliveries: Vec<Delivery>) {
        metrics::counter!("braid_dashboard_records_total", "topic" => self.topic.name())
            .increment(deliveries.len() as u64);
        for delivery in deliveries {
            take(&delivery, &self.live);
            self.seen.passed(delivery.partition, delivery.offset + 1);
        }
    }

    fn on_away(&mut self, reason: String) {
        self.check.failing(reason);
    }
}

/// The last hop of a traced sample. The first sample of the record stands for all.
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
        // The consumer that stores the topic writes the record to the dead letters. Here it is only
        // not shown.
        metrics::counter!("braid_dashboard_records_unreadable_total", "topic" => delivery.topic.name()).increment(1);
        tracing::warn!(topic = %delivery.topic, offset = delivery.offset, %error, "a record cannot be read");
    }
}
