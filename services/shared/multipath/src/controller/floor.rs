//! The round trip of the bare path, and what a drained round that saw another one has met: somebody else's queue, or a path that became longer. A
//! queue gives way to less in flight, a path does not, so what stands twice is looked at again in a deep round.

use std::time::Duration;

use super::UNQUEUED_SLACK;

/// Deep rounds that are made for one floor, at most.
const DOUBTS_MAX: u32 = 8;
/// A round with no smaller round trip than this many floors is crowded.
const CROWDED: f64 = 1.45;
/// Strangers that hold most of the link barely notice a deep round, and their queue may be as long twice: a path is longer when it stood in so many.
const STANDS_MIN: u32 = 2;
/// One with no smaller round trip than so many, where nobody was met, is looked at again in a deep round: when the rate has fallen meanwhile it is the
/// own queue that stands.
const FAR_CROWDED: f64 = 1.5;
/// A queue longer than the bare path, of which a drained round leaves less than such a part, was the own one.
const OWN_LEFT: u32 = 16;
/// A stranger is gone after so many drained rounds in a row that met nobody.
const EMPTY_DRAINS: u32 = 2;

#[derive(Debug, Clone)]
pub(super) struct Floor {
    /// Round trip of the bare path. A drained round that sees clearly more has met somebody else's queue.
    rtt: Option<Duration>,
    /// False from a change of the acknowledgements' route to the next drained round.
    known: bool,
    /// The floor before the acknowledgements changed their route.
    before: Option<Duration>,
    /// What the last round that met a queue saw. The same again in a deep one is no queue but a longer path.
    crowded: Option<Duration>,
    /// Deep rounds in a row in which it stood.
    stood: u32,
    /// The drained round under way, or the next, is a deep one.
    deep: bool,
    /// So many deep rounds may still be made to find the floor, because the last one lowered it.
    doubts: u32,
    /// Drained rounds in a row that met nobody.
    empty_drains: u32,
    /// The floor when the last drained round began.
    undrained: Option<Duration>,
    /// The round trip then.
    undrained_rtt: Duration,
}

/// What a drained round has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Met {
    /// Not known: the next round is a deep one, and until then this is the smallest round trip.
    Unclear(Duration),
    Nobody,
    /// The same, and whoever was met before is gone.
    NobodyAnyMore,
    /// Strangers, before a path of this round trip.
    Strangers(Duration),
}

impl Floor {
    pub(super) fn new() -> Self {
        Self {
            rtt: None,
            known: true,
            before: None,
            crowded: None,
            stood: 0,
            deep: false,
            doubts: 0,
            empty_drains: 0,
            undrained: None,
            undrained_rtt: Duration::ZERO,
        }
    }

    pub(super) fn is_deep(&self) -> bool {
        self.deep
    }

    pub(super) fn deepen(&mut self) {
        self.deep = true;
    }

    pub(super) fn is_doubted(&self) -> bool {
        self.doubts > 0
    }

    /// The last drained round met nobody.
    pub(super) fn was_empty(&self) -> bool {
        self.empty_drains > 0
    }

    /// Strangers were noticed in another way.
    pub(super) fn company_came(&mut self) {
        self.empty_drains = 0;
    }

    pub(super) fn on_route_change(&mut self) {
        self.before = self.rtt.take().or(self.before);
        self.known = false;
        self.crowded = None;
    }

    pub(super) fn on_round_trip(&mut self, rtt: Duration) {
        if self.known {
            self.rtt = Some(self.rtt.map_or(rtt, |floor| floor.min(rtt)));
        }
    }

    pub(super) fn on_drain(&mut self, rtt: Duration) {
        self.undrained = self.rtt;
        self.undrained_rtt = rtt;
    }

    /// Round trips that the own short queue explains are no longer than this.
    pub(super) fn uncrowded_max(&self, slack: Duration) -> Option<Duration> {
        self.rtt.map(|floor| floor.mul_f64(CROWDED) + slack)
    }

    /// A drained round has ended, with `seen` the smallest round trip sent into the drained queue. `slack` is what the own packets and jitter
    /// explain, `packet_time` what one packet takes, `in_company` whether strangers are known, and `is_steady` whether the link does not serve in bursts:
    /// on one that does, long queues come and go.
    pub(super) fn on_drained(
        &mut self,
        seen: Duration,
        slack: Duration,
        packet_time: Duration,
        in_company: bool,
        is_steady: bool,
    ) -> Met {
        let deep = std::mem::take(&mut self.deep);
        let rebased = self.rtt.is_none();
        let floor = self.rtt.or(self.before).unwrap_or(seen);
        let is_crowded = seen > floor + floor / 8 + slack;
        let is_same = self
            .crowded
            .is_some_and(|before| before.abs_diff(seen) < before / 32);
        let is_far = is_steady && !in_company && seen > floor.mul_f64(FAR_CROWDED);
        if is_crowded && !deep && (rebased || is_same || is_far) {
            self.crowded = Some(seen);
            self.deep = true;
            return Met::Unclear(if rebased { seen } else { floor });
        }
        self.known = true;
        let stands = is_crowded && is_same;
        if !stands {
            self.stood = 0;
        } else if deep {
            self.stood += 1;
        }
        let is_longer_path = stands && (rebased || self.stood >= STANDS_MIN);
        let is_lower = self
            .undrained
            .is_some_and(|before| seen + seen / 32 < before);
        // What gave way to less in flight may give way again.
        let gave_way = if rebased {
            is_crowded && !is_longer_path
        } else {
            is_lower && in_company
        };
        if deep && self.is_doubted() && !rebased {
            let is_bare = !is_crowded && !is_lower;
            self.doubts = if is_bare { 0 } else { self.doubts - 1 };
        } else if gave_way {
            self.doubts = DOUBTS_MAX;
        }
        if is_crowded && !is_longer_path && !rebased {
            self.crowded = Some(seen);
            self.empty_drains = 0;
            return Met::Strangers(floor);
        }
        self.rtt = Some(if is_longer_path || rebased {
            seen
        } else {
            floor.min(seen)
        });
        self.crowded = None;
        // A round that finds a lower floor than was known tells nothing of what stands above it.
        let is_empty = !is_lower && seen <= floor + floor / 32 + UNQUEUED_SLACK + packet_time;
        self.empty_drains = if is_empty { self.empty_drains + 1 } else { 0 };
        let queue = self.undrained_rtt.saturating_sub(floor);
        let was_own = queue > floor && seen.saturating_sub(floor) < queue / OWN_LEFT;
        if self.empty_drains >= EMPTY_DRAINS || is_longer_path || was_own {
            Met::NobodyAnyMore
        } else {
            Met::Nobody
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn drained(floor: &mut Floor, seen: u32) -> Met {
        drained_of(floor, seen, seen, false)
    }

    /// The same of a round that began with round trips of `before`.
    fn drained_of(floor: &mut Floor, before: u32, seen: u32, in_company: bool) -> Met {
        floor.on_drain(before * MS);
        floor.on_drained(seen * MS, 2 * MS, MS, in_company, true)
    }

    fn in_company(floor: &mut Floor, seen: u32) -> Met {
        drained_of(floor, seen, seen, true)
    }

    fn known(rtt: u32) -> Floor {
        let mut floor = Floor::new();
        floor.on_round_trip(rtt * MS);
        floor
    }

    #[test]
    fn two_empty_rounds_are_the_end_of_company() {
        let mut floor = known(20);
        assert_eq!(drained(&mut floor, 20), Met::Nobody);
        assert!(floor.was_empty());
        assert_eq!(drained(&mut floor, 21), Met::NobodyAnyMore);
        assert_eq!(in_company(&mut floor, 40), Met::Strangers(20 * MS));
        assert!(!floor.was_empty());
    }

    #[test]
    fn a_long_queue_is_a_strangers_where_a_deep_round_leaves_it() {
        for (seen_deep, met) in [(36, Met::Strangers(20 * MS)), (20, Met::Nobody)] {
            let mut floor = known(20);
            assert_eq!(drained(&mut floor, 40), Met::Unclear(20 * MS));
            assert!(floor.is_deep());
            assert_eq!(drained(&mut floor, seen_deep), met);
        }
        let mut floor = known(20);
        assert_eq!(in_company(&mut floor, 40), Met::Strangers(20 * MS));
    }

    #[test]
    fn a_long_queue_of_which_next_to_nothing_is_left_was_the_own_one() {
        for (before, met) in [
            (100, Met::NobodyAnyMore),
            (80, Met::Nobody),
            (39, Met::Nobody),
        ] {
            let mut floor = known(20);
            assert_eq!(drained_of(&mut floor, before, 24, true), met, "{before}");
        }
    }

    #[test]
    fn what_stands_in_two_deep_rounds_is_a_longer_path_and_what_gives_way_a_queue() {
        let strangers = Met::Strangers(20 * MS);
        for (seen, met, uncrowded) in [
            ([40, 40], [strangers, Met::NobodyAnyMore], 58),
            ([40, 30], [strangers, strangers], 29),
            ([30, 40], [strangers, strangers], 29),
        ] {
            let mut floor = known(20);
            assert_eq!(in_company(&mut floor, 40), strangers);
            for (seen_deep, met) in seen.into_iter().zip(met) {
                assert!(!floor.is_deep());
                while !floor.is_deep() {
                    in_company(&mut floor, 40);
                }
                assert_eq!(in_company(&mut floor, seen_deep), met);
            }
            let max = floor.uncrowded_max(Duration::ZERO);
            assert_eq!(max, Some(uncrowded * MS), "{seen:?}");
        }
    }

    #[test]
    fn another_route_of_the_acknowledgements_is_another_floor() {
        let mut floor = known(20);
        floor.on_route_change();
        floor.on_round_trip(50 * MS);
        assert_eq!(floor.uncrowded_max(Duration::ZERO), None, "not yet known");
        assert_eq!(drained(&mut floor, 35), Met::Unclear(35 * MS));
        assert_eq!(drained(&mut floor, 35), Met::NobodyAnyMore);
        assert_eq!(
            floor.uncrowded_max(Duration::ZERO),
            Some(50_750 * MS / 1_000)
        );
    }
}
