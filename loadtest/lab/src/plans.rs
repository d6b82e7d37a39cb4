//! `braid-lab plan`: the rates of `braid plan` beside the packet simulator.

mod check;

use std::path::PathBuf;
use std::process::ExitCode;

use access_plan::{Outcome, spans};

use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::identity::Identity;
use crate::runner::Runner;
use crate::scenario::read_bounded;
use crate::to_terminal;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Flags of `plan`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanOptions {
    /// A plan, whose own accesses are simulated; without it six networks, three of them with shared
    /// accesses.
    #[arg(env = "BRAID_LAB_PLAN", value_name = "plan.toml")]
    pub file: Option<PathBuf>,
    /// Print the figures as a JSON array.
    #[arg(long, env = "BRAID_LAB_JSON", default_value_t = false)]
    pub json: bool,
    /// Seed of the packet simulator.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
}

const EXAMPLES: &str = "\
Examples:
  braid-lab plan                    six networks
  braid-lab plan my-plan.toml       one gateway of each kind of this plan";

impl PlanOptions {
    /// Prints model and simulator; failure when they differ by more than the target.
    pub fn run(&self) -> Result<ExitCode, LabError> {
        let runner = Runner::new(Identity::new()?, true);
        let rows = match &self.file {
            None => check::rows(&runner, self.seed)?,
            Some(file) => {
                let text = read_bounded(file, FILE_BYTES_MAX)?;
                let plan = check::read(&file.display().to_string(), &text)?;
                check::own(&runner, &plan, self.seed)?
            }
        };
        to_terminal::print(&rows, &[], self.json)
    }
}

/// The plan that ships, and the model beside the packet simulator, for the report.
pub fn study(runner: &Runner, seed: u64) -> Result<Exhibit, LabError> {
    let command = format!("braid-lab plan --seed {seed}");
    let mut exhibit = Exhibit::new("Plan of an operator's access networks", &command).note(
        "The model's equilibrium gives each gateway its rate when all send as much as they can. \
         The packet simulator runs the same accesses with the transport that ships.",
    );
    let outcome = access_plan::solve(&check::read("the example", access_plan::EXAMPLE)?);
    exhibit.tables = tables(&outcome);
    for warning in &outcome.warnings {
        exhibit.notes.push(format!("warning: {warning}"));
    }
    exhibit.figures = check::rows(runner, seed)?;
    Ok(exhibit)
}

/// Tables of accesses and groups for the report.
fn tables(outcome: &Outcome) -> Vec<Table> {
    let money = &outcome.currency;
    let price = format!("{money}/month");
    let mut accesses = Table::new(
        &format!("{}: accesses", outcome.plan),
        &[
            "access",
            "patients in reach",
            "usable [Mbit/s]",
            "busiest hour [Mbit/s]",
            "used [%]",
            "headroom [Mbit/s]",
            "share [%]",
            "GB/month",
            &price,
        ],
    );
    for it in &outcome.accesses {
        accesses.row(vec![
            it.name.clone(),
            format!("{:.1}", it.patients),
            format!("{:.2}", it.usable_mbit),
            format!("{:.3}", it.busy_mbit),
            format!("{:.2}", it.used_percent),
            format!("{:.2}", it.headroom_mbit),
            format!("{:.2}", it.share_percent),
            format!("{:.1}", it.gb_per_month),
            format!("{:.2}", it.price_per_month),
        ]);
    }
    let price = format!("{money}/patient, month");
    let mut groups = Table::new(
        &format!("{}: patients", outcome.plan),
        &[
            "patients",
            "count",
            "uncovered [%]",
            "one access only [%]",
            "busy hours [kbit/s]",
            "equilibrium [Mbit/s]",
            "alone [Mbit/s]",
            "GB/patient, month",
            &price,
        ],
    );
    for it in &outcome.groups {
        groups.row(vec![
            it.name.clone(),
            format!("{:.0}", it.patients),
            format!("{:.2}", it.uncovered_percent),
            format!("{:.2}", it.single_percent),
            format!("{:.1}", it.busy_kbit_per_patient),
            format!("{:.2}", it.equilibrium_sum_mbit),
            format!("{:.2}", it.alone_mbit),
            format!("{:.3}", it.gb_per_patient_month),
            format!("{:.2}", it.price_per_patient_month),
        ]);
    }
    let mut day = Table::new(
        &format!("{}: cells over the day", outcome.plan),
        &[
            "access",
            "hours",
            "others [Mbit/s]",
            "usable [Mbit/s]",
            "load [Mbit/s]",
            "used [%]",
            "one gateway [Mbit/s]",
        ],
    );
    for (name, hours, it) in spans(outcome) {
        day.row(vec![
            name.to_owned(),
            hours,
            format!("{:.2}", it.background_mbit),
            format!("{:.2}", it.usable_mbit),
            format!("{:.3}", it.load_mbit),
            format!("{:.2}", it.used_percent),
            format!("{:.3}", it.gateway_mbit),
        ]);
    }
    vec![accesses, day, groups]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ::fluid::{Capacity, Network, Resource, Route, Source, equilibrium};
    use access_plan::Plan;

    /// beta and a of the equilibrium: a (1 + beta) is below pi/2, and resources are used to 98 %
    /// and more.
    const RESPONSIVENESS: f64 = 2000.0;
    const INCREASE: f64 = 5e-4;
    const DECREASE: f64 = 0.875;

    /// Rate of the first source at one resource; the penalty's steepness asks for small units.
    fn first_rate(capacity: f64, sources: [(f64, f64); 2]) -> f64 {
        let named = |weight| Source {
            name: String::new(),
            weight,
        };
        let network = Network {
            increase: INCREASE,
            resources: vec![Resource {
                name: "cell".to_owned(),
                nominal: capacity * 1e3,
                responsiveness: RESPONSIVENESS,
                capacity: Capacity::Constant,
            }],
            sources: sources.map(|it| named(it.0)).to_vec(),
            routes: [0, 1]
                .map(|source| Route {
                    name: String::new(),
                    source,
                    decrease: DECREASE,
                    round_trip_s: 0.05,
                    resources: vec![(0, 0.025, 0.025)],
                })
                .to_vec(),
        };
        let found = equilibrium(&network, &sources.map(|it| it.1 * 1e3)).unwrap();
        found.rates[0] / 1e3
    }

    #[test]
    fn a_cell_of_a_plan_is_shared_as_by_the_fluid_model() {
        for mbit in [2.0, 24.0, 50.0] {
            let text = access_plan::EXAMPLE.replace("mbit = 24.0", &format!("mbit = {mbit:?}"));
            let plan = Plan::from_toml(&text).unwrap();
            let outcome = access_plan::solve(&plan);
            let lte = &outcome.accesses[1];
            let (quiet, evening) = (&lte.hours[3], &lte.hours[20]);
            let senders = lte.patients / 2.0;
            let demands = [(senders, f64::INFINITY), (30.0, mbit)];
            let expected = first_rate(quiet.usable_mbit / 2.0, demands) / senders;
            let error = (evening.gateway_mbit / expected - 1.0).abs();
            assert!(error < 0.02, "{mbit}: {} {expected}", evening.gateway_mbit);
        }
    }
}
