//! Two paths of one connection in one queue are one sender; in two queues they are two.

use super::{
    Outcome, QUEUEING_MAX_RTTS, RATE_MBIT, RTT_MS, SHARED_S, Setting, alone, beside_and_alone,
    fairness, queueing_rtts,
};
use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::report::mean;
use crate::runner::Runner;
use crate::scenario::{Controller, Interface, Scenario};
use crate::seed::derive_seed;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Round trips of the second path by the first one's.
const SECOND_RTT: [(&str, f64); 2] = [("same_rtt", 1.0), ("other_rtt", 2.0)];
/// Pairs of separate links, each with cross-traffic of its own.
const DISJOINT: u64 = 6;
/// Price of coupling where nothing is shared.
const KEPT_MIN: f64 = 98.0;
const FALSE_MAX: f64 = 2.0;

pub fn run(runner: &Runner, prefix: &str, setting: Setting) -> Outcome {
    let mut figures = Vec::new();
    let mut reports = Vec::new();
    for (name, times) in SECOND_RTT {
        let links = || {
            let mut second = Interface::symmetric("second", RATE_MBIT, RTT_MS * times, 0.0);
            second.shares = Some(0);
            vec![
                Interface::symmetric("first", RATE_MBIT, RTT_MS, 0.0),
                second,
            ]
        };
        let prefix = format!("{prefix}.{name}");
        let runs = beside_and_alone(runner, &prefix, setting, [SHARED_S; 2], links)?;
        figures.extend(fairness(&prefix, SHARED_S, &runs));
        if let Some(alone) = alone(&prefix, &runs) {
            figures.push(Figure::at_most(
                format!("{prefix}.alone.queueing_p95"),
                "x RTT",
                None,
                QUEUEING_MAX_RTTS,
                queueing_rtts(alone, RTT_MS),
            ));
        }
        reports.extend(runs);
    }
    let prefix = format!("{prefix}.disjoint");
    if runner.wants(&prefix) {
        let (more, runs) = disjoint(runner, &prefix, setting)?;
        figures.extend(more);
        reports.extend(runs);
    }
    Ok((figures, reports))
}

/// Two links of like or unlike rates and round trips, a Cubic flow on each: what coupling costs,
/// and how often it errs.
fn disjoint(runner: &Runner, prefix: &str, setting: Setting) -> Outcome {
    let scenarios: Vec<Scenario> = (0..DISJOINT)
        .map(|index| {
            let mut random = ChaCha8Rng::seed_from_u64(derive_seed(setting.seed, 5100 + index));
            let mut link = |name| {
                // The first pairs are twins, which are the easiest to take for one.
                let (rate, rtt) = if index < DISJOINT / 3 {
                    (RATE_MBIT, RTT_MS)
                } else {
                    (
                        random.random_range(5.0..25.0),
                        random.random_range(20.0..100.0),
                    )
                };
                Interface::symmetric(name, rate, rtt, 0.0)
            };
            let links = vec![link("first"), link("second")];
            let mut scenario = setting.endless(format!("{prefix}.{index}"), SHARED_S, links);
            scenario.seed = derive_seed(scenario.seed, index);
            scenario.competitors = vec![Controller::Cubic; 2];
            scenario
        })
        .collect();
    let coupled = runner.run(prefix, &scenarios, Mechanisms::default())?;
    if coupled.is_empty() {
        return Ok((Vec::new(), coupled));
    }
    let apart = Mechanisms {
        coupling: false,
        ..Mechanisms::default()
    };
    let apart = runner.run(prefix, &scenarios, apart)?;
    let kept: Vec<f64> = coupled
        .iter()
        .zip(&apart)
        .map(|(coupled, apart)| {
            100.0 * coupled.delivered_bytes as f64 / apart.delivered_bytes.max(1) as f64
        })
        .collect();
    let wrong: Vec<f64> = coupled
        .iter()
        .map(|report| 100.0 * report.coupled_share)
        .collect();
    let figures = vec![
        Figure::at_least(
            format!("{prefix}.kept_mean"),
            "%",
            None,
            KEPT_MIN,
            mean(&kept),
        ),
        Figure::shown(
            format!("{prefix}.kept_worst"),
            "%",
            None,
            kept.iter().copied().fold(f64::INFINITY, f64::min),
        ),
        Figure::at_most(
            format!("{prefix}.false_positives"),
            "% of time",
            None,
            FALSE_MAX,
            mean(&wrong),
        ),
    ];
    Ok((figures, coupled))
}
