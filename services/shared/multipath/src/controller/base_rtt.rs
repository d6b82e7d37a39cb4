//! Base round trip of the path, and the verdict of an RTT probe that saw a longer round trip:
//! cross-traffic, or a longer path. A queue shrinks when less is in flight; the delay of a path
//! does not. The same round trip in two probes therefore leads to a deep probe.

use std::time::Duration;

/// Jitter up to this does not count as a queue.
pub(super) const UNQUEUED_SLACK: Duration = Duration::from_millis(1);

/// Bound on deep probes for one base RTT.
const DEEP_PROBES_MAX: u32 = 8;
/// The sender's own queue explains round trips up to this factor of the base RTT.
const OWN_QUEUE_FACTOR: f64 = 1.45;
/// Deep probes with an unchanged round trip until the path counts as longer. Cross-traffic with
/// most of the link hardly notices one deep probe, and may show the same queue twice.
const UNCHANGED_MIN: u32 = 2;
/// Without known cross-traffic, a round trip beyond this factor of the base RTT leads to a deep
/// probe. After a drop of the rate the sender's own queue stands.
const LONG_QUEUE_FACTOR: f64 = 1.5;
/// A queue longer than the base RTT was the sender's own if a probe leaves less than this part of
/// it.
const OWN_LEFT: u32 = 16;
/// Probes in a row without cross-traffic until it has ended.
const EMPTY_PROBES: u32 = 2;

#[derive(Debug, Clone)]
pub(super) struct BaseRtt {
    /// Base round trip. A probe that sees clearly more has detected another sender's queue.
    rtt: Option<Duration>,
    /// False from a change of the acknowledgements' route until the next probe.
    known: bool,
    /// The base RTT before the acknowledgements changed their route.
    before: Option<Duration>,
    /// Round trip of the last probe that saw a queue. The same value in a deep probe means a longer
    /// path.
    queue_seen: Option<Duration>,
    /// Deep probes in a row with an unchanged round trip.
    unchanged_probes: u32,
    /// The current or next probe is a deep one.
    deep: bool,
    /// Deep probes that may still follow, because the last one lowered the base RTT.
    deep_probes_left: u32,
    /// Probes in a row without cross-traffic.
    empty_probes: u32,
    /// The base RTT at the begin of the last probe.
    before_probe: Option<Duration>,
    /// The latest round trip at the begin of the last probe.
    rtt_at_start: Duration,
}

/// The verdict of an RTT probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeVerdict {
    /// Undecided: the next probe is a deep one; until then this is the minimum round trip.
    Unclear(Duration),
    NoCrossTraffic,
    /// No cross-traffic, and the known cross-traffic has ended.
    CrossTrafficEnded,
    /// Cross-traffic on a path with this base RTT.
    CrossTraffic(Duration),
}

impl BaseRtt {
    pub(super) fn new() -> Self {
        Self {
            rtt: None,
            known: true,
            before: None,
            queue_seen: None,
            unchanged_probes: 0,
            deep: false,
            deep_probes_left: 0,
            empty_probes: 0,
            before_probe: None,
            rtt_at_start: Duration::ZERO,
        }
    }

    pub(super) fn is_deep(&self) -> bool {
        self.deep
    }

    pub(super) fn deepen(&mut self) {
        self.deep = true;
    }

    pub(super) fn wants_deep_probe(&self) -> bool {
        self.deep_probes_left > 0
    }

    /// The last probe saw no cross-traffic.
    pub(super) fn was_empty(&self) -> bool {
        self.empty_probes > 0
    }

    /// Another mechanism detected cross-traffic.
    pub(super) fn on_cross_traffic(&mut self) {
        self.empty_probes = 0;
    }

    pub(super) fn on_route_change(&mut self) {
        self.before = self.rtt.take().or(self.before);
        self.known = false;
        self.queue_seen = None;
    }

    pub(super) fn on_round_trip(&mut self, rtt: Duration) {
        if self.known {
            self.rtt = Some(self.rtt.map_or(rtt, |base| base.min(rtt)));
        }
    }

    /// Another mechanism found the path longer.
    pub(super) fn on_longer_path(&mut self, rtt: Duration) {
        self.rtt = Some(rtt);
        self.queue_seen = None;
        self.unchanged_probes = 0;
    }

    pub(super) fn on_probe_start(&mut self, rtt: Duration) {
        self.before_probe = self.rtt;
        self.rtt_at_start = rtt;
    }

    /// Longest round trip that the sender's own short queue explains.
    pub(super) fn own_queue_rtt_max(&self, slack: Duration) -> Option<Duration> {
        self.rtt.map(|base| base.mul_f64(OWN_QUEUE_FACTOR) + slack)
    }

    /// A probe has ended. `seen` is the smallest round trip sent into the empty queue. `slack` is
    /// the delay of the sender's own packets and jitter, and `packet_time` the time of a packet.
    /// `with_cross_traffic` says whether cross-traffic is known, `is_steady` whether the link is
    /// not bursty. On a bursty link long queues come and go.
    pub(super) fn on_probe_end(
        &mut self,
        seen: Duration,
        slack: Duration,
        packet_time: Duration,
        with_cross_traffic: bool,
        is_steady: bool,
    ) -> ProbeVerdict {
        let deep = std::mem::take(&mut self.deep);
        let rebased = self.rtt.is_none();
        let base = self.rtt.or(self.before).unwrap_or(seen);
        let sees_queue = seen > base + base / 8 + slack;
        let is_same = self
            .queue_seen
            .is_some_and(|before| before.abs_diff(seen) < before / 32);
        let is_long_queue =
            is_steady && !with_cross_traffic && seen > base.mul_f64(LONG_QUEUE_FACTOR);
        if sees_queue && !deep && (rebased || is_same || is_long_queue) {
            self.queue_seen = Some(seen);
            self.deep = true;
            return ProbeVerdict::Unclear(if rebased { seen } else { base });
        }
        self.known = true;
        let is_unchanged = sees_queue && is_same;
        if !is_unchanged {
            self.unchanged_probes = 0;
        } else if deep {
            self.unchanged_probes += 1;
        }
        let is_longer_path = is_unchanged && (rebased || self.unchanged_probes >= UNCHANGED_MIN);
        let is_lower = self
            .before_probe
            .is_some_and(|before| seen + seen / 32 < before);
        // A queue that shrank with less in flight may shrink again.
        let gave_way = if rebased {
            sees_queue && !is_longer_path
        } else {
            is_lower && with_cross_traffic
        };
        if deep && self.wants_deep_probe() && !rebased {
            let is_bare = !sees_queue && !is_lower;
            self.deep_probes_left = if is_bare {
                0
            } else {
                self.deep_probes_left - 1
            };
        } else if gave_way {
            self.deep_probes_left = DEEP_PROBES_MAX;
        }
        if sees_queue && !is_longer_path && !rebased {
            self.queue_seen = Some(seen);
            self.empty_probes = 0;
            return ProbeVerdict::CrossTraffic(base);
        }
        self.rtt = Some(if is_longer_path || rebased {
            seen
        } else {
            base.min(seen)
        });
        self.queue_seen = None;
        // A probe that finds a lower base RTT proves nothing about the queue above it.
        let is_empty = !is_lower && seen <= base + base / 32 + UNQUEUED_SLACK + packet_time;
        self.empty_probes = if is_empty { self.empty_probes + 1 } else { 0 };
        let queue = self.rtt_at_start.saturating_sub(base);
        let was_own = queue > base && seen.saturating_sub(base) < queue / OWN_LEFT;
        if self.empty_probes >= EMPTY_PROBES || is_longer_path || was_own {
            ProbeVerdict::CrossTrafficEnded
        } else {
            ProbeVerdict::NoCrossTraffic
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn probe(base: &mut BaseRtt, seen: u32) -> ProbeVerdict {
        probe_from(base, seen, seen, false)
    }

    /// A probe that began with round trips of `before`.
    fn probe_from(
        base: &mut BaseRtt,
        before: u32,
        seen: u32,
        with_cross_traffic: bool,
    ) -> ProbeVerdict {
        base.on_probe_start(before * MS);
        base.on_probe_end(seen * MS, 2 * MS, MS, with_cross_traffic, true)
    }

    fn with_cross_traffic(base: &mut BaseRtt, seen: u32) -> ProbeVerdict {
        probe_from(base, seen, seen, true)
    }

    fn known(rtt: u32) -> BaseRtt {
        let mut base = BaseRtt::new();
        base.on_round_trip(rtt * MS);
        base
    }

    #[test]
    fn two_empty_probes_end_cross_traffic() {
        let mut base = known(20);
        assert_eq!(probe(&mut base, 20), ProbeVerdict::NoCrossTraffic);
        assert!(base.was_empty());
        assert_eq!(probe(&mut base, 21), ProbeVerdict::CrossTrafficEnded);
        assert_eq!(
            with_cross_traffic(&mut base, 40),
            ProbeVerdict::CrossTraffic(20 * MS)
        );
        assert!(!base.was_empty());
    }

    #[test]
    fn a_long_queue_that_a_deep_probe_leaves_is_cross_traffic() {
        for (seen_deep, met) in [
            (36, ProbeVerdict::CrossTraffic(20 * MS)),
            (20, ProbeVerdict::NoCrossTraffic),
        ] {
            let mut base = known(20);
            assert_eq!(probe(&mut base, 40), ProbeVerdict::Unclear(20 * MS));
            assert!(base.is_deep());
            assert_eq!(probe(&mut base, seen_deep), met);
        }
        let mut base = known(20);
        assert_eq!(
            with_cross_traffic(&mut base, 40),
            ProbeVerdict::CrossTraffic(20 * MS)
        );
    }

    #[test]
    fn a_long_queue_that_a_probe_removes_was_the_senders_own() {
        for (before, met) in [
            (100, ProbeVerdict::CrossTrafficEnded),
            (80, ProbeVerdict::NoCrossTraffic),
            (39, ProbeVerdict::NoCrossTraffic),
        ] {
            let mut base = known(20);
            assert_eq!(probe_from(&mut base, before, 24, true), met, "{before}");
        }
    }

    #[test]
    fn an_unchanged_round_trip_in_two_deep_probes_is_a_longer_path() {
        let cross_traffic = ProbeVerdict::CrossTraffic(20 * MS);
        for (seen, met, uncrowded) in [
            (
                [40, 40],
                [cross_traffic, ProbeVerdict::CrossTrafficEnded],
                58,
            ),
            ([40, 30], [cross_traffic, cross_traffic], 29),
            ([30, 40], [cross_traffic, cross_traffic], 29),
        ] {
            let mut base = known(20);
            assert_eq!(with_cross_traffic(&mut base, 40), cross_traffic);
            for (seen_deep, met) in seen.into_iter().zip(met) {
                assert!(!base.is_deep());
                while !base.is_deep() {
                    with_cross_traffic(&mut base, 40);
                }
                assert_eq!(with_cross_traffic(&mut base, seen_deep), met);
            }
            let max = base.own_queue_rtt_max(Duration::ZERO);
            assert_eq!(max, Some(uncrowded * MS), "{seen:?}");
        }
    }

    #[test]
    fn a_new_route_of_acknowledgements_is_a_new_base_rtt() {
        let mut base = known(20);
        base.on_route_change();
        base.on_round_trip(50 * MS);
        assert_eq!(
            base.own_queue_rtt_max(Duration::ZERO),
            None,
            "not yet known"
        );
        assert_eq!(probe(&mut base, 35), ProbeVerdict::Unclear(35 * MS));
        assert_eq!(probe(&mut base, 35), ProbeVerdict::CrossTrafficEnded);
        assert_eq!(
            base.own_queue_rtt_max(Duration::ZERO),
            Some(50_750 * MS / 1_000)
        );
    }
}
