//! Follows the topic `paths`. Every replica reads all of it, so each can answer for each gateway.

use std::{collections::BTreeMap, sync::Arc};

use bus::{Bus, Delivery, Extent, Topic};
use contracts::paths::PathsRecord;
use prost::Message;
use service_kit::Context;
use store::{Scope, Store};

use crate::estimate::Estimates;

/// Records taken from the bus at once; further records wait there.
const BATCH_RECORDS_MAX: usize = 512;

/// Keeps the estimates up to date until shutdown.
pub(crate) async fn follow(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    estimates: Arc<Estimates>,
    context: Context,
) {
    // The store has the last report of each path. Without it, the first reports of the topic do.
    let known = store::each_latest_path(store.as_ref(), &Scope::Service, 0, |report| {
        estimates.observe(&report);
    });
    match known.await {
        Ok(()) => {}
        Err(error) => tracing::warn!(%error, "estimates begin without history"),
    }
    let mut following = Following(estimates);
    let (topic, shutdown) = (Topic::Paths, context.shutdown());
    consumer::tail(&*bus, topic, BATCH_RECORDS_MAX, &mut following, shutdown).await;
}

struct Following(Arc<Estimates>);

impl consumer::Follower for Following {
    fn on_begun(&mut self, _: &BTreeMap<u32, Extent>) {}

    fn on_records(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            // The writer of the store buries a record that cannot be decoded.
            if let Ok(record) = PathsRecord::decode(delivery.value) {
                let reports = record.reports.iter();
                reports.for_each(|report| self.0.observe(report));
            }
        }
    }

    fn on_away(&mut self, reason: String) {
        tracing::warn!(reason, "the topic of path reports cannot be followed");
    }
}
