//! Sends the canaries: a synthetic reading for each partition every half minute, in the lane of
//! alerts.
//!
//! They enter behind admission, which needs a gateway's certificate. From there each takes every
//! step: lane, bus, rules, store, outbox, topic `alerts`, decision, delivery, page. The dashboard
//! waits for the alerts that they raise.

use std::{collections::BTreeMap, sync::Arc};

use bus::{Bus, Topic, keys_of_partitions};
use contracts::{canary::NAME, vitals::VitalsRecord};
use service_kit::Shutdown;
use tokio::task::JoinSet;
use vitals::canary::{in_turn, next_us, reading};

use crate::to_bus::{Lane, Lanes, NotPublished, Records, answer_of};

/// The canaries of one number of partitions, and those that wait in a lane. At most one
/// waits for each partition, so one that has no leader delays no other's.
#[derive(Default)]
struct Canaries {
    partitions: u32,
    keys: BTreeMap<u32, String>,
    waiting: BTreeMap<u32, tokio::task::Id>,
}

impl Canaries {
    fn of(&mut self, partitions: u32) {
        if self.partitions != partitions {
            self.partitions = partitions;
            self.keys = keys_of_partitions(NAME, partitions);
        }
    }
}

/// Half minutes that pass while the bus is away are left out.
pub(crate) async fn run(bus: Arc<dyn Bus>, lanes: Lanes, shutdown: Shutdown) {
    let mut canaries = Canaries::default();
    let mut publishing: JoinSet<Result<(), NotPublished>> = JoinSet::new();
    loop {
        let now_us = contracts::now_us();
        let wait_us = next_us(now_us).saturating_sub(now_us);
        let wait = std::time::Duration::from_micros(u64::try_from(wait_us).unwrap_or_default());
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(wait) => {}
        }
        while let Some(done) = publishing.try_join_next_with_id() {
            let id = done.as_ref().map_or_else(|error| error.id(), |(id, _)| *id);
            canaries.waiting.retain(|_, waiting| *waiting != id);
            match done {
                Ok((_, Ok(()))) => metrics::counter!("braid_ingest_canaries_total").increment(1),
                // The dashboard reports that the canary did not arrive.
                Ok((_, Err(NotPublished::Refused(reason)))) => {
                    tracing::warn!(reason, "a canary is not published");
                }
                Ok((_, Err(NotPublished::Ending))) => return,
                Err(error) => tracing::error!(%error, "a canary ended without a result"),
            }
        }
        tokio::select! {
            () = shutdown.requested() => return,
            partitions = bus.partitions(Topic::Vitals) => match partitions {
                Ok(partitions) => canaries.of(partitions),
                // The number of before holds. Without one there is nothing to send to.
                Err(error) => tracing::debug!(%error, "partitions are not counted for the canaries"),
            },
        }
        send(&mut canaries, &mut publishing, &lanes, contracts::now_us());
    }
}

fn send(
    canaries: &mut Canaries,
    publishing: &mut JoinSet<Result<(), NotPublished>>,
    lanes: &Lanes,
    now_us: i64,
) {
    for partition in in_turn(canaries.partitions, now_us) {
        let Some(key) = canaries.keys.get(&partition) else {
            continue;
        };
        if canaries.waiting.contains_key(&partition) {
            continue;
        }
        let record = VitalsRecord {
            samples: vec![reading(key, now_us)],
            ..VitalsRecord::default()
        };
        let records = Records::from([(key.clone(), record)]);
        let lanes = lanes.clone();
        let task = publishing
            .spawn(async move { answer_of(lanes.publish(Lane::Alerts, records).await).await });
        canaries.waiting.insert(partition, task.id());
    }
}
