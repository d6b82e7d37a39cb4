//! A queue of datagrams. At the bound the newest is dropped: senders of UDP tolerate losses, and
//! the oldest leave first.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Kind, TunnelEnded};

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
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    ended: Option<TunnelEnded>,
}

impl Queue {
    pub(crate) fn new(kind: Kind) -> Self {
        Self(Arc::new(Inner {
            kind,
            state: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// The kind of the queued datagrams.
    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns whether there was room.
    pub(crate) fn push(&self, payload: Bytes) -> bool {
        let mut state = self.0.state.lock();
        let bytes = state.bytes + payload.len() + OVERHEAD_BYTES;
        if bytes > QUEUE_BYTES_MAX || state.ended.is_some() {
            return false;
        }
        state.bytes = bytes;
        state.waiting.push_back(payload);
        drop(state);
        self.0.changed.notify_one();
        true
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
            {
                let mut state = self.0.state.lock();
                if let Some(payload) = state.waiting.pop_front() {
                    state.bytes -= payload.len() + OVERHEAD_BYTES;
                    return Ok(payload);
                }
                if let Some(reason) = &state.ended {
                    return Err(reason.clone());
                }
            }
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn the_newest_is_dropped_when_the_queue_is_full_and_the_oldest_goes_first() {
        let queue = Queue::new(Kind::Udp);
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
        let queue = Queue::new(Kind::Udp);
        let taken = (0..10_000).take_while(|_| queue.push(Bytes::new())).count();
        assert_eq!(taken, 4_096);
    }

    #[tokio::test]
    async fn waiting_datagrams_come_before_the_end() {
        let queue = Queue::new(Kind::Udp);
        assert!(queue.push(Bytes::from_static(b"last")));
        queue.end(TunnelEnded::ByPeer);
        queue.end(TunnelEnded::Session);
        assert!(!queue.push(Bytes::new()));
        assert_eq!(queue.next().await.unwrap(), "last");
        assert_eq!(queue.next().await, Err(TunnelEnded::ByPeer));
        assert_eq!(queue.next().await, Err(TunnelEnded::ByPeer));
    }
}
