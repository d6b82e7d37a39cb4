//! The present by which silence is judged. Sans-IO.
//!
//! The own wall clock may be wrong by hours from the start, and nothing that is stored shows
//! whether it is ahead. So an arrival during this process's life has to confirm it. Until then the
//! present is at most the newest stored arrival, or the last look, plus the time since the first
//! look. This is a lower bound: it calls nobody silent too early. It is no sign of
//! life, because a silence ends only by a later arrival.
//!
//! If nothing arrives for one `silent_after` of this life, every worn sensor is silent whatever
//! the clock shows, and the own clock counts again.

use clocks::Arrivals;

pub(crate) struct Present {
    silent_after_us: i64,
    arrivals: Arrivals,
    first: Option<First>,
    /// An arrival came after the first look.
    has_arrived: bool,
    at_least_us: Option<i64>,
}

#[derive(Clone, Copy)]
struct First {
    /// The newest arrival then, or the last look of any process.
    known_us: i64,
    newest_us: Option<i64>,
    monotonic_us: i64,
}

impl Present {
    pub(crate) fn new(silent_after_us: i64) -> Present {
        Present {
            silent_after_us,
            arrivals: Arrivals::default(),
            first: None,
            has_arrived: false,
            at_least_us: None,
        }
    }

    pub(crate) fn has_looked(&self) -> bool {
        self.first.is_some()
    }

    /// The lower bound of the present at the last look, which the next process continues. The own
    /// clock has no part in it, so that an error of it goes no further.
    pub(crate) fn at_least_us(&self) -> Option<i64> {
        self.at_least_us
    }

    /// `newest_us`: the newest stored arrival. `looked_us`: the last look of any process; only the
    /// first call takes it.
    pub(crate) fn now_us(
        &mut self,
        newest_us: Option<i64>,
        looked_us: Option<i64>,
        own_us: i64,
        monotonic_us: i64,
    ) -> i64 {
        let Some(first) = self.first else {
            let Some(known_us) = newest_us.max(looked_us) else {
                return own_us;
            };
            self.first = Some(First {
                known_us,
                newest_us,
                monotonic_us,
            });
            let at_least_us = self.arrivals.observe(known_us, monotonic_us);
            self.at_least_us = Some(at_least_us);
            return own_us.min(at_least_us);
        };
        self.has_arrived |= newest_us != first.newest_us;
        let known_us = newest_us.map_or(first.known_us, |newest_us| newest_us.max(first.known_us));
        let at_least_us = self.arrivals.observe(known_us, monotonic_us);
        self.at_least_us = Some(at_least_us);
        let lived_us = monotonic_us.saturating_sub(first.monotonic_us);
        if !self.has_arrived && lived_us >= self.silent_after_us {
            return own_us;
        }
        own_us.min(at_least_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const T0: i64 = 1_800_000_000 * S;
    const AFTER: i64 = 120 * S;

    #[test]
    fn an_own_clock_ahead_counts_for_nothing_while_others_arrive() {
        for error_us in [0, 3_600 * S, 86_400 * S] {
            let mut present = Present::new(AFTER);
            for second in (0..1_000).step_by(5) {
                let true_us = T0 + second * S;
                let now_us = present.now_us(Some(true_us), None, true_us + error_us, second * S);
                assert_eq!(now_us, true_us, "{error_us} {second}");
            }
        }
    }

    #[test]
    fn a_life_without_arrivals_continues_the_look_before_it_and_trusts_its_clock_later() {
        let mut present = Present::new(AFTER);
        let hour_us = 3_600 * S;
        // The newest arrival is an hour old, and a process looked ten seconds ago.
        let mut at = |second: i64| {
            let own_us = T0 + second * S;
            let now_us = present.now_us(Some(T0 - hour_us), Some(T0 - 10 * S), own_us, second * S);
            (own_us - now_us) / S
        };
        assert_eq!((at(0), at(60), at(119)), (10, 10, 10));
        assert_eq!(at(120), 0);
        let at_least_us = present.at_least_us();
        assert_eq!(
            at_least_us,
            Some(T0 + 110 * S),
            "the own clock has no part in it"
        );
    }

    #[test]
    fn a_clock_behind_is_followed_because_what_is_ahead_may_be_the_stamp() {
        let mut present = Present::new(AFTER);
        let own_us = T0 - 3_600 * S;
        assert_eq!(present.now_us(Some(T0), None, own_us, 0), own_us);
        assert_eq!(Present::new(AFTER).now_us(None, None, own_us, 0), own_us);
    }
}
