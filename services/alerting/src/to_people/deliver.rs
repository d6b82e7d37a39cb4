//! Delivers the notices of one channel: takes due notices, sends them, and stores the outcome.
//!
//! A notice is taken under a lease, so one member has it. If that member dies, another takes it
//! after [`LEASE_US`]. A failed notice is tried again with pauses while others go on. The notices
//! of one alert keep their order. After `give_up_us` from its decision a notice is given up,
//! counted and logged as an error. A receiver may get a message twice and recognises it by its key.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use contracts::alerts::{NoticeOutcome, NoticeResult};
use service_kit::{Backoff, Context, Shutdown};
use store::{NoticesBatch, QueuedNotice, Restore, Store};
use tokio::{
    sync::Notify,
    task::{Id, JoinSet},
};

use super::{
    email::Email,
    message::{Message, Undelivered},
    mqtt::Mqtt,
    restored::withheld,
    webhook::Webhook,
};
use crate::turns::SILENCE_MAX;

/// Notices in hand at once. More wait in the store.
const TAKE_MAX: usize = 16;
/// Lease of a notice: three calls of the longest duration.
const LEASE_US: i64 = 30_000_000;
/// Poll interval for notices of other members, and for those whose time comes.
const POLL: Duration = Duration::from_millis(250);
/// Pauses between attempts at one notice. They double from the first to the last.
const PAUSE_US: (i64, i64) = (200_000, 30_000_000);

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

pub(super) enum Channel {
    Webhook(Webhook),
    Email(Email),
    Mqtt(Box<Mqtt>),
    /// Without a receiver: a notice that gets here is delivered.
    Canary,
}

impl Channel {
    fn name(&self) -> &'static str {
        match self {
            Channel::Webhook(_) => crate::routing::WEBHOOK,
            Channel::Email(_) => crate::routing::EMAIL,
            Channel::Mqtt(_) => crate::routing::MQTT,
            Channel::Canary => crate::canary::CHANNEL,
        }
    }

    fn check(&self) -> &'static str {
        match self {
            Channel::Webhook(_) => "notices-webhook",
            Channel::Email(_) => "notices-email",
            Channel::Mqtt(_) => "notices-mqtt",
            Channel::Canary => "notices-canary",
        }
    }

    async fn send(&self, message: &Message<'_>) -> Result<(), Undelivered> {
        match self {
            Channel::Webhook(webhook) => webhook.send(message).await,
            Channel::Email(email) => email.send(message).await,
            Channel::Mqtt(mqtt) => mqtt.send(message).await,
            Channel::Canary => Ok(()),
        }
    }

    /// Groups notices into messages: e-mail takes all notices about one patient, other channels
    /// take one each.
    fn messages(&self, taken: Vec<QueuedNotice>) -> Vec<Vec<QueuedNotice>> {
        let Channel::Email(_) = self else {
            return taken.into_iter().map(|notice| vec![notice]).collect();
        };
        let mut messages: Vec<Vec<QueuedNotice>> = Vec::new();
        let mut places: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        for queued in taken {
            let notice = &queued.notice;
            let patient = notice.alert.as_ref().map_or("", |alert| &alert.patient);
            let key = (
                notice.tenant.clone(),
                patient.to_owned(),
                notice.recipient.clone(),
            );
            match places.get(&key) {
                Some(place) => messages[*place].push(queued),
                None => {
                    places.insert(key, messages.len());
                    messages.push(vec![queued]);
                }
            }
        }
        messages
    }
}

pub(super) struct Worker {
    channel: Arc<Channel>,
    wake: Arc<Notify>,
}

impl Worker {
    pub(super) fn new(channel: Channel) -> Worker {
        Worker {
            channel: Arc::new(channel),
            wake: Arc::default(),
        }
    }

    /// Notified when a notice is due at once.
    pub(super) fn wake(&self) -> Arc<Notify> {
        Arc::clone(&self.wake)
    }

    pub(super) async fn run(self, store: Arc<dyn Store>, delivery: Delivery, context: Context) {
        let name = self.channel.name();
        let check = context.health().check(self.channel.check());
        let turns = context.health().progress(self.channel.check(), SILENCE_MAX);
        let shutdown = context.shutdown().clone();
        let mut backoff = Backoff::for_reconnect();
        let mut lanes = Lanes::default();
        while !shutdown.is_requested() {
            turns.beat();
            // This clock never steps back, so no notice waits for a time that was reached before.
            let now_us = context.clock().unstepped_us();
            let room = TAKE_MAX.saturating_sub(lanes.notices());
            let taken = match room {
                0 => Ok(Vec::new()),
                _ => {
                    let until_us = now_us + LEASE_US;
                    store.take_notices(name, now_us, until_us, room).await
                }
            };
            let mut taken = match taken {
                Ok(taken) => taken,
                Err(error) => {
                    check.failing(error.to_string());
                    tokio::select! {
                        () = shutdown.requested() => break,
                        () = backoff.wait() => continue,
                    }
                }
            };
            check.ok();
            backoff.reset();
            let older = delivery.take_older(&mut taken, now_us);
            if !older.is_empty() {
                settle(Settle::Done(older), &store, &shutdown).await;
            }
            if taken.is_empty() {
                // A notice behind one that has just been settled is due at once.
                tokio::select! {
                    () = shutdown.requested() => break,
                    () = self.wake.notified() => {}
                    () = lanes.some_are_done(), if !lanes.running.is_empty() => {}
                    () = tokio::time::sleep(POLL) => {}
                }
            } else {
                self.deliver(taken, &mut lanes, &store, &delivery, &context);
            }
        }
        // Settled notices have left the queue. The rest becomes due at once for another member.
        lanes.running.abort_all();
        let left: Vec<String> = lanes.in_hand.into_values().flatten().collect();
        if !left.is_empty()
            && let Err(error) = store.delay_notices(&left, context.clock().now_us()).await
        {
            tracing::debug!(%error, "notices wait for the end of their lease");
        }
    }

    /// Runs different alerts concurrently and the notices of one in order. The store returns none
    /// that is behind one in hand.
    fn deliver(
        &self,
        taken: Vec<QueuedNotice>,
        lanes: &mut Lanes,
        store: &Arc<dyn Store>,
        delivery: &Delivery,
        context: &Context,
    ) {
        let mut sorted: BTreeMap<String, Vec<Vec<QueuedNotice>>> = BTreeMap::new();
        for message in self.channel.messages(taken) {
            let first = message.first().map(|queued| &queued.notice);
            let alert = first.and_then(|notice| notice.alert.as_ref());
            let lane = format!(
                "{} {}",
                alert.map_or("", |alert| &alert.id),
                first.map_or("", |notice| &notice.recipient)
            );
            sorted.entry(lane).or_default().push(message);
        }
        for messages in sorted.into_values() {
            let channel = Arc::clone(&self.channel);
            let store = Arc::clone(store);
            let (delivery, context) = (delivery.clone(), context.clone());
            let queued = messages.iter().flatten();
            let ids: Vec<String> = queued.map(|queued| queued.notice.id.clone()).collect();
            let running = lanes.running.spawn(async move {
                let mut messages = messages.into_iter();
                while let Some(message) = messages.next() {
                    if let Some(due_us) =
                        try_once(&channel, message, &store, &delivery, &context).await
                    {
                        // The notices behind it wait as well.
                        let rest: Vec<String> =
                            messages.flatten().map(|queued| queued.notice.id).collect();
                        let batch = Settle::Later(rest, due_us);
                        settle(batch, &store, context.shutdown()).await;
                        return;
                    }
                }
            });
            lanes.in_hand.insert(running.id(), ids);
        }
    }
}

/// Notices that a worker has taken and not settled, at most [`TAKE_MAX`].
#[derive(Default)]
struct Lanes {
    running: JoinSet<()>,
    in_hand: HashMap<Id, Vec<String>>,
}

impl Lanes {
    fn notices(&self) -> usize {
        self.in_hand.values().map(Vec::len).sum()
    }

    async fn some_are_done(&mut self) {
        let mut done = self.running.join_next_with_id().await;
        while let Some(lane) = done {
            let id = lane.map_or_else(
                |error| {
                    tracing::error!(%error, "a delivery ended without a result; it is repeated after its lease");
                    error.id()
                },
                |(id, ())| id,
            );
            self.in_hand.remove(&id);
            done = self.running.try_join_next_with_id();
        }
    }
}

/// When to try again. `None`: the outcome is stored.
async fn try_once(
    channel: &Channel,
    queued: Vec<QueuedNotice>,
    store: &Arc<dyn Store>,
    delivery: &Delivery,
    context: &Context,
) -> Option<i64> {
    let shutdown = context.shutdown();
    let name = channel.name();
    let notices: Vec<&contracts::alerts::Notice> =
        queued.iter().map(|queued| &queued.notice).collect();
    let sent = channel
        .send(&Message::new(&notices, delivery.public_url.as_deref()))
        .await;
    let now_us = context.clock().now_us();
    let attempts = queued
        .iter()
        .map(|queued| queued.attempts)
        .max()
        .unwrap_or(1);
    let created_us = notices
        .iter()
        .map(|notice| notice.created_us.max(notice.due_us))
        .min()
        .unwrap_or(now_us);
    let (result, detail) = match sent {
        Ok(()) => {
            count(name, "delivered");
            (NoticeResult::Delivered, String::new())
        }
        Err(error) if !error.is_retryable || tried_us(attempts) > delivery.give_up_us => {
            count(name, "given_up");
            tracing::error!(
                channel = name,
                notice = notices.first().map(|notice| &notice.id),
                reason = error.reason,
                "the notice is given up; nobody was notified"
            );
            (NoticeResult::GivenUp, error.reason)
        }
        Err(error) => {
            count(name, "retried");
            tracing::warn!(
                channel = name,
                notice = notices.first().map(|notice| &notice.id),
                reason = error.reason,
                attempts,
                "not delivered"
            );
            let due_us = context.clock().unstepped_us() + pause_us(attempts);
            let ids = notices.iter().map(|notice| notice.id.clone()).collect();
            settle(Settle::Later(ids, due_us), store, shutdown).await;
            return Some(due_us);
        }
    };
    if result == NoticeResult::Delivered {
        let waited_s = (now_us - created_us).max(0) as f64 / 1e6;
        metrics::histogram!("braid_alerting_notice_seconds", "channel" => name).record(waited_s);
    }
    let outcomes = queued.iter().map(|queued| NoticeOutcome {
        notice: queued.notice.id.clone(),
        result: result.into(),
        attempts: queued.attempts,
        at_us: now_us,
        detail: detail.clone(),
    });
    settle(Settle::Done(outcomes.collect()), store, shutdown).await;
    None
}

enum Settle {
    Done(Vec<NoticeOutcome>),
    Later(Vec<String>, i64),
}

/// Tries until the store has the outcome. A lost outcome means another attempt after the lease.
async fn settle(what: Settle, store: &Arc<dyn Store>, shutdown: &Shutdown) {
    let mut backoff = Backoff::for_reconnect();
    loop {
        let written = match &what {
            Settle::Done(outcomes) => {
                let batch = NoticesBatch {
                    outcomes: outcomes.clone(),
                    ..NoticesBatch::default()
                };
                store.write_notices(batch).await.map(drop)
            }
            Settle::Later(ids, _) if ids.is_empty() => return,
            Settle::Later(ids, due_us) => store.delay_notices(ids, *due_us).await,
        };
        match written {
            Ok(()) => return,
            Err(error) if !error.is_retryable() => {
                tracing::error!(%error, "the outcome of a notice cannot be stored");
                return;
            }
            Err(error) => tracing::warn!(%error, "the outcome of a notice is not stored yet"),
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = backoff.wait() => {}
        }
    }
}

/// Minimum time of the attempts so far. The clock would not do: after a power cut or a clock
/// change, the first attempt would be the last.
fn tried_us(attempts: u32) -> i64 {
    // From here on pauses have the longest duration.
    const RISING: u32 = 8;
    let rising_us: i64 = (1..attempts.min(RISING + 1)).map(pause_us).sum();
    rising_us + i64::from(attempts.saturating_sub(RISING + 1)) * PAUSE_US.1
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
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_tried_for_hours_is_not_given_up_at_once() {
        let (hour_us, day_us) = (3_600_000_000, 86_400_000_000);
        assert_eq!(tried_us(1), 0, "however old it is");
        let give_up_after = |give_up_us| (1..).find(|n| tried_us(*n) > give_up_us);
        assert_eq!(give_up_after(1_000_000), Some(4));
        assert_eq!(give_up_after(hour_us), Some(128));
        assert_eq!(give_up_after(day_us), Some(2888));
        assert!(tried_us(u32::MAX) > day_us);
    }

    #[test]
    fn notices_of_before_a_restore_are_withheld_and_the_others_sent() {
        let queued = |id: &str, created_us| QueuedNotice {
            notice: contracts::alerts::Notice {
                id: id.to_owned(),
                created_us,
                ..Default::default()
            },
            attempts: 1,
        };
        let both = || vec![queued("before", 99), queued("after", 100)];
        let mut delivery = Delivery {
            give_up_us: 0,
            public_url: None,
            restore: None,
        };
        assert!(delivery.take_older(&mut both(), 200).is_empty());
        delivery.restore = Some(Restore {
            restored_us: 100,
            made_us: 50,
        });
        let mut taken = both();
        let older = delivery.take_older(&mut taken, 200);
        assert_eq!((older.len(), older[0].notice.as_str()), (1, "before"));
        assert_eq!(older[0].result(), NoticeResult::Silenced);
        assert_eq!(taken, [queued("after", 100)]);
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        assert_eq!(pause_us(1), 200_000);
        assert_eq!(pause_us(2), 400_000);
        assert_eq!(pause_us(8), 25_600_000);
        for attempts in [9, 100, u32::MAX] {
            assert_eq!(pause_us(attempts), 30_000_000);
        }
    }
}
