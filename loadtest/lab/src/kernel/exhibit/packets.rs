//! The keepalive's step and levels of the round trip, measured over real packets.

use std::time::Duration;

use crate::error::LabError;
use crate::exhibit::Exhibit;
use crate::figures::Figure;
use crate::keepalives::estimates::{self, Curve};
use crate::kernel::bed::KernelError;
use crate::kernel::permission::refusal;
use crate::kernel::prober::{self, Probed};
use crate::report::{percentile, sorted};
use crate::task::Task;

const T_KA_MS: u64 = 200;
/// Tolerance of a sample against the link's round trip: serialisation, timers and the emulator.
const ERROR_MS_MAX: f64 = 3.0;
const ANSWERED_PERCENT_MIN: f64 = 99.0;
/// Runs are made again until the machine keeps up, at most so often.
const ATTEMPTS: u32 = 3;

pub(super) fn run(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "keepalive.packets";
    let title = "Keepalive over real packets";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "The prober that ships, as UDP between two network namespaces through the emulator of the \
         links; the server's clock is 3,000 s ahead. The same experiments as in virtual time, T_KA \
         200 ms.",
    );
    if let Some(reason) = refusal()? {
        exhibit.skipped.push(reason);
        return Ok(exhibit);
    }
    let course = estimates::step_course(T_KA_MS);
    let end_s = estimates::step_times(T_KA_MS).1;
    let probed = believed(task.seed, &course, end_s, &mut exhibit)?;
    exhibit.figures.extend(judged("step", &probed, &course));
    estimates::step(&mut exhibit, &probed.samples, T_KA_MS, "packets_step");
    if task.quick {
        exhibit.notes.push(
            "Three levels and the asymmetric estimate take 100 s: not in a quick report.".into(),
        );
        return Ok(exhibit);
    }
    let course = estimates::levels_course();
    let probed = believed(task.seed, &course, estimates::LEVELS_S, &mut exhibit)?;
    exhibit.figures.extend(judged("levels", &probed, &course));
    estimates::levels(&mut exhibit, &probed.samples, T_KA_MS, "packets");
    Ok(exhibit)
}

/// The first run in which the machine kept up, or the last one.
fn believed(
    seed: u64,
    course: &[(f64, f64)],
    end_s: f64,
    exhibit: &mut Exhibit,
) -> Result<Probed, KernelError> {
    let t_ka = Duration::from_millis(T_KA_MS);
    let mut probed = prober::run(seed, t_ka, course, end_s)?;
    for _ in 1..ATTEMPTS {
        if probed.kept.up {
            break;
        }
        probed = prober::run(seed, t_ka, course, end_s)?;
    }
    if !probed.kept.up {
        exhibit.notes.push(format!(
            "The machine did not keep up in {ATTEMPTS} runs: these are of the last."
        ));
    }
    Ok(probed)
}

/// AnswerTimers, and the difference from the round trip of the link in which 95 of 100 samples lie.
fn judged(name: &str, probed: &Probed, course: &Curve) -> [Figure; 2] {
    let answered = 100.0 * probed.samples.len() as f64 / (probed.sent as f64).max(1.0);
    let difference = |&(at_s, rtt_ms): &(f64, f64)| {
        let sent_s = at_s - rtt_ms / 1e3;
        let level = |at_s: f64| course.iter().rev().find(|step| step.0 <= at_s);
        // A probe that was under way at a change has a part of both.
        let (before, after) = (level(sent_s)?, level(at_s)?);
        (before == after).then(|| (rtt_ms - after.1).abs())
    };
    let differences = sorted(probed.samples.iter().filter_map(difference));
    let id = |what: &str| format!("keepalive.packets_{name}.{what}");
    let error = percentile(&differences, 0.95).unwrap_or(f64::INFINITY);
    [
        Figure::at_least(id("answered"), "%", None, ANSWERED_PERCENT_MIN, answered),
        Figure::at_most(id("error_p95"), "ms", None, ERROR_MS_MAX, error),
    ]
}
