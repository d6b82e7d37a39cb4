//! Clocks that may be wrong: a process's own, and those of gateways. The caller passes times; only
//! [`CheckedClock`] reads a clock.

mod arrivals;
mod checked;
mod gateways;
mod own;

pub use arrivals::Arrivals;
pub use checked::{CheckedClock, Condition, Source};
pub use gateways::{ClockError, Clocks, GatewayClock, Sent, SharedError, TOLERATED_US, Taken};
pub use own::{Adoption, CONFIRM_US, Moment, OwnClock, PAUSE_US, SETTLE_US, STEP_US, Seen, Steps};
