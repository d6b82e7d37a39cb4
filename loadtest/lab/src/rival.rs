//! The profiles on which the closest open project, mqvpn, reports itself.
//!
//! Efficiencies are of what headers leave of the capacity (1436 of 1500 bytes), from stream open.
//! Latencies are read as round trips.

use std::time::Duration;

use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::packet::HEADER_SHARE;
use crate::references;
use crate::report::{BIN, RunReport, mbit_within};
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, Scenario, ScenarioError};
use crate::seed::derive_seed;

/// Length of a transfer at full capacity.
const TRANSFER_S: f64 = 10.0;
const FLOWS: u32 = 8;
const CUT_S: f64 = 4.0;
const RESTORE_S: f64 = 9.0;
const CUT_END_S: f64 = 14.0;
/// Share of a restored link's rate that counts as traffic.
const RESTORED_SHARE: f64 = 0.1;

struct Profile {
    name: &'static str,
    /// Mbit/s and round trip in ms.
    links: [(f64, f64); 2],
    /// Percent of the header limit.
    target: f64,
}

const PROFILES: [Profile; 3] = [
    Profile {
        name: "symmetric",
        links: [(100.0, 25.0), (100.0, 25.0)],
        target: 95.0,
    },
    Profile {
        name: "asymmetric",
        links: [(300.0, 10.0), (80.0, 30.0)],
        target: 90.0,
    },
    Profile {
        name: "near",
        links: [(50.0, 1.0), (30.0, 1.0)],
        target: 90.0,
    },
];

fn scenario(
    profile: &Profile,
    links: &[usize],
    flows: u32,
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Scenario {
    let capacity: f64 = links.iter().map(|&link| profile.links[link].0).sum();
    Scenario {
        name: format!("rival.{}.{}x{flows}", profile.name, links.len()),
        seed,
        direction,
        bytes: (capacity * 1e6 / 8.0 * TRANSFER_S) as u64,
        streams: flows,
        controller,
        vitals: None,
        chaos: None,
        steered: None,
        pace: Vec::new(),
        thin: None,
        competitors: Vec::new(),
        mix: None,
        background: None,
        buffers: None,
        trunk_mbit: None,
        steering: None,
        compare: None,
        limit_s: TRANSFER_S * 10.0,
        interfaces: links
            .iter()
            .map(|&link| {
                Interface::symmetric(
                    ["first", "second"][link],
                    profile.links[link].0,
                    profile.links[link].1,
                    0.0,
                )
            })
            .collect(),
    }
}

/// One flow over the symmetric and the near profile, and the cuts: what kernel time runs, by id.
pub(crate) fn scenarios(
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Vec<(&'static str, Scenario)> {
    let whole = [0, 2].map(|index| {
        let profile = &PROFILES[index];
        let seed = derive_seed(seed, 3000 + index as u64);
        let one = scenario(profile, &[0, 1], 1, seed, controller, direction);
        (profile.name, one)
    });
    let cuts = cut_scenarios(seed, controller, direction);
    let cuts = ["cut_first", "cut_second"].into_iter().zip(cuts);
    whole.into_iter().chain(cuts).collect()
}

/// One flow over the asymmetric profile; dear in real time.
pub(crate) fn asymmetric(
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> (&'static str, Scenario) {
    let profile = &PROFILES[1];
    let seed = derive_seed(seed, 3001);
    let one = scenario(profile, &[0, 1], 1, seed, controller, direction);
    (profile.name, one)
}

/// Percent of the header limit that a flow over a profile is to reach.
pub(crate) fn target_of(name: &str) -> Option<f64> {
    let mut profiles = PROFILES.iter();
    profiles
        .find(|profile| profile.name == name)
        .map(|profile| profile.target)
}

pub fn run(
    runner: &Runner,
    prefix: &str,
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let mut figures = Vec::new();
    let mut all = Vec::new();
    for (index, profile) in PROFILES.iter().enumerate() {
        let id = format!("{prefix}.{}", profile.name);
        if !runner.wants(&format!("{id}.")) {
            continue;
        }
        let seed = derive_seed(seed, 3000 + index as u64);
        let best = if profile.links[1].0 > profile.links[0].0 {
            1
        } else {
            0
        };
        let scenarios = [
            scenario(profile, &[0, 1], 1, seed, controller, direction),
            scenario(profile, &[0, 1], FLOWS, seed, controller, direction),
            scenario(profile, &[best], 1, seed, controller, direction),
        ];
        let reports = runner.run(
            &format!("{prefix} {}", profile.name),
            &scenarios,
            Mechanisms::default(),
        )?;
        let goodput = |report: &RunReport| {
            report.delivered_bytes as f64 * 8e-6 / report.from_stream_s.max(1e-3)
        };
        if let [one, eight, single] = &reports[..] {
            for (flows, report) in [("one_flow", one), ("eight_flows", eight)] {
                let measured = report.efficiency_stream / HEADER_SHARE;
                let id = format!("{id}.{flows}");
                // Published by the capacity; the target is by what headers leave of it.
                let rival = references::figure(&id).map(|rival| rival / HEADER_SHARE);
                figures.push(Figure::at_least(id, "%", rival, profile.target, measured));
            }
            let against_single = goodput(one) / goodput(single).max(1e-9);
            figures.push(Figure::at_least(
                format!("{id}.against_single"),
                "x",
                None,
                0.98,
                against_single,
            ));
        }
        all.extend(reports);
    }
    if runner.wants(&format!("{prefix}.cut_")) {
        let (more, reports) = cuts(runner, prefix, seed, controller, direction)?;
        figures.extend(more);
        all.extend(reports);
    }
    Ok((figures, all))
}

/// A silent cut of either path of the near profile, and its return.
pub fn cuts(
    runner: &Runner,
    prefix: &str,
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let scenarios = cut_scenarios(seed, controller, direction);
    let reports = runner.run(&format!("{prefix} cut"), &scenarios, Mechanisms::default())?;
    let figures = reports
        .iter()
        .enumerate()
        .flat_map(|(cut, report)| cut_figures(prefix, cut, report))
        .collect();
    Ok((figures, reports))
}

fn cut_scenarios(seed: u64, controller: Controller, direction: Direction) -> Vec<Scenario> {
    let profile = &PROFILES[2];
    (0..2)
        .map(|cut| {
            let mut scenario = scenario(
                profile,
                &[0, 1],
                1,
                derive_seed(seed, 3100 + cut as u64),
                controller,
                direction,
            );
            scenario.name = format!("rival.cut{cut}");
            scenario.bytes *= 4;
            scenario.limit_s = CUT_END_S;
            let link = &mut scenario.interfaces[cut];
            *link = link
                .clone()
                .with_changes(&[(CUT_S, false), (RESTORE_S, true)]);
            scenario
        })
        .collect()
}

/// The figures of a run in which path `cut` was cut and came back.
pub(crate) fn cut_figures(prefix: &str, cut: usize, report: &RunReport) -> [Figure; 2] {
    let gap_s = report.bulk_gap_ms.unwrap_or(f64::INFINITY) / 1e3;
    let alive = report
        .timeline
        .last()
        .is_some_and(|last| last.as_secs_f64() > CUT_END_S - 0.5);
    let gap_s = if alive { gap_s } else { f64::INFINITY };
    let which = ["first", "second"][cut];
    let rate = PROFILES[2].links[cut].0;
    let bins = report
        .links
        .get(cut)
        .map(|link| link.bins.as_slice())
        .unwrap_or_default();
    let returned = (0..(CUT_END_S - RESTORE_S) as u64 * 10)
        .map(|bin| Duration::from_secs_f64(RESTORE_S) + BIN * bin as u32)
        .find(|&from| mbit_within(bins, from, from + BIN) >= rate * RESTORED_SHARE)
        .map_or(f64::INFINITY, |from| from.as_secs_f64() - RESTORE_S);
    let row = |what: &str, target, measured| {
        let id = format!("{prefix}.cut_{which}.{what}");
        let rival = references::figure(&id);
        Figure::at_most(id, "s", rival, target, measured)
    };
    [row("gap", 2.0, gap_s), row("restored", 1.0, returned)]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Identity, Selection};

    /// A caller of a part of an experiment waits for that part.
    #[test]
    fn only_the_runs_are_made_whose_figures_are_asked_for() {
        let runs = |only: &str| {
            let selection = Selection {
                only: Some(only.to_owned()),
                direction: None,
            };
            let runner = Runner::new(Identity::new().unwrap(), false).select(selection);
            let ran = run(&runner, "rival", 1, Controller::Ours, Direction::Upload);
            let (figures, reports) = ran.unwrap();
            assert!(figures.iter().any(|figure| figure.id.starts_with(only)));
            reports.into_iter().map(|report| report.name).collect()
        };
        let near: Vec<String> = runs("rival.near.one_flow");
        assert_eq!(near, ["rival.near.2x1", "rival.near.2x8", "rival.near.1x1"]);
        assert_eq!(runs("rival.cut_second"), ["rival.cut0", "rival.cut1"]);
    }
}
