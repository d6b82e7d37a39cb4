//! Chooses over which accesses a session over TCP connects, and when it moves to another. Sans-IO.
//!
//! The kernel spreads the bytes of MPTCP over all subflows that it may use, and plain TCP has one
//! access. Subflows of accesses that stand by are flagged so (`follow`). A session without a
//! subflow over an access that should carry gets a successor, which connects there first.
//!
//! An access that is up counts as reachable until an attempt over it has failed. From then on it is
//! only asked, at growing pauses, and rules take it for dead meanwhile.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use multipath::steering_rules::{Rank, Schedule};

/// Shortest pause until an access is asked again.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// Longest pause until an access is asked again.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// The accesses among `names` that carry data while they live: the active ones, otherwise the first
/// of the order. The others stand by, also those that a mode fills only when these are full: the
/// kernel knows no such order.
pub(crate) fn carriers(schedule: &Schedule, names: &[Arc<str>]) -> Vec<Arc<str>> {
    let is_active = |name: &&Arc<str>| schedule.of(name).rank == Some(Rank::Active);
    let active: Vec<Arc<str>> = names.iter().filter(is_active).cloned().collect();
    if !active.is_empty() {
        return active;
    }
    let first = names.iter().min_by_key(|name| {
        let path = schedule.of(name);
        (path.rank.is_none(), path.place)
    });
    first.cloned().into_iter().collect()
}

/// Another connection that is wanted beside the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// A successor, connected over one of these.
    Move(Vec<Arc<str>>),
    /// Only to hear whether the access answers again.
    Ask(Arc<str>),
}

impl Attempt {
    pub(crate) fn names(&self) -> &[Arc<str>] {
        match self {
            Self::Move(names) => names,
            Self::Ask(name) => std::slice::from_ref(name),
        }
    }
}

/// The session and its surroundings.
pub(crate) struct View<'a> {
    pub(crate) schedule: &'a Schedule,
    /// Accesses that work and lead to the proxy.
    pub(crate) up: &'a [Arc<str>],
    /// Accesses over which the session has a connection.
    pub(crate) held: &'a [Arc<str>],
    /// Time for the kernel to make a subflow.
    pub(crate) patience: Duration,
}

#[derive(Debug)]
struct Failed {
    again_at: Instant,
    pause: Duration,
}

/// The state machine; at most as many entries as accesses are up.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    failed: BTreeMap<Arc<str>, Failed>,
    /// Since when no connection is over an access that should carry.
    misplaced_since: Option<Instant>,
}

impl Placement {
    pub(crate) fn on_failed(&mut self, now: Instant, name: &Arc<str>) {
        let pause = match self.failed.get(name) {
            Some(before) => (before.pause * 2).min(AGAIN_MAX),
            None => AGAIN_MIN,
        };
        let failed = Failed {
            again_at: now + pause,
            pause,
        };
        self.failed.insert(name.clone(), failed);
    }

    pub(crate) fn on_answer(&mut self, name: &str) {
        self.failed.remove(name);
    }

    /// A network has arrived, and former failures say nothing any more.
    pub(crate) fn on_network(&mut self) {
        self.failed.clear();
    }

    /// A session begins: the kernel gets its time again.
    pub(crate) fn on_session(&mut self) {
        self.misplaced_since = None;
    }

    pub(crate) fn is_reachable(&self, name: &str) -> bool {
        !self.failed.contains_key(name)
    }

    /// Those that carry come first; behind them all others.
    pub(crate) fn order(
        &self,
        schedule: &Schedule,
        up: &[Arc<str>],
    ) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let reachable = self.reachable(up);
        let first = carriers(schedule, &reachable);
        let others = up.iter().filter(|name| !first.contains(name));
        let others = others.cloned().collect();
        (first, others)
    }

    fn reachable(&self, up: &[Arc<str>]) -> Vec<Arc<str>> {
        let reachable = up.iter().filter(|name| self.is_reachable(name));
        reachable.cloned().collect()
    }

    pub(crate) fn poll(&mut self, now: Instant, view: &View<'_>) -> Option<Attempt> {
        if view.schedule.paths.is_empty() {
            // No access is better than another.
            self.failed.clear();
            self.misplaced_since = None;
            return None;
        }
        self.failed
            .retain(|name, _| view.up.contains(name) && !view.held.contains(name));
        let wanted = carriers(view.schedule, &self.reachable(view.up));
        if wanted.is_empty() || wanted.iter().any(|name| view.held.contains(name)) {
            self.misplaced_since = None;
        } else {
            let since = *self.misplaced_since.get_or_insert(now);
            if now >= since + view.patience {
                return Some(Attempt::Move(wanted));
            }
        }
        let due = self
            .failed
            .iter()
            .find(|(_, failed)| failed.again_at <= now);
        due.map(|(name, _)| Attempt::Ask(name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use multipath::steering_rules::PathSchedule;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(4);

    fn names(all: &[&str]) -> Vec<Arc<str>> {
        all.iter().map(|name| Arc::from(*name)).collect()
    }

    fn schedule(ranks: &[(&str, Option<Rank>)]) -> Schedule {
        let mut schedule = Schedule::default();
        for (place, (name, rank)) in ranks.iter().enumerate() {
            let path = PathSchedule {
                place: place as u8,
                rank: *rank,
                ..PathSchedule::FREE
            };
            schedule.paths.push(((*name).to_owned(), path));
        }
        schedule
    }

    fn wifi_first() -> Schedule {
        schedule(&[("wifi", Some(Rank::Active)), ("lte", Some(Rank::Standby))])
    }

    fn poll(
        placement: &mut Placement,
        now: Instant,
        schedule: &Schedule,
        held: &[&str],
    ) -> Option<Attempt> {
        let view = View {
            schedule,
            up: &names(&["wifi", "lte"]),
            held: &names(held),
            patience: PATIENCE,
        };
        placement.poll(now, &view)
    }

    #[test]
    fn the_active_carry_and_without_one_the_first() {
        let both = names(&["wifi", "lte"]);
        assert_eq!(carriers(&Schedule::default(), &both), both);
        assert_eq!(carriers(&wifi_first(), &both), names(&["wifi"]));
        assert_eq!(carriers(&wifi_first(), &names(&["lte"])), names(&["lte"]));
        let spills = schedule(&[("lte", Some(Rank::Active)), ("wifi", Some(Rank::Spill))]);
        assert_eq!(carriers(&spills, &both), names(&["lte"]));
        let standing = schedule(&[("lte", Some(Rank::Standby)), ("wifi", Some(Rank::Standby))]);
        assert_eq!(carriers(&standing, &both), names(&["lte"]));
        let forbidden = schedule(&[("lte", None), ("wifi", Some(Rank::Standby))]);
        assert_eq!(carriers(&forbidden, &both), names(&["wifi"]));
        assert_eq!(carriers(&forbidden, &names(&["lte"])), names(&["lte"]));
        assert_eq!(carriers(&forbidden, &[]), []);
    }

    #[test]
    fn a_session_over_a_standby_moves_once_the_kernel_had_its_time() {
        let start = Instant::now();
        let mut placement = Placement::default();
        let rules = wifi_first();
        assert_eq!(
            poll(&mut placement, start, &Schedule::default(), &["lte"]),
            None
        );
        assert_eq!(poll(&mut placement, start, &rules, &["wifi", "lte"]), None);
        assert_eq!(poll(&mut placement, start, &rules, &["lte"]), None);
        let moves = Some(Attempt::Move(names(&["wifi"])));
        assert_eq!(
            poll(&mut placement, start + PATIENCE, &rules, &["lte"]),
            moves
        );
        placement.on_session();
        assert_eq!(
            poll(&mut placement, start + PATIENCE, &rules, &["lte"]),
            None
        );
    }

    #[test]
    fn an_access_that_failed_is_asked_ever_more_rarely_and_not_taken() {
        let start = Instant::now();
        let mut placement = Placement::default();
        let rules = wifi_first();
        let wifi = Arc::from("wifi");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            placement.on_failed(start, &wifi);
            let mut seconds = 0..100;
            pauses.extend(seconds.find(|seconds| {
                let at = start + Duration::from_secs(*seconds);
                poll(&mut placement, at, &rules, &["lte"]).is_some()
            }));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        let asks = Some(Attempt::Ask(wifi.clone()));
        let later = start + AGAIN_MAX;
        assert_eq!(poll(&mut placement, later, &rules, &["lte"]), asks);
        assert!(!placement.is_reachable("wifi"));
        let (first, others) = placement.order(&rules, &names(&["wifi", "lte"]));
        assert_eq!((first, others), (names(&["lte"]), names(&["wifi"])));
        // It answers, and the rules may choose it again.
        placement.on_answer("wifi");
        poll(&mut placement, later, &rules, &["lte"]);
        let moves = Some(Attempt::Move(vec![wifi.clone()]));
        assert_eq!(
            poll(&mut placement, later + PATIENCE, &rules, &["lte"]),
            moves
        );
        // So does a network that arrives, and one that the session has got.
        placement.on_failed(later, &wifi);
        placement.on_network();
        assert!(placement.is_reachable("wifi"));
        placement.on_failed(later, &wifi);
        assert_eq!(poll(&mut placement, later, &rules, &["wifi"]), None);
        assert!(placement.is_reachable("wifi"));
    }
}
