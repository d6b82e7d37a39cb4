//! The health of consumers: progress against the end of what they consume.
//!
//! ```text
//! bus: end of each partition ---\
//!                                >-- measure --> standing (sans-IO) --> /readyz, /healthz, metrics
//! store or bus: position done --/                                  \--> dashboard's banner, `braid doctor`
//! ```
//!
//! A consumer stands still when a partition has records behind its stored position, and the
//! position has not moved for [`Pace::patience`]. The watcher runs beside the consumer in a task of
//! its own and queries the engines. So it notices a loop that repeats a refused write, a call that
//! never returns, and a lost subscription. Any process can measure: the positions of the whole
//! group count, whichever replica has the partitions.

pub mod duty;
pub mod gap;
mod measure;
pub mod standing;
mod watch;

pub use duty::Duty;
pub use measure::{Asked, Missed, Seen, Source, Unanswered, measure};
pub use standing::{Judge, Moment, PartitionOffsets, Standing};
pub use watch::{Heard, Level, Own, Pace, Report, Watcher, watch};
