//! Wrong passwords by account and address.
//!
//! Failures are counted under three keys: account with address (few are free), address (of IPv6 its
//! /64), and account. Each failure beyond the free ones doubles the wait, up to the key's longest.
//!
//! Anybody can fail in another person's name, from many addresses. So an account from which a
//! person signed in at this address is limited by that pair alone. At a new address the account's
//! longest wait is short. It slows all unknown people together, and the owner can still sign in.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::table::{Failures, Known, Limit};
use crate::network;

const FIRST: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(300);
const PAIR: Limit = Limit {
    from: 5,
    first: FIRST,
    max: LONG,
};
/// At most 2,880 guesses a day, also of somebody behind the owner's router.
const KNOWN_PAIR: Limit = Limit {
    from: 5,
    first: FIRST,
    max: Duration::from_secs(30),
};
const ADDRESS: Limit = Limit {
    from: 20,
    first: FIRST,
    max: LONG,
};
/// At most 8,640 guesses a day, of all unknown people together.
const ACCOUNT: Limit = Limit {
    from: 100,
    first: FIRST,
    max: Duration::from_secs(10),
};
/// Time after a sign-in for which the address is the account's own.
const KNOWN_FOR: Duration = Duration::from_secs(30 * 86_400);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Pair(String, IpAddr),
    Address(IpAddr),
    Account(String),
}

impl Key {
    fn limit(&self) -> Limit {
        match self {
            Key::Pair(..) => PAIR,
            Key::Address(_) => ADDRESS,
            Key::Account(_) => ACCOUNT,
        }
    }
}

#[derive(Debug)]
pub struct Attempts {
    failures: Failures<Key>,
    known: Known<Key>,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts {
            failures: Failures::default(),
            known: Known::lasting(KNOWN_FOR),
        }
    }
}

impl Attempts {
    /// `Err`: the time before the next attempt is checked.
    pub fn allowed(&self, name: &str, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let keys = keys(name, address);
        let counted = match self.known.has(&keys[0], now) {
            true => &keys[..1],
            false => &keys[..],
        };
        let waits = counted.iter().map(|key| self.failures.wait(key, now));
        match waits.max().unwrap_or_default() {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        }
    }

    pub fn failed(&mut self, name: &str, address: IpAddr, now: Instant) {
        let keys = keys(name, address);
        if self.known.has(&keys[0], now) {
            let [pair, ..] = keys;
            return self.failures.count(pair, KNOWN_PAIR, now);
        }
        for key in keys {
            let limit = key.limit();
            self.failures.count(key, limit, now);
        }
    }

    /// Resets only the pair: the owner of one account must not be able to reset the count of the
    /// address.
    pub fn succeeded(&mut self, name: &str, address: IpAddr, now: Instant) {
        let [pair, ..] = keys(name, address);
        self.failures.forget(&pair);
        self.known.enter(pair, now);
    }
}

fn keys(name: &str, address: IpAddr) -> [Key; 3] {
    let address = network(address);
    [
        Key::Pair(name.to_owned(), address),
        Key::Address(address),
        Key::Account(name.to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::table::{FORGET, KEYS_MAX};
    use super::*;

    fn ip(last: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + last).into()
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn guessing_gets_slower_and_ends_in_the_longest_wait() {
        let mut attempts = Attempts::default();
        let mut now = Instant::now();
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
        assert_eq!((waits[0], waits[14]), (FIRST, LONG));
    }

    #[test]
    fn others_are_not_locked_out() {
        let mut attempts = Attempts::default();
        let now = Instant::now();
        for _ in 0..10 {
            attempts.failed("ada", ip(1), now);
        }
        assert!(attempts.allowed("ada", ip(1), now).is_err());
        let elsewhere = attempts.allowed("ada", ip(2), now);
        assert!(elsewhere.is_ok(), "the owner elsewhere");
        let colleague = attempts.allowed("bob", ip(1), now);
        assert!(colleague.is_ok(), "a colleague behind the same address");
    }

    #[test]
    fn one_address_trying_many_names_is_slowed_too() {
        let mut attempts = Attempts::default();
        let now = Instant::now();
        for n in 0..ADDRESS.from {
            attempts.failed(&format!("p{n}"), ip(1), now);
        }
        assert!(attempts.allowed("somebody", ip(1), now).is_err());
    }

    #[test]
    fn guesses_from_300_addresses_lock_the_owner_out_nowhere() {
        let mut attempts = Attempts::default();
        let now = Instant::now();
        attempts.succeeded("ada", ip(7_000), now);
        for n in 0..300 {
            attempts.failed("ada", ip(n), now);
        }
        let at_home = attempts.allowed("ada", ip(7_000), now);
        assert_eq!(at_home, Ok(()), "where she signed in before");
        let wait = attempts.allowed("ada", ip(8_000), now).unwrap_err();
        assert!(wait <= 10 * S, "{wait:?} at a new address");
        assert!(attempts.allowed("ada", ip(8_000), now + wait).is_ok());
    }

    #[test]
    fn a_thousand_addresses_guess_slowly() {
        let mut attempts = Attempts::default();
        let begun = Instant::now();
        let (mut now, mut guessed) = (begun, 0_u32);
        while now < begun + 24 * 3_600 * S {
            let from = ip(guessed % 1_000);
            match attempts.allowed("ada", from, now) {
                Ok(()) => {
                    guessed += 1;
                    attempts.failed("ada", from, now);
                }
                // The next of them tries it.
                Err(wait) => now += wait.min(10 * S),
            }
        }
        assert!(guessed < 9_000, "{guessed} guesses in a day");
    }

    #[test]
    fn guesses_behind_the_owners_router_are_slowed_and_only_delay_her() {
        let mut attempts = Attempts::default();
        let mut now = Instant::now();
        attempts.succeeded("ada", ip(1), now);
        for _ in 0..1_000 {
            if let Err(wait) = attempts.allowed("ada", ip(1), now) {
                assert!(wait <= 30 * S, "{wait:?}");
                now += wait;
            }
            attempts.failed("ada", ip(1), now);
        }
        assert!(attempts.allowed("ada", ip(1), now).is_err());
        // Names that nobody has are counted for the address, and not for her.
        for n in 0..100 {
            attempts.failed(&format!("p{n}"), ip(2), now);
        }
        attempts.succeeded("eve", ip(2), now);
        assert!(attempts.allowed("eve", ip(2), now).is_ok());
        assert!(attempts.allowed("bob", ip(2), now).is_err());
    }

    #[test]
    fn success_forgets_the_pair_and_time_forgets_all() {
        let mut attempts = Attempts::default();
        let now = Instant::now();
        for _ in 0..4 {
            attempts.failed("ada", ip(1), now);
        }
        attempts.succeeded("ada", ip(1), now);
        attempts.failed("ada", ip(1), now);
        assert!(attempts.allowed("ada", ip(1), now).is_ok());
        for _ in 0..5 {
            attempts.failed("ada", ip(1), now + S);
        }
        assert!(attempts.allowed("ada", ip(1), now + S).is_err());
        let later = now + S + FORGET + LONG;
        attempts.failed("ada", ip(1), later);
        assert!(attempts.allowed("ada", ip(1), later).is_ok());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut attempts = Attempts::default();
        let now = Instant::now();
        // Two keys of its own for each name.
        for n in 0..KEYS_MAX as u32 / 2 + 50 {
            attempts.failed(&format!("p{n}"), ip(n % 200), now);
        }
        assert!(attempts.failures.len() <= KEYS_MAX);
    }
}
