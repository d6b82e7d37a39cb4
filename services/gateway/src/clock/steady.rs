//! The time that readings get. Sans-IO.
//!
//! The machine's uptime decides their order and distance; the clock only names it. A step of the
//! clock is not followed at first, since many steps are taken back:
//! - A clock that was never set is followed as soon as it is set.
//! - A clock that stays elsewhere for [`SETTLED_AFTER_US`] is followed slowly, so that no reading
//!   gets a time before an earlier one. Ingest leaves such small differences alone.
//! - Beyond [`TOLERATED_US`] it is followed at once by then. Ingest corrects such differences by
//!   the uptime, before and after.
//!
//! After a restart of the gateway the newest stored time goes on, while the machine runs.

use clocks::TOLERATED_US;

use super::Moment;

/// A larger difference of clock and uptime is a step. A time server moves the clock by less.
const STEP_US: i64 = 1_000_000;
/// A clock that stays where it stepped to for this time is believed.
const SETTLED_AFTER_US: i64 = 600_000_000;
/// Share of the passed time by which readings follow a clock that was believed after a step.
const FOLLOWS_BY: i64 = 20;
/// The same without a step: the most by which time servers let a clock drift.
const DRIFTS_BY: i64 = 1_000;

#[derive(Clone, Debug, Default)]
pub struct SteadyClock {
    named: Option<Named>,
}

#[derive(Clone, Debug)]
struct Named {
    /// Time of readings at the machine's start.
    base_us: i64,
    /// The newest uptime that got a time.
    uptime_us: i64,
    stepped: Option<Stepped>,
}

/// Where the clock stepped to, and when.
#[derive(Clone, Copy, Debug)]
struct Stepped {
    base_us: i64,
    uptime_us: i64,
}

impl SteadyClock {
    /// Goes on from the newest time that was given before a restart, if the machine still runs.
    pub fn resume(newest: Moment, now: Moment) -> SteadyClock {
        let is_same_start = newest.boot != 0 && newest.boot == now.boot;
        let goes_on = is_same_start && newest.uptime_us <= now.uptime_us;
        SteadyClock {
            named: goes_on.then(|| Named {
                base_us: base_us(newest),
                uptime_us: newest.uptime_us,
                stepped: None,
            }),
        }
    }

    /// The moment with the time that a reading gets then.
    pub fn name(&mut self, now: Moment) -> Moment {
        let named = self.named.get_or_insert(Named {
            base_us: base_us(now),
            uptime_us: now.uptime_us,
            stepped: None,
        });
        named.follow(now);
        Moment {
            wall_us: named.base_us.saturating_add(now.uptime_us),
            ..now
        }
    }
}

impl Named {
    fn follow(&mut self, now: Moment) {
        let target_us = base_us(now);
        let passed_us = now.uptime_us.saturating_sub(self.uptime_us).max(0);
        self.uptime_us = self.uptime_us.max(now.uptime_us);
        let off_us = target_us.saturating_sub(self.base_us);
        if off_us.saturating_abs() <= STEP_US {
            self.stepped = None;
            self.slew(off_us, passed_us / DRIFTS_BY);
            return;
        }
        let own = Moment {
            wall_us: self.base_us.saturating_add(now.uptime_us),
            ..now
        };
        if now.is_set() && !own.is_set() {
            self.base_us = target_us;
            self.stepped = None;
            return;
        }
        let stays = |it: &Stepped| it.base_us.abs_diff(target_us) <= STEP_US.unsigned_abs();
        let Some(stepped) = self.stepped.filter(stays) else {
            self.stepped = Some(Stepped {
                base_us: target_us,
                uptime_us: now.uptime_us,
            });
            return;
        };
        if now.uptime_us.saturating_sub(stepped.uptime_us) < SETTLED_AFTER_US {
            return;
        }
        if off_us.saturating_abs() > TOLERATED_US {
            self.base_us = target_us;
            self.stepped = None;
        } else {
            self.slew(off_us, passed_us / FOLLOWS_BY);
        }
    }

    fn slew(&mut self, off_us: i64, most_us: i64) {
        self.base_us = self.base_us.saturating_add(off_us.clamp(-most_us, most_us));
    }
}

/// Time of the clock at the machine's start, as the clock is now.
fn base_us(moment: Moment) -> i64 {
    moment.wall_us.saturating_sub(moment.uptime_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const TRUE_US: i64 = 1_800_000_000 * S;

    fn moment(second: i64, off_us: i64) -> Moment {
        Moment {
            wall_us: TRUE_US + second * S + off_us,
            uptime_us: 3_600 * S + second * S,
            boot: 7,
        }
    }

    /// By how much the given time is off, second by second.
    fn off_us(
        clock: &mut SteadyClock,
        seconds: std::ops::Range<i64>,
        off_us: impl Fn(i64) -> i64,
    ) -> Vec<i64> {
        let off = |second: i64| {
            let named = clock.name(moment(second, off_us(second)));
            named.wall_us - moment(second, 0).wall_us
        };
        seconds.map(off).collect()
    }

    #[test]
    fn a_step_that_is_taken_back_changes_no_time() {
        for by_us in [90 * S, -90 * S, 3_600 * S, -3_600 * S] {
            let mut clock = SteadyClock::default();
            let stepped = |second| {
                if (120..240).contains(&second) {
                    by_us
                } else {
                    0
                }
            };
            let off_us = off_us(&mut clock, 0..2_000, stepped);
            assert!(off_us.iter().all(|off_us| *off_us == 0), "{by_us}");
        }
    }

    #[test]
    fn a_small_step_that_stays_is_followed_without_reordering() {
        for by_us in [90 * S, -90 * S] {
            let mut clock = SteadyClock::default();
            let stepped = |second| if second < 120 { 0 } else { by_us };
            let off_us = off_us(&mut clock, 0..4_000, stepped);
            assert!(off_us[..720].iter().all(|off_us| *off_us == 0));
            let steps = off_us.windows(2).map(|pair| (pair[1] - pair[0]).abs());
            assert!(steps.max().is_some_and(|most_us| most_us <= S / FOLLOWS_BY));
            let left_us = off_us[3_999] - by_us;
            assert!(left_us.abs() <= STEP_US, "{left_us}");
        }
    }

    #[test]
    fn a_large_step_that_stays_is_followed_once() {
        let mut clock = SteadyClock::default();
        let stepped = |second| if second < 120 { 0 } else { -3_600 * S };
        let off_us = off_us(&mut clock, 0..2_000, stepped);
        let changes = off_us.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!((changes, off_us[1_999]), (1, -3_600 * S));
    }

    #[test]
    fn a_clock_that_was_never_set_is_followed_when_it_is_set() {
        let mut clock = SteadyClock::default();
        let stepped = |second| if second < 60 { 20 * S - TRUE_US } else { 0 };
        let off_us = off_us(&mut clock, 0..100, stepped);
        assert_eq!((off_us[59], off_us[60]), (20 * S - TRUE_US, 0));
    }

    #[test]
    fn a_drift_is_followed() {
        let mut clock = SteadyClock::default();
        let last = off_us(&mut clock, 0..10_000, |second| second * 300);
        assert!((last[9_999] - 9_999 * 300).abs() < 1_000, "{}", last[9_999]);
    }

    #[test]
    fn a_restart_within_a_step_goes_on_and_one_of_the_machine_begins_anew() {
        let mut clock = SteadyClock::default();
        let newest = clock.name(moment(100, 0));
        let now = moment(130, -90 * S);
        let named = SteadyClock::resume(newest, now).name(now);
        assert_eq!(named.wall_us, moment(130, 0).wall_us);
        let other = Moment { boot: 8, ..now };
        let named = SteadyClock::resume(newest, other).name(other);
        assert_eq!(named.wall_us, now.wall_us);
    }
}
