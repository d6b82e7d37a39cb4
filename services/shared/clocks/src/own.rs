//! Checks this process's wall clock against the monotonic clock and against other machines' times.
//! Sans-IO.
//!
//! The trusted time continues on the monotonic clock while the wall clock agrees with it. When the
//! wall clock steps, the trusted time does not follow at once: the step is *open* until one of
//! these decides it.
//! - The wall clock steps back to where it was: the step is dropped.
//! - Other machines, whose times arrive by the bus or in requests ([`OwnClock::witness`]), have
//!   stepped as well: the step is adopted.
//! - Other machines contradict the step: it stays open as long as they do.
//! - No machine contradicts it for [`SETTLE_US`]: the step is adopted, because an operator or NTP
//!   has set the clock.
//!
//! A time from another machine was written before it arrives, so it is a lower bound. It proves
//! that a clock is behind, never that it is ahead. So a wall clock that stepped back is adopted
//! only after [`CONFIRM_US`] without a time from its future.

const SECOND_US: i64 = 1_000_000;
/// Difference between two looks that counts as a step; a smaller difference is the regular
/// adjustment of a clock.
pub const STEP_US: i64 = 2 * SECOND_US;
/// Time between two looks that counts as a stopped process or a sleeping machine; looks come each
/// second.
pub const PAUSE_US: i64 = 30 * SECOND_US;
/// Time for which other machines must agree with a wall clock that stepped back.
pub const CONFIRM_US: i64 = 60 * SECOND_US;
/// Time without a contradiction after which a step is adopted.
pub const SETTLE_US: i64 = 600 * SECOND_US;
/// Age of another machine's time beyond which it is ignored: it waited in a queue.
const NEAR_US: i64 = 30 * SECOND_US;
/// Adoptions remembered for [`OwnClock::adopted_since`]; at the bound the oldest two become one.
const ADOPTIONS_MAX: usize = 16;

/// Both clocks at one moment. The monotonic clock counts from an arbitrary moment and includes
/// suspended time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub wall_us: i64,
    pub monotonic_us: i64,
}

impl Moment {
    const fn offset_us(self) -> i64 {
        self.wall_us.saturating_sub(self.monotonic_us)
    }
}

/// The result of a look at the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Steady,
    StepForward {
        by_us: i64,
    },
    StepBack {
        by_us: i64,
    },
    /// The process did not run, so it may have missed other machines' times.
    Paused {
        for_us: i64,
    },
}

/// The trusted time changed from one value to another at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// Counts from 1.
    pub number: u64,
    pub from_us: i64,
    pub to_us: i64,
}

impl Adoption {
    pub const fn by_us(self) -> i64 {
        self.to_us.saturating_sub(self.from_us)
    }
}

/// A step that is not decided.
#[derive(Clone, Copy, Debug)]
struct Open {
    since_us: i64,
    /// Time at which other machines last contradicted the wall clock.
    contradicted_us: Option<i64>,
    /// Time at which other machines first agreed with a wall clock that stepped back.
    agreed_us: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct OwnClock {
    /// The trusted time minus the monotonic clock.
    trusted_offset_us: i64,
    /// The same for the wall clock, at the last look.
    wall_offset_us: i64,
    looked_us: i64,
    /// The largest trusted offset so far.
    highest_offset_us: i64,
    open: Option<Open>,
    disturbed_us: Option<i64>,
    adoptions: Vec<Adoption>,
    steps: Steps,
}

/// Steps of the wall clock since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    pub forward: u64,
    pub back: u64,
}

impl OwnClock {
    pub fn new(first: Moment) -> OwnClock {
        OwnClock {
            trusted_offset_us: first.offset_us(),
            wall_offset_us: first.offset_us(),
            looked_us: first.monotonic_us,
            highest_offset_us: first.offset_us(),
            open: None,
            disturbed_us: None,
            adoptions: Vec::new(),
            steps: Steps::default(),
        }
    }

    /// Must be called at least each second.
    pub fn look(&mut self, at: Moment) -> Seen {
        let offset_us = at.offset_us();
        let stepped_us = offset_us.saturating_sub(self.wall_offset_us);
        let away_us = at.monotonic_us.saturating_sub(self.looked_us);
        self.wall_offset_us = offset_us;
        self.looked_us = self.looked_us.max(at.monotonic_us);
        let seen = if stepped_us > STEP_US {
            Seen::StepForward { by_us: stepped_us }
        } else if stepped_us < -STEP_US {
            Seen::StepBack {
                by_us: stepped_us.saturating_neg(),
            }
        } else if away_us > PAUSE_US {
            Seen::Paused { for_us: away_us }
        } else {
            Seen::Steady
        };
        if seen != Seen::Steady {
            self.disturbed_us = Some(at.monotonic_us);
        }
        self.steps.forward += u64::from(matches!(seen, Seen::StepForward { .. }));
        self.steps.back += u64::from(matches!(seen, Seen::StepBack { .. }));
        if self.difference_us().saturating_abs() <= STEP_US {
            self.open = None;
            self.trust_wall();
        } else if matches!(seen, Seen::StepForward { .. } | Seen::StepBack { .. })
            || self.open.is_none()
        {
            self.open = Some(Open {
                since_us: at.monotonic_us,
                contradicted_us: None,
                agreed_us: None,
            });
        } else {
            self.settle(at.monotonic_us);
        }
        seen
    }

    /// Another machine's clock showed `time_us` at some moment before `monotonic_us`.
    pub fn witness(&mut self, time_us: i64, monotonic_us: i64) {
        let Some(mut open) = self.open else {
            return;
        };
        let offset_us = time_us.saturating_sub(monotonic_us);
        let low_us = self.trusted_offset_us.min(self.wall_offset_us);
        if offset_us < low_us.saturating_sub(NEAR_US) {
            return;
        }
        let is_near_higher =
            offset_us > low_us.saturating_add(self.difference_us().saturating_abs() / 2);
        let is_forward = self.difference_us() > 0;
        if is_near_higher == is_forward {
            open.agreed_us = open.agreed_us.or(Some(monotonic_us));
        } else {
            open.contradicted_us = Some(monotonic_us);
            open.agreed_us = None;
        }
        self.open = Some(open);
        self.settle(monotonic_us);
    }

    /// The trusted time.
    pub fn now_us(&self, monotonic_us: i64) -> i64 {
        monotonic_us.saturating_add(self.trusted_offset_us)
    }

    /// The later of the trusted and the wall clock's time: a time after it is ahead of both.
    pub fn latest_us(&self, monotonic_us: i64) -> i64 {
        let offset_us = self.trusted_offset_us.max(self.wall_offset_us);
        monotonic_us.saturating_add(offset_us)
    }

    /// Whether this is the present, within a tolerance, by the trusted or by the wall clock's time.
    pub fn is_present(&self, time_us: i64, within_us: i64, monotonic_us: i64) -> bool {
        [self.trusted_offset_us, self.wall_offset_us]
            .into_iter()
            .any(|offset_us| {
                let present_us = monotonic_us.saturating_add(offset_us);
                present_us.saturating_sub(time_us).saturating_abs() <= within_us
            })
    }

    /// The time by the highest trusted offset so far. It never steps back, so a timer that was due
    /// stays due.
    pub fn unstepped_us(&self, monotonic_us: i64) -> i64 {
        monotonic_us.saturating_add(self.highest_offset_us)
    }

    /// Whether neither a step nor a pause was seen for this time.
    pub fn is_steady_for(&self, us: i64, monotonic_us: i64) -> bool {
        self.disturbed_us
            .is_none_or(|at_us| monotonic_us.saturating_sub(at_us) >= us)
    }

    /// Difference of the wall clock to the trusted time; positive if it is ahead. 0 unless a step
    /// is open.
    pub fn open_us(&self) -> i64 {
        self.open.map_or(0, |_| self.difference_us())
    }

    pub const fn steps(&self) -> Steps {
        self.steps
    }

    /// Whether other machines contradict the wall clock's step.
    pub fn is_contradicted(&self) -> bool {
        self.open.is_some_and(|open| open.contradicted_us.is_some())
    }

    /// Steps adopted after the one with this number; 0: all that are remembered.
    pub fn adopted_since(&self, number: u64) -> impl Iterator<Item = Adoption> + '_ {
        self.adoptions
            .iter()
            .copied()
            .filter(move |adoption| adoption.number > number)
    }

    fn difference_us(&self) -> i64 {
        self.wall_offset_us.saturating_sub(self.trusted_offset_us)
    }

    fn settle(&mut self, monotonic_us: i64) {
        let Some(open) = self.open else {
            return;
        };
        let passed_us = |since_us: i64| monotonic_us.saturating_sub(since_us);
        let is_agreed = open.agreed_us.is_some_and(|agreed_us| {
            self.difference_us() > 0 || passed_us(agreed_us) >= CONFIRM_US
        });
        let undisputed_us = passed_us(open.contradicted_us.unwrap_or(open.since_us));
        if is_agreed || undisputed_us >= SETTLE_US {
            self.adopt(monotonic_us);
        }
    }

    fn adopt(&mut self, monotonic_us: i64) {
        let from_us = self.now_us(monotonic_us);
        self.open = None;
        self.trust_wall();
        let adoption = Adoption {
            number: self.adoptions.last().map_or(1, |last| last.number + 1),
            from_us,
            to_us: self.now_us(monotonic_us),
        };
        if self.adoptions.len() >= ADOPTIONS_MAX {
            let oldest = self.adoptions.remove(0);
            if let Some(next) = self.adoptions.first_mut() {
                next.from_us = next.from_us.saturating_sub(oldest.by_us());
            }
        }
        self.adoptions.push(adoption);
    }

    fn trust_wall(&mut self) {
        self.trusted_offset_us = self.wall_offset_us;
        self.highest_offset_us = self.highest_offset_us.max(self.trusted_offset_us);
    }
}

#[cfg(test)]
#[path = "own_tests.rs"]
mod tests;
