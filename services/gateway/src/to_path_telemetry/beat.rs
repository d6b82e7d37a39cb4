//! When the gateway reports its paths: on change, and on a slow beat.
//!
//! A report each second would cost a SIM card a gigabyte a month. The proxy measures the same paths
//! each second, and its reports cost the SIM card nothing.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tunnel::{PathSnapshot, PathState};

use super::in_journals::InJournals;

/// Between two reports of a gateway whose paths carried this much meanwhile.
const BUSY_BEAT: Duration = Duration::from_secs(30);
const BUSY_BYTES: u64 = 1 << 20;

/// Session, path, name, state, local address and remote address.
type SaidPath = (
    u64,
    u64,
    String,
    PathState,
    Option<IpAddr>,
    Option<SocketAddr>,
);

/// Values whose changes are reported at once.
#[derive(Debug, PartialEq)]
struct Said {
    paths: Vec<SaidPath>,
    steering_version: u32,
    journal_waits: Option<bool>,
    journal_fills: Option<bool>,
}

/// The beat of a gateway's reports.
#[derive(Debug)]
pub(super) struct Beat {
    /// Between two reports at most.
    slow: Duration,
    said: Option<(Instant, Said, u64)>,
}

impl Beat {
    pub(super) fn new(slow: Duration) -> Self {
        Self { slow, said: None }
    }

    /// Whether a report is due. If so it counts as made, and the answer is the time since the one
    /// before, of which there is none at first.
    pub(super) fn take(
        &mut self,
        now: Instant,
        paths: &[PathSnapshot],
        steering_version: u32,
        journals: Option<InJournals>,
    ) -> Option<Option<Duration>> {
        let said = Said {
            paths: paths.iter().map(of_path).collect(),
            steering_version,
            // A few entries wait between two uploads.
            journal_waits: journals.map(|it| it.waiting > JOURNAL_WAITS_FROM),
            journal_fills: journals.map(|it| it.filled_permille >= JOURNAL_FILLS_FROM_PERMILLE),
        };
        let bytes = (paths.iter())
            .map(|path| path.sent_bytes + path.received_bytes)
            .sum::<u64>();
        let since = match &self.said {
            None => None,
            Some((at, before, bytes_before)) => {
                let passed = now.saturating_duration_since(*at);
                let busy = bytes.saturating_sub(*bytes_before) >= BUSY_BYTES;
                let beat = if busy {
                    BUSY_BEAT.min(self.slow)
                } else {
                    self.slow
                };
                if *before == said && passed < beat {
                    return None;
                }
                Some(passed)
            }
        };
        self.said = Some((now, said, bytes));
        Some(since)
    }
}

/// Entries of the journals from which on they count as waiting.
const JOURNAL_WAITS_FROM: u64 = 1_000;
/// Share of its bound from which on a journal counts as filling. Path-telemetry counts such
/// gateways.
const JOURNAL_FILLS_FROM_PERMILLE: u32 = 750;

fn of_path(path: &PathSnapshot) -> SaidPath {
    (
        path.session,
        path.path_id,
        path.name.clone(),
        path.state,
        path.local_ip,
        path.remote_address,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(state: PathState, sent_bytes: u64) -> PathSnapshot {
        PathSnapshot {
            session: 1,
            name: "wifi".into(),
            state,
            rtt: Duration::from_millis(20),
            rtt_min: Duration::from_millis(10),
            sent_bytes,
            ..PathSnapshot::default()
        }
    }

    #[test]
    fn a_change_is_reported_at_once_and_the_rest_on_the_beat() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut beat = Beat::new(second * 300);
        let mut reported = Vec::new();
        for number in 0..700_u32 {
            let state = match number {
                0..400 => PathState::Available,
                _ => PathState::Suspect,
            };
            let paths = [path(state, u64::from(number) * 500)];
            if beat
                .take(
                    start + second * number,
                    &paths,
                    0,
                    Some(InJournals::default()),
                )
                .is_some()
            {
                reported.push(number);
            }
        }
        assert_eq!(reported, [0, 300, 400]);
    }

    #[test]
    fn a_journal_that_fills_is_reported_at_once() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut beat = Beat::new(second * 300);
        let mut reported = Vec::new();
        for number in 0..100_u32 {
            let journals = InJournals {
                waiting: 0,
                filled_permille: number * 10,
            };
            let paths = [path(PathState::Available, 0)];
            let due = beat.take(start + second * number, &paths, 0, Some(journals));
            reported.extend(due.map(|_| number));
        }
        assert_eq!(reported, [0, 75]);
    }

    #[test]
    fn a_busy_gateway_reports_more_often_and_says_over_what_time() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut beat = Beat::new(second * 300);
        let mut since = Vec::new();
        for number in 0..100_u32 {
            let paths = [path(PathState::Available, u64::from(number) << 20)];
            since.extend(beat.take(start + second * number, &paths, 0, None));
        }
        let busy = Some(second * 30);
        assert_eq!(since, [None, busy, busy, busy]);
    }
}
