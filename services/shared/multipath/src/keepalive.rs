//! The keepalive of a path: how often it is pinged, and how many answers may be missing.

use std::time::Duration;

/// Shortest interval of pings that a policy may ask for.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Longest interval of pings that a policy may ask for.
const INTERVAL_MAX: Duration = Duration::from_secs(10);

/// One lost ping is not fatal.
const SILENT_INTERVALS_MIN: u32 = 2;
/// Most silent intervals that a policy may ask for.
const SILENT_INTERVALS_MAX: u32 = 100;
/// Under dense traffic a path is dead after this silence at the soonest.
pub(crate) const DENSE_SILENCE_FATAL: Duration = Duration::from_millis(200);

/// How a path is probed: K and T_KA of the keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    pub interval: Duration,
    /// Silent intervals after which the path counts as dead.
    pub silent_intervals: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(100),
            silent_intervals: 4,
        }
    }
}

impl Keepalive {
    /// A policy within what both ends can keep to: no storm of pings, no silence without end, and
    /// none that jitter alone explains.
    pub(crate) fn bounded(self) -> Self {
        let interval = self.interval.clamp(INTERVAL_MIN, INTERVAL_MAX);
        // As the peer reads it.
        let interval = Duration::from_millis(interval.as_millis() as u64);
        let wanted = self
            .silent_intervals
            .clamp(SILENT_INTERVALS_MIN, SILENT_INTERVALS_MAX);
        Self {
            interval,
            silent_intervals: wanted.max(intervals_in(DENSE_SILENCE_FATAL, interval)),
        }
    }

    /// The longer interval and at least the longer silence of both.
    pub(crate) fn or_rarer(self, other: Self) -> Self {
        let interval = self.interval.max(other.interval);
        let silence = self.silence_max().max(other.silence_max());
        Self {
            interval,
            silent_intervals: intervals_in(silence, interval),
        }
    }

    /// Silence that a path may keep and still count as alive, beside its round trip.
    pub fn silence_max(&self) -> Duration {
        self.interval * self.silent_intervals.max(1)
    }
}

/// So many intervals are at least that long.
fn intervals_in(length: Duration, interval: Duration) -> u32 {
    let intervals = length.as_nanos().div_ceil(interval.as_nanos().max(1));
    u32::try_from(intervals).unwrap_or(u32::MAX)
}
