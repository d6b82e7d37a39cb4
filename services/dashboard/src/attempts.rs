//! Slows down guessing of passwords. Sans-IO: times are handed in.
//!
//! Failures are counted under three keys: name with address (few are free), address (of IPv6 its
//! /64), and name. Under a name many are free, because anybody can fail in another person's name.
//! Each failure beyond the free ones doubles the wait. A success resets only the pair: the owner of
//! one account must not be able to reset the count of the address.

use std::collections::HashMap;
use std::net::IpAddr;

use service_kit::network;

/// Keys watched. At the bound, the key whose last failure is oldest is forgotten.
pub(crate) const KEYS_MAX: usize = 8_192;
const FREE_PAIR: u32 = 5;
const FREE_ADDRESS: u32 = 20;
const FREE_NAME: u32 = 100;
/// First wait of a key after its free failures, in microseconds; each failure doubles it.
const WAIT_US_FIRST: i64 = 2_000_000;
/// Longest wait of a key after failures, in microseconds.
const WAIT_US_MAX: i64 = 300_000_000;
/// A key without failures for this long starts anew.
const FORGET_US: i64 = 900_000_000;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Pair(String, IpAddr),
    Address(IpAddr),
    Name(String),
}

impl Key {
    fn free(&self) -> u32 {
        match self {
            Key::Pair(..) => FREE_PAIR,
            Key::Address(_) => FREE_ADDRESS,
            Key::Name(_) => FREE_NAME,
        }
    }
}

struct Failures {
    count: u32,
    last_us: i64,
    blocked_until_us: i64,
}

#[derive(Default)]
pub(crate) struct Attempts {
    table: HashMap<Key, Failures>,
}

impl Attempts {
    /// `Err`: microseconds to wait before the next attempt is checked.
    pub(crate) fn allowed(&self, name: &str, address: IpAddr, now_us: i64) -> Result<(), i64> {
        let until = keys(name, address)
            .iter()
            .filter_map(|key| self.table.get(key))
            .map(|failures| failures.blocked_until_us)
            .max()
            .unwrap_or(now_us);
        if until > now_us {
            return Err(until - now_us);
        }
        Ok(())
    }

    pub(crate) fn failed(&mut self, name: &str, address: IpAddr, now_us: i64) {
        for key in keys(name, address) {
            if self.table.len() >= KEYS_MAX && !self.table.contains_key(&key) {
                self.forget_oldest();
            }
            let free = key.free();
            let failures = self.table.entry(key).or_insert(Failures {
                count: 0,
                last_us: now_us,
                blocked_until_us: 0,
            });
            if now_us - failures.last_us > FORGET_US {
                failures.count = 0;
            }
            failures.count = failures.count.saturating_add(1);
            failures.last_us = now_us;
            if failures.count >= free {
                let doublings = (failures.count - free).min(20);
                failures.blocked_until_us = now_us + (WAIT_US_FIRST << doublings).min(WAIT_US_MAX);
            }
        }
    }

    pub(crate) fn succeeded(&mut self, name: &str, address: IpAddr) {
        self.table.remove(&Key::Pair(name.to_owned(), address));
    }

    fn forget_oldest(&mut self) {
        let oldest = self
            .table
            .iter()
            .min_by_key(|(_, failures)| failures.last_us)
            .map(|(key, _)| key.clone());
        if let Some(key) = oldest {
            self.table.remove(&key);
        }
    }
}

fn keys(name: &str, address: IpAddr) -> [Key; 3] {
    let address = network(address);
    [
        Key::Pair(name.to_owned(), address),
        Key::Address(address),
        Key::Name(name.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    const S: i64 = 1_000_000;

    #[test]
    fn guessing_gets_slower_and_ends_in_the_longest_wait() {
        let mut attempts = Attempts::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..20 {
            if let Err(wait) = attempts.allowed("ada", ip(1), now) {
                waits.push(wait);
                now += wait;
            }
            assert!(attempts.allowed("ada", ip(1), now).is_ok());
            attempts.failed("ada", ip(1), now);
        }
        assert_eq!(waits.len(), 15, "five attempts are free");
        assert!(waits.is_sorted());
        assert_eq!((waits[0], waits[14]), (WAIT_US_FIRST, WAIT_US_MAX));
    }

    #[test]
    fn others_are_not_locked_out() {
        let mut attempts = Attempts::default();
        for n in 0..10 {
            attempts.failed("ada", ip(1), n);
        }
        assert!(attempts.allowed("ada", ip(1), 10).is_err());
        assert!(
            attempts.allowed("ada", ip(2), 10).is_ok(),
            "the owner elsewhere"
        );
        assert!(
            attempts.allowed("bob", ip(1), 10).is_ok(),
            "a colleague behind the same address"
        );
    }

    #[test]
    fn one_address_trying_many_names_is_slowed_too() {
        let mut attempts = Attempts::default();
        for n in 0..FREE_ADDRESS {
            attempts.failed(&format!("p{n}"), ip(1), 0);
        }
        assert!(attempts.allowed("somebody", ip(1), 0).is_err());
    }

    #[test]
    fn many_addresses_trying_one_name_are_slowed_too() {
        let mut attempts = Attempts::default();
        for n in 0..FREE_NAME {
            attempts.failed("ada", ip(n as u8), 0);
        }
        assert!(attempts.allowed("ada", ip(200), 0).is_err());
    }

    #[test]
    fn success_forgets_the_pair_and_time_forgets_all() {
        let mut attempts = Attempts::default();
        for _ in 0..4 {
            attempts.failed("ada", ip(1), 0);
        }
        attempts.succeeded("ada", ip(1));
        attempts.failed("ada", ip(1), 0);
        assert!(attempts.allowed("ada", ip(1), 0).is_ok());
        for _ in 0..5 {
            attempts.failed("ada", ip(1), S);
        }
        assert!(attempts.allowed("ada", ip(1), S).is_err());
        let later = S + FORGET_US + WAIT_US_MAX;
        attempts.failed("ada", ip(1), later);
        assert!(attempts.allowed("ada", ip(1), later).is_ok());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut attempts = Attempts::default();
        for n in 0..(KEYS_MAX as i64) {
            attempts.failed(&format!("p{n}"), ip((n % 200) as u8), n);
        }
        assert!(attempts.table.len() <= KEYS_MAX);
    }
}
