//! Quota of each peer: one token bucket for items and one for bytes. Sans-IO: the caller passes the
//! time.
//!
//! Taking is never refused. A peer that took more than it had saved is in debt, and the caller
//! decides what follows: the next message waits, or is dropped. So the price of a message may be
//! known only after the message was processed.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// Peers that are remembered. At the bound, peers with full savings are forgotten, which changes
/// nothing for them. If there are none, all peers are forgotten and have full savings again.
const PEERS_MAX: usize = 100_000;

/// A rate of 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub items_per_s: u64,
    pub bytes_per_s: u64,
    /// A peer saves its unused rate for this time, and may use the savings at once.
    pub saved: Duration,
}

impl Quota {
    pub const fn items(items_per_s: u64, saved: Duration) -> Quota {
        Quota {
            items_per_s,
            bytes_per_s: 0,
            saved,
        }
    }

    const fn is_none(&self) -> bool {
        self.items_per_s == 0 && self.bytes_per_s == 0
    }
}

#[derive(Debug)]
pub struct Quotas<K> {
    quota: Quota,
    peers: HashMap<K, Account>,
}

/// The part of its savings that a peer has used, in seconds of its quota. Beyond [`Quota::saved`]
/// the peer is in debt.
#[derive(Debug, Clone, Copy)]
struct Account {
    items_s: f64,
    bytes_s: f64,
    at: Instant,
    is_warned: bool,
}

impl Account {
    fn earn(&mut self, now: Instant) {
        let earned_s = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.items_s = (self.items_s - earned_s).max(0.0);
        self.bytes_s = (self.bytes_s - earned_s).max(0.0);
        self.is_warned &= self.used_s() > 0.0;
    }

    fn used_s(&self) -> f64 {
        self.items_s.max(self.bytes_s)
    }
}

/// Time that the next message of a peer has to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wait {
    pub wait: Duration,
    /// The first wait since the peer had full savings; worth a log line.
    pub is_first: bool,
}

impl<K: Clone + Eq + Hash> Quotas<K> {
    pub fn new(quota: Quota) -> Quotas<K> {
        Quotas {
            quota,
            peers: HashMap::new(),
        }
    }

    /// The time until the debt of a peer is paid.
    pub fn owed(&mut self, peer: &K, now: Instant) -> Wait {
        let saved_s = self.quota.saved.as_secs_f64();
        let Some(account) = self.account(peer, now) else {
            return Wait::default();
        };
        let wait = Duration::from_secs_f64((account.used_s() - saved_s).max(0.0));
        let is_first = !wait.is_zero() && !account.is_warned;
        account.is_warned |= is_first;
        Wait { wait, is_first }
    }

    /// Items that a peer may send before it is in debt.
    pub fn room(&mut self, peer: &K, now: Instant) -> usize {
        let Quota {
            items_per_s, saved, ..
        } = self.quota;
        match self.account(peer, now) {
            Some(account) if items_per_s > 0 => {
                let left_s = (saved.as_secs_f64() - account.items_s).max(0.0);
                // Corrects a rounding error below a whole item.
                (left_s * items_per_s as f64 + 1e-6) as usize
            }
            _ => usize::MAX,
        }
    }

    /// Charges a message to the peer.
    pub fn take(&mut self, peer: &K, now: Instant, items: usize, bytes: usize) {
        let quota = self.quota;
        let seconds = |count: usize, per_s: u64| match per_s {
            0 => 0.0,
            per_s => count as f64 / per_s as f64,
        };
        if let Some(account) = self.account(peer, now) {
            account.items_s += seconds(items, quota.items_per_s);
            account.bytes_s += seconds(bytes, quota.bytes_per_s);
        }
    }

    fn account(&mut self, peer: &K, now: Instant) -> Option<&mut Account> {
        if self.quota.is_none() {
            return None;
        }
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(peer) {
            self.make_room(now);
        }
        let account = self.peers.entry(peer.clone()).or_insert(Account {
            items_s: 0.0,
            bytes_s: 0.0,
            at: now,
            is_warned: false,
        });
        account.earn(now);
        Some(account)
    }

    fn make_room(&mut self, now: Instant) {
        self.peers.retain(|_, account| {
            account.earn(now);
            account.used_s() > 0.0
        });
        if self.peers.len() >= PEERS_MAX {
            self.peers.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota {
        items_per_s: 100,
        bytes_per_s: 10_000,
        saved: Duration::from_secs(600),
    };
    const SAVED: usize = 60_000;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The debt after a further message.
    fn after<'a>(
        quotas: &mut Quotas<&'a str>,
        of: &'a str,
        now: Instant,
        items: usize,
        bytes: usize,
    ) -> Wait {
        quotas.take(&of, now, items, bytes);
        quotas.owed(&of, now)
    }

    #[test]
    fn savings_may_be_used_at_once_and_the_rest_by_the_second() {
        let mut quotas = Quotas::new(QUOTA);
        let start = Instant::now();
        assert_eq!(
            after(&mut quotas, "thief", start, SAVED, 0),
            Wait::default()
        );
        let owed = after(&mut quotas, "thief", start, 500, 0);
        assert_eq!((owed.wait, owed.is_first), (s(5), true));
        // Each stream of a peer waits for the debt of all its streams.
        let owed = after(&mut quotas, "thief", start + s(2), 300, 0);
        assert_eq!((owed.wait, owed.is_first), (s(6), false));
        assert_eq!(
            after(&mut quotas, "other", start, SAVED, 0),
            Wait::default()
        );
        // Two clock readings in the wrong order earn nothing twice.
        assert_eq!(quotas.owed(&"thief", start + s(1)).wait, s(6));
        assert_eq!(quotas.owed(&"thief", start + s(8)), Wait::default());
    }

    #[test]
    fn items_and_bytes_are_counted_separately() {
        let mut quotas = Quotas::new(QUOTA);
        let start = Instant::now();
        let both = after(&mut quotas, "g", start, SAVED, 100 * SAVED);
        assert_eq!(both.wait, s(0));
        assert_eq!(after(&mut quotas, "g", start, 100, 30_000).wait, s(3));
        for quota in [
            Quota::items(0, s(600)),
            Quota {
                items_per_s: 0,
                ..QUOTA
            },
        ] {
            let mut quotas = Quotas::new(quota);
            let owed = after(&mut quotas, "g", start, usize::MAX, 1);
            assert_eq!(owed, Wait::default(), "{quota:?}");
            assert_eq!(quotas.room(&"g", start), usize::MAX);
        }
    }

    #[test]
    fn the_room_is_what_is_saved_and_grows_by_the_rate() {
        let mut quotas = Quotas::new(QUOTA);
        let start = Instant::now();
        assert_eq!(quotas.room(&"g", start), SAVED);
        quotas.take(&"g", start, SAVED, 0);
        assert_eq!(quotas.room(&"g", start), 0);
        assert_eq!(quotas.room(&"g", start + s(3)), 300);
        quotas.take(&"g", start + s(3), 400, 0);
        assert_eq!(quotas.room(&"g", start + s(3)), 0);
        assert_eq!(quotas.room(&"g", start + s(4)), 0, "the debt is paid first");
        assert_eq!(quotas.room(&"g", start + s(5)), 100);
    }

    #[test]
    fn over_a_day_no_more_passes_than_the_rate_and_the_savings() {
        let mut quotas = Quotas::new(QUOTA);
        let start = Instant::now();
        let (mut now, mut passed, mut warned) = (start, 0, 0);
        loop {
            let owed = quotas.owed(&"g", now);
            warned += u32::from(owed.is_first);
            now += owed.wait;
            if now > start + s(86_400) {
                break;
            }
            quotas.take(&"g", now, 512, 9_000);
            passed += 512;
        }
        let most = SAVED + 86_400 * 100 + 512;
        assert!((most - 1024..=most).contains(&passed), "{passed} of {most}");
        assert_eq!(warned, 1);
        // After full savings the next wait counts as a first wait.
        let later = now + s(1_200);
        assert!(after(&mut quotas, "g", later, SAVED + 100, 0).is_first);
    }

    #[test]
    fn the_table_has_a_bound() {
        let mut quotas = Quotas::new(QUOTA);
        let start = Instant::now();
        for n in 0..PEERS_MAX {
            quotas.take(&n, start, 100, 0);
        }
        quotas.take(&usize::MAX, start + s(5), 2 * SAVED, 0);
        assert_eq!(quotas.peers.len(), 1, "all others had paid");
        for n in 0..PEERS_MAX {
            quotas.take(&n, start + s(5), SAVED, 0);
        }
        assert!(quotas.peers.len() <= PEERS_MAX);
    }
}
