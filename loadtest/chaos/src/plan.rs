//! The plan of faults: target, kind, begin and length of each.
//!
//! Each target has its own lane, in which faults follow each other and never overlap; faults of
//! different lanes overlap. Every lane has at least one fault, so every run, however short, has
//! every kind.

mod target;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

pub use target::{Kind, Target};

use crate::{
    readings,
    scenario::{ACTIVITY, GATEWAYS, LINKS, METRICS, MOVED, SERVICES, SILENT_AFTER_S, patients},
};

/// The shortest run, in which every lane has room for a fault.
pub const SECONDS_MIN: u32 = 60;
/// The longest run, an hour; a longer run would keep too many readings in memory.
pub const SECONDS_MAX: u32 = 3_600;

/// Time without faults at the beginning, so that everything works first.
const CALM_FIRST_MS: u32 = 5_000;
/// Time without faults at the end: a tenth of the run, within these bounds.
const CALM_LAST_MS: (u32, u32) = (15_000, 60_000);
/// Share of the long faults.
const LASTING: f64 = 0.3;
const SHORT_MS: std::ops::Range<u32> = 300..4_000;
const LASTING_MS: std::ops::Range<u32> = 8_000..25_000;
/// Longest fault: a tenth of the run, at most this.
const LASTING_MS_MAX: u32 = 120_000;
/// Shortest fault of an engine: a broker that is stopped again within its start has not been up in
/// between.
const ENGINE_MS_MIN: u32 = 1_500;

/// The sensors of this patient are silent for long once in each run, and both members of alerting
/// restart within that silence.
pub const LONG_SILENT: &str = "hana";
/// Length of that silence: a quarter of the run, within these bounds.
const LONG_SILENCE_MS: (u32, u32) = (55_000, 300_000);
/// Time from its beginning to the restart: the silence is raised before.
const RESTART_AFTER_MS: u32 = 22_000;
const RESTART_MS: u32 = 1_500;
/// Members of alerting. At least one of them judges silence.
pub const WATCHES: [&str; 2] = ["alerting", "alerting-2"];

/// Shortest run in which devices move and every process is restarted in turn.
const ROLLING_S_MIN: u32 = 120;
/// The device of a move is out of reach from so long before the change of wearers. It comes back
/// when the register knows the next wearer.
const MOVE_AWAY_MS: (u32, u32) = (8_000, 5_000);
/// Seconds without readings before and after the change: nobody wears the device.
pub const UNWORN_S: u32 = 4;
/// Seconds without an alert before and after the change.
const MOVE_CALM_S: (u32, u32) = (16, 8);

/// Begin and distance of the restarts of a rolling upgrade, after the long silence. Each process
/// gets this time to end.
const ROLLING_EVERY_MS: u32 = 3_000;
const ROLLING_END_MS: u32 = 2_500;

/// The gateway whose journal has a small disk of its own, which fills.
pub const DISK_OF: &str = "gw-3";

/// Processes whose clocks step. The gateway's devices keep their wearers, since a step leaves in
/// doubt who wore a device that changed hands.
pub const CLOCKS_OF: [&str; 3] = ["gw-3", "alerting-2", "dashboard"];
/// The system does not correct an error of this size, so the times of the sensors must stay.
pub const STEP_S: i64 = 90;

/// Runs of this length and longer end with a restore of the database.
const RESTORE_S_MIN: u32 = 300;
/// Runs of this length and longer have an outage of both links of a gateway of twelve minutes.
const OUTAGE_RUN_S_MIN: u32 = 1_200;
const OUTAGE_MS: u32 = 720_000;
const OUTAGE_OF: &str = "gw-2";
/// They end with an outage of this gateway of a day and an hour.
pub const AWAY_FOR_A_DAY: &str = "gw-2";
const DAY_AWAY_S: i64 = 25 * 3_600;

/// Longest time from the start of a process, or of the database, until it works on a busy machine.
const WORKS_AFTER_MS: u32 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub at_ms: u32,
    pub for_ms: u32,
    pub target: Target,
    pub kind: Kind,
}

impl Fault {
    pub fn end_ms(&self) -> u32 {
        self.at_ms + self.for_ms
    }
}

/// Values of one patient's metrics, in the order of [`METRICS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub patient: &'static str,
    pub gateway: &'static str,
    pub series: Vec<Vec<f64>>,
    /// From this second on the next patient wears the device.
    pub moved: Option<(u32, &'static str)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub seed: u64,
    pub seconds: u32,
    /// Brokers of the bus. One of three is away at a time; a single one takes the bus with it.
    pub brokers: usize,
    pub scripts: Vec<Script>,
    /// Faults of each target, sorted by time.
    pub lanes: Vec<Vec<Fault>>,
}

impl Script {
    /// Around the change of wearers no alert begins or lasts.
    fn hand_over(&mut self, second: u32, next: &'static str) {
        let (before_s, after_s) = MOVE_CALM_S;
        for (values, (_, metric, normal)) in self.series.iter_mut().zip(&METRICS) {
            let is_calm = |value: &f64| match *metric {
                ACTIVITY => readings::moves(*value),
                _ => value.to_bits() == normal.to_bits(),
            };
            // A shape that would be cut is left out as a whole.
            let cut = second.saturating_sub(before_s) as usize;
            let from = values[..cut]
                .iter()
                .rposition(is_calm)
                .map_or(0, |at| at + 1);
            let until = values.len().min((second + after_s) as usize);
            values[from..until].fill(*normal);
        }
        self.moved = Some((second, next));
    }

    /// The wearer of the device in this second. `None`: nobody, at the change of wearers.
    pub fn wearer(&self, second: u32) -> Option<&'static str> {
        match self.moved {
            Some((moved, _)) if second.abs_diff(moved) < UNWORN_S => None,
            Some((moved, next)) if second >= moved => Some(next),
            _ => Some(self.patient),
        }
    }
}

impl Plan {
    /// The longest fault of a lane.
    pub fn longest_us(&self) -> i64 {
        i64::from(lasting_ms_max(self.seconds * 1_000)) * 1_000
    }

    /// `seconds` must be within [`SECONDS_MIN`] and [`SECONDS_MAX`].
    pub fn new(seed: u64, seconds: u32) -> Plan {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut scripts: Vec<Script> = patients()
            .map(|(gateway, patient)| Script {
                patient,
                gateway: gateway.name,
                series: METRICS
                    .iter()
                    .map(|(_, metric, normal)| {
                        readings::series(&mut random, metric, *normal, seconds)
                    })
                    .collect(),
                moved: None,
            })
            .collect();
        if seconds >= ROLLING_S_MIN {
            for (patient, next) in MOVED {
                let second = random.random_range(seconds * 3 / 10..seconds * 3 / 4);
                let of = scripts.iter_mut().filter(|it| it.patient == patient);
                of.for_each(|script| script.hand_over(second, next));
            }
        }
        let lanes = targets()
            .into_iter()
            .map(|(target, every_s)| {
                lane(
                    &mut random,
                    &target,
                    every_s.saturating_mul(1_000),
                    seconds * 1_000,
                )
            })
            .collect();
        let mut plan = Plan {
            seed,
            seconds,
            brokers: if seed.is_multiple_of(2) { 1 } else { 3 },
            scripts,
            lanes,
        };
        if let Some((from_ms, to_ms)) = long_silence_ms(seconds * 1_000) {
            plan.silence_for_long(from_ms, to_ms);
            plan.restart_in_turn(to_ms + ROLLING_EVERY_MS);
        }
        plan.hand_over();
        if seconds >= OUTAGE_RUN_S_MIN {
            let at_ms = seconds * 250;
            let target = Target::Network { gateway: OUTAGE_OF };
            plan.give_way(target, at_ms, OUTAGE_MS, Kind::Away);
        }
        plan
    }

    /// Other faults of the target give way to this one.
    fn give_way(&mut self, target: Target, at_ms: u32, for_ms: u32, kind: Kind) {
        let place = targets().iter().position(|(it, _)| *it == target);
        if let Some(lane) = place.and_then(|place| self.lanes.get_mut(place)) {
            lane.retain(|it| it.end_ms() < at_ms || it.at_ms > at_ms + for_ms);
            lane.push(Fault {
                at_ms,
                for_ms,
                target,
                kind,
            });
            lane.sort_by_key(|fault| fault.at_ms);
        }
    }

    /// A rolling upgrade: every process ends by SIGTERM and starts again, one after the other.
    fn restart_in_turn(&mut self, from_ms: u32) {
        let services = SERVICES.iter().map(|(name, _)| *name);
        let names = services.chain(GATEWAYS.iter().map(|gateway| gateway.name));
        for (at_ms, name) in (from_ms..).step_by(ROLLING_EVERY_MS as usize).zip(names) {
            self.give_way(Target::Process(name), at_ms, ROLLING_END_MS, Kind::Restart);
        }
    }

    /// The devices that move are away meanwhile.
    fn hand_over(&mut self) {
        let moves = self.scripts.iter().filter_map(|script| {
            let (second, _) = script.moved?;
            Some((script.patient, second * 1_000))
        });
        for (patient, move_ms) in moves.collect::<Vec<_>>() {
            let (before_ms, after_ms) = MOVE_AWAY_MS;
            let at_ms = move_ms - before_ms;
            let away_ms = before_ms + after_ms;
            self.give_way(Target::Radio { patient }, at_ms, away_ms, Kind::Away);
            self.give_way(Target::Wearer { patient }, at_ms, before_ms, Kind::Moved);
        }
    }

    /// The faults that hide the long silence, or its restart, give way to it.
    fn silence_for_long(&mut self, from_ms: u32, to_ms: u32) {
        let restart_ms = from_ms + RESTART_AFTER_MS;
        for (lane, (target, _)) in self.lanes.iter_mut().zip(targets()) {
            let fault = |at_ms, for_ms, kind| Fault {
                at_ms,
                for_ms,
                target: target.clone(),
                kind,
            };
            let (own, clear_from_ms) = match &target {
                Target::Radio { patient } if *patient == LONG_SILENT => {
                    (Some(fault(from_ms, to_ms - from_ms, Kind::Away)), from_ms)
                }
                Target::Process(name) if WATCHES.contains(name) => {
                    (Some(fault(restart_ms, RESTART_MS, Kind::Kill)), from_ms)
                }
                Target::Database => (None, from_ms),
                _ => continue,
            };
            lane.retain(|it| it.end_ms() < clear_from_ms || it.at_ms > to_ms);
            lane.extend(own);
            lane.sort_by_key(|fault| fault.at_ms);
        }
    }

    /// Times in milliseconds in which the database and a watch for silence work. After a pause or a
    /// step of its clock a watch waits for one limit of silence, and a new one learns first.
    pub fn able_to_watch_ms(&self) -> Vec<(u32, u32)> {
        let down_ms = |target: &Target, again_ms: u32| -> Vec<(u32, u32)> {
            let faults = self.lanes.iter().flatten();
            let own = faults.filter(|fault| fault.target == *target);
            own.map(|fault| (fault.at_ms, fault.end_ms() + again_ms))
                .collect()
        };
        let mut able = Vec::new();
        for name in WATCHES {
            let judges_again_ms = WORKS_AFTER_MS + SILENT_AFTER_S * 1_000;
            let mut down = down_ms(&Target::Process(name), judges_again_ms);
            down.extend(down_ms(&Target::Database, WORKS_AFTER_MS));
            let wrong_ms = down_ms(&Target::Clock { process: name }, 0).into_iter();
            let steps_ms = wrong_ms.flat_map(|(from_ms, to_ms)| [from_ms, to_ms]);
            down.extend(steps_ms.map(|at_ms| (at_ms, at_ms + judges_again_ms)));
            down.sort_unstable();
            let mut from_ms = 0;
            for (down_ms, up_ms) in down {
                if down_ms > from_ms {
                    able.push((from_ms, down_ms));
                }
                from_ms = from_ms.max(up_ms);
            }
            able.push((from_ms, self.seconds * 1_000));
        }
        able.retain(|(from_ms, to_ms)| from_ms < to_ms);
        able.sort_unstable();
        able
    }

    /// Whether the run ends with a restore of the database.
    pub fn has_restore(&self) -> bool {
        self.seconds >= RESTORE_S_MIN
    }

    /// Whether the run ends with an outage of a day.
    pub fn has_day_away(&self) -> bool {
        self.seconds >= OUTAGE_RUN_S_MIN
    }

    /// Seconds by which the run is behind the machine's clock until its day away has passed.
    pub fn behind_s(&self) -> i64 {
        if self.has_day_away() { DAY_AWAY_S } else { 0 }
    }

    /// All faults, sorted by time.
    pub fn faults(&self) -> Vec<&Fault> {
        let mut faults: Vec<&Fault> = self.lanes.iter().flatten().collect();
        faults.sort_by_key(|fault| (fault.at_ms, &fault.target));
        faults
    }

    /// Number of faults that begin during another fault.
    pub fn overlapping(&self) -> usize {
        let mut last_end_ms = 0;
        let mut count = 0;
        for fault in self.faults() {
            count += usize::from(fault.at_ms < last_end_ms);
            last_end_ms = last_end_ms.max(fault.end_ms());
        }
        count
    }
}

/// Begin and end of the long silence; `None` in a run that is too short for it.
fn long_silence_ms(run_ms: u32) -> Option<(u32, u32)> {
    let length_ms = (run_ms / 4).clamp(LONG_SILENCE_MS.0, LONG_SILENCE_MS.1);
    let from_ms = run_ms * 2 / 5;
    let calm_ms = (run_ms / 10).clamp(CALM_LAST_MS.0, CALM_LAST_MS.1);
    (from_ms + length_ms + calm_ms < run_ms).then_some((from_ms, from_ms + length_ms))
}

/// The targets, each with the mean time in seconds between the end of a fault and the next.
fn targets() -> Vec<(Target, u32)> {
    let mut targets: Vec<(Target, u32)> = SERVICES
        .iter()
        .map(|(name, _)| (Target::Process(name), 40))
        .collect();
    targets.extend([
        (Target::Broker, 60),
        (Target::Database, 60),
        (Target::Receiver, 60),
    ]);
    for gateway in &GATEWAYS {
        targets.push((Target::Process(gateway.name), 45));
        let network = Target::Network {
            gateway: gateway.name,
        };
        targets.push((network, 45));
        let links = (0..LINKS.len()).map(|link| Target::Link {
            gateway: gateway.name,
            link,
        });
        targets.extend(links.map(|target| (target, 20)));
    }
    targets.extend(patients().map(|(_, patient)| (Target::Radio { patient }, 50)));
    targets.push((Target::Mailbox, 60));
    let rules = ["default", "north"].map(|tenant| (Target::Rules { tenant }, 60));
    targets.extend(rules);
    targets.push((Target::Disk { gateway: DISK_OF }, 60));
    targets.extend(CLOCKS_OF.map(|process| (Target::Clock { process }, 60)));
    // Its faults are those of the plan alone.
    let wearers = MOVED.map(|(patient, _)| (Target::Wearer { patient }, u32::MAX));
    targets.extend(wearers);
    targets
}

fn lasting_ms_max(run_ms: u32) -> u32 {
    (run_ms / 10).clamp(LASTING_MS.end, LASTING_MS_MAX)
}

fn lane(random: &mut impl Rng, target: &Target, every_ms: u32, run_ms: u32) -> Vec<Fault> {
    if matches!(target, Target::Wearer { .. }) {
        return Vec::new();
    }
    let calm_ms = (run_ms / 10).clamp(CALM_LAST_MS.0, CALM_LAST_MS.1);
    let end_ms = run_ms - calm_ms;
    let mut faults: Vec<Fault> = Vec::new();
    // The first fault is early enough that the longest one has room after it in the shortest run.
    let first_ms_max = (end_ms - LASTING_MS.end)
        .min(every_ms)
        .max(CALM_FIRST_MS + 1);
    let mut at_ms = random.random_range(CALM_FIRST_MS..first_ms_max);
    loop {
        let is_lasting = random.random_bool(LASTING);
        let lasting_ms_max = lasting_ms_max(run_ms);
        let length_ms = if is_lasting {
            LASTING_MS.start..lasting_ms_max
        } else {
            SHORT_MS
        };
        let mut for_ms = random.random_range(length_ms);
        let kind = match target {
            Target::Process(_) if random.random_bool(0.6) => Kind::Kill,
            Target::Process(_) => Kind::Pause,
            Target::Broker | Target::Database => {
                for_ms = for_ms.max(ENGINE_MS_MIN);
                Kind::Kill
            }
            Target::Rules { .. } => Kind::Changed,
            Target::Disk { .. } => Kind::Full,
            Target::Clock { .. } if random.random_bool(0.5) => Kind::Ahead,
            Target::Clock { .. } => Kind::Behind,
            Target::Network { .. }
            | Target::Link { .. }
            | Target::Receiver
            | Target::Mailbox
            | Target::Radio { .. }
            | Target::Wearer { .. } => Kind::Away,
        };
        if at_ms + for_ms > end_ms {
            return faults;
        }
        faults.push(Fault {
            at_ms,
            for_ms,
            target: target.clone(),
            kind,
        });
        at_ms += for_ms + random.random_range(every_ms / 2..every_ms * 3 / 2);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_one_another() {
        let plan = Plan::new(7, 180);
        assert_eq!(Plan::new(7, 180), plan);
        assert_ne!(Plan::new(8, 180).lanes, plan.lanes);
        assert_ne!(Plan::new(8, 180).scripts, plan.scripts);
    }

    #[test]
    fn every_target_fails_within_bounds_and_faults_overlap() {
        for seed in 0..200 {
            for seconds in [SECONDS_MIN, 180, 1_200] {
                let plan = Plan::new(seed, seconds);
                let end_ms = seconds * 1_000 - CALM_LAST_MS.0;
                for (lane, (target, _)) in plan.lanes.iter().zip(targets()) {
                    // The database may give its only fault of a short run to the long silence.
                    let may_be_empty = (target == Target::Database && seconds < 600)
                        || matches!(target, Target::Wearer { .. }) && seconds < ROLLING_S_MIN;
                    assert!(
                        may_be_empty || !lane.is_empty(),
                        "{seed} {seconds}: {target} never fails"
                    );
                    for fault in lane {
                        assert!(
                            fault.at_ms >= CALM_FIRST_MS && fault.end_ms() <= end_ms,
                            "{fault:?}"
                        );
                    }
                    for pair in lane.windows(2) {
                        assert!(pair[0].end_ms() < pair[1].at_ms, "{pair:?}");
                    }
                }
                let (all, overlapping) = (plan.faults().len(), plan.overlapping());
                assert!(
                    overlapping * 2 > all,
                    "{seed} {seconds}: {overlapping} of {all}"
                );
            }
        }
    }

    #[test]
    fn a_watch_that_restarts_within_the_long_silence_has_time_to_judge_it() {
        for seed in 0..200 {
            for seconds in [180, 1_200] {
                let plan = Plan::new(seed, seconds);
                let (from_ms, to_ms) = long_silence_ms(seconds * 1_000).unwrap();
                let faults = plan.faults();
                let restarts = faults.iter().filter(|fault| {
                    let is_watch =
                        matches!(fault.target, Target::Process(name) if WATCHES.contains(&name));
                    is_watch && fault.at_ms == from_ms + RESTART_AFTER_MS
                });
                assert_eq!(restarts.count(), WATCHES.len());
                let able = plan.able_to_watch_ms();
                let judged = |from_ms: u32, to_ms: u32| {
                    able.iter()
                        .any(|able| able.1.min(to_ms).saturating_sub(able.0.max(from_ms)) >= 10_000)
                };
                assert!(judged(from_ms, to_ms), "{seed} {seconds}: {able:?}");
                assert!(able.iter().all(|(from_ms, to_ms)| from_ms < to_ms));
            }
        }
        assert_eq!(long_silence_ms(SECONDS_MIN * 1_000), None);
    }
}
