//! Alerts of gateways on their way to the bus: admitted, most urgent first, and paced.
//!
//! An alert within its gateway's quota goes at once. The others wait, each until the quota has room, and only for their own gateway:
//! no alert is refused for its number, and none delays another gateway's. Alerts of high priority have a quota of their own, so they
//! never wait behind the others. The quota counts what reaches the bus: an alert that the bus already holds costs nothing, so a gateway
//! that sends its upload again continues where it was.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use clocks::{GatewayClock, Taken as TakenAt};
use contracts::vitals::{EdgeAlert, Priority, Quarantined, UploadResponse, quarantined::Entry};
use parking_lot::Mutex;
use service_kit::{
    Shutdown,
    quota::{Quota, Quotas},
};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;
use vitals::attribution::When;

use crate::{
    admission::{Arrival, Concerned, GatewayId, admit_alert, doubt_us, settle_time},
    apart::Apart,
    duplicates::Duplicates,
    from_gateway::{refuse, unknown},
    register::Register,
    to_bus::{Lane, Lanes, NotPublished, Records},
};

/// Alerts in one upload; one with more is refused as a whole. A gateway sends at most 512.
pub const ALERTS_PER_UPLOAD_MAX: usize = 4_096;
/// What a gateway did not use of its quota in so long it may send at once.
const SAVED: Duration = Duration::from_secs(60);
/// Shortest pause before the quota is looked at again.
const PAUSE_MIN: Duration = Duration::from_millis(50);

pub type Published = oneshot::Receiver<Result<(), NotPublished>>;
pub type Answers = mpsc::Sender<Result<UploadResponse, Status>>;

/// Which quota an alert counts against.
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
pub struct Admitted {
    /// Of the record on the bus.
    key: String,
    /// As it goes on, with its time corrected.
    alert: EdgeAlert,
    /// As it came: the same alert is recognised by it, whatever is known of the gateway's clock by then.
    came: EdgeAlert,
}

/// What became of the alerts of one upload.
#[derive(Debug, Default)]
pub struct Taken {
    /// Those that went at once, and when the bus holds them.
    pub published: Option<Published>,
    pub sent: Vec<EdgeAlert>,
    /// Those beyond the quota, in the order in which they are to go.
    pub rest: Vec<Admitted>,
    /// Those that are nobody's.
    pub apart: Vec<Quarantined>,
    /// Why alerts were refused; the protocol has no index for them.
    pub refused: Vec<String>,
}

pub struct Alerts {
    register: Arc<Register>,
    lanes: Lanes,
    duplicates: Arc<Mutex<Duplicates>>,
    quotas: Mutex<Quotas<(GatewayId, Class)>>,
    /// Between two looks at a quota that is used up.
    pause: Duration,
    apart: Arc<Apart>,
    shutdown: Shutdown,
}

impl Alerts {
    /// `per_s`: alerts of one gateway a second, of each class; 0: any number.
    pub fn new(
        register: Arc<Register>,
        lanes: Lanes,
        duplicates: Arc<Mutex<Duplicates>>,
        per_s: u64,
        apart: Arc<Apart>,
        shutdown: Shutdown,
    ) -> Alerts {
        Alerts {
            register,
            lanes,
            duplicates,
            quotas: Mutex::new(Quotas::new(Quota::items(per_s, SAVED))),
            pause: (Duration::from_secs(1) / u32::try_from(per_s.max(1)).unwrap_or(u32::MAX))
                .max(PAUSE_MIN),
            apart,
            shutdown,
        }
    }

    /// Admits the alerts of one upload and publishes those that the quota covers. `behind`: alerts of the same stream wait, and all but
    /// those of high priority wait behind them.
    pub async fn take(
        &self,
        gateway: &GatewayId,
        mut alerts: Vec<EdgeAlert>,
        (arrival, clock): (Arrival, Option<GatewayClock>),
        behind: bool,
    ) -> Result<Taken, Status> {
        let mut taken = Taken::default();
        // Stable, so that what a rule raised and ended keeps its order.
        alerts.sort_by_key(|alert| Reverse(alert.priority));
        let mut urgent = Records::new();
        for came in alerts {
            let mut alert = came.clone();
            settle_time(&mut alert, arrival, clock);
            let doubt_us = doubt_us(clock, TakenAt::of_alert(&came));
            let when = When::at(alert.time_us, doubt_us);
            let device;
            let concerned = if alert.device.is_empty() {
                let found = self
                    .register
                    .cares_for(gateway, &alert.patient, when.from_us);
                Concerned::Cares(found.await.map_err(unknown)?)
            } else {
                let found = self.register.device(&alert.device, gateway);
                device = found.await.map_err(unknown)?;
                Concerned::Device(device.intervals(gateway))
            };
            if let Err(refusal) = admit_alert(&mut alert, gateway, &concerned, when) {
                let entry = Entry::Alert(alert);
                let (at_us, kept) = (arrival.now_us, &mut taken.apart);
                if let Err(refusal) = self.apart.keep(gateway, refusal, entry, at_us, kept) {
                    taken.refused.push(refuse("alert", gateway, refusal));
                }
                continue;
            }
            if self.is_held(&came) {
                continue;
            }
            let key = if alert.patient.is_empty() {
                alert.gateway.clone()
            } else {
                alert.patient.clone()
            };
            let class = Class::of(&alert);
            let admitted = Admitted { key, alert, came };
            let waits = behind && class == Class::Other;
            if waits || !self.pays(gateway, class) {
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

    /// Publishes the alerts that wait, as the quota allows. Ends early when the gateway has closed the stream: it sends again what it has
    /// no answer for.
    pub async fn publish_rest(
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
                // It may have come by another stream meanwhile.
                if self.is_held(&next.came) {
                    continue;
                }
                if !self.pays(gateway, Class::of(&next.alert)) {
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

    /// Once the bus holds these, the same again costs nothing.
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
            metrics::counter!("braid_ingest_duplicates_total", "kind" => "alert").increment(1);
        }
        is_held
    }

    /// Takes one alert from the quota, if that has room.
    fn pays(&self, gateway: &GatewayId, class: Class) -> bool {
        let (payer, now) = ((gateway.clone(), class), Instant::now());
        let mut quotas = self.quotas.lock();
        let has_room = quotas.room(&payer, now) > 0;
        if has_room {
            quotas.take(&payer, now, 1, 0);
        }
        has_room
    }
}
