//! A queue of datagrams. At the bound the newest is dropped: senders of UDP tolerate losses, and
//! the oldest leave first. Arrived packets that have a place in an order wait for earlier ones.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Kind, TunnelEnded,
    order::{self, Order, Released},
    payload::Payload,
};
use crate::paths::Paths;

/// Bytes in one direction of one request, which is 25 ms at 80 Mbit/s. At the bound the newest
/// datagram is dropped and counted.
const QUEUE_BYTES_MAX: usize = 256 * 1024;

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
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// The connection's sum of `bytes`.
    sum: Option<Arc<AtomicUsize>>,
    ended: Option<TunnelEnded>,
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
        Self::with(kind, None, sum)
    }

    /// With an order of packets that come over these paths, if it is agreed.
    pub(crate) fn ordered(kind: Kind, ordered_by: Option<Arc<Paths>>) -> Self {
        Self::with(kind, ordered_by, None)
    }

    fn with(kind: Kind, ordered_by: Option<Arc<Paths>>, sum: Option<Arc<AtomicUsize>>) -> Self {
        let state = State {
            sum,
            ..State::default()
        };
        Self(Arc::new(Inner {
            kind,
            state: Mutex::new(state),
            changed: Notify::new(),
            ordered_by,
        }))
    }

    /// Whether an order is agreed.
    pub(crate) fn is_ordered(&self) -> bool {
        self.0.ordered_by.is_some()
    }

    /// The kind of the queued datagrams.
    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns whether there was room.
    pub(crate) fn push(&self, payload: Bytes) -> bool {
        let taken = self.0.state.lock().push(payload);
        if taken {
            self.0.changed.notify_one();
        }
        taken
    }

    /// Takes an arrived payload, at its place in the order. Without room it is dropped and counted.
    pub(crate) fn push_arrived(&self, payload: Payload) {
        // A copy, so that a few bytes do not keep the whole received packet in memory.
        let bytes = Bytes::copy_from_slice(&payload.bytes);
        let Some(place) = payload.place else {
            if !self.push(bytes) {
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
        let within = order::held_within(state.order.observed(now), paths.skew());
        let released = state.order.arrived(now, within, place, bytes);
        state.take(released, self.0.kind);
        drop(state);
        // Also if it is held: the deadline may be new.
        self.0.changed.notify_one();
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
        loop {
            let deadline = {
                let mut state = self.0.state.lock();
                let deadline = state.order.next_deadline();
                if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    let released = state.order.expire(Instant::now());
                    state.take(released, self.0.kind);
                }
                if let Some(payload) = state.waiting.pop_front() {
                    let bytes = payload.len() + OVERHEAD_BYTES;
                    state.bytes -= bytes;
                    state.count_out(bytes);
                    return Ok(payload);
                }
                if let Some(reason) = &state.ended {
                    return Err(reason.clone());
                }
                state.order.next_deadline()
            };
            let changed = self.0.changed.notified();
            match deadline {
                Some(deadline) => {
                    // Either way the state says what is next.
                    let _ = tokio::time::timeout_at(deadline.into(), changed).await;
                }
                None => changed.await,
            }
        }
    }
}

impl State {
    fn push(&mut self, payload: Bytes) -> bool {
        let bytes = self.bytes + payload.len() + OVERHEAD_BYTES;
        if bytes > QUEUE_BYTES_MAX || self.ended.is_some() {
            return false;
        }
        if let Some(sum) = &self.sum {
            sum.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
        self.waiting.push_back(payload);
        true
    }

    fn count_out(&self, bytes: usize) {
        if let Some(sum) = &self.sum {
            sum.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn take(&mut self, released: Released, kind: Kind) {
        for packet in released.packets {
            if !self.push(packet) {
                kind.count_dropped("arriving");
            }
        }
        for _ in 0..released.dropped {
            kind.count_dropped("late");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn the_newest_is_dropped_when_the_queue_is_full_and_the_oldest_goes_first() {
        let queue = Queue::ordered(Kind::Udp, None);
        let taken = (0..=u8::MAX)
            .take_while(|index| queue.push(Bytes::from(vec![*index; 4_032])))
            .count();
        assert_eq!(taken, 64);
        assert_eq!(queue.next().await.unwrap()[0], 0);
        assert!(queue.push(Bytes::new()) && !queue.push(Bytes::from(vec![0; 4_032])));
        assert_eq!(queue.next().await.unwrap()[0], 1);
    }

    #[tokio::test]
    async fn empty_datagrams_are_bounded_too() {
        let queue = Queue::ordered(Kind::Udp, None);
        let taken = (0..10_000).take_while(|_| queue.push(Bytes::new())).count();
        assert_eq!(taken, 4_096);
    }

    #[tokio::test]
    async fn the_connection_knows_how_much_waits_in_its_queues() {
        let sum = Arc::<AtomicUsize>::default();
        let [first, second] = [(); 2].map(|()| Queue::leaving(Kind::Ip, Some(sum.clone())));
        let waits = || sum.load(Ordering::Relaxed);
        for queue in [&first, &second] {
            assert!(queue.push(Bytes::from(vec![0; 100])) && queue.push(Bytes::new()));
        }
        assert_eq!(waits(), 2 * (100 + 2 * OVERHEAD_BYTES));
        first.next().await.unwrap();
        assert_eq!(waits(), 100 + 3 * OVERHEAD_BYTES);
        drop(second);
        assert_eq!(waits(), OVERHEAD_BYTES);
    }

    #[tokio::test]
    async fn waiting_datagrams_come_before_the_end() {
        let queue = Queue::ordered(Kind::Udp, None);
        assert!(queue.push(Bytes::from_static(b"last")));
        queue.end(TunnelEnded::ByPeer);
        queue.end(TunnelEnded::Session);
        assert!(!queue.push(Bytes::new()));
        assert_eq!(queue.next().await.unwrap(), "last");
        assert_eq!(queue.next().await, Err(TunnelEnded::ByPeer));
        assert_eq!(queue.next().await, Err(TunnelEnded::ByPeer));
    }
}
