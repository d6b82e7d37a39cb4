//! Waits for the canaries' alerts, of each partition of `vitals`. Sans-IO: takes the alerts as they
//! arrive and the notices that were delivered, and returns which partitions are late.
//!
//! An alert counts from the time of its reading, not from its arrival. A canary that takes ten
//! minutes proves that real alerts take as long.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bus::keys_of_partitions;
use consumer_health::Moment;
use contracts::{
    alerts::{Alert, AlertState},
    canary::NAME,
};
use vitals::canary::{AT_ONCE_MAX, HALF_US, turns};

/// While it lasts, a version before may still send one canary and deliver no notice of it. A kind
/// that has never come counts as missing only after it.
const UPGRADE: Duration = Duration::from_secs(600);
/// Alerts whose notice is looked for: of four halves. Beyond it the oldest is given up.
const UNTOLD_MAX: usize = 4 * AT_ONCE_MAX as usize;

/// The newest of each kind that has come of one canary.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    raised: Option<Moment>,
    cleared: Option<Moment>,
    told: Option<Moment>,
}

/// An alert whose notice is not known to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Untold {
    pub alert: String,
    pub revision: u32,
    partition: u32,
    read: Moment,
}

/// Partitions whose test alert is late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    pub partitions: Vec<u32>,
    /// Number of partitions.
    pub of: u32,
    pub since: Moment,
}

#[derive(Debug)]
pub(crate) struct Canaries {
    begun: Moment,
    partitions: u32,
    by_name: BTreeMap<String, u32>,
    of: BTreeMap<u32, Last>,
    untold: VecDeque<Untold>,
    /// Whether a canary of another name than the only one of the version before has come, and
    /// whether a notice was delivered.
    has_come: bool,
    has_told: bool,
}

impl Canaries {
    pub(crate) fn new(now: Moment) -> Canaries {
        let mut canaries = Canaries {
            begun: now,
            partitions: 0,
            by_name: BTreeMap::new(),
            of: BTreeMap::new(),
            untold: VecDeque::new(),
            has_come: false,
            has_told: false,
        };
        // Until the bus says how many there are.
        canaries.on_partitions(1, now);
        canaries
    }

    pub(crate) fn on_partitions(&mut self, partitions: u32, now: Moment) {
        if self.partitions == partitions {
            return;
        }
        // New ones have as long as after a start.
        self.begun = now;
        self.partitions = partitions;
        self.of.clear();
        self.untold.clear();
        let keys = keys_of_partitions(NAME, partitions).into_iter();
        self.by_name = keys.map(|(partition, name)| (name, partition)).collect();
    }

    pub(crate) fn on_alert(&mut self, alert: &Alert, now: Moment) {
        let Some(partition) = self.by_name.get(&alert.patient).copied() else {
            return;
        };
        let age_us = now.wall_us.saturating_sub(alert.changed_us).max(0);
        let age = Duration::from_micros(age_us.unsigned_abs());
        // An alert from before the start of this machine is too old to count.
        let Some(at) = now.at.checked_sub(age) else {
            return;
        };
        let read = Moment {
            at,
            wall_us: now.wall_us - age_us,
        };
        let last = self.of.entry(partition).or_default();
        match alert.state() {
            AlertState::Active => newest(&mut last.raised, read),
            AlertState::Resolved => newest(&mut last.cleared, read),
            _ => return,
        }
        self.has_come |= alert.patient != NAME;
        if self.untold.len() >= UNTOLD_MAX {
            self.untold.pop_front();
        }
        self.untold.push_back(Untold {
            alert: alert.id.clone(),
            revision: alert.revision,
            partition,
            read,
        });
    }

    /// Alerts whose notice is to be looked for.
    pub(crate) fn untold(&self) -> Vec<Untold> {
        self.untold.iter().cloned().collect()
    }

    /// The notice of this alert was delivered.
    pub(crate) fn on_told(&mut self, told: &Untold) {
        self.has_told = true;
        self.untold.retain(|other| other != told);
        newest(
            &mut self.of.entry(told.partition).or_default().told,
            told.read,
        );
    }

    /// The last time at which everything of the partition had come.
    fn since(&self, partition: u32, now: Moment) -> Moment {
        let last = self.of.get(&partition).copied().unwrap_or_default();
        let is_upgrade = now.at.saturating_duration_since(self.begun.at) < UPGRADE;
        let expects = |has_any| has_any || !is_upgrade;
        let own = self.by_name.get(NAME) == Some(&partition);
        let mut kinds = Vec::new();
        if own || expects(self.has_come) {
            kinds.extend([last.raised, last.cleared]);
        }
        if !kinds.is_empty() && expects(self.has_told) {
            kinds.push(last.told);
        }
        let kinds = kinds.into_iter().map(|it| it.unwrap_or(self.begun));
        kinds.min_by_key(|it| it.at).unwrap_or(now)
    }

    /// Time by which the test alert of a partition is overdue. It comes each minute, or when it is
    /// its turn.
    fn age(&self, partition: u32, now: Moment) -> Duration {
        let waits = u64::from(turns(self.partitions) - 1) * 2 * HALF_US.unsigned_abs();
        let age = now
            .at
            .saturating_duration_since(self.since(partition, now).at);
        age.saturating_sub(Duration::from_micros(waits))
    }

    /// The age of the oldest, without the minutes in which it was not its turn.
    pub(crate) fn oldest(&self, now: Moment) -> Duration {
        let ages = self
            .by_name
            .values()
            .map(|partition| self.age(*partition, now));
        ages.max().unwrap_or_default()
    }

    pub(crate) fn missing(&self, within: Duration, now: Moment) -> Option<Missing> {
        let late = |partition: &u32| self.age(*partition, now) > within;
        let mut partitions: Vec<u32> = self.by_name.values().copied().filter(late).collect();
        partitions.sort_unstable();
        let since = partitions
            .iter()
            .map(|partition| self.since(*partition, now));
        Some(Missing {
            since: since.min_by_key(|it| it.at)?,
            of: self.partitions,
            partitions,
        })
    }
}

fn newest(last: &mut Option<Moment>, read: Moment) {
    if last.is_none_or(|last| last.at < read.at) {
        *last = Some(read);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Instant;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(90);

    fn at(begun: Instant, second: u64) -> Moment {
        Moment {
            at: begun + Duration::from_secs(second),
            wall_us: i64::try_from(second * 1_000_000).unwrap_or(i64::MAX),
        }
    }

    fn alert(patient: &str, state: AlertState, second: i64) -> Alert {
        Alert {
            id: format!("{patient}-{second}"),
            patient: patient.to_owned(),
            state: state.into(),
            changed_us: second * 1_000_000,
            ..Alert::default()
        }
    }

    /// Both halves of one minute of a canary, told or not.
    fn minute(canaries: &mut Canaries, begun: Instant, name: &str, second: u64, is_told: bool) {
        for (state, after) in [(AlertState::Active, 0), (AlertState::Resolved, 30)] {
            let second = second + after;
            let alert = alert(name, state, i64::try_from(second).unwrap());
            canaries.on_alert(&alert, at(begun, second + 1));
        }
        for untold in canaries.untold().iter().filter(|_| is_told) {
            canaries.on_told(untold);
        }
    }

    #[test]
    fn both_halves_must_come_and_come_again() {
        let begun = Instant::now();
        let mut canaries = Canaries::new(at(begun, 0));
        let age = |canaries: &Canaries, second| canaries.oldest(at(begun, second)).as_secs();
        assert_eq!(age(&canaries, 50), 50, "nothing has come");
        canaries.on_alert(&alert(NAME, AlertState::Active, 60), at(begun, 61));
        assert_eq!(age(&canaries, 62), 62, "it was not cleared");
        canaries.on_alert(&alert(NAME, AlertState::Resolved, 90), at(begun, 91));
        assert_eq!(age(&canaries, 92), 32);
        canaries.on_alert(&alert(NAME, AlertState::Active, 120), at(begun, 121));
        assert_eq!(age(&canaries, 122), 32, "the other half is older");
        assert_eq!(age(&canaries, 300), 210);
    }

    #[test]
    fn one_that_comes_late_counts_from_its_reading_and_none_moves_back() {
        let begun = Instant::now();
        let mut canaries = Canaries::new(at(begun, 0));
        for state in [AlertState::Active, AlertState::Resolved] {
            canaries.on_alert(&alert(NAME, state, 400), at(begun, 500));
            canaries.on_alert(&alert(NAME, state, 300), at(begun, 501));
            canaries.on_alert(&alert(NAME, AlertState::Acknowledged, 501), at(begun, 501));
        }
        assert_eq!(canaries.oldest(at(begun, 501)).as_secs(), 101);
        // A clock that is ahead makes no alert younger than now.
        for state in [AlertState::Active, AlertState::Resolved] {
            canaries.on_alert(&alert(NAME, state, 5_000), at(begun, 502));
        }
        assert_eq!(canaries.oldest(at(begun, 503)).as_secs(), 1);
    }

    #[test]
    fn one_partition_that_is_dead_is_named_while_the_others_live() {
        let begun = Instant::now();
        let mut canaries = Canaries::new(at(begun, 0));
        canaries.on_partitions(8, at(begun, 0));
        let names = keys_of_partitions(NAME, 8);
        for second in [0, 60, 120, 180] {
            for (partition, name) in &names {
                if second == 0 || *partition != 3 {
                    minute(&mut canaries, begun, name, second, true);
                }
            }
        }
        let missing = canaries.missing(WITHIN, at(begun, 215)).unwrap();
        assert_eq!((missing.partitions, missing.of), (vec![3], 8));
        assert_eq!(
            missing.since.wall_us, 0,
            "it was raised then for the last time"
        );
    }

    #[test]
    fn an_alert_that_is_raised_and_not_told_is_missing() {
        let begun = Instant::now();
        let mut canaries = Canaries::new(at(begun, 0));
        minute(&mut canaries, begun, NAME, 0, true);
        assert_eq!(canaries.untold(), []);
        minute(&mut canaries, begun, NAME, 60, false);
        minute(&mut canaries, begun, NAME, 120, false);
        assert_eq!(canaries.untold().len(), 4);
        let missing = canaries.missing(WITHIN, at(begun, 152)).unwrap();
        assert_eq!(missing.since.wall_us, 30_000_000);
        assert_eq!(canaries.missing(WITHIN, at(begun, 119)), None);
        for second in 200..2_000 {
            let alert = alert(NAME, AlertState::Active, second);
            canaries.on_alert(&alert, at(begun, 2_000));
        }
        assert_eq!(canaries.untold().len(), UNTOLD_MAX);
    }

    #[test]
    fn the_version_before_sends_one_canary_and_tells_of_none() {
        let begun = Instant::now();
        let mut canaries = Canaries::new(at(begun, 0));
        canaries.on_partitions(8, at(begun, 0));
        for second in (0..660).step_by(60) {
            minute(&mut canaries, begun, NAME, second, false);
        }
        assert_eq!(canaries.missing(WITHIN, at(begun, 599)), None);
        let missing = canaries.missing(WITHIN, at(begun, 661)).unwrap();
        assert_eq!(missing.partitions.len(), 8, "the upgrade takes too long");
    }

    #[test]
    fn many_partitions_take_turns() {
        let begun = Instant::now();
        let mut canaries = Canaries::new(at(begun, 0));
        canaries.on_partitions(200, at(begun, 0));
        // Four minutes for all of them.
        assert_eq!(canaries.oldest(at(begun, 700)).as_secs(), 700 - 180);
    }
}
