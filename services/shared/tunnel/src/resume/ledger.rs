//! Bytes that resumable tunnels may hold: each by its window, and accounts for one peer and for
//! all.
//!
//! A tunnel may always hold `FLOOR_BYTES`, so none starves. Further bytes are charged here; while
//! the account is empty the writer waits until its own bytes are confirmed. Check and charge are
//! two steps, so concurrent tunnels may overdraw by one chunk of 64 KB each.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes that each tunnel may hold in any case.
pub(crate) const FLOOR_BYTES: usize = 64 * 1024;

/// An account and the account above it.
#[derive(Debug, Clone)]
pub(crate) struct Ledger(Arc<Account>);

#[derive(Debug)]
struct Account {
    max: usize,
    used: AtomicUsize,
    above: Option<Ledger>,
}

impl Ledger {
    pub(crate) fn new(max: usize) -> Self {
        Self::with(max, None)
    }

    /// A new account that also draws on this one.
    pub(crate) fn below(&self, max: usize) -> Self {
        Self::with(max, Some(self.clone()))
    }

    fn with(max: usize, above: Option<Self>) -> Self {
        Self(Arc::new(Account {
            max,
            used: AtomicUsize::new(0),
            above,
        }))
    }

    fn free(&self) -> usize {
        let free = self
            .0
            .max
            .saturating_sub(self.0.used.load(Ordering::Relaxed));
        let above = self.0.above.as_ref();
        above.map_or(free, |above| free.min(above.free()))
    }

    fn add(&self, bytes: usize) {
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(above) = &self.0.above {
            above.add(bytes);
        }
    }

    fn sub(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(above) = &self.0.above {
            above.sub(bytes);
        }
    }
}

/// The charge of one tunnel; dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct Share {
    ledger: Ledger,
    charged: usize,
}

impl Share {
    pub(crate) fn of(ledger: Ledger) -> Self {
        Self { ledger, charged: 0 }
    }

    /// Number of bytes that a tunnel with `held` bytes may add.
    pub(crate) fn room(&self, held: usize) -> usize {
        FLOOR_BYTES.saturating_sub(held).max(self.ledger.free())
    }

    pub(crate) fn settle(&mut self, held: usize) {
        let owed = held.saturating_sub(FLOOR_BYTES);
        if owed > self.charged {
            self.ledger.add(owed - self.charged);
        } else if owed < self.charged {
            self.ledger.sub(self.charged - owed);
        }
        self.charged = owed;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_draw_on_their_peers_account_and_on_the_common_one() {
        let all = Ledger::new(1_000_000);
        let (one, other) = (all.below(600_000), all.below(600_000));
        let mut first = Share::of(one.clone());
        first.settle(FLOOR_BYTES + 500_000);
        assert_eq!(first.room(FLOOR_BYTES + 500_000), 100_000);
        let second = Share::of(one);
        assert_eq!(second.room(FLOOR_BYTES), 100_000);
        let mut third = Share::of(other);
        assert_eq!(third.room(FLOOR_BYTES), 500_000);
        third.settle(FLOOR_BYTES + 500_000);
        // The account is empty, but the floor stays.
        assert_eq!(second.room(0), FLOOR_BYTES);
        assert_eq!(second.room(FLOOR_BYTES - 1), 1);
        assert_eq!(second.room(FLOOR_BYTES), 0);
        drop(first);
        assert_eq!(second.room(FLOOR_BYTES), 500_000);
        third.settle(10);
        assert_eq!(second.room(FLOOR_BYTES), 600_000);
    }
}
