//! The plan's rates beside the packet simulator: the transport that ships, over links as the
//! accesses are.

use std::path::PathBuf;
use std::time::Duration;

use access_plan::{Group, Plan};

use crate::error::LabError;
use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, Scenario};
use crate::world;

/// Virtual seconds of a run, and from when on rates are taken.
const LIMIT_S: f64 = 40.0;
const FROM: Duration = Duration::from_secs(15);
const TO: Duration = Duration::from_secs(40);
/// More than any link of a check carries in that time.
const BYTES: u64 = 2_000_000_000;
/// Largest difference from the simulator, in percent.
const ERROR_MAX: f64 = 6.0;
/// Packets cost time: faster accesses are simulated at this rate, and the result is scaled.
const MBIT_MAX: f64 = 15.0;

/// One gateway on three networks, and several gateways on three with shared accesses.
const NETWORKS: [(&str, &str); 6] = [
    (
        "two_accesses",
        include_str!("../../scenarios/plan/check-two.toml"),
    ),
    (
        "three_with_loss",
        include_str!("../../scenarios/plan/check-three.toml"),
    ),
    ("slow", include_str!("../../scenarios/plan/check-slow.toml")),
    (
        "shared",
        include_str!("../../scenarios/plan/check-shared.toml"),
    ),
    (
        "shared_both",
        include_str!("../../scenarios/plan/check-shared-both.toml"),
    ),
    (
        "shared_cell",
        include_str!("../../scenarios/plan/check-shared-cell.toml"),
    ),
];

/// A plan from the text of the file `name`.
pub(super) fn read(name: &str, text: &str) -> Result<Plan, LabError> {
    Plan::from_toml(text).map_err(|source| LabError::Fluid {
        file: PathBuf::from(name),
        source: Box::new(source),
    })
}

/// Rows of all.
pub(super) fn rows(runner: &Runner, seed: u64) -> Result<Vec<Figure>, LabError> {
    let mut rows = Vec::new();
    for (name, text) in NETWORKS {
        let plan = read(name, text)?;
        rows.extend(of(runner, name, &plan, seed)?);
    }
    Ok(rows)
}

/// One gateway of the first group with all its accesses; each further group is one gateway with
/// one access, in the order of the accesses.
fn of(runner: &Runner, name: &str, plan: &Plan, seed: u64) -> Result<Vec<Figure>, LabError> {
    let plan = &alone_of(plan);
    let expected = access_plan::solve(plan);
    let widest = plan
        .access
        .iter()
        .map(|it| it.rate_mbit)
        .fold(0.0, f64::max);
    let scale = (MBIT_MAX / widest).min(1.0);
    let interfaces: Vec<Interface> = plan
        .access
        .iter()
        .map(|it| Interface::symmetric(&it.name, it.rate_mbit * scale, it.rtt_ms, it.loss))
        .collect();
    let mut scenario = Scenario::transfer(
        format!("plan.{name}"),
        seed,
        Direction::Upload,
        BYTES,
        Controller::Ours,
        LIMIT_S,
        interfaces,
    );
    scenario.competitors = vec![Controller::Ours; plan.patients.len() - 1];
    let report = world::run(&scenario, runner.identity(), Mechanisms::default())?;
    let measured = std::iter::once(&report.timeline)
        .chain(report.competitors.iter().map(|it| &it.timeline))
        .map(|timeline| timeline.mbit_within(FROM, TO) / scale);
    let mut rows = Vec::new();
    let (mut planned_sum, mut simulated_sum) = (0.0, 0.0);
    for (number, (group, simulated)) in (1..).zip(expected.groups.iter().zip(measured)) {
        let id = format!("plan.{name}.gateway{number}");
        let planned = group.equilibrium_sum_mbit;
        let error = 100.0 * (planned - simulated).abs() / simulated.max(1e-9);
        planned_sum += planned;
        simulated_sum += simulated;
        rows.push(Figure::shown(
            format!("{id}.planned"),
            "Mbit/s",
            None,
            planned,
        ));
        rows.push(Figure::shown(
            format!("{id}.simulated"),
            "Mbit/s",
            None,
            simulated,
        ));
        let error_id = format!("{id}.error");
        rows.push(if plan.patients.len() == 1 {
            Figure::at_most(error_id, "%", None, ERROR_MAX, error)
        } else {
            // Shares at one bottleneck depend on who came first; the plan gives each the same.
            Figure::shown(error_id, "%", None, error)
        });
    }
    if plan.patients.len() > 1 {
        let error = 100.0 * (planned_sum - simulated_sum).abs() / simulated_sum.max(1e-9);
        let id = format!("plan.{name}.sum.error");
        rows.push(Figure::at_most(id, "%", None, ERROR_MAX, error));
    }
    Ok(rows)
}

/// The same plan with one gateway in each group, all covered.
fn alone_of(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for access in &mut plan.access {
        access.coverage = 1.0;
        access.cells = 1.0;
        access.background.clear();
    }
    for group in &mut plan.patients {
        group.count = 1.0;
    }
    plan
}

/// The user's own accesses with one gateway and nobody else; then with one more gateway in a cell
/// of each access that is shared.
pub(super) fn own(runner: &Runner, plan: &Plan, seed: u64) -> Result<Vec<Figure>, LabError> {
    let mut plan = plan.clone();
    plan.patients.truncate(1);
    if let Some(group) = plan.patients.first_mut() {
        group.accesses.clear();
    }
    let mut rows = of(runner, "own", &plan, seed)?;
    // Further gateways take the first accesses.
    plan.access.sort_by_key(|access| access.per_patient);
    let shared = plan.access.iter().filter(|it| !it.per_patient);
    let further: Vec<Group> = shared
        .flat_map(|access| {
            let like = plan.patients.first().cloned();
            like.map(|group| Group {
                name: format!("beside it on {}", access.name),
                accesses: vec![access.name.clone()],
                ..group
            })
        })
        .collect();
    if !further.is_empty() {
        plan.patients.extend(further);
        rows.extend(of(runner, "own_shared", &plan, seed)?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::identity::Identity;

    #[test]
    fn planned_rates_are_those_of_the_packet_simulator() {
        let runner = Runner::new(Identity::new().unwrap(), false);
        let rows = rows(&runner, 3).unwrap();
        assert_eq!(rows.len(), 3 * 3 + (2 + 3 + 4) * 3 + 3);
        let missed: Vec<&Figure> = rows.iter().filter(|row| !row.met).collect();
        assert!(missed.is_empty(), "{rows:#?}");
    }
}
