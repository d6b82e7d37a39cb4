//! Whether any access network answers, for people. Sans-IO: takes what is seen and the time.
//!
//! A path that is silent for longer than its keepalive allows does not answer, also before the
//! tunnel gives it up. So an outage is known before uploads run into their limits.

use std::time::{Duration, Instant};

use service_kit::Warning;
use tunnel::{PathSnapshot, PathState, Transport};

/// A shorter outage is a handover between networks, and no warning.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Whether the session has a path that answers. Over TCP the kernel may show no paths.
pub(super) fn answers(transport: Option<Transport>, paths: &[PathSnapshot]) -> bool {
    match transport {
        None => false,
        Some(Transport::Quic) => paths
            .iter()
            .any(|path| matches!(path.state, PathState::Available | PathState::Backup)),
        Some(_) => true,
    }
}

/// Since when no access network answers.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
}

impl Outage {
    pub(super) fn on_look(&mut self, answers: bool, now: Instant) -> Option<Warning> {
        if answers {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        // The text stays the same while the outage lasts.
        (now.saturating_duration_since(since) >= SAID_AFTER).then(|| Warning {
            says: "no access network reaches the proxy; readings and alerts wait in the journal"
                .to_owned(),
            to_do: "look at the networks of this gateway (`braid paths`) and at the proxy"
                .to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(states: &[PathState]) -> Vec<PathSnapshot> {
        let path = |state: &PathState| PathSnapshot {
            state: *state,
            ..PathSnapshot::default()
        };
        states.iter().map(path).collect()
    }

    #[test]
    fn a_path_answers_unless_it_is_silent_or_closed() {
        use PathState::{Available, Backup, Closed, Suspect, Validating};
        let over_quic = |states: &[PathState]| answers(Some(Transport::Quic), &paths(states));
        assert!(over_quic(&[Suspect, Available]));
        assert!(over_quic(&[Closed, Backup]));
        assert!(!over_quic(&[Suspect, Closed, Validating]));
        assert!(!over_quic(&[]));
        assert!(!answers(None, &paths(&[Available])));
        assert!(answers(Some(Transport::Tcp), &[]));
    }

    #[test]
    fn both_networks_cut_are_said_within_seconds_and_a_handover_is_not() {
        let begin = Instant::now();
        let mut outage = Outage::default();
        let mut says = |ms: u64, answers| {
            let warning = outage.on_look(answers, begin + Duration::from_millis(ms));
            warning.is_some()
        };
        assert!(!says(0, true));
        assert!(!says(100, false));
        assert!(!says(2_000, false));
        assert!(!says(2_050, true), "a handover");
        assert!(!says(3_000, false), "the time begins again");
        assert!(says(5_000, false));
        assert!(says(12_000, false));
        assert!(!says(12_100, true));
    }
}
