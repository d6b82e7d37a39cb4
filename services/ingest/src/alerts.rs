//! The way of gateways' alerts to the bus: admitted, the most urgent first, and paced.
//!
//! An alert within its gateway's quota is published at once. Further alerts wait until the quota
//! has room, and delay only their own gateway. No alert is refused for its number. Alerts of high
//! priority have a quota of their own, so they never wait behind others.
//! The quota counts what reaches the bus. An alert that the bus already holds costs nothing, so a
//! gateway that repeats its upload continues where it was. Copies of an alert may arrive together,
//! before the bus holds it. The first copy pays, and the others wait until the bus holds the alert.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::{EdgeAlert, Priority, Quarantined, UploadResponse};
use parking_lot::Mutex;
use service_kit::{
    Shutdown,
    quota::{Quota, Quotas},
};
use tokio::sync::mpsc;
use tonic::Status;

use crate::{
    admission::{GatewayId, refuse},
    duplicates::Duplicates,
    judging::{Alert, At, Judged, Judging, Run},
    progress::Progress,
    to_bus::{Lane, Lanes, NotPublished, Published, Records, answer_of},
    under_way::UnderWay,
};

/// Alerts in one upload; one with more is refused as a whole. A gateway sends at most 512.
pub(crate) const ALERTS_PER_UPLOAD_MAX: usize = 4_096;
/// A gateway may send at once what it did not use of its quota in this time.
const SAVED: Duration = Duration::from_secs(60);
/// Shortest pause before the quota is looked at again.
const PAUSE_MIN: Duration = Duration::from_millis(50);

pub(crate) type Answers = mpsc::Sender<Result<UploadResponse, Status>>;

/// The quota that an alert counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
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

/// Alerts that keep their order: of one class, and of patients in one partition of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    pub class: Class,
    pub partition: u32,
}

/// Lines of which an alert waits. Later alerts of these lines wait behind it, because the end of an
/// alert must not overtake its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Behind(pub BTreeSet<Line>);

/// An alert that may go to the bus.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Key of the record on the bus.
    key: String,
    line: Line,
    /// The alert with its corrected time.
    alert: EdgeAlert,
    /// The alert as it arrived. A repetition is recognised by it, independent of the gateway's
    /// clock.
    came: EdgeAlert,
}

impl Admitted {
    pub(crate) fn line(&self) -> Line {
        self.line
    }
}

/// The result for the alerts of one upload.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Alerts that were published at once, and when the bus holds them.
    pub published: Option<Published>,
    pub count: usize,
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
    under_way: Arc<UnderWay>,
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
            under_way: Arc::new(UnderWay::new(Arc::clone(&duplicates))),
            duplicates,
            quotas: Mutex::new(Quotas::new(Quota::items(per_s, SAVED))),
            pause: (Duration::from_secs(1) / u32::try_from(per_s.max(1)).unwrap_or(u32::MAX))
                .max(PAUSE_MIN),
            shutdown,
        }
    }

    /// Admits the alerts of one upload and publishes those within the quota. `behind`: lines of
    /// which alerts of the same gateway's stream wait already.
    pub(crate) async fn take(
        &self,
        gateway: &GatewayId,
        mut alerts: Vec<EdgeAlert>,
        at: At,
        mut behind: Behind,
    ) -> Result<Taken, Status> {
        let mut taken = Taken::default();
        let mut paced = 0;
        // The sort is stable, so that the raising and the end of one rule keep their order.
        alerts.sort_by_key(|alert| Reverse(alert.priority));
        let (mut urgent, mut sent) = (Records::new(), Vec::new());
        let mut failed = None;
        let mut run = Run::new(gateway, at, &mut taken.apart);
        for came in alerts {
            let Alert { alert, came } = match self.judging.judge(&mut run, Alert::new(came)).await {
                Ok(Judged::Admitted(alert)) => alert,
                Ok(Judged::Held) => {
                    count_duplicate();
                    continue;
                }
                Ok(Judged::Apart) => continue,
                // The alerts before it have paid, and their copies wait for them.
                Err(status) => {
                    failed = Some(status);
                    break;
                }
                Ok(Judged::Refused(refusal)) => {
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
            let partition = self.lanes.partition_of(&key);
            let line = Line { class, partition };
            let admitted = Admitted {
                key,
                line,
                alert,
                came,
            };
            let payment = match behind.0.contains(&line) || self.lanes.is_full(partition) {
                true => Payment::Behind,
                false => self.pay(gateway, class, &admitted.came),
            };
            if payment != Payment::Paid {
                behind.0.insert(line);
                paced += u64::from(payment == Payment::NoRoom);
                taken.rest.push(admitted);
                continue;
            }
            metrics::counter!("braid_ingest_alerts_total").increment(1);
            urgent
                .entry(admitted.key)
                .or_default()
                .alerts
                .push(admitted.alert);
            sent.push(admitted.came);
            taken.count += 1;
        }
        if !urgent.is_empty() {
            let published = self.lanes.publish(Lane::Alerts, urgent).await;
            taken.published = Some(self.under_way.follow(published, sent));
        }
        if paced > 0 {
            metrics::counter!("braid_ingest_paced_alerts_total").increment(paced);
            tracing::warn!(
                gateway = gateway.id,
                tenant = gateway.tenant,
                alerts = paced,
                "a gateway raises more alerts than its quota; they go on one after the other"
            );
        }
        match failed {
            Some(status) => Err(status),
            None => Ok(taken),
        }
    }

    /// Publishes the waiting alerts as the quota allows. Ends early when the gateway has closed the
    /// stream, because it repeats what was not acknowledged.
    pub(crate) async fn publish_rest(
        &self,
        gateway: &GatewayId,
        rest: Vec<Admitted>,
        answers: &Answers,
        progress: &Progress,
    ) -> Result<(), NotPublished> {
        let mut rest = VecDeque::from(rest);
        while !rest.is_empty() {
            let (mut urgent, mut sent) = (Records::new(), Vec::new());
            let settled = self.under_way.settled();
            let mut follows_a_copy = false;
            while let Some(next) = rest.pop_front() {
                // The alert may have arrived by another stream meanwhile.
                if self.is_held(&next.came) {
                    continue;
                }
                let payment = self.pay(gateway, Class::of(&next.alert), &next.came);
                if payment != Payment::Paid {
                    follows_a_copy = payment == Payment::UnderWay;
                    rest.push_front(next);
                    break;
                }
                metrics::counter!("braid_ingest_alerts_total").increment(1);
                urgent.entry(next.key).or_default().alerts.push(next.alert);
                sent.push(next.came);
            }
            if !urgent.is_empty() {
                progress.ask(true);
                let publishing = async {
                    let published = self.lanes.publish(Lane::Alerts, urgent).await;
                    answer_of(self.under_way.follow(published, sent)).await
                };
                let answer = tokio::select! {
                    answer = publishing => answer,
                    // The bus may be away for long, and the gateway opens other streams.
                    () = answers.closed() => Err(NotPublished::Ending),
                };
                progress.ask(false);
                answer?;
                continue;
            }
            if rest.is_empty() {
                break;
            }
            tokio::select! {
                () = self.shutdown.requested() => return Err(NotPublished::Ending),
                () = answers.closed() => return Err(NotPublished::Ending),
                () = settled, if follows_a_copy => {}
                () = tokio::time::sleep(self.pause) => {}
            }
        }
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

    /// Takes one alert from the quota, if that has room and no copy of the alert has paid just now.
    fn pay(&self, gateway: &GatewayId, class: Class, came: &EdgeAlert) -> Payment {
        let (payer, now) = ((gateway.clone(), class), Instant::now());
        let key = self.duplicates.lock().alert_key(came);
        // Held until the payment is entered, so that of two copies at once only one pays.
        let mut quotas = self.quotas.lock();
        if self.under_way.has(key, now) {
            return Payment::UnderWay;
        }
        if quotas.room(&payer, now) == 0 {
            return Payment::NoRoom;
        }
        quotas.take(&payer, now, 1, 0);
        self.under_way.enter(key, now);
        Payment::Paid
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payment {
    Paid,
    /// A copy has paid and is on its way to the bus.
    UnderWay,
    /// An earlier alert of the class waits.
    Behind,
    NoRoom,
}

fn count_duplicate() {
    metrics::counter!("braid_ingest_duplicates_total", "kind" => "alert").increment(1);
}
