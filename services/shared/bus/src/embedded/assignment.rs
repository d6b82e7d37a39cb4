//! The shared state of a consumer and the groups thread: the partitions of one member.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A member that was asked for a partition and does not call `next` for this long loses the
/// partition.
const GIVE_WITHIN: Duration = Duration::from_secs(5);
/// A member that does not call `next` for this long loses all its partitions until it does.
const POLL_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The member has the lease, and the consumer does not know yet.
    Gained,
    /// The consumer asks where to begin. The answer may fence the previous member, so the lease
    /// stays until then.
    Beginning,
    /// The consumer reads the partition.
    Owned,
    /// Another member should have it. The consumer, which may be reading it, does not know yet.
    AskedBack { since: Instant, owned: bool },
    /// The consumer has let go; the lease is to be deleted.
    Released,
}

struct State {
    /// Bounded by the partitions of the topic.
    phases: BTreeMap<u32, Phase>,
    /// Lost without the consumer's consent; the consumer does not know yet.
    lost: BTreeSet<u32>,
    waiting: bool,
    polled: Instant,
}

pub struct Assignment {
    state: Mutex<State>,
    pub changed: Notify,
}

impl Assignment {
    pub fn new() -> Assignment {
        Assignment {
            state: Mutex::new(State {
                phases: BTreeMap::new(),
                lost: BTreeSet::new(),
                waiting: false,
                polled: Instant::now(),
            }),
            changed: Notify::new(),
        }
    }

    // The consumer's side.

    /// Marks that the consumer is in `next` until the guard is dropped.
    pub fn wait(&self) -> Waiting<'_> {
        self.state.lock().waiting = true;
        Waiting(self)
    }

    /// Partitions to report as revoked; from here on the consumer has lost them. The flag reports
    /// that leases can be deleted.
    pub fn take_revoked(&self) -> (Vec<u32>, bool) {
        let mut state = self.state.lock();
        let mut revoked = std::mem::take(&mut state.lost);
        let mut released = false;
        for (partition, phase) in &mut state.phases {
            if let Phase::AskedBack { .. } = phase {
                *phase = Phase::Released;
                released = true;
                revoked.insert(*partition);
            }
        }
        (revoked.into_iter().collect(), released)
    }

    /// The partitions whose beginning the consumer asks for; again, if the question was
    /// interrupted.
    pub fn begin(&self) -> Vec<u32> {
        let mut state = self.state.lock();
        let gained = state
            .phases
            .iter_mut()
            .filter(|(_, phase)| matches!(phase, Phase::Gained | Phase::Beginning));
        gained
            .map(|(partition, phase)| {
                *phase = Phase::Beginning;
                *partition
            })
            .collect()
    }

    /// The consumer takes over; false when the partition has gone in between.
    pub fn own(&self, partition: u32) -> bool {
        match self.state.lock().phases.get_mut(&partition) {
            Some(phase) if *phase == Phase::Beginning => {
                *phase = Phase::Owned;
                true
            }
            _ => false,
        }
    }

    /// The consumer begins these partitions anew, if it reads them.
    pub fn renew(&self, partitions: &[u32]) {
        let mut state = self.state.lock();
        for partition in partitions {
            if let Some(phase) = state.phases.get_mut(partition)
                && *phase == Phase::Owned
            {
                *phase = Phase::Gained;
                state.lost.insert(*partition);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    // The groups thread's side.

    pub fn is_stuck(&self) -> bool {
        let state = self.state.lock();
        !state.waiting && state.polled.elapsed() > POLL_WITHIN
    }

    /// Leases to delete because the consumer let go, or did not in time.
    pub fn released(&self) -> Vec<u32> {
        let state = self.state.lock();
        state
            .phases
            .iter()
            .filter(|(_, phase)| match phase {
                Phase::Released => true,
                Phase::AskedBack { since, .. } => since.elapsed() > GIVE_WITHIN,
                Phase::Gained | Phase::Beginning | Phase::Owned => false,
            })
            .map(|(partition, _)| *partition)
            .collect()
    }

    /// Partitions to give back that the consumer never saw: their leases can be deleted at once.
    pub fn unseen(&self, give: &[u32]) -> Vec<u32> {
        let state = self.state.lock();
        give.iter()
            .filter(|p| state.phases.get(p) == Some(&Phase::Gained))
            .copied()
            .collect()
    }

    /// After a committed turn: `held` are the leases of this member, and `give` those to give back.
    pub fn settle(&self, held: &BTreeSet<u32>, give: &[u32]) {
        let mut state = self.state.lock();
        let mut lost = BTreeSet::new();
        state.phases.retain(|partition, phase| {
            if held.contains(partition) {
                return true;
            }
            if !matches!(phase, Phase::Gained | Phase::Released) {
                lost.insert(*partition);
            }
            false
        });
        let mut news = !lost.is_empty();
        state.lost.append(&mut lost);
        for partition in held {
            let phase = state.phases.entry(*partition).or_insert_with(|| {
                news = true;
                Phase::Gained
            });
            match (*phase, give.contains(partition)) {
                (Phase::Beginning | Phase::Owned, true) => {
                    let owned = *phase == Phase::Owned;
                    let since = Instant::now();
                    *phase = Phase::AskedBack { since, owned };
                    news = true;
                }
                (Phase::AskedBack { owned: true, .. }, false) => *phase = Phase::Owned,
                (Phase::AskedBack { owned: false, .. }, false) => {
                    *phase = Phase::Gained;
                    news = true;
                }
                _ => {}
            }
        }
        drop(state);
        if news {
            self.changed.notify_one();
        }
    }
}

pub struct Waiting<'a>(&'a Assignment);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting = false;
        state.polled = Instant::now();
    }
}
