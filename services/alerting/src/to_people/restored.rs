//! After a restore from a backup: nobody is told again what they were told before it.
//!
//! The store has forgotten what was decided since the backup was made, and the engines raise those
//! alerts again from the readings on the bus. The bus remembers: a record of the topic `alerts`
//! before the commit of this group was decided. Its notices are stored as withheld, and its
//! escalation goes on unless somebody had acknowledged it. Timers wait until the readings are
//! judged up to the end, since the alerts of the backup may be over by now. Notices that waited in
//! the backup are not sent.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, ConsumeError, Delivery, Event, NotReady, SubscribeError, Topic};
use consumer_health::{Duty, Moment, Pace, Source, duty, measure};
use contracts::alerts::{Alert, AlertState, NoticeOutcome, NoticeResult};
use prost::Message;
use service_kit::{Backoff, CheckHandle, Context};
use store::{EscalationTimer, NoticesBatch, Restore, Store, TimerChange};

use crate::canary::is_canary;

/// A restore is minded for this long: the bus keeps the records of a week.
const MINDED_US: i64 = 8 * 24 * 3_600_000_000;
/// Records before the backup by more than this were decided before it: its store knows them.
const BEFORE_US: i64 = 600_000_000;
/// Alerts that are remembered. Beyond it the rest may be told again; it is logged.
const TOLD_MAX: usize = 200_000;
/// Records taken from the bus at once.
const READ_MAX: usize = 1000;
/// Timers wait no longer for readings that are still to be judged.
const HELD_MAX: Duration = Duration::from_secs(15 * 60);

pub(super) struct Restored {
    restore: Restore,
    /// By alert. Bounded by [`TOLD_MAX`].
    told: HashMap<String, Told>,
    bus: Arc<dyn Bus>,
    begun: Instant,
    is_caught_up: bool,
}

/// The last revision that was decided before this process began.
#[derive(Clone, Copy, Debug)]
struct Told {
    revision: u32,
    state: AlertState,
    is_acknowledged: bool,
}

impl Told {
    fn of(alert: &Alert) -> Told {
        Told {
            revision: alert.revision,
            state: alert.state(),
            is_acknowledged: !alert.acknowledged_by.is_empty(),
        }
    }

    fn needs_nobody(self) -> bool {
        self.is_acknowledged || self.state == AlertState::Resolved
    }
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
    #[error(transparent)]
    Consume(#[from] ConsumeError),
}

/// Returns once store and bus have answered. `Err`: shutdown came first.
pub(super) async fn read(
    bus: &Arc<dyn Bus>,
    store: &dyn Store,
    check: &CheckHandle,
    context: &Context,
) -> Result<Option<Restored>, ()> {
    let mut backoff = Backoff::for_reconnect();
    loop {
        let reason = match store.last_restore().await {
            Ok(None) => return Ok(None),
            Ok(Some(restore)) if context.clock().now_us() - restore.restored_us > MINDED_US => {
                return Ok(None);
            }
            Ok(Some(restore)) => match told(&**bus, restore).await {
                Ok(told) => return Ok(Some(Restored::new(restore, told, bus))),
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        check.failing(reason);
        tokio::select! {
            () = context.shutdown().requested() => return Err(()),
            () = backoff.wait() => {}
        }
    }
}

async fn told(bus: &dyn Bus, restore: Restore) -> Result<HashMap<String, Told>, ReadError> {
    let committed = bus.committed(Topic::Alerts, duty::TELLING.group).await?;
    let mut consumer = bus.read_back(Topic::Alerts).await?;
    let mut told = HashMap::new();
    let mut left_out = 0_u64;
    while consumer.lag().await? > 0 {
        let Event::Batch(batch) = consumer.next(READ_MAX).await? else {
            continue;
        };
        let is_decided = |it: &&Delivery| {
            let before = committed.get(&it.partition);
            before.is_some_and(|next| it.offset < *next)
                && it.published_us >= restore.made_us - BEFORE_US
        };
        for delivery in batch.iter().filter(is_decided) {
            let Ok(alert) = Alert::decode(delivery.value.clone()) else {
                continue;
            };
            if is_canary(&alert.patient) {
                continue;
            }
            if told.len() >= TOLD_MAX && !told.contains_key(&alert.id) {
                left_out += 1;
                continue;
            }
            let known = told.entry(alert.id.clone()).or_insert(Told::of(&alert));
            if alert.revision > known.revision {
                *known = Told::of(&alert);
            }
        }
    }
    if left_out > 0 {
        tracing::error!(
            left_out,
            "too many alerts since the backup; some may be told again"
        );
    }
    Ok(told)
}

impl Restored {
    fn new(restore: Restore, told: HashMap<String, Told>, bus: &Arc<dyn Bus>) -> Restored {
        tracing::warn!(
            restored = utc(restore.restored_us),
            backup = utc(restore.made_us),
            told = told.len(),
            "the store was restored from a backup; what was told before is not told again"
        );
        Restored {
            restore,
            told,
            bus: Arc::clone(bus),
            begun: Instant::now(),
            is_caught_up: false,
        }
    }

    pub(super) fn restore(&self) -> Restore {
        self.restore
    }

    /// The decision about an alert, without what people know already.
    pub(super) fn mind(
        &self,
        alert: &Alert,
        mut batch: NoticesBatch,
        is_timer: bool,
        now_us: i64,
    ) -> NoticesBatch {
        let Some(told) = self.told.get(&alert.id).copied() else {
            return batch;
        };
        let ends_now = alert.state() == AlertState::Resolved && told.state != AlertState::Resolved;
        if is_timer {
            if told.needs_nobody() {
                (batch.notices, batch.outcomes) = (Vec::new(), Vec::new());
                batch.timers.iter_mut().for_each(stop);
            }
            return batch;
        }
        if alert.revision > told.revision || ends_now {
            return batch;
        }
        for notice in &batch.notices {
            if !batch.outcomes.iter().any(|it| it.notice == notice.id) {
                batch
                    .outcomes
                    .push(withheld(&notice.id, self.restore, now_us));
            }
        }
        if told.needs_nobody() {
            batch.timers.iter_mut().for_each(stop);
        }
        batch
    }

    /// Whether timers wait: readings of the time since the backup are not judged, published and
    /// decided yet.
    pub(super) async fn holds_timers(&mut self, store: &dyn Store) -> bool {
        if self.is_caught_up {
            return false;
        }
        let mut is_behind = false;
        for duty in [duty::JUDGING, duty::PUBLISHING, duty::TELLING] {
            is_behind |= self.is_behind(duty, store).await;
        }
        if is_behind && self.begun.elapsed() < HELD_MAX {
            return true;
        }
        if is_behind {
            tracing::error!("readings since the backup are not judged yet; timers wait no longer");
        }
        self.is_caught_up = true;
        false
    }

    async fn is_behind(&self, duty: Duty, store: &dyn Store) -> bool {
        let (source, within) = (Source::Duty(duty), Pace::default().within);
        // Only a measurement of notices reads the time.
        let now_us = contracts::now_us();
        let measured = measure(&*self.bus, store, &source, now_us, within).await;
        measured.map_or(true, |of| of.values().any(|it| it.behind() > 0))
    }
}

fn stop(change: &mut TimerChange) {
    if let TimerChange::Set(EscalationTimer { due_us, .. }) = change {
        *due_us = None;
    }
}

/// The outcome of a notice that was made before the restore, or would repeat one.
pub(super) fn withheld(notice: &str, restore: Restore, now_us: i64) -> NoticeOutcome {
    NoticeOutcome {
        notice: notice.to_owned(),
        result: NoticeResult::Silenced.into(),
        attempts: 0,
        at_us: now_us,
        detail: format!(
            "made before the restore of {} and not repeated",
            utc(restore.restored_us)
        ),
    }
}

fn utc(wall_us: i64) -> String {
    Moment {
        wall_us,
        at: Instant::now(),
    }
    .utc()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bus::{Committed, EmbeddedBus, EmbeddedOptions, Record};
    use contracts::alerts::Notice;
    use store::{Maintenance, SqliteStore};

    use super::*;

    fn alert(id: &str, revision: u32, state: AlertState) -> Alert {
        Alert {
            id: id.into(),
            revision,
            patient: "ann".into(),
            state: state.into(),
            ..Alert::default()
        }
    }

    fn decision(alert: &Alert) -> NoticesBatch {
        let timer = EscalationTimer {
            alert: alert.id.clone(),
            version: 1,
            due_us: Some(60),
            state: bytes::Bytes::new(),
        };
        NoticesBatch {
            notices: vec![Notice {
                id: format!("{}/{}/webhook", alert.id, alert.revision),
                ..Notice::default()
            }],
            outcomes: Vec::new(),
            timers: vec![TimerChange::Set(timer)],
        }
    }

    fn due(batch: &NoticesBatch) -> Option<i64> {
        match &batch.timers[0] {
            TimerChange::Set(timer) => timer.due_us,
            _ => panic!("it goes on"),
        }
    }

    /// Records before the commit were decided; those behind it notify people as ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_the_bus_knows_as_told_is_withheld() {
        let dir = tempfile::tempdir().unwrap();
        let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let bus: Arc<dyn Bus> = Arc::new(bus);
        let store = SqliteStore::open(dir.path()).unwrap();
        let context = Context::new("alerting");
        let check = context.health().check("alerts");
        let none = read(&bus, &store, &check, &context).await.unwrap();
        assert!(none.is_none(), "no restore");

        let publish = async |alert: &Alert| {
            let record = Record::new("ann", alert.encode_to_vec());
            bus.publish(Topic::Alerts, vec![record]).await.unwrap();
        };
        let acknowledged = Alert {
            acknowledged_by: "ada".into(),
            ..alert("seen", 2, AlertState::Acknowledged)
        };
        for told in [
            alert("open", 1, AlertState::Active),
            alert("seen", 1, AlertState::Active),
            acknowledged,
            alert("over", 1, AlertState::Active),
            alert("over", 2, AlertState::Resolved),
        ] {
            publish(&told).await;
        }
        let group = duty::TELLING.group;
        let mut consumer = bus
            .subscribe(Topic::Alerts, group, Arc::new(Committed))
            .await
            .unwrap();
        let mut read_to = None;
        while read_to.is_none_or(|(_, next)| next < 5) {
            if let Event::Batch(batch) = consumer.next(10).await.unwrap() {
                read_to = batch.last().map(|it| (it.partition, it.offset + 1));
            }
        }
        consumer.commit(&[read_to.unwrap()]).await.unwrap();
        publish(&alert("new", 1, AlertState::Active)).await;
        let now_us = context.clock().now_us();
        let restore = Restore {
            restored_us: now_us,
            made_us: now_us - 1_000_000,
        };
        store.note_restore(restore).await.unwrap();
        let restored = read(&bus, &store, &check, &context).await.unwrap().unwrap();

        let mind = |alert: &Alert, is_timer| restored.mind(alert, decision(alert), is_timer, 9);
        for (id, goes_on) in [("open", true), ("seen", false), ("over", false)] {
            let again = alert(id, 1, AlertState::Active);
            let news = mind(&again, false);
            assert_eq!(news.outcomes.len(), 1, "{id}: it is stored and not sent");
            assert_eq!(news.outcomes[0].notice, news.notices[0].id);
            assert_eq!(due(&news), goes_on.then_some(60), "{id}: its escalation");
            let timer = mind(&again, true);
            assert_eq!(
                timer.notices.len(),
                usize::from(goes_on),
                "{id}: the next step"
            );
            assert_eq!(due(&timer), goes_on.then_some(60), "{id}");
        }
        for news in [
            alert("new", 1, AlertState::Active),
            alert("open", 2, AlertState::Latched),
            alert("open", 1, AlertState::Resolved),
        ] {
            assert_eq!(mind(&news, false), decision(&news), "{news:?}");
        }
        assert!(
            mind(&alert("over", 2, AlertState::Resolved), false)
                .outcomes
                .len()
                == 1
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn timers_wait_until_the_readings_are_judged() {
        let dir = tempfile::tempdir().unwrap();
        let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let bus: Arc<dyn Bus> = Arc::new(bus);
        let store = SqliteStore::open(dir.path()).unwrap();
        let restore = Restore {
            restored_us: 2,
            made_us: 1,
        };
        let mut restored = Restored::new(restore, HashMap::new(), &bus);
        let record = Record::new("ann", &b"a reading"[..]);
        bus.publish(Topic::Vitals, vec![record]).await.unwrap();
        assert!(restored.holds_timers(&store).await, "one record waits");
        let duty = duty::JUDGING;
        let store: Arc<dyn Store> = Arc::new(store);
        let claims = store::Claims::new(Arc::clone(&bus), Arc::clone(&store), duty.group);
        for (partition, extent) in bus.extents(duty.topic).await.unwrap() {
            bus::StartAt::start(&*claims, duty.topic, partition)
                .await
                .unwrap();
            let done = claims.progress_to([(duty.topic, partition, extent.next)]);
            store.write_vitals(Arc::default(), done).await.unwrap();
        }
        assert!(!restored.holds_timers(&*store).await, "all is judged");
        restored.is_caught_up = false;
        bus.publish(Topic::Vitals, vec![Record::new("ann", &b"next"[..])])
            .await
            .unwrap();
        restored.begun -= HELD_MAX;
        assert!(!restored.holds_timers(&*store).await, "not for ever");
    }
}
