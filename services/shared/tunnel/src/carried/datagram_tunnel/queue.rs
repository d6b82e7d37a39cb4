//! A queue of datagrams. At the bound the newest is dropped: senders of UDP tolerate losses, and
//! the oldest leave first. A queue of leaving datagrams that stands is shortened before. Arrived
//! datagrams that have a sequence number wait for earlier ones. Many that leave the order at once
//! are handed on in portions: the socket of a program holds some hundred.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    controlled_delay::ControlledDelay,
    copies_seen::CopiesSeen,
    ended::TunnelEnded,
    kind::Kind,
    order::{self, HELD_BYTES_MAX, Order, Patience, Released},
    payload::Payload,
    sequence_number::SequenceNumber,
};
use crate::paths::Paths;

/// Bytes in one direction of one request: the burst of a sender that doubles its window each round
/// trip, for 80 ms at 100 Mbit/s. At the bound the newest datagram is dropped and counted.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes that leave in all requests of a connection. At this bound each request has room for
/// `QUEUE_BYTES_MIN`.
const CONNECTION_BYTES_MAX: usize = 8 * QUEUE_BYTES_MAX;

/// Room of a request whatever the others hold, and of a request of which no sum is known.
const QUEUE_BYTES_MIN: usize = 256 * 1024;

/// Packets that the peer asks for; further ones are forgotten.
const ASKED_MAX: usize = 512;

/// Pause between portions.
const PORTION_PAUSE: Duration = Duration::from_millis(1);

/// Memory of a waiting datagram beside its payload.
const OVERHEAD_BYTES: usize = 64;

/// Clones are the same queue.
#[derive(Debug, Clone)]
pub(crate) struct Queue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    state: Mutex<State>,
    changed: Notify,
    /// The paths by which ordered packets come; `None`: no order is agreed.
    ordered_by: Option<Arc<Paths>>,
    /// Packets that did not come are asked for.
    repaired: bool,
    /// There may be something to ask or to answer.
    to_repair: Notify,
}

/// Work of the end that sends, for packets that were lost.
#[derive(Debug)]
pub(super) enum Repair {
    /// These did not come.
    Ask(Vec<SequenceNumber>),
    /// These are sent again.
    Answer(Vec<SequenceNumber>),
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    copies_seen: CopiesSeen,
    waiting: VecDeque<Datagram>,
    bytes: usize,
    /// Drops from a queue that stands; only for datagrams that leave.
    controlled_delay: Option<ControlledDelay>,
    /// The connection's sum of `bytes`; only for those that leave.
    sum: Option<Arc<AtomicUsize>>,
    ended: Option<TunnelEnded>,
    /// Packets that the peer asks for. At most `ASKED_MAX`.
    asked: Vec<SequenceNumber>,
    portions: Portions,
}

/// Portions of what left the order at once.
#[derive(Debug, Default)]
struct Portions {
    /// Datagrams that wait and leave in portions.
    left: usize,
    size: usize,
    /// Datagrams of the current portion that have left.
    taken: usize,
    next_at: Option<Instant>,
}

/// A datagram that waits.
#[derive(Debug)]
struct Datagram {
    since: Instant,
    payload: Bytes,
    /// It leaves twice, by two paths.
    copied: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        state.count_out(state.bytes);
    }
}

impl Queue {
    /// For datagrams that leave; their bytes count into the sum.
    pub(crate) fn leaving(kind: Kind, sum: Option<Arc<AtomicUsize>>) -> Self {
        let state = State {
            controlled_delay: Some(ControlledDelay::default()),
            sum,
            ..State::default()
        };
        Self::with(kind, None, false, state)
    }

    /// With an order of packets that come over these paths, if it is agreed, and a repair.
    pub(crate) fn ordered(kind: Kind, ordered_by: Option<Arc<Paths>>, repaired: bool) -> Self {
        Self::with(kind, ordered_by, repaired, State::default())
    }

    fn with(kind: Kind, ordered_by: Option<Arc<Paths>>, repaired: bool, state: State) -> Self {
        Self(Arc::new(Inner {
            kind,
            state: Mutex::new(state),
            changed: Notify::new(),
            ordered_by,
            repaired,
            to_repair: Notify::new(),
        }))
    }

    /// Whether lost packets are sent again.
    pub(super) fn is_repaired(&self) -> bool {
        self.0.repaired
    }

    /// Whether an order is agreed.
    pub(crate) fn is_ordered(&self) -> bool {
        self.0.ordered_by.is_some()
    }

    /// The kind of the queued datagrams.
    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns whether there was room. A copied one leaves twice.
    pub(crate) fn push(&self, payload: Bytes, copied: bool) -> bool {
        let taken = self.0.state.lock().push(payload, copied);
        if taken {
            self.0.changed.notify_one();
        }
        taken
    }

    /// Takes an arrived payload, in its order. Without room it is dropped and counted.
    pub(crate) fn push_arrived(&self, payload: Payload) {
        // A copy, so that a few bytes do not keep the whole received packet in memory.
        let bytes = Bytes::copy_from_slice(&payload.bytes);
        let Some(sequence) = payload.sequence else {
            if !self.push(bytes, false) {
                self.0.kind.count_dropped("arriving");
            }
            return;
        };
        // Without an agreement the context is unknown.
        let Some(paths) = &self.0.ordered_by else {
            return;
        };
        let now = Instant::now();
        let mut state = self.0.state.lock();
        if state.ended.is_some() {
            return;
        }
        let patience = Patience {
            within: order::comes_within(state.order.observed(now), paths.skew()),
            rtt: self.0.repaired.then(|| paths.rtt()),
        };
        let before = state.order.next_question();
        let released = state.order.arrived(now, patience, sequence, bytes);
        let next = state.order.next_question();
        let is_sooner = next.is_some_and(|next| before.is_none_or(|before| next < before));
        let (kind, is_copy) = (self.0.kind, released.is_copy);
        state.copies_seen.note(kind, &payload.bytes, is_copy);
        state.take(released, self.0.kind);
        drop(state);
        if is_sooner {
            self.0.to_repair.notify_one();
        }
        // Also if it is held: the deadline may be new.
        self.0.changed.notify_one();
    }

    /// Takes the peer's question.
    pub(crate) fn push_question(&self, mut asked: Vec<SequenceNumber>) {
        let mut state = self.0.state.lock();
        asked.truncate(ASKED_MAX - state.asked.len());
        if self.0.repaired && !asked.is_empty() {
            state.asked.append(&mut asked);
            self.0.to_repair.notify_one();
        }
    }

    /// The next work for packets that were lost. Never ready without an agreement. For one caller
    /// at a time; cancel-safe.
    pub(super) async fn next_repair(&self) -> Repair {
        let Some(paths) = self.0.ordered_by.as_ref().filter(|_| self.0.repaired) else {
            return std::future::pending().await;
        };
        loop {
            let next_question = {
                let mut state = self.0.state.lock();
                if !state.asked.is_empty() {
                    return Repair::Answer(std::mem::take(&mut state.asked));
                }
                let question = state.order.question(Instant::now(), paths.rtt());
                if !question.is_empty() {
                    return Repair::Ask(question);
                }
                state.order.next_question()
            };
            woken(&self.0.to_repair, next_question).await;
        }
    }

    /// Whether the datagrams come twice that this one answers.
    pub(crate) fn has_copies(&self, answer: &[u8]) -> bool {
        let state = self.0.state.lock();
        state.copies_seen.has_copies(self.0.kind, answer)
    }

    /// Accepts no more datagrams; only the first reason counts.
    pub(crate) fn end(&self, reason: TunnelEnded) {
        self.0.state.lock().ended.get_or_insert(reason);
        self.0.changed.notify_one();
    }

    pub(crate) fn ended(&self) -> Option<TunnelEnded> {
        self.0.state.lock().ended.clone()
    }

    /// The oldest datagram, or the reason of the end once the queue is empty. For one receiver at a
    /// time.
    pub(crate) async fn next(&self) -> Result<Bytes, TunnelEnded> {
        self.next_to_leave().await.map(|(payload, _)| payload)
    }

    /// The same, and whether it leaves twice.
    pub(crate) async fn next_to_leave(&self) -> Result<(Bytes, bool), TunnelEnded> {
        loop {
            let deadline = {
                let mut state = self.0.state.lock();
                let deadline = state.order.next_deadline();
                if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    let released = state.order.expire(Instant::now());
                    state.take(released, self.0.kind);
                }
                let portion_at = state.portions.waits_until(Instant::now());
                if portion_at.is_none() {
                    if let Some(payload) = state.pop(Instant::now(), self.0.kind) {
                        return Ok(payload);
                    }
                    if let Some(reason) = &state.ended {
                        return Err(reason.clone());
                    }
                }
                portion_at.or(state.order.next_deadline())
            };
            woken(&self.0.changed, deadline).await;
        }
    }
}

impl Queue {
    /// The oldest datagram if it waits, leaves once and is no longer than this.
    pub(crate) fn take_next(&self, length_max: usize) -> Option<Bytes> {
        let mut state = self.0.state.lock();
        let fits = |it: &Datagram| !it.copied && it.payload.len() <= length_max;
        let (payload, _) = state.pop_if(Instant::now(), self.0.kind, fits)?;
        Some(payload)
    }

    /// The same with those that wait behind it, up to so many of them; cancel-safe.
    pub(crate) async fn next_many(
        &self,
        taken: &mut Vec<Bytes>,
        max: usize,
    ) -> Result<(), TunnelEnded> {
        taken.push(self.next().await?);
        let (now, mut state) = (Instant::now(), self.0.state.lock());
        while taken.len() < max
            && state.portions.next_at.is_none()
            && let Some((payload, _)) = state.pop(now, self.0.kind)
        {
            taken.push(payload);
        }
        Ok(())
    }
}

impl State {
    fn push(&mut self, payload: Bytes, copied: bool) -> bool {
        let bytes = self.bytes + payload.len() + OVERHEAD_BYTES;
        if bytes > self.bytes_max() || self.ended.is_some() {
            return false;
        }
        if let Some(sum) = &self.sum {
            sum.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        self.waiting.push_back(Datagram {
            since: Instant::now(),
            payload,
            copied,
        });
        true
    }

    fn bytes_max(&self) -> usize {
        match (&self.controlled_delay, &self.sum) {
            // It only holds what the order releases at once.
            (None, _) => QUEUE_BYTES_MAX + HELD_BYTES_MAX,
            (Some(_), None) => QUEUE_BYTES_MIN,
            (Some(_), Some(sum)) => match sum.load(Ordering::Relaxed) < CONNECTION_BYTES_MAX {
                true => QUEUE_BYTES_MAX,
                false => QUEUE_BYTES_MIN,
            },
        }
    }

    /// The oldest datagram that is not dropped, and whether it leaves twice.
    fn pop(&mut self, now: Instant, kind: Kind) -> Option<(Bytes, bool)> {
        self.pop_if(now, kind, |_| true)
    }

    /// The same if it is like this.
    fn pop_if(
        &mut self,
        now: Instant,
        kind: Kind,
        fits: impl Fn(&Datagram) -> bool,
    ) -> Option<(Bytes, bool)> {
        while let Some(first) = self.waiting.pop_front_if(|it| fits(it)) {
            let Datagram {
                since,
                payload,
                copied,
            } = first;
            let bytes = payload.len() + OVERHEAD_BYTES;
            self.bytes -= bytes;
            self.count_out(bytes);
            self.portions.took_one(now);
            let waited = now.saturating_duration_since(since);
            let is_last = self.waiting.is_empty();
            let drops = |codel: &mut ControlledDelay| codel.drops(now, waited, is_last);
            if !self.controlled_delay.as_mut().is_some_and(drops) {
                return Some((payload, copied));
            }
            kind.count_dropped("standing");
        }
        None
    }

    fn count_out(&self, bytes: usize) {
        if let Some(sum) = &self.sum {
            sum.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn take(&mut self, released: Released, kind: Kind) {
        if released.packets.len() > released.portion && released.portion > 0 {
            self.portions.left = self.waiting.len() + released.packets.len();
            self.portions.size = released.portion;
        }
        for packet in released.packets {
            if !self.push(packet, false) {
                kind.count_dropped("arriving");
            }
        }
        for _ in 0..released.dropped {
            kind.count_dropped("late");
        }
    }
}

/// Waits for a change, or until the deadline; either way the state says what is next.
async fn woken(changed: &Notify, deadline: Option<Instant>) {
    let changed = changed.notified();
    match deadline {
        Some(deadline) => {
            let _ = tokio::time::timeout_at(deadline.into(), changed).await;
        }
        None => changed.await,
    }
}

impl Portions {
    /// When the next portion leaves, if that is later.
    fn waits_until(&mut self, now: Instant) -> Option<Instant> {
        self.next_at = self.next_at.filter(|at| *at > now);
        self.next_at
    }

    fn took_one(&mut self, now: Instant) {
        self.left = self.left.saturating_sub(1);
        self.taken += 1;
        if self.left == 0 {
            self.taken = 0;
        } else if self.taken >= self.size {
            self.taken = 0;
            self.next_at = Some(now + PORTION_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_newest_is_dropped_when_the_queue_is_full_and_the_oldest_goes_first() {
        let queue = Queue::leaving(Kind::Udp, None);
        let taken = (0..=u8::MAX)
            .take_while(|index| queue.push(Bytes::from(vec![*index; 4_032]), false))
            .count();
        assert_eq!(taken, 64);
        assert_eq!(queue.next().await.unwrap()[0], 0);
        assert!(queue.push(Bytes::new(), false) && !queue.push(Bytes::from(vec![0; 4_032]), false));
        assert_eq!(queue.next().await.unwrap()[0], 1);
    }

    #[tokio::test]
    async fn empty_datagrams_are_bounded_too() {
        let queue = Queue::leaving(Kind::Udp, None);
        let taken = (0..10_000)
            .take_while(|_| queue.push(Bytes::new(), false))
            .count();
        assert_eq!(taken, 4_096);
    }

    #[tokio::test]
    async fn a_request_takes_a_burst_while_its_connection_has_room() {
        let datagram = || Bytes::from(vec![0; 4_032]);
        let fill = |queue: &Queue| {
            (0..2_000)
                .take_while(|_| queue.push(datagram(), false))
                .count()
        };
        let sum = Arc::<AtomicUsize>::default();
        let queues = [(); 10].map(|()| Queue::leaving(Kind::Udp, Some(sum.clone())));
        let taken = queues.each_ref().map(fill);
        assert_eq!(taken, [256, 256, 256, 256, 256, 256, 256, 256, 64, 64]);
        // Datagrams that the order releases at once have room as well.
        let all = QUEUE_BYTES_MAX + HELD_BYTES_MAX;
        assert_eq!(
            fill(&Queue::ordered(Kind::Udp, None, false)),
            all / (4_032 + OVERHEAD_BYTES)
        );
    }

    #[test]
    fn a_queue_that_stands_is_shortened_and_counts_out_what_it_drops() {
        let sum = Arc::<AtomicUsize>::default();
        let queue = Queue::leaving(Kind::Udp, Some(sum.clone()));
        for index in 0..100_u8 {
            assert!(queue.push(Bytes::from(vec![index; 32]), false));
        }
        let (pushed, mut state) = (Instant::now(), queue.0.state.lock());
        let pop = |ms| state.pop(pushed + Duration::from_millis(ms), Kind::Udp);
        let received = (20..=400).step_by(20).filter_map(pop).count();
        drop(state);
        let left = sum.load(Ordering::Relaxed) / (32 + OVERHEAD_BYTES);
        assert!(received + left < 100, "{received} received, {left} left");
    }

    #[tokio::test]
    async fn the_connection_knows_how_much_waits_in_its_queues() {
        let sum = Arc::<AtomicUsize>::default();
        let [first, second] = [(); 2].map(|()| Queue::leaving(Kind::Ip, Some(sum.clone())));
        let waits = || sum.load(Ordering::Relaxed);
        for queue in [&first, &second] {
            assert!(
                queue.push(Bytes::from(vec![0; 100]), false) && queue.push(Bytes::new(), false)
            );
        }
        assert_eq!(waits(), 2 * (100 + 2 * OVERHEAD_BYTES));
        first.next().await.unwrap();
        assert_eq!(waits(), 100 + 3 * OVERHEAD_BYTES);
        drop(second);
        assert_eq!(waits(), OVERHEAD_BYTES);
    }

    #[test]
    fn many_that_leave_the_order_at_once_are_handed_on_in_portions() {
        let (mut state, now) = (State::default(), Instant::now());
        let released = |count| Released {
            packets: vec![Bytes::new(); count],
            portion: 16,
            ..Released::default()
        };
        let mut taken = |count: usize| {
            state.take(released(count), Kind::Udp);
            let mut portions = vec![0];
            while state.pop(now, Kind::Udp).is_some() {
                *portions.last_mut().unwrap() += 1;
                if state.portions.next_at.take().is_some() {
                    portions.push(0);
                }
            }
            portions
        };
        assert_eq!(taken(40), [16, 16, 8]);
        assert_eq!(taken(16), [16], "as many as come in a moment");
        assert_eq!(taken(17), [16, 1]);
    }

    #[tokio::test]
    async fn waiting_datagrams_come_before_the_end() {
        let queue = Queue::ordered(Kind::Udp, None, false);
        assert!(queue.push(Bytes::from_static(b"last"), false));
        queue.end(TunnelEnded::ByPeer);
        queue.end(TunnelEnded::Session);
        assert!(!queue.push(Bytes::new(), false));
        assert_eq!(queue.next().await.unwrap(), "last");
        assert_eq!(queue.next().await, Err(TunnelEnded::ByPeer));
        assert_eq!(queue.next().await, Err(TunnelEnded::ByPeer));
    }
}
