//! Wrong tokens by address.
//!
//! The first [`FREE`] wrong tokens cost nothing. Each further wrong token doubles the time in which
//! no token of this address is checked. A wrong token that is repeated counts once, because a
//! guesser learns nothing from it. So a sensor with an old token slows no neighbour behind the same
//! router. An address that sent the right token within [`KNOWN_FOR`] has more free tokens and
//! shorter waits. So guesses of a neighbour only delay a known sensor.

use std::{
    collections::{HashMap, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::table::{Failures, KEYS_MAX, Known, Limit};
use crate::network;

/// Wrong tokens of an address without a wait; each further one doubles the wait.
pub const FREE: u32 = 10;
/// The same for an address that has shown the right token.
pub const FREE_KNOWN: u32 = 50;
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait of an address without the right token; a corrected token works after it.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
const STRANGER: Limit = Limit {
    from: FREE + 1,
    first: FIRST,
    max: WAIT_MAX,
};
/// At most 21,600 guesses a day.
const KNOWN: Limit = Limit {
    from: FREE_KNOWN + 1,
    first: FIRST,
    max: Duration::from_secs(4),
};
const KNOWN_FOR: Duration = Duration::from_secs(86_400);
/// Wrong tokens that are remembered of an address, the newest; an older one counts anew.
const REPEATED_MAX: usize = 8;

#[derive(Debug)]
pub struct Guesses {
    failures: Failures<IpAddr>,
    known: Known<IpAddr>,
    /// Hashes of the newest wrong tokens of an address.
    wrong: HashMap<IpAddr, VecDeque<u64>>,
    hasher: RandomState,
}

impl Default for Guesses {
    fn default() -> Guesses {
        Guesses {
            failures: Failures::default(),
            known: Known::lasting(KNOWN_FOR),
            wrong: HashMap::new(),
            hasher: RandomState::new(),
        }
    }
}

impl Guesses {
    /// `Err`: the time for which no token of this address is checked.
    pub fn allowed(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let wait = self.failures.wait(&network(address), now);
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }

    /// `token`: the wrong token, if the caller has it.
    pub fn wrong(&mut self, address: IpAddr, token: Option<&[u8]>, now: Instant) {
        let address = network(address);
        if token.is_some_and(|token| self.is_repeated(address, token)) {
            return;
        }
        let limit = match self.known.has(&address, now) {
            true => KNOWN,
            false => STRANGER,
        };
        self.failures.count(address, limit, now);
    }

    pub fn right(&mut self, address: IpAddr, now: Instant) {
        self.known.enter(network(address), now);
    }

    fn is_repeated(&mut self, address: IpAddr, token: &[u8]) -> bool {
        let hash = self.hasher.hash_one(token);
        if self.wrong.len() >= KEYS_MAX && !self.wrong.contains_key(&address) {
            // A repetition then counts once more.
            self.wrong.clear();
        }
        let wrong = self.wrong.entry(address).or_default();
        if wrong.contains(&hash) {
            return true;
        }
        if wrong.len() >= REPEATED_MAX {
            wrong.pop_front();
        }
        wrong.push_back(hash);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::table::{FORGET, KNOWN_MAX};
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
            guesses.wrong(ip(1), None, now);
        }
        assert_eq!(waits.len(), 30 - FREE as usize - 1);
        assert_eq!((waits[0], waits[1]), (FIRST, 2 * FIRST));
        assert_eq!(waits.last(), Some(&STRANGER.max));
        assert_eq!(guesses.allowed(ip(2), now), Ok(()), "another address");
        let later = now + FORGET + STRANGER.max;
        guesses.wrong(ip(1), None, later);
        assert_eq!(guesses.allowed(ip(1), later), Ok(()));
    }

    #[test]
    fn an_address_that_has_shown_the_right_token_is_delayed_and_does_not_guess_without_limit() {
        let mut guesses = Guesses::default();
        let begun = Instant::now();
        let (mut now, mut guessed) = (begun, 0_u32);
        guesses.right(ip(1), now);
        while now < begun + KNOWN_FOR {
            match guesses.allowed(ip(1), now) {
                Ok(()) => {
                    guessed += 1;
                    guesses.wrong(ip(1), Some(&guessed.to_be_bytes()), now);
                }
                Err(wait) => {
                    assert!(wait <= KNOWN.max, "{wait:?} locks the sensor out");
                    now += wait;
                }
            }
        }
        assert!(guessed < 22_000, "{guessed} guesses in a day");
    }

    #[test]
    fn a_wrong_token_that_is_repeated_slows_no_neighbour() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for n in 0..1_000 {
            let old: &[u8] = if n % 2 == 0 { b"old" } else { b"of another" };
            guesses.wrong(ip(1), Some(old), now);
        }
        assert_eq!(guesses.allowed(ip(1), now), Ok(()));
        for n in 0..FREE {
            guesses.wrong(ip(1), Some(&n.to_be_bytes()), now);
        }
        assert!(guesses.allowed(ip(1), now).is_err());
    }

    #[test]
    fn the_tables_have_bounds() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for n in 0..KEYS_MAX as u32 + 50 {
            let at = now + Duration::from_millis(u64::from(n));
            guesses.wrong(ip(n), Some(b"x"), at);
            guesses.right(ip(n), at);
        }
        assert_eq!(guesses.failures.len(), KEYS_MAX);
        assert!(guesses.wrong.len() <= KEYS_MAX);
        assert_eq!(guesses.known.len(), KNOWN_MAX);
        assert!(!guesses.failures.has(&ip(0)), "the oldest went");
    }
}
