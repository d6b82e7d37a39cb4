//! The interface of each datagram; the fan-out reads it, and the session sets it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::paths::slots::SLOTS_MAX;

/// No interface is settled yet.
const EVERY: usize = usize::MAX;

/// The interface of datagrams without a source address.
#[derive(Debug, Clone)]
pub(crate) struct Race(Arc<AtomicUsize>);

impl Default for Race {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(EVERY)))
    }
}

impl Race {
    /// Sends over every interface until the next datagram arrives.
    pub(crate) fn start(&self) {
        self.0.store(EVERY, Ordering::Relaxed);
    }

    pub(crate) fn settle(&self, interface: usize) {
        let _ = self
            .0
            .compare_exchange(EVERY, interface, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The interface that won, once there is one.
    pub(crate) fn winner(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&interface| interface != EVERY)
    }
}

/// The interface over which each interface's datagrams leave: its own, or temporarily another.
/// Belongs to one session at a time; settings of older sessions are ignored.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    ways: Arc<[AtomicUsize; SLOTS_MAX]>,
    owner: Arc<AtomicU64>,
}

impl Default for Routes {
    fn default() -> Self {
        Self {
            ways: Arc::new(std::array::from_fn(AtomicUsize::new)),
            owner: Arc::default(),
        }
    }
}

impl Routes {
    /// From now on the routes belong to this session; each interface uses itself.
    pub(crate) fn belong_to(&self, session: u64) {
        self.owner.store(session, Ordering::Relaxed);
        for (index, way) in self.ways.iter().enumerate() {
            way.store(index, Ordering::Relaxed);
        }
    }

    pub(crate) fn set(&self, session: u64, from: usize, to: usize) {
        if self.owner.load(Ordering::Relaxed) == session
            && let Some(way) = self.ways.get(from)
        {
            way.store(to, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, from: usize) -> usize {
        self.ways
            .get(from)
            .map_or(from, |way| way.load(Ordering::Relaxed))
    }
}
