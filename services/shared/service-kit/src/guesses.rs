//! Slows down an address that sends wrong tokens. Sans-IO: the caller passes the time.
//!
//! The first [`FREE`] wrong tokens cost nothing. Each further wrong token doubles the time in which
//! no token of this address is checked. An address that sent the right token within [`KNOWN_FOR`]
//! is always checked: so guesses from behind the same router cannot lock out a known sensor.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::network;

/// Addresses whose failures are remembered; at the bound the address with the oldest failure is
/// forgotten.
pub const ADDRESSES_MAX: usize = 8_192;
/// Addresses that sent the right token; at the bound the address whose success is oldest is
/// forgotten.
pub const KNOWN_MAX: usize = 8_192;
/// Wrong tokens of an address without a wait; each further one doubles the wait.
pub const FREE: u32 = 10;
const WAIT_FIRST: Duration = Duration::from_secs(1);
/// Longest wait; a corrected token works after it.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time without a failure after which an address starts anew.
const FORGET: Duration = Duration::from_secs(600);
const KNOWN_FOR: Duration = Duration::from_secs(86_400);

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
    until: Option<Instant>,
}

#[derive(Debug, Default)]
pub struct Guesses {
    failures: HashMap<IpAddr, Failures>,
    known: HashMap<IpAddr, Instant>,
}

impl Guesses {
    /// `Err`: the time for which no token of this address is checked.
    pub fn allowed(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let address = network(address);
        let shown = self.known.get(&address);
        if shown.is_some_and(|shown| now.saturating_duration_since(*shown) < KNOWN_FOR) {
            return Ok(());
        }
        let until = self.failures.get(&address).and_then(|it| it.until);
        let wait = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }

    pub fn wrong(&mut self, address: IpAddr, now: Instant) {
        let address = network(address);
        if self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&address) {
            let oldest = self
                .failures
                .iter()
                .min_by_key(|(_, failures)| failures.last);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.failures.remove(&oldest);
            }
        }
        let failures = self.failures.entry(address).or_insert(Failures {
            count: 0,
            last: now,
            until: None,
        });
        if now.saturating_duration_since(failures.last) > FORGET {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        if failures.count > FREE {
            let doublings = (failures.count - FREE - 1).min(16);
            failures.until = Some(now + (WAIT_FIRST * (1 << doublings)).min(WAIT_MAX));
        }
    }

    pub fn right(&mut self, address: IpAddr, now: Instant) {
        let address = network(address);
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&address) {
            let oldest = self.known.iter().min_by_key(|(_, shown)| **shown);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(address, now);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(last: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + last).into()
    }

    #[test]
    fn guessing_gets_slower_up_to_the_longest_wait() {
        let mut guesses = Guesses::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..30 {
            if let Err(wait) = guesses.allowed(ip(1), now) {
                waits.push(wait);
                now += wait;
            }
            assert_eq!(guesses.allowed(ip(1), now), Ok(()));
            guesses.wrong(ip(1), now);
        }
        assert_eq!(waits.len(), 30 - FREE as usize - 1);
        assert_eq!((waits[0], waits[1]), (WAIT_FIRST, 2 * WAIT_FIRST));
        assert_eq!(waits.last(), Some(&WAIT_MAX));
        assert_eq!(guesses.allowed(ip(2), now), Ok(()), "another address");
        guesses.wrong(ip(1), now + FORGET + WAIT_MAX);
        assert_eq!(guesses.allowed(ip(1), now + FORGET + WAIT_MAX), Ok(()));
    }

    #[test]
    fn an_address_that_has_shown_the_right_token_is_not_slowed() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        guesses.right(ip(1), now);
        for _ in 0..100 {
            guesses.wrong(ip(1), now);
        }
        assert_eq!(guesses.allowed(ip(1), now), Ok(()));
        guesses.wrong(ip(1), now + KNOWN_FOR);
        for _ in 0..FREE {
            guesses.wrong(ip(1), now + KNOWN_FOR);
        }
        assert!(guesses.allowed(ip(1), now + KNOWN_FOR).is_err());
    }

    #[test]
    fn the_tables_have_bounds() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for n in 0..ADDRESSES_MAX as u32 + 50 {
            let at = now + Duration::from_millis(u64::from(n));
            guesses.wrong(ip(n), at);
            guesses.right(ip(n), at);
        }
        assert_eq!(guesses.failures.len(), ADDRESSES_MAX);
        assert_eq!(guesses.known.len(), KNOWN_MAX);
        assert!(!guesses.failures.contains_key(&ip(0)), "the oldest went");
    }
}
