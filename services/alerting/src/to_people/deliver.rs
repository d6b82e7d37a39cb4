//! Delivers the notices of one channel: takes due notices, sends them, and stores the outcomes.
//!
//! A notice is taken under a lease, so one member has it. If that member dies, another takes it
//! after [`LEASE_US`]. The most urgent alerts come first, and a part of the places is kept for
//! them. A failed notice is tried again with pauses while others go on. The notices of one alert
//! keep their order. A receiver may get a message twice and recognises it by its key.
//!
//! A message that the receiver refuses for good is given up, and the next step of the escalation
//! follows at once. So it does when the channel fails for longer than `give_up_us`; then the notice
//! stays queued. When the channel works again, everything that waits is due at once.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::{
    alerts::{Notice, NoticeOutcome, NoticeReason, NoticeResult},
    vitals::Priority,
};
use parking_lot::Mutex;
use service_kit::{Backoff, Context};
use store::{NoticesBatch, QueuedNotice, Restore, Store, Take, TimerChange, WriteError, timer_of};
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::{Id, JoinSet},
};

use super::{
    channel::{Channel, Places},
    channel_state::ChannelState,
    message::{Message, Undelivered},
    restored::withheld,
};
use crate::stalled::LOOP_SILENCE_MAX;

/// Lease of a notice: it waits for a place and is sent within two thirds of it.
const LEASE_US: i64 = 30_000_000;
/// A message that has not begun by then is put back. Its call takes at most ten seconds more.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// Poll interval for notices of other members, and for those whose time comes.
const POLL: Duration = Duration::from_millis(250);
/// Pauses between attempts at one notice. They double from the first to the last.
const PAUSE_US: (i64, i64) = (200_000, 30_000_000);
/// Notices whose next step was taken because the channel fails. Beyond it all are forgotten, and a
/// next step may follow early once more.
const HASTENED_MAX: usize = 10_000;

/// Settings for every message.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub give_up_us: i64,
    /// Base address for links.
    pub public_url: Option<String>,
    /// The store was restored: notices of before were sent then, or nobody needs them any more.
    pub restore: Option<Restore>,
}

impl Delivery {
    /// Moves notices that were made before the restore out of what was taken, as their outcomes.
    fn take_older(&self, taken: &mut Vec<QueuedNotice>, now_us: i64) -> Vec<NoticeOutcome> {
        let Some(restore) = self.restore else {
            return Vec::new();
        };
        let older = taken.extract_if(.., |queued| queued.notice.created_us < restore.restored_us);
        older
            .map(|queued| withheld(&queued.notice.id, restore, now_us))
            .collect()
    }
}

pub(super) struct Worker {
    channel: Arc<Channel>,
    state: Arc<Mutex<ChannelState>>,
    wake: Arc<Notify>,
}

/// Result of one message.
enum Report {
    Delivered(Vec<QueuedNotice>),
    Refused(Vec<QueuedNotice>, Undelivered),
    /// Also of the notices behind it.
    Failed(Vec<QueuedNotice>, String),
    /// It had no turn, or a later notice says more.
    PutBack(Vec<QueuedNotice>),
    Superseded(Vec<QueuedNotice>),
}

/// Results that are to be stored.
#[derive(Default)]
struct Unsettled {
    batch: NoticesBatch,
    /// By the time from which it is due.
    later: BTreeMap<i64, Vec<String>>,
}

impl Unsettled {
    fn is_empty(&self) -> bool {
        self.batch == NoticesBatch::default() && self.later.is_empty()
    }
}

/// Notices that a worker has taken and not settled, at most those of [`Places`].
struct InHand {
    /// By id: whether it is urgent.
    notices: HashMap<String, bool>,
    running: JoinSet<()>,
    of_task: HashMap<Id, Vec<String>>,
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
    common: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
}

impl InHand {
    fn new(places: Places) -> InHand {
        // Each notice in hand is in one report, so there is always room.
        let (report, reports) = mpsc::channel(places.notices + places.reserved);
        let reserved = places.connections / 4;
        InHand {
            notices: HashMap::new(),
            running: JoinSet::new(),
            of_task: HashMap::new(),
            reports,
            report,
            common: Arc::new(Semaphore::new(places.connections - reserved)),
            reserved: Arc::new(Semaphore::new(reserved)),
        }
    }

    /// How many to take, and how urgent they must be. `None`: there is no place.
    fn room(&self, places: Places) -> Option<(usize, Priority)> {
        let urgent = self
            .notices
            .values()
            .filter(|is_urgent| **is_urgent)
            .count();
        let others = self.notices.len() - urgent;
        let of_all = places.notices.saturating_sub(self.notices.len());
        let of_others = (places.notices - places.reserved).saturating_sub(others);
        match (of_all, of_all.min(of_others)) {
            (0, _) => None,
            (_, 0) => Some((of_all, Priority::High)),
            (_, room) => Some((room, Priority::Unspecified)),
        }
    }

    fn settled(&mut self, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            self.notices.remove(&id);
        }
    }

    /// Removes tasks that have ended. One that panicked leaves its notices to the end of the lease.
    fn join_ended(&mut self) {
        while let Some(ended) = self.running.try_join_next_with_id() {
            let (id, has_failed) = match ended {
                Ok((id, ())) => (id, false),
                Err(error) => {
                    tracing::error!(%error, "a delivery ended without a result; it is repeated after its lease");
                    (error.id(), true)
                }
            };
            let ids = self.of_task.remove(&id).unwrap_or_default();
            if has_failed {
                self.settled(ids);
            }
        }
    }
}

impl Worker {
    pub(super) fn new(channel: Channel) -> Worker {
        Worker {
            channel: Arc::new(channel),
            state: Arc::default(),
            wake: Arc::default(),
        }
    }

    /// Notified when a notice is due at once.
    pub(super) fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    /// The channel and its state, for heartbeats.
    pub(super) fn shared(&self) -> (Arc<Channel>, Arc<Mutex<ChannelState>>) {
        (Arc::clone(&self.channel), Arc::clone(&self.state))
    }

    pub(super) async fn run(self, store: Arc<dyn Store>, delivery: Delivery, context: Context) {
        let names = self.channel.names();
        let check = context.health().check(names.check);
        let warning = context.health().warning(names.warning);
        let turns = context.health().progress(names.check, LOOP_SILENCE_MAX);
        let shutdown = context.shutdown().clone();
        let places = self.channel.places();
        let mut backoff = Backoff::for_reconnect();
        let mut run = Run {
            worker: self,
            in_hand: InHand::new(places),
            unsettled: Unsettled::default(),
            hastened: HashSet::new(),
            store,
            delivery,
            context: context.clone(),
        };
        while !shutdown.is_requested() {
            turns.beat();
            run.on_reports();
            let now_us = context.clock().monotonic_us();
            {
                let state = run.worker.state.lock();
                warning.set(state.warning(names.channel, now_us));
                let failing_s = state.failing_us(now_us).unwrap_or(0) as f64 / 1e6;
                metrics::gauge!("braid_alerting_channel_failing_seconds", "channel" => names.channel)
                    .set(failing_s);
            }
            match run.turn(places).await {
                Ok(true) => {
                    check.ok();
                    backoff.reset();
                }
                Ok(false) => {
                    check.ok();
                    backoff.reset();
                    // A notice behind one that has just been settled is due at once.
                    tokio::select! {
                        () = shutdown.requested() => break,
                        () = run.worker.wake.notified() => {}
                        Some(report) = run.in_hand.reports.recv() => run.on_report(report),
                        () = tokio::time::sleep(POLL) => {}
                    }
                }
                Err(error) => {
                    check.failing(error.to_string());
                    tokio::select! {
                        () = shutdown.requested() => break,
                        () = backoff.wait() => {}
                    }
                }
            }
        }
        run.end().await;
    }
}

/// A worker at work.
struct Run {
    worker: Worker,
    in_hand: InHand,
    unsettled: Unsettled,
    hastened: HashSet<String>,
    store: Arc<dyn Store>,
    delivery: Delivery,
    context: Context,
}

impl Run {
    /// Stores what has ended and takes what is due. True: there may be more at once.
    async fn turn(&mut self, places: Places) -> Result<bool, WriteError> {
        self.settle().await?;
        let Some((limit, least)) = self.in_hand.room(places) else {
            return Ok(false);
        };
        // This clock never steps back, so no notice waits for a time that was reached before.
        let now_us = self.context.clock().unstepped_us();
        let taken = self.store.take_notices(Take {
            channel: self.worker.channel.names().channel,
            now_us,
            until_us: now_us + LEASE_US,
            limit,
            least,
        });
        let mut taken = taken.await?;
        let is_full = taken.len() >= limit;
        let older = self.delivery.take_older(&mut taken, now_us);
        self.unsettled.batch.outcomes.extend(older);
        self.begin(taken);
        Ok(is_full)
    }

    /// Runs different alerts concurrently and the notices of one in order. The store returns none
    /// that is behind one in hand.
    fn begin(&mut self, taken: Vec<QueuedNotice>) {
        if taken.is_empty() {
            return;
        }
        let is_digest = {
            let state = self.worker.state.lock();
            state
                .failing_us(self.context.clock().monotonic_us())
                .is_some()
        };
        for queued in &taken {
            let id = queued.notice.id.clone();
            self.in_hand.notices.insert(id, is_urgent(&queued.notice));
        }
        let (taken, superseded) = without_superseded(taken);
        if !superseded.is_empty() {
            self.on_report(Report::Superseded(superseded));
        }
        let mut sorted: Vec<(String, Vec<Vec<QueuedNotice>>)> = Vec::new();
        for message in self.worker.channel.messages(taken, is_digest) {
            let lane = message
                .first()
                .map(|queued| lane(&queued.notice))
                .unwrap_or_default();
            match sorted.iter_mut().find(|(known, _)| *known == lane) {
                Some((_, messages)) => messages.push(message),
                None => sorted.push((lane, vec![message])),
            }
        }
        for (_, messages) in sorted {
            let ids = messages
                .iter()
                .flatten()
                .map(|queued| queued.notice.id.clone());
            let ids: Vec<String> = ids.collect();
            let lane = Lane {
                channel: Arc::clone(&self.worker.channel),
                public_url: self.delivery.public_url.clone(),
                report: self.in_hand.report.clone(),
                common: Arc::clone(&self.in_hand.common),
                reserved: Arc::clone(&self.in_hand.reserved),
            };
            let running = self.in_hand.running.spawn(lane.run(messages));
            self.in_hand.of_task.insert(running.id(), ids);
        }
    }

    fn on_reports(&mut self) {
        while let Ok(report) = self.in_hand.reports.try_recv() {
            self.on_report(report);
        }
        self.in_hand.join_ended();
    }

    fn on_report(&mut self, report: Report) {
        let channel = self.worker.channel.names().channel;
        let clock = self.context.clock().clone();
        match report {
            Report::Delivered(notices) => {
                count(channel, "delivered");
                self.worker.state.lock().on_success();
                let now_us = clock.now_us();
                let due_us = |it: &QueuedNotice| it.notice.created_us.max(it.notice.due_us);
                let waited_us = now_us - notices.iter().map(due_us).min().unwrap_or(now_us);
                metrics::histogram!("braid_alerting_notice_seconds", "channel" => channel)
                    .record(waited_us.max(0) as f64 / 1e6);
                self.outcome(notices, NoticeResult::Delivered, "");
            }
            Report::Refused(notices, error) => {
                let reason = &error.reason;
                count(channel, "given_up");
                tracing::error!(
                    channel,
                    notice = notices.first().map(|it| &it.notice.id),
                    reason,
                    "the receiver refuses the notice for good; the next step follows at once"
                );
                if error.is_of_channel(channel) {
                    let mut state = self.worker.state.lock();
                    state.on_failure(clock.monotonic_us(), reason);
                }
                self.next_step(&notices);
                self.outcome(notices, NoticeResult::GivenUp, reason);
            }
            Report::Failed(notices, reason) => {
                count(channel, "retried");
                let attempts = notices.iter().map(|it| it.attempts).max().unwrap_or(1);
                tracing::warn!(
                    channel,
                    notice = notices.first().map(|it| &it.notice.id),
                    reason,
                    attempts,
                    "not delivered"
                );
                let now_us = clock.monotonic_us();
                let failing_us = {
                    let mut state = self.worker.state.lock();
                    state.on_failure(now_us, &reason);
                    state.failing_us(now_us).unwrap_or(0)
                };
                if failing_us > self.delivery.give_up_us {
                    self.give_up_waiting(&notices);
                }
                self.later(notices, clock.unstepped_us() + pause_us(attempts));
            }
            Report::PutBack(notices) => self.later(notices, clock.unstepped_us()),
            Report::Superseded(notices) => self.outcome(
                notices,
                NoticeResult::Inhibited,
                "by a later notice of the same alert",
            ),
        }
    }

    /// The channel fails for too long. The notices stay queued.
    fn give_up_waiting(&mut self, notices: &[QueuedNotice]) {
        let channel = self.worker.channel.names().channel;
        if self.hastened.len() + notices.len() > HASTENED_MAX {
            self.hastened.clear();
        }
        let new = notices
            .iter()
            .filter(|it| self.hastened.insert(it.notice.id.clone()));
        let new: Vec<QueuedNotice> = new.cloned().collect();
        if let Some(first) = new.first() {
            tracing::error!(
                channel,
                notice = first.notice.id,
                "the channel fails for longer than --give-up-s; the next step follows at once"
            );
            self.next_step(&new);
        }
    }

    /// A reminder is behind the last step.
    fn next_step(&mut self, notices: &[QueuedNotice]) {
        let at_us = self.context.clock().now_us();
        let of_steps = notices.iter().map(|it| &it.notice);
        for notice in of_steps.filter(|it| it.reason() != NoticeReason::Reminder) {
            if let Some(alert) = &notice.alert {
                let timer = timer_of(alert, &notice.tenant);
                let change = TimerChange::Hasten { timer, at_us };
                self.unsettled.batch.timers.push(change);
            }
        }
    }

    fn outcome(&mut self, notices: Vec<QueuedNotice>, result: NoticeResult, detail: &str) {
        let at_us = self.context.clock().now_us();
        let outcomes = notices.into_iter().map(|queued| NoticeOutcome {
            notice: queued.notice.id,
            result: result.into(),
            attempts: queued.attempts,
            at_us,
            detail: detail.to_owned(),
        });
        self.unsettled.batch.outcomes.extend(outcomes);
    }

    fn later(&mut self, notices: Vec<QueuedNotice>, due_us: i64) {
        let ids = notices.into_iter().map(|queued| queued.notice.id);
        self.unsettled.later.entry(due_us).or_default().extend(ids);
    }

    /// A lost outcome means another attempt after the lease.
    async fn settle(&mut self) -> Result<(), WriteError> {
        if !self.unsettled.is_empty() {
            if self.unsettled.batch != NoticesBatch::default() {
                let batch = self.unsettled.batch.clone();
                match self.store.write_notices(batch).await {
                    Err(error) if error.is_retryable() => return Err(error),
                    Err(error) => {
                        tracing::error!(%error, "outcomes of notices cannot be stored together");
                        self.settle_one_by_one().await?;
                    }
                    Ok(_) => {}
                }
                let batch = std::mem::take(&mut self.unsettled.batch);
                let ids = batch.outcomes.into_iter().map(|outcome| outcome.notice);
                self.in_hand.settled(ids);
            }
            while let Some((due_us, ids)) = self.unsettled.later.first_key_value() {
                let due_us = *due_us;
                self.store.delay_notices(ids, due_us).await?;
                let ids = self.unsettled.later.remove(&due_us).unwrap_or_default();
                self.in_hand.settled(ids);
            }
        }
        self.hasten_after_return().await
    }

    /// Everything that waits for a channel is due at once when it works again.
    async fn hasten_after_return(&mut self) -> Result<(), WriteError> {
        if !self.worker.state.lock().take_returned() {
            return Ok(());
        }
        self.hastened.clear();
        let channel = self.worker.channel.names().channel;
        let now_us = self.context.clock().unstepped_us();
        match self.store.hasten_notices(channel, now_us).await {
            Ok(notices) => tracing::info!(channel, notices, "the channel works again"),
            Err(error) => {
                self.worker.state.lock().put_back_returned();
                return Err(error);
            }
        }
        Ok(())
    }

    /// One that the store refuses for ever keeps no other from being stored.
    async fn settle_one_by_one(&self) -> Result<(), WriteError> {
        for outcome in &self.unsettled.batch.outcomes {
            let batch = NoticesBatch {
                outcomes: vec![outcome.clone()],
                ..NoticesBatch::default()
            };
            match self.store.write_notices(batch).await {
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    tracing::error!(%error, notice = outcome.notice, "the outcome of a notice cannot be stored");
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Settled notices have left the queue. The rest becomes due at once for another member.
    async fn end(mut self) {
        self.in_hand.running.abort_all();
        self.on_reports();
        let settled = self.settle().await;
        let left: Vec<String> = self.in_hand.notices.into_keys().collect();
        let released = match settled {
            Ok(()) if left.is_empty() => return,
            Ok(()) => {
                let now_us = self.context.clock().now_us();
                self.store.delay_notices(&left, now_us).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            tracing::debug!(%error, "notices wait for the end of their lease");
        }
    }
}

/// The messages of one alert and recipient, in their order.
struct Lane {
    channel: Arc<Channel>,
    public_url: Option<String>,
    report: mpsc::Sender<Report>,
    common: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
}

impl Lane {
    async fn run(self, messages: Vec<Vec<QueuedNotice>>) {
        let begun = Instant::now();
        let mut messages = messages.into_iter();
        while let Some(queued) = messages.next() {
            let rest = BEGIN_WITHIN.saturating_sub(begun.elapsed());
            let urgent = queued.iter().any(|it| is_urgent(&it.notice));
            let place = tokio::time::timeout(rest, self.place(urgent)).await;
            let Ok(Some(_place)) = place else {
                let left = std::iter::once(queued).chain(messages).flatten();
                self.say(Report::PutBack(left.collect()));
                return;
            };
            let report = match self.send(&queued).await {
                Ok(()) => Report::Delivered(queued),
                Err(error) if !error.is_retryable => Report::Refused(queued, error),
                Err(error) => {
                    // The notices behind it wait as well.
                    let left = std::iter::once(queued).chain(messages).flatten();
                    self.say(Report::Failed(left.collect(), error.reason));
                    return;
                }
            };
            self.say(report);
        }
    }

    async fn send(&self, queued: &[QueuedNotice]) -> Result<(), Undelivered> {
        let notices: Vec<&Notice> = queued.iter().map(|queued| &queued.notice).collect();
        let message = Message::new(&notices, self.public_url.as_deref());
        self.channel.send(&message).await
    }

    /// A place for one call. An urgent message may take a reserved one. `None`: the worker has
    /// ended.
    async fn place(&self, is_urgent: bool) -> Option<tokio::sync::SemaphorePermit<'_>> {
        if !is_urgent {
            return self.common.acquire().await.ok();
        }
        tokio::select! {
            biased;
            place = self.common.acquire() => place.ok(),
            place = self.reserved.acquire() => place.ok(),
        }
    }

    fn say(&self, report: Report) {
        // A worker that has ended takes no report; its notices wait for the end of their lease.
        let _ = self.report.try_send(report);
    }
}

fn is_urgent(notice: &Notice) -> bool {
    let alert = notice.alert.as_ref();
    alert.is_some_and(|alert| alert.priority() == Priority::High)
}

fn lane(notice: &Notice) -> String {
    let alert = notice.alert.as_ref().map_or("", |alert| &alert.id);
    format!("{alert} {}", notice.recipient)
}

/// A reminder that waits before another notice of its lane says nothing of its own.
fn without_superseded(taken: Vec<QueuedNotice>) -> (Vec<QueuedNotice>, Vec<QueuedNotice>) {
    let mut last: HashMap<String, usize> = HashMap::new();
    for (place, queued) in taken.iter().enumerate() {
        last.insert(lane(&queued.notice), place);
    }
    let (mut kept, mut superseded) = (Vec::new(), Vec::new());
    for (place, queued) in taken.into_iter().enumerate() {
        let is_last = last.get(&lane(&queued.notice)) == Some(&place);
        match queued.notice.reason() {
            NoticeReason::Reminder if !is_last => superseded.push(queued),
            _ => kept.push(queued),
        }
    }
    (kept, superseded)
}

fn pause_us(attempts: u32) -> i64 {
    let (first, last) = PAUSE_US;
    let doublings = attempts.saturating_sub(1).min(16);
    (first << doublings).min(last)
}

fn count(channel: &'static str, outcome: &'static str) {
    metrics::counter!("braid_alerting_deliveries_total", "channel" => channel, "outcome" => outcome).increment(1);
}

#[cfg(test)]
#[path = "deliver_tests.rs"]
mod tests;
