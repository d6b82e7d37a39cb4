//! The way of gateways' alerts to the bus: admitted, the most urgent first, and paced.
//!
//! An alert within its gateway's quota is published at once. Further alerts wait until the quota
//! has room, and delay only their own gateway. No alert is refused for its number. Alerts of high
//! priority have a quota of their own, so they never wait behind others.
//! The quota counts what reaches the bus. An alert that the bus already holds costs nothing, so a
//! gateway that repeats its upload continues where it was. Copies of an alert may arrive together,
//! before the bus holds it: one payment covers them.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::{EdgeAlert, Priority, Quarantined, UploadResponse};
use parking_lot::Mutex;
use service_kit::{
    Shutdown,
    quota::{Quota, Quotas},
};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::{
    admission::GatewayId,
    duplicates::Duplicates,
    from_gateway::refuse,
    judging::{Alert, At, Judged, Judging, Run},
    to_bus::{Lane, Lanes, NotPublished, Records},
};

/// Alerts in one upload; one with more is refused as a whole. A gateway sends at most 512.
pub(crate) const ALERTS_PER_UPLOAD_MAX: usize = 4_096;
/// A gateway may send at once what it did not use of its quota in this time.
const SAVED: Duration = Duration::from_secs(60);
/// Copies of an alert that its payment covers: a gateway sends it over three links at once.
const COPIES_COVERED: u8 = 2;
/// Payments that still cover copies; the oldest is forgotten, and its late copies pay.
const PAID_MAX: usize = 4_096;
/// Shortest pause before the quota is looked at again.
const PAUSE_MIN: Duration = Duration::from_millis(50);

pub(crate) type Published = oneshot::Receiver<Result<(), NotPublished>>;
pub(crate) type Answers = mpsc::Sender<Result<UploadResponse, Status>>;

/// The quota that an alert counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Class {
    High,
    Other,
}

impl Class {
    fn of(alert: &EdgeAlert) -> Class {
        match alert.priority() {
            Priority::High => Class::High,
            Priority::Unspecified | Priority::Low | Priority::Medium => Class::Other,
        }
    }
}

/// An alert that may go to the bus.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Key of the record on the bus.
    key: String,
    /// The alert with its corrected time.
    alert: EdgeAlert,
    /// The alert as it arrived. A repetition is recognised by it, independent of the gateway's
    /// clock.
    came: EdgeAlert,
}

/// The result for the alerts of one upload.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Alerts that were published at once, and when the bus holds them.
    pub published: Option<Published>,
    pub sent: Vec<EdgeAlert>,
    /// Alerts beyond the quota, in the order in which they will be published.
    pub rest: Vec<Admitted>,
    /// Alerts of no patient.
    pub apart: Vec<Quarantined>,
    /// Why alerts were refused; the protocol has no index for them.
    pub refused: Vec<String>,
}

pub(crate) struct Alerts {
    judging: Arc<Judging>,
    lanes: Lanes,
    duplicates: Arc<Mutex<Duplicates>>,
    quotas: Mutex<Quotas<(GatewayId, Class)>>,
    paid: Mutex<Paid>,
    /// Pause between two looks at a quota that is used up.
    pause: Duration,
    shutdown: Shutdown,
}

impl Alerts {
    /// `per_s`: alerts of one gateway a second, for each class; 0: no limit.
    pub(crate) fn new(
        judging: Arc<Judging>,
        lanes: Lanes,
        duplicates: Arc<Mutex<Duplicates>>,
        per_s: u64,
        shutdown: Shutdown,
    ) -> Alerts {
        Alerts {
            judging,
            lanes,
            duplicates,
            quotas: Mutex::new(Quotas::new(Quota::items(per_s, SAVED))),
            paid: Mutex::default(),
            pause: (Duration::from_secs(1) / u32::try_from(per_s.max(1)).unwrap_or(u32::MAX))
                .max(PAUSE_MIN),
            shutdown,
        }
    }

    /// Admits the alerts of one upload and publishes those within the quota. `behind`: alerts of
    /// the same stream wait, and all alerts but those of high priority wait behind them.
    pub(crate) async fn take(
        &self,
        gateway: &GatewayId,
        mut alerts: Vec<EdgeAlert>,
        at: At,
        behind: bool,
    ) -> Result<Taken, Status> {
        let mut taken = Taken::default();
        // The sort is stable, so that the raising and the end of one rule keep their order.
        alerts.sort_by_key(|alert| Reverse(alert.priority));
        let mut urgent = Records::new();
        let mut run = Run::new(gateway, at, &mut taken.apart);
        for came in alerts {
            let Alert { alert, came } = match self.judging.judge(&mut run, Alert::new(came)).await?
            {
                Judged::Admitted(alert) => alert,
                Judged::Held => {
                    count_duplicate();
                    continue;
                }
                Judged::Apart => continue,
                Judged::Refused(refusal) => {
                    taken.refused.push(refuse("alert", gateway, refusal));
                    continue;
                }
            };
            let key = if alert.patient.is_empty() {
                alert.gateway.clone()
            } else {
                alert.patient.clone()
            };
            let class = Class::of(&alert);
            let admitted = Admitted { key, alert, came };
            let waits = behind && class == Class::Other;
            if waits || !self.pays(gateway, class, &admitted.came) {
                taken.rest.push(admitted);
                continue;
            }
            metrics::counter!("braid_ingest_alerts_total").increment(1);
            urgent
                .entry(admitted.key)
                .or_default()
                .alerts
                .push(admitted.alert);
            taken.sent.push(admitted.came);
        }
        if !urgent.is_empty() {
            taken.published = Some(self.lanes.publish(Lane::Alerts, urgent).await);
        }
        if !taken.rest.is_empty() {
            metrics::counter!("braid_ingest_paced_alerts_total").increment(taken.rest.len() as u64);
            tracing::warn!(
                gateway = gateway.id,
                tenant = gateway.tenant,
                alerts = taken.rest.len(),
                "a gateway raises more alerts than its quota; they go on one after the other"
            );
        }
        Ok(taken)
    }

    /// Publishes the waiting alerts as the quota allows. Ends early when the gateway has closed the
    /// stream, because it repeats what was not acknowledged.
    pub(crate) async fn publish_rest(
        &self,
        gateway: &GatewayId,
        taken: Taken,
        answers: &Answers,
    ) -> Result<(), NotPublished> {
        if let Some(published) = taken.published {
            self.enter(published, &taken.sent).await?;
        }
        let mut rest = VecDeque::from(taken.rest);
        while !rest.is_empty() {
            let mut urgent = Records::new();
            let mut sent = Vec::new();
            while let Some(next) = rest.pop_front() {
                // The alert may have arrived by another stream meanwhile.
                if self.is_held(&next.came) {
                    continue;
                }
                if !self.pays(gateway, Class::of(&next.alert), &next.came) {
                    rest.push_front(next);
                    break;
                }
                metrics::counter!("braid_ingest_alerts_total").increment(1);
                urgent.entry(next.key).or_default().alerts.push(next.alert);
                sent.push(next.came);
            }
            if !urgent.is_empty() {
                let published = self.lanes.publish(Lane::Alerts, urgent).await;
                self.enter(published, &sent).await?;
                continue;
            }
            tokio::select! {
                () = self.shutdown.requested() => return Err(NotPublished::Ending),
                () = answers.closed() => return Err(NotPublished::Ending),
                () = tokio::time::sleep(self.pause) => {}
            }
        }
        Ok(())
    }

    /// Once the bus holds these alerts, a repetition costs nothing.
    async fn enter(&self, published: Published, sent: &[EdgeAlert]) -> Result<(), NotPublished> {
        published.await.unwrap_or(Err(NotPublished::Ending))?;
        let mut duplicates = self.duplicates.lock();
        sent.iter().for_each(|alert| duplicates.enter_alert(alert));
        Ok(())
    }

    /// Whether the bus already holds the alert.
    fn is_held(&self, alert: &EdgeAlert) -> bool {
        let is_held = self.duplicates.lock().has_alert(alert);
        if is_held {
            count_duplicate();
        }
        is_held
    }

    /// Takes one alert from the quota, if that has room, unless an earlier copy has paid.
    fn pays(&self, gateway: &GatewayId, class: Class, came: &EdgeAlert) -> bool {
        let key = self.duplicates.lock().alert_key(came);
        if self.paid.lock().covers(key) {
            return true;
        }
        let (payer, now) = ((gateway.clone(), class), Instant::now());
        let mut quotas = self.quotas.lock();
        let has_room = quotas.room(&payer, now) > 0;
        if has_room {
            quotas.take(&payer, now, 1, 0);
            self.paid.lock().enter(key);
        }
        has_room
    }
}

/// Alerts that were paid for, and how many copies of each are covered.
#[derive(Debug, Default)]
struct Paid {
    left: HashMap<u64, u8>,
    in_order: VecDeque<u64>,
}

impl Paid {
    fn covers(&mut self, alert: u64) -> bool {
        let left = self.left.get_mut(&alert).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    fn enter(&mut self, alert: u64) {
        if self.left.insert(alert, COPIES_COVERED).is_none() {
            self.in_order.push_back(alert);
        }
        if self.in_order.len() > PAID_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.left.remove(&oldest);
        }
    }
}

fn count_duplicate() {
    metrics::counter!("braid_ingest_duplicates_total", "kind" => "alert").increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payment_covers_the_copies_of_its_alert_and_no_more() {
        let mut paid = Paid::default();
        assert!(!paid.covers(7));
        paid.enter(7);
        assert!(paid.covers(7) && paid.covers(7) && !paid.covers(7));
        // It pays again.
        paid.enter(7);
        assert!(paid.covers(7) && !paid.covers(8));
        for alert in 0..10_000 {
            paid.enter(alert);
        }
        assert!(paid.left.len() <= PAID_MAX && paid.in_order.len() <= PAID_MAX);
        assert!(paid.covers(9_999) && !paid.covers(1));
    }
}
