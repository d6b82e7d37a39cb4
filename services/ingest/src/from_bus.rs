//! Follows the topic `alerts`, so that gateways learn which alerts somebody has acknowledged. Every
//! replica reads all of it, so each can answer each gateway.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Delivery, Extent, Topic};
use contracts::alerts::Alert;
use prost::Message;
use service_kit::{Backoff, Context, Shutdown};
use store::{AlertsQuery, Scope, Store};
use tokio::sync::Notify;

use crate::high_alerts::{ALERTS_MAX, HighAlerts};

/// Records taken from the bus at once; further records wait there.
const BATCH_RECORDS_MAX: usize = 512;
/// Interval at which the store is read anyway.
const REFRESH: Duration = Duration::from_secs(60);

/// Keeps the alerts in step with bus and store until shutdown.
pub(crate) async fn follow(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    alerts: Arc<HighAlerts>,
    context: Context,
) {
    let mut following = Following {
        alerts: Arc::clone(&alerts),
        missed: Arc::default(),
    };
    let missed = Arc::clone(&following.missed);
    let shutdown = context.shutdown();
    let tail = consumer::tail(
        &*bus,
        Topic::Alerts,
        BATCH_RECORDS_MAX,
        &mut following,
        shutdown,
    );
    tokio::join!(tail, read(&*store, &alerts, &missed, shutdown));
}

/// Reads the store whenever records were missed, and at intervals.
async fn read(store: &dyn Store, alerts: &HighAlerts, missed: &Notify, shutdown: &Shutdown) {
    let query = AlertsQuery {
        limit: ALERTS_MAX,
        ..AlertsQuery::default()
    };
    let mut backoff = Backoff::for_reconnect();
    loop {
        alerts.on_reading();
        let stored = store.alerts(&Scope::Service, &query).await;
        let wait = match stored.map(|stored| alerts.on_stored(stored)) {
            Ok(true) => {
                backoff.reset();
                REFRESH
            }
            Ok(false) => {
                tracing::debug!("too many alerts came while the open ones were read");
                backoff.next_delay()
            }
            // The last answer stays in force.
            Err(error) => {
                tracing::debug!(%error, "open alerts could not be read");
                backoff.next_delay()
            }
        };
        tokio::select! {
            () = shutdown.requested() => return,
            () = missed.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

struct Following {
    alerts: Arc<HighAlerts>,
    /// Notified when records may have been missed.
    missed: Arc<Notify>,
}

impl consumer::Follower for Following {
    fn on_begun(&mut self, _: &BTreeMap<u32, Extent>) {
        self.missed.notify_one();
    }

    fn on_records(&mut self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            // Alerting publishes what it has stored, and the next reading of the store has it.
            if let Ok(alert) = Alert::decode(delivery.value) {
                self.alerts.on_alert(alert);
            }
        }
    }

    fn on_away(&mut self, reason: String) {
        tracing::warn!(reason, "the topic of alerts cannot be followed");
    }
}
