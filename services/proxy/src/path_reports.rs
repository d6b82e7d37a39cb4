//! Turns the counters of paths into one report per path and interval; sans-IO.
//!
//! The counters of a path only rise, so an interval's figures are differences. A path is reported
//! as closed once and then forgotten. A path whose name has not arrived is held back for
//! `UNNAMED_INTERVALS_MAX` intervals; its counters go on. Then it is reported under `path-<id>`.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use contracts::paths::{End, PathReport, PathState as State};
use service_kit::tls::GatewayId;
use tunnel::{PathSnapshot, PathState};

/// Intervals for which a path without a name is held back; then it is reported under its id.
const UNNAMED_INTERVALS_MAX: u32 = 3;

#[derive(Debug, Default)]
struct Reported {
    sent_bytes: u64,
    received_bytes: u64,
    sent_packets: u64,
    lost_packets: u64,
    held_back: u32,
    closed: bool,
    seen: u64,
}

/// The values that were reported last. Bounded by the open sessions: a path that is gone is
/// forgotten.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    paths: HashMap<(u64, u64), Reported>,
    /// Last sequence number by gateway, path and session.
    sequences: HashMap<(GatewayId, String, u64), u64>,
    turn: u64,
}

impl Reports {
    /// The reports of the interval that ends now.
    pub(crate) fn take(
        &mut self,
        now_us: i64,
        interval: Duration,
        sessions: &[(GatewayId, Vec<PathSnapshot>)],
    ) -> Vec<PathReport> {
        self.turn += 1;
        let mut reports = Vec::new();
        for (gateway, paths) in sessions {
            for path in paths {
                if let Some(report) = self.report(now_us, interval, gateway, path) {
                    reports.push(report);
                }
            }
        }
        let turn = self.turn;
        self.paths.retain(|_, reported| reported.seen == turn);
        let live: HashSet<u64> = self.paths.keys().map(|(session, _)| *session).collect();
        self.sequences
            .retain(|(_, _, session), _| live.contains(session));
        reports
    }

    fn report(
        &mut self,
        now_us: i64,
        interval: Duration,
        gateway: &GatewayId,
        path: &PathSnapshot,
    ) -> Option<PathReport> {
        let last = self.paths.entry((path.session, path.path_id)).or_default();
        last.seen = self.turn;
        if last.closed {
            return None;
        }
        let name = if path.name.is_empty() {
            last.held_back += 1;
            if last.held_back <= UNNAMED_INTERVALS_MAX && path.state != PathState::Closed {
                return None;
            }
            format!("path-{}", path.path_id)
        } else {
            path.name.clone()
        };
        let key = (gateway.clone(), name.clone(), path.session);
        let sequence = self.sequences.entry(key).or_default();
        *sequence += 1;
        let report = PathReport {
            gateway: gateway.id.clone(),
            path: name,
            end: End::Proxy.into(),
            session: path.session,
            path_id: path.path_id,
            state: state(path.state).into(),
            time_us: now_us,
            interval_ms: interval.as_millis().try_into().unwrap_or(u32::MAX),
            sent_bytes: path.sent_bytes.saturating_sub(last.sent_bytes),
            received_bytes: path.received_bytes.saturating_sub(last.received_bytes),
            sent_packets: path.sent_packets.saturating_sub(last.sent_packets),
            lost_packets: path.lost_packets.saturating_sub(last.lost_packets),
            rtt_ms: path.rtt.as_secs_f64() * 1e3,
            rtt_min_ms: path.rtt_min.as_secs_f64() * 1e3,
            congestion_window_bytes: path.congestion_window_bytes,
            local_address: path.local_ip.map_or_else(String::new, |ip| ip.to_string()),
            remote_address: path
                .remote_address
                .map_or_else(String::new, |address| address.to_string()),
            sequence: *sequence,
            tenant: gateway.tenant.clone(),
            journal_waiting: None,
            journal_filled_permille: None,
            steering_version: 0,
            steering_is_own: false,
            access: None,
            rule_uses: Vec::new(),
        };
        last.sent_bytes = path.sent_bytes;
        last.received_bytes = path.received_bytes;
        last.sent_packets = path.sent_packets;
        last.lost_packets = path.lost_packets;
        last.closed = path.state == PathState::Closed;
        Some(report)
    }
}

fn state(state: PathState) -> State {
    match state {
        PathState::Validating => State::Validating,
        PathState::Available => State::Available,
        PathState::Backup => State::Backup,
        PathState::Suspect => State::Suspect,
        PathState::Closed => State::Closed,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn path(path_id: u64, name: &str, sent_bytes: u64) -> PathSnapshot {
        PathSnapshot {
            session: 9,
            path_id,
            name: name.into(),
            state: PathState::Available,
            rtt: Duration::from_millis(20),
            rtt_min: Duration::from_millis(10),
            sent_bytes,
            received_bytes: 2 * sent_bytes,
            sent_packets: sent_bytes / 100,
            received_datagrams: 1,
            congestion_window_bytes: 1_000,
            ..PathSnapshot::default()
        }
    }

    fn sessions(paths: Vec<PathSnapshot>) -> Vec<(GatewayId, Vec<PathSnapshot>)> {
        vec![(GatewayId::new("acme", "gw-1"), paths)]
    }

    #[test]
    fn an_interval_is_a_difference_and_sequences_rise_per_name() {
        let mut reports = Reports::default();
        let first = reports.take(1, SECOND, &sessions(vec![path(0, "wifi", 500)]));
        assert_eq!((first[0].sent_bytes, first[0].sequence), (500, 1));
        assert_eq!(
            (&*first[0].tenant, &*first[0].gateway),
            ("acme", "gw-1"),
            "of two gateways of one name it is told which"
        );
        // The path is opened again under another id: the sequence of its name continues.
        let mut closed = path(0, "wifi", 600);
        closed.state = PathState::Closed;
        let second = reports.take(
            2,
            SECOND,
            &sessions(vec![closed.clone(), path(2, "wifi", 50)]),
        );
        let figures: Vec<_> = second
            .iter()
            .map(|report| (report.path_id, report.sent_bytes, report.sequence))
            .collect();
        assert_eq!(figures, [(0, 100, 2), (2, 50, 3)]);
        assert_eq!(second[0].state(), State::Closed);
        // A closed path is not reported again.
        let third = reports.take(3, SECOND, &sessions(vec![closed, path(2, "wifi", 50)]));
        assert_eq!(third.len(), 1);
        assert_eq!((third[0].sent_bytes, third[0].sequence), (0, 4));
    }

    #[test]
    fn a_path_without_a_name_waits_and_loses_nothing() {
        let mut reports = Reports::default();
        assert!(
            reports
                .take(1, SECOND, &sessions(vec![path(3, "", 10)]))
                .is_empty()
        );
        let named = reports.take(2, SECOND, &sessions(vec![path(3, "lte", 30)]));
        assert_eq!((named[0].path.as_str(), named[0].sent_bytes), ("lte", 30));
        let mut reports = Reports::default();
        for _ in 0..UNNAMED_INTERVALS_MAX {
            assert!(
                reports
                    .take(1, SECOND, &sessions(vec![path(3, "", 10)]))
                    .is_empty()
            );
        }
        let unnamed = reports.take(1, SECOND, &sessions(vec![path(3, "", 10)]));
        assert_eq!(unnamed[0].path, "path-3");
    }

    #[test]
    fn closed_sessions_are_forgotten() {
        let mut reports = Reports::default();
        reports.take(1, SECOND, &sessions(vec![path(0, "wifi", 500)]));
        reports.take(2, SECOND, &[]);
        assert!(reports.paths.is_empty() && reports.sequences.is_empty());
    }
}
