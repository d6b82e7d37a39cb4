//! Closed paths that the library does not release.
//!
//! Data in flight on a closed path is declared lost when the peer has confirmed the close and the
//! path has drained. A peer that never received a packet of the path confirms nothing. The data
//! would be neither retransmitted nor reported, and streams would stand still in a connection that
//! looks healthy. PathUpkeep closes no such path, but the library or the peer may. A connection
//! that cannot release a path for [`RELEASE_MAX`] although another path is alive ends with an
//! error. The same holds for a path that is unacknowledged and cannot be replaced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use noq_proto::PathId;

use super::{PATHS_MAX, PathUpkeep};
use crate::Command;

/// Time with a living path until a closed path must be released, beside the time of its draining.
const RELEASE_MAX: Duration = Duration::from_secs(30);
/// Three probe time-outs. The deviation is at most twice the smoothed round trip, so a time-out is
/// at most nine of them.
const DRAIN_ROUND_TRIPS: u32 = 27;
/// Longest pause between two polls that counts as continuous.
const LOOK_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Wait {
    /// Time with another living path. A path that is still open counts only while it waits for an
    /// acknowledgement.
    passed: Duration,
    /// The longest smoothed round trip meanwhile, of this path or of one that brings the answer.
    rtt_max: Duration,
}

impl Wait {
    fn is_over(&self) -> bool {
        self.passed >= RELEASE_MAX + self.rtt_max * DRAIN_ROUND_TRIPS
    }
}

/// The paths that are closing or to be replaced. Paths beyond `PATHS_MAX` are not watched.
#[derive(Debug, Default)]
pub(super) struct Closing {
    waits: BTreeMap<PathId, Wait>,
    gave_up: bool,
}

impl Closing {
    pub(super) fn begin(&mut self, path: PathId) {
        if self.waits.len() < PATHS_MAX {
            self.waits.insert(path, Wait::default());
        }
    }

    pub(super) fn held(&mut self, path: PathId, rtt: Duration) {
        if let Some(wait) = self.waits.get_mut(&path) {
            wait.rtt_max = wait.rtt_max.max(rtt);
        }
    }

    pub(super) fn discarded(&mut self, path: PathId) {
        self.waits.remove(&path);
    }
}

impl PathUpkeep {
    /// The paths of which the shell reports whether the library still holds them.
    pub fn closing(&self) -> Vec<PathId> {
        self.closing.waits.keys().copied().collect()
    }

    /// Adds the time since the last poll in which a path was alive.
    pub(super) fn wait_for_release(&mut self, now: Instant) {
        let Some(before) = self.polled_at else {
            return;
        };
        let passed = now.saturating_duration_since(before).min(LOOK_MAX);
        let rtt = self.paths.values().map(|path| path.rtt).max();
        for (id, wait) in &mut self.closing.waits {
            wait.rtt_max = wait.rtt_max.max(rtt.unwrap_or_default());
            let slot = self.paths.get(id).and_then(|path| path.slot);
            let is_answered = slot.is_some_and(|slot| {
                let acked_at = self.scheduler.acked_at(slot);
                acked_at.is_some_and(|at| at >= before) || self.scheduler.in_flight(slot) == 0
            });
            wait.passed = if is_answered {
                Duration::ZERO
            } else {
                wait.passed + passed
            };
        }
    }

    /// Reported once.
    pub(super) fn poll_give_up(&mut self) -> Option<Command> {
        let mut waits = self.closing.waits.iter();
        let (path, _) = waits.find(|(_, wait)| wait.is_over())?;
        let said = std::mem::replace(&mut self.closing.gave_up, true);
        (!said).then_some(Command::GiveUp { path: *path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, PathScheduler, Side, UpkeepConfig};

    const MS: Duration = Duration::from_millis(1);

    /// A server whose path 1 closes at the start while path 0 receives every 100 ms in the seconds
    /// of `heard`. Returns the time of the error.
    fn run(heard: impl Fn(u32) -> bool, discarded_s: Option<u32>) -> Option<Duration> {
        run_slow(heard, discarded_s, Duration::ZERO)
    }

    /// The same where the library reports this round trip of the closed path.
    fn run_slow(
        heard: impl Fn(u32) -> bool,
        discarded_s: Option<u32>,
        rtt: Duration,
    ) -> Option<Duration> {
        let start = Instant::now();
        let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Server), PathScheduler::new());
        steering.on_event(start, Event::Connected { interface: None });
        let path = PathId::from(1u32);
        steering.on_event(start, Event::Established { path });
        steering.on_event(start, Event::Abandoned { path });
        let mut gave_up = None;
        for tick in 1..1500u32 {
            let passed = MS * 100 * tick;
            if heard(tick / 10) {
                let event = Event::Received {
                    path: PathId::ZERO,
                    datagrams: u64::from(tick),
                    rtt: MS * 40,
                };
                steering.on_event(start + passed, event);
            }
            for path in steering.closing() {
                steering.on_event(start + passed, Event::Held { path, rtt });
            }
            if discarded_s == Some(tick / 10) {
                steering.on_event(start + passed, Event::Discarded { path });
            }
            while let Some(command) = steering.poll(start + passed) {
                if let Command::GiveUp { path: of } = command {
                    assert_eq!((of, gave_up.replace(passed)), (path, None));
                }
            }
        }
        gave_up
    }

    #[test]
    fn a_connection_that_cannot_release_a_path_gives_up() {
        let gave_up = run(|_| true, None).unwrap_or_default();
        let patience = RELEASE_MAX + MS * 40 * DRAIN_ROUND_TRIPS;
        assert!(gave_up.abs_diff(patience) <= MS * 200, "{gave_up:?}");
    }

    #[test]
    fn a_path_of_a_long_round_trip_has_time_to_drain() {
        let rtt = MS * 4_000;
        assert_eq!(run_slow(|_| true, Some(80), rtt), None);
        let gave_up = run_slow(|_| true, None, rtt).unwrap_or_default();
        let patience = RELEASE_MAX + rtt * DRAIN_ROUND_TRIPS;
        assert!(gave_up.abs_diff(patience) <= MS * 100, "{gave_up:?}");
    }

    #[test]
    fn a_path_that_is_released_in_time_is_forgotten() {
        assert_eq!(run(|_| true, Some(29)), None);
    }

    #[test]
    fn an_outage_of_all_paths_does_not_count() {
        let outage = 5..60;
        let gave_up = run(|second| !outage.contains(&second), None).unwrap_or_default();
        assert!(gave_up >= RELEASE_MAX + MS * 54_000, "{gave_up:?}");
        assert_eq!(run(|second| !outage.contains(&second), Some(65)), None);
    }
}
