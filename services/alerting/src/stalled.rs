//! The bound on a turn of the background loops.

use std::time::Duration;

/// A background loop without a turn for this time counts as stalled. It exceeds the time of all
/// queries in one turn.
pub(crate) const LOOP_SILENCE_MAX: Duration = Duration::from_secs(600);
