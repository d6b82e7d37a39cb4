//! The clocks of this process: reads the machine's clocks, asks [`OwnClock`], and is shared by the
//! tasks of a service.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use crate::own::{Adoption, Moment, OwnClock, Seen, Steps};

/// Reads both clocks; tests replace it by wrong clocks.
pub type Source = Arc<dyn Fn() -> Moment + Send + Sync>;

/// Clones share one state.
#[derive(Clone)]
pub struct CheckedClock {
    source: Source,
    own: Arc<Mutex<OwnClock>>,
}

impl fmt::Debug for CheckedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedClock").finish_non_exhaustive()
    }
}

impl CheckedClock {
    pub fn of_machine() -> CheckedClock {
        CheckedClock::new(Arc::new(|| {
            let uptime = clock_gettime(ClockId::Boottime);
            Moment {
                wall_us: contracts::now_us(),
                monotonic_us: uptime.tv_sec * 1_000_000 + uptime.tv_nsec / 1000,
            }
        }))
    }

    pub fn new(source: Source) -> CheckedClock {
        let own = OwnClock::new(source());
        CheckedClock {
            source,
            own: Arc::new(Mutex::new(own)),
        }
    }

    /// The trusted time.
    pub fn now_us(&self) -> i64 {
        self.look(|own, at| own.now_us(at))
    }

    /// See [`OwnClock::latest_us`].
    pub fn latest_us(&self) -> i64 {
        self.look(|own, at| own.latest_us(at))
    }

    /// See [`OwnClock::is_present`].
    pub fn is_present(&self, time_us: i64, within_us: i64) -> bool {
        self.look(|own, at| own.is_present(time_us, within_us, at))
    }

    /// See [`OwnClock::unstepped_us`].
    pub fn unstepped_us(&self) -> i64 {
        self.look(|own, at| own.unstepped_us(at))
    }

    pub fn monotonic_us(&self) -> i64 {
        self.look(|_, at| at)
    }

    /// Reports that another machine's clock showed this a moment ago.
    pub fn witness(&self, time_us: i64) {
        self.look(|own, at| own.witness(time_us, at));
    }

    pub fn is_steady_for(&self, us: i64) -> bool {
        self.look(|own, at| own.is_steady_for(us, at))
    }

    pub fn adopted_since(&self, number: u64) -> Vec<Adoption> {
        self.look(|own, _| own.adopted_since(number).collect())
    }

    /// The clock's condition for `/readyz`.
    pub fn condition(&self) -> Condition {
        self.look(|own, _| Condition {
            open_us: own.open_us(),
            is_contradicted: own.is_contradicted(),
            steps: own.steps(),
        })
    }

    fn look<T>(&self, ask: impl FnOnce(&mut OwnClock, i64) -> T) -> T {
        let mut own = self.own.lock();
        let at = (self.source)();
        let seen = own.look(at);
        if seen != Seen::Steady {
            report(seen);
        }
        ask(&mut own, at.monotonic_us)
    }
}

/// The state of a clock in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Difference of the wall clock to the trusted time; 0: it is trusted.
    pub open_us: i64,
    pub is_contradicted: bool,
    pub steps: Steps,
}

/// Once for each step, because only one look sees it.
fn report(seen: Seen) {
    match seen {
        Seen::Steady => {}
        Seen::StepForward { by_us } => tracing::warn!(
            by_s = by_us / 1_000_000,
            "this machine's clock was set forward; verdicts of silence wait for one full interval"
        ),
        Seen::StepBack { by_us } => tracing::warn!(
            by_s = by_us / 1_000_000,
            "this machine's clock was set back; verdicts of silence wait for one full interval"
        ),
        Seen::Paused { for_us } => tracing::warn!(
            for_s = for_us / 1_000_000,
            "this process did not run; verdicts of silence wait for one full interval"
        ),
    }
}
