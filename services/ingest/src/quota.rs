//! How fast one gateway may fill bus and store: a token bucket for each, in samples and in bytes a second. Pure.
//!
//! Nothing is refused: whoever has brought more than there was is in debt, and what it brings next waits until that is paid. So what a
//! message costs may be known after it was judged, and nothing is ever lost. Streams of one gateway share its bucket, and a new one owes
//! what the last one did. Alerts cost nothing and wait for nothing.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::admission::GatewayId;

/// What a gateway did not use in so long it may use at once. By the defaults 3 million samples and 2.3 GiB, which is more than the default
/// journal of a gateway holds (256 MiB): whoever was away for a day catches up as fast as its links allow.
const SAVED_S: f64 = 600.0;
/// Gateways that are remembered. With so many those that owe nothing and have saved all are forgotten, which changes nothing for them; or
/// else all, each of which then has all it can save.
const GATEWAYS_MAX: usize = 100_000;

/// `0`: as much as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub samples_per_s: u64,
    pub bytes_per_s: u64,
}

impl Quota {
    pub const NONE: Quota = Quota {
        samples_per_s: 0,
        bytes_per_s: 0,
    };
}

#[derive(Debug)]
pub struct Quotas {
    quota: Quota,
    gateways: HashMap<(String, String), Account>,
}

/// What a gateway has used of what it had saved; beyond [`SAVED_S`] it owes.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// In seconds of its quota.
    samples_s: f64,
    bytes_s: f64,
    at: Instant,
    is_said: bool,
}

impl Account {
    fn earn(&mut self, now: Instant) {
        let earned_s = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.samples_s = (self.samples_s - earned_s).max(0.0);
        self.bytes_s = (self.bytes_s - earned_s).max(0.0);
        self.is_said &= self.used_s() > 0.0;
    }

    fn used_s(&self) -> f64 {
        self.samples_s.max(self.bytes_s)
    }
}

/// How long what the gateway brings next has to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wait {
    pub wait: Duration,
    /// Since it had saved all it can: worth a line.
    pub is_first: bool,
}

impl Quotas {
    pub fn new(quota: Quota) -> Quotas {
        Quotas {
            quota,
            gateways: HashMap::new(),
        }
    }

    /// For what it has brought so far.
    pub fn owed(&mut self, gateway: &GatewayId, now: Instant) -> Wait {
        let Some(account) = self.account(gateway, now) else {
            return Wait::default();
        };
        let wait = Duration::from_secs_f64((account.used_s() - SAVED_S).max(0.0));
        let is_first = !wait.is_zero() && !account.is_said;
        account.is_said |= is_first;
        Wait { wait, is_first }
    }

    /// It has brought so much.
    pub fn take(&mut self, gateway: &GatewayId, now: Instant, samples: usize, bytes: usize) {
        let quota = self.quota;
        let seconds = |count: usize, per_s: u64| match per_s {
            0 => 0.0,
            per_s => count as f64 / per_s as f64,
        };
        if let Some(account) = self.account(gateway, now) {
            account.samples_s += seconds(samples, quota.samples_per_s);
            account.bytes_s += seconds(bytes, quota.bytes_per_s);
        }
    }

    fn account(&mut self, gateway: &GatewayId, now: Instant) -> Option<&mut Account> {
        if self.quota == Quota::NONE {
            return None;
        }
        let key = (gateway.tenant.clone(), gateway.id.clone());
        if self.gateways.len() >= GATEWAYS_MAX && !self.gateways.contains_key(&key) {
            self.make_room(now);
        }
        let account = self.gateways.entry(key).or_insert(Account {
            samples_s: 0.0,
            bytes_s: 0.0,
            at: now,
            is_said: false,
        });
        account.earn(now);
        Some(account)
    }

    fn make_room(&mut self, now: Instant) {
        self.gateways.retain(|_, account| {
            account.earn(now);
            account.used_s() > 0.0
        });
        if self.gateways.len() >= GATEWAYS_MAX {
            self.gateways.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Quota = Quota {
        samples_per_s: 100,
        bytes_per_s: 10_000,
    };
    const SAVED: usize = 60_000;

    fn gateway(id: &str) -> GatewayId {
        GatewayId {
            tenant: "t".into(),
            id: id.into(),
        }
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What is owed after so much more.
    fn after(
        quotas: &mut Quotas,
        of: &GatewayId,
        now: Instant,
        samples: usize,
        bytes: usize,
    ) -> Wait {
        quotas.take(of, now, samples, bytes);
        quotas.owed(of, now)
    }

    #[test]
    fn what_was_saved_goes_at_once_and_the_rest_by_the_second() {
        let mut quotas = Quotas::new(QUOTA);
        let (thief, other, start) = (gateway("thief"), gateway("other"), Instant::now());
        assert_eq!(after(&mut quotas, &thief, start, SAVED, 0), Wait::default());
        let owed = after(&mut quotas, &thief, start, 500, 0);
        assert_eq!((owed.wait, owed.is_first), (s(5), true));
        // Each of its streams pays what all of them owe.
        let owed = after(&mut quotas, &thief, start + s(2), 300, 0);
        assert_eq!((owed.wait, owed.is_first), (s(6), false));
        assert_eq!(after(&mut quotas, &other, start, SAVED, 0), Wait::default());
        // Two looks at the clock that come in another order earn nothing twice.
        assert_eq!(quotas.owed(&thief, start + s(1)).wait, s(6));
        assert_eq!(quotas.owed(&thief, start + s(8)), Wait::default());
    }

    #[test]
    fn samples_and_bytes_are_counted_each_for_itself() {
        let mut quotas = Quotas::new(QUOTA);
        let (gateway, start) = (gateway("g"), Instant::now());
        let both = after(&mut quotas, &gateway, start, SAVED, 100 * SAVED);
        assert_eq!(both.wait, s(0));
        assert_eq!(after(&mut quotas, &gateway, start, 100, 30_000).wait, s(3));
        for quota in [
            Quota::NONE,
            Quota {
                samples_per_s: 0,
                ..QUOTA
            },
        ] {
            let mut quotas = Quotas::new(quota);
            let owed = after(&mut quotas, &gateway, start, usize::MAX, 1);
            assert_eq!(owed, Wait::default(), "{quota:?}");
        }
    }

    #[test]
    fn over_a_day_no_more_passes_than_the_rate_and_what_was_saved() {
        let mut quotas = Quotas::new(QUOTA);
        let (gateway, start) = (gateway("g"), Instant::now());
        let (mut now, mut passed, mut said) = (start, 0, 0);
        loop {
            let owed = quotas.owed(&gateway, now);
            said += u32::from(owed.is_first);
            now += owed.wait;
            if now > start + s(86_400) {
                break;
            }
            quotas.take(&gateway, now, 512, 9_000);
            passed += 512;
        }
        let most = SAVED + 86_400 * 100 + 512;
        assert!((most - 1024..=most).contains(&passed), "{passed} of {most}");
        assert_eq!(said, 1);
        // Saved anew, it is said anew.
        let later = now + s(1_200);
        assert!(after(&mut quotas, &gateway, later, SAVED + 100, 0).is_first);
    }

    #[test]
    fn the_table_has_a_bound() {
        let mut quotas = Quotas::new(QUOTA);
        let start = Instant::now();
        for n in 0..GATEWAYS_MAX {
            quotas.take(&gateway(&n.to_string()), start, 100, 0);
        }
        quotas.take(&gateway("owes"), start + s(5), 2 * SAVED, 0);
        assert_eq!(quotas.gateways.len(), 1, "all others had paid");
        for n in 0..GATEWAYS_MAX {
            quotas.take(&gateway(&n.to_string()), start + s(5), SAVED, 0);
        }
        assert!(quotas.gateways.len() <= GATEWAYS_MAX);
    }
}
