//! Tells people: a structured log line for every alert, and a webhook when one is configured.
//!
//! Consumes the topic `alerts` in a group of its own, so that what was not delivered is still there after a restart.
//! An undeliverable alert is tried again with pauses while those behind it wait: with one receiver they would fail, too.
//! The bound is time: after `webhook_give_up` it is given up, counted and logged as an error.
//!
//! The receiver may get an alert twice and tells by the idempotency key `<id>/<revision>`.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, Committed, Delivery, Event, Topic};
use bytes::Bytes;
use contracts::alerts::{Alert, AlertState};
use prost::Message;
use service_kit::{Backoff, Context, telemetry::continue_trace};
use tracing::Instrument;

use crate::{PEOPLE_GROUP, webhook::Webhook};

/// Alerts taken from the bus at once; more wait there.
const BATCH_MAX: usize = 64;
/// Episodes whose last news is remembered; of an older one a repetition may be told again.
const TOLD_MAX: usize = 10_000;

pub(crate) async fn run(
    bus: Arc<dyn Bus>,
    webhook: Option<Webhook>,
    give_up_after: Duration,
    context: Context,
) {
    let check = context.health().check("alerts");
    let shutdown = context.shutdown().clone();
    let mut backoff = Backoff::for_reconnect();
    let mut told = Told::default();
    while !shutdown.is_requested() {
        let mut consumer = match bus
            .subscribe(Topic::Alerts, PEOPLE_GROUP, Arc::new(Committed))
            .await
        {
            Ok(consumer) => consumer,
            Err(error) => {
                check.failing(error.to_string());
                tokio::select! {
                    () = shutdown.requested() => return,
                    () = backoff.wait() => continue,
                }
            }
        };
        check.ok();
        loop {
            let event = tokio::select! {
                () = shutdown.requested() => return,
                event = consumer.next(BATCH_MAX) => event,
            };
            let deliveries = match event {
                Ok(Event::Batch(deliveries)) => deliveries,
                Ok(Event::Assigned(_) | Event::Revoked(_)) => {
                    check.ok();
                    backoff.reset();
                    continue;
                }
                Err(error) => {
                    check.failing(error.to_string());
                    tokio::select! {
                        () = shutdown.requested() => return,
                        () = backoff.wait() => {}
                    }
                    continue;
                }
            };
            for delivery in &deliveries {
                let told_it = tokio::select! {
                    () = shutdown.requested() => false,
                    () = tell(delivery, &mut told, webhook.as_ref(), give_up_after) => true,
                };
                if !told_it {
                    return;
                }
                let done = [(delivery.partition, delivery.offset + 1)];
                if let Err(error) = consumer.commit(&done).await {
                    tracing::warn!(%error, "people may hear of an alert again");
                }
            }
        }
    }
}

async fn tell(
    delivery: &Delivery,
    told: &mut Told,
    webhook: Option<&Webhook>,
    give_up_after: Duration,
) {
    let alert = match Alert::decode(delivery.value.clone()) {
        Ok(alert) => alert,
        Err(error) => {
            tracing::error!(offset = delivery.offset, %error, "a record of `alerts` is no alert");
            return;
        }
    };
    if !told.is_news(&alert) {
        return;
    }
    tracing::info!(
        alert = alert.id,
        revision = alert.revision,
        patient = alert.patient,
        rule = alert.rule,
        priority = alert.priority().as_str_name(),
        state = alert.state().as_str_name(),
        backfill = alert.backfill,
        summary = alert.summary,
        "alert"
    );
    let Some(webhook) = webhook.filter(|_| !alert.backfill) else {
        return;
    };
    let span = tracing::info_span!("tell", alert = alert.id, revision = alert.revision);
    continue_trace(&span, &alert.traceparent);
    call(webhook, &alert, give_up_after).instrument(span).await;
}

/// Tries until the receiver has it, refuses it for good, or the time is up.
async fn call(webhook: &Webhook, alert: &Alert, give_up_after: Duration) {
    let key = format!("{}/{}", alert.id, alert.revision);
    let body = body(alert);
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    let started = Instant::now();
    loop {
        let error = match webhook.post(&key, body.clone()).await {
            Ok(()) => {
                count("delivered");
                return;
            }
            Err(error) => error,
        };
        if !error.is_retryable() || started.elapsed() > give_up_after {
            count("given_up");
            tracing::error!(alert = alert.id, revision = alert.revision, %error, "nobody was told");
            return;
        }
        count("retried");
        tracing::warn!(alert = alert.id, %error, attempt = backoff.attempts(), "webhook");
        backoff.wait().await;
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("braid_alerting_webhook_calls_total", "outcome" => outcome).increment(1);
}

fn body(alert: &Alert) -> Bytes {
    let name = |name: &str, prefix: &str| name.trim_start_matches(prefix).to_lowercase();
    let body = serde_json::json!({
        "id": alert.id,
        "revision": alert.revision,
        "patient": alert.patient,
        "device": alert.device,
        "gateway": alert.gateway,
        "rule": alert.rule,
        "rule_version": alert.rule_version,
        "metric": vitals::name(alert.metric()),
        "priority": name(alert.priority().as_str_name(), "PRIORITY_"),
        "state": name(alert.state().as_str_name(), "ALERT_STATE_"),
        "summary": alert.summary,
        "value": alert.value,
        "since_us": alert.since_us,
        "changed_us": alert.changed_us,
        "recorded_us": alert.recorded_us,
        "acknowledged_by": alert.acknowledged_by,
        "note": alert.note,
        "traceparent": alert.traceparent,
    });
    Bytes::from(body.to_string())
}

/// What people heard last of each episode, so that a revision that only names a second observer is no news.
#[derive(Default)]
struct Told {
    last: HashMap<String, (u32, AlertState, bool)>,
    order: VecDeque<String>,
}

impl Told {
    fn is_news(&mut self, alert: &Alert) -> bool {
        let now = (alert.revision, alert.state(), alert.backfill);
        match self.last.insert(alert.id.clone(), now) {
            None => {
                self.order.push_back(alert.id.clone());
                if self.order.len() > TOLD_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.last.remove(&oldest);
                }
                true
            }
            Some((revision, state, backfill)) if revision < alert.revision => {
                state != alert.state() || backfill != alert.backfill
            }
            // Published twice, or an older revision after a newer one.
            Some(before) => {
                self.last.insert(alert.id.clone(), before);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_a_state_that_people_have_not_heard() {
        let mut told = Told::default();
        let mut say = |revision, state: AlertState, backfill| {
            told.is_news(&Alert {
                id: "a".into(),
                revision,
                state: state.into(),
                backfill,
                ..Alert::default()
            })
        };
        assert!(say(1, AlertState::Active, true));
        assert!(!say(1, AlertState::Active, true), "published twice");
        assert!(
            say(2, AlertState::Active, false),
            "confirmed by a live reading"
        );
        assert!(!say(3, AlertState::Active, false), "only a second observer");
        assert!(say(4, AlertState::Resolved, false));
        assert!(!say(3, AlertState::Active, false), "out of order");
        assert!(!say(4, AlertState::Resolved, false));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut told = Told::default();
        for number in 0..TOLD_MAX + 10 {
            told.is_news(&Alert {
                id: number.to_string(),
                ..Alert::default()
            });
        }
        assert_eq!(told.last.len(), TOLD_MAX);
        assert_eq!(told.order.len(), TOLD_MAX);
    }
}
