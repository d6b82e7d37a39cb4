//! `braid lab plan`: what an operator's access networks give to its patients, and what that costs.

mod check;
mod day;
mod file;
mod model;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::figures::{Figure, table};
use crate::identity::Identity;
use crate::runner::Runner;
use crate::scenario::read_bounded;
use crate::to_terminal;
use file::{fault, read};
use model::{HourOutcome, Outcome};

const FILE_BYTES_MAX: u64 = 1 << 20;

/// The plan that ships as an example.
const EXAMPLE_FILE: &str = "loadtest/lab/scenarios/plan/three-networks.toml";
const EXAMPLE: &str = include_str!("../scenarios/plan/three-networks.toml");

/// Flags of `plan`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanOptions {
    /// The plan; not needed with --check.
    #[arg(
        env = "BRAID_LAB_PLAN",
        required_unless_present = "check",
        value_name = "plan.toml"
    )]
    pub file: Option<PathBuf>,
    /// Print an object with the plan's outcome and the comparison with the packet simulator.
    #[arg(long, env = "BRAID_LAB_JSON", default_value_t = false)]
    pub json: bool,
    /// Compare model and packet simulator on six networks, three of them with shared accesses.
    #[arg(long, env = "BRAID_LAB_CHECK", default_value_t = false)]
    pub check: bool,
    /// Leave out the packet simulator.
    #[arg(long, env = "BRAID_LAB_NO_CHECK", default_value_t = false)]
    pub no_check: bool,
    /// Seed of the packet simulator.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
}

const EXAMPLES: &str = "\
Examples:
  braid lab plan loadtest/lab/scenarios/plan/three-networks.toml
  braid lab plan my-plan.toml --json
  braid lab plan --check                 the model beside the packet simulator";

#[derive(serde::Serialize)]
struct Printed<'a> {
    outcome: Option<&'a Outcome>,
    comparison: &'a [Figure],
}

impl PlanOptions {
    /// Prints the plan's outcome; failure when model and simulator differ by more than the target.
    pub fn run(&self) -> Result<ExitCode, LabError> {
        let runner = Runner::new(Identity::new()?, true);
        let mut comparison = Vec::new();
        let mut outcome = None;
        if let Some(file) = &self.file {
            let text = read_bounded(file, FILE_BYTES_MAX)?;
            let name = file.display().to_string();
            let plan = read(&name, &text)?;
            outcome = Some(model::solve(&plan).map_err(|error| fault(&name, error))?);
            if !self.no_check {
                comparison.extend(check::own(&runner, &plan, self.seed)?);
            }
        }
        if self.check {
            comparison.extend(check::rows(&runner, self.seed)?);
        }
        let mut out = std::io::stdout().lock();
        if self.json {
            let printed = Printed {
                outcome: outcome.as_ref(),
                comparison: &comparison,
            };
            writeln!(out, "{}", serde_json::to_string_pretty(&printed)?)?;
        } else {
            if let Some(outcome) = &outcome {
                write!(out, "{}", text_of(outcome))?;
            }
            if !comparison.is_empty() {
                writeln!(
                    out,
                    "\nmodel beside the packet simulator, one gateway of each kind:"
                )?;
                write!(out, "{}", table(&comparison))?;
            }
        }
        Ok(to_terminal::verdict(&comparison))
    }
}

/// The plan that ships, and the model beside the packet simulator, for the report.
pub fn study(runner: &Runner, seed: u64) -> Result<Exhibit, LabError> {
    let command = format!("braid lab plan {EXAMPLE_FILE} --check --seed {seed}");
    let mut exhibit = Exhibit::new("Plan of an operator's access networks", &command).note(
        "The model's equilibrium gives each gateway its rate when all send as much as they can. \
         The packet simulator runs the same accesses with the transport that ships.",
    );
    let outcome =
        model::solve(&read(EXAMPLE_FILE, EXAMPLE)?).map_err(|error| fault(EXAMPLE_FILE, error))?;
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

/// Hours in a row that are alike, by access.
fn spans(outcome: &Outcome) -> Vec<(&str, String, &HourOutcome)> {
    let is_like = |a: &HourOutcome, b: &HourOutcome| {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(1.0);
        near(a.usable_mbit, b.usable_mbit) && near(a.load_mbit, b.load_mbit)
    };
    let mut spans = Vec::new();
    for access in &outcome.accesses {
        for alike in access.hours.chunk_by(is_like) {
            if let [first, ..] = alike {
                let hours = format!("{:02}-{:02}", first.hour, first.hour + alike.len());
                spans.push((access.name.as_str(), hours, first));
            }
        }
    }
    spans
}

fn text_of(outcome: &Outcome) -> String {
    let money = &outcome.currency;
    let width = |names: Vec<&str>| names.iter().map(|it| it.chars().count()).max().unwrap_or(0);
    let wide = width(outcome.accesses.iter().map(|it| it.name.as_str()).collect()).max(7);
    let mut text = format!("{}\n\n", outcome.plan);
    text += &format!(
        "{:wide$}  {:>9}  {:>13}  {:>11}  {:>7}  {:>15}  {:>7}  {:>9}  {:>10}\n",
        "access",
        "patients",
        "usable Mbit/s",
        "busy Mbit/s",
        "used %",
        "headroom Mbit/s",
        "share %",
        "GB/month",
        format!("{money}/month"),
    );
    for it in &outcome.accesses {
        text += &format!(
            "{:wide$}  {:>9.1}  {:>13.2}  {:>11.3}  {:>7.2}  {:>15.2}  {:>7.2}  {:>9.1}  \
             {:>10.2}\n",
            it.name,
            it.patients,
            it.usable_mbit,
            it.busy_mbit,
            it.used_percent,
            it.headroom_mbit,
            it.share_percent,
            it.gb_per_month,
            it.price_per_month,
        );
    }
    text += &format!(
        "{:wide$}  {:>9}  {:>13}  {:>11}  {:>7}  {:>15}  {:>7}  {:>9.1}  {:>10.2}\n\n",
        "sum", "", "", "", "", "", "", outcome.gb_per_month, outcome.price_per_month
    );
    text += &format!(
        "{:wide$}  {:>5}  {:>13}  {:>13}  {:>11}  {:>7}  {:>18}\n",
        "access",
        "hours",
        "others Mbit/s",
        "usable Mbit/s",
        "load Mbit/s",
        "used %",
        "one gateway Mbit/s",
    );
    for (name, hours, it) in spans(outcome) {
        text += &format!(
            "{name:wide$}  {hours:>5}  {:>13.2}  {:>13.2}  {:>11.3}  {:>7.2}  {:>18.3}\n",
            it.background_mbit, it.usable_mbit, it.load_mbit, it.used_percent, it.gateway_mbit,
        );
    }
    text.push('\n');
    let wide = width(outcome.groups.iter().map(|it| it.name.as_str()).collect()).max(8);
    text += &format!(
        "{:wide$}  {:>8}  {:>11}  {:>12}  {:>11}  {:>18}  {:>12}  {:>17}  {:>18}\n",
        "patients",
        "count",
        "uncovered %",
        "one access %",
        "busy kbit/s",
        "equilibrium Mbit/s",
        "alone Mbit/s",
        "GB/patient, month",
        format!("{money}/patient, month"),
    );
    for it in &outcome.groups {
        text += &format!(
            "{:wide$}  {:>8.0}  {:>11.2}  {:>12.2}  {:>11.1}  {:>18.2}  {:>12.2}  {:>17.3}  \
             {:>18.2}\n",
            it.name,
            it.patients,
            it.uncovered_percent,
            it.single_percent,
            it.busy_kbit_per_patient,
            it.equilibrium_sum_mbit,
            it.alone_mbit,
            it.gb_per_patient_month,
            it.price_per_patient_month,
        );
    }
    for warning in &outcome.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn solve(text: &str) -> Outcome {
        model::solve(&read("plan.toml", text).unwrap()).unwrap()
    }

    #[test]
    fn loads_shares_and_bytes_add_up() {
        for split in ["balanced", "fastest", "cheapest"] {
            let text = EXAMPLE.replace("\"cheapest\"", &format!("\"{split}\""));
            let outcome = solve(&text);
            let shares: f64 = outcome.accesses.iter().map(|it| it.share_percent).sum();
            assert!((shares - 100.0).abs() < 1e-6, "{split}: {shares}");
            // 60 patients with 12 kbit/s and a tenth of an hour of video in each busy hour, 25
            // with 48 kbit/s.
            let covered = |group: usize| 1.0 - outcome.groups[group].uncovered_percent / 100.0;
            let demand =
                60.0 * covered(0) * (0.012 + 0.95 * 0.4 / 10.0) + 25.0 * covered(1) * 0.048;
            let busy: f64 = outcome.accesses.iter().map(|it| it.busy_mbit).sum();
            assert!((busy - demand).abs() < 1e-6, "{split}: {busy} {demand}");
            // Payload of a month, and at most a tenth more for headers and loss.
            let payload = (60.0 * covered(0) * (12.0 * 24.0 + 950.0 * 0.4)
                + 25.0 * covered(1) * 48.0 * 24.0)
                * 1e3
                / 8.0
                * 3600.0
                * 30.0
                / 1e9;
            let ratio = outcome.gb_per_month / payload;
            assert!((1.04..1.1).contains(&ratio), "{split}: {ratio}");
        }
    }

    #[test]
    fn the_cheapest_split_costs_least_and_a_free_access_is_used_first() {
        let price = |split: &str| {
            let text = EXAMPLE.replace("\"cheapest\"", &format!("\"{split}\""));
            solve(&text).price_per_month
        };
        assert!(price("cheapest") <= price("fastest") + 1e-9);
        assert!(price("cheapest") < price("balanced"));
    }

    #[test]
    fn an_access_that_is_too_narrow_is_reported_and_its_load_moves_on() {
        let narrow = plain().replace("rate_mbit = 30.0\ncells = 2", "rate_mbit = 0.5");
        let outcome = solve(&narrow);
        assert!(outcome.accesses[1].busy_mbit > 0.4, "{outcome:?}");
        assert!(outcome.accesses[2].busy_mbit > 0.4, "{outcome:?}");
        let both = narrow.replace("rate_mbit = 40.0", "rate_mbit = 0.5");
        let outcome = solve(&both);
        assert!(
            outcome.warnings.iter().any(|it| it.contains("overloaded")),
            "{outcome:?}"
        );
    }

    #[test]
    fn balanced_accesses_are_used_alike() {
        let text = EXAMPLE
            .replace("\"cheapest\"", "\"balanced\"")
            .replace("coverage = 0.95", "coverage = 1.0")
            .replace("coverage = 0.9\n", "coverage = 1.0\n");
        let outcome = solve(&text);
        let used: Vec<f64> = outcome.accesses.iter().map(|it| it.used_percent).collect();
        assert!((used[1] - used[2]).abs() < 0.01 * used[1], "{used:?}");
    }

    /// Without the other users of LTE operator A.
    fn plain() -> String {
        let (before, after) = EXAMPLE.split_once("background").unwrap();
        let (_, after) = after.split_once('\n').unwrap();
        format!("{before}{after}")
    }

    #[test]
    fn others_take_their_part_of_the_cells_in_their_hours_only() {
        let plain = solve(&plain());
        let many = solve(&EXAMPLE.replace("mbit = 24.0", "mbit = 50.0"));
        for (before, after) in plain.accesses[1].hours.iter().zip(&many.accesses[1].hours) {
            if (17..23).contains(&after.hour) {
                // All ask for more than the cells have: each has the same part of its cell.
                let senders = many.accesses[1].patients / 2.0;
                let left = after.usable_mbit / before.usable_mbit;
                assert!((left - senders / (senders + 30.0)).abs() < 0.01, "{left}");
                assert!(after.gateway_mbit < 0.6 * before.gateway_mbit);
            } else {
                assert_eq!(after.usable_mbit, before.usable_mbit);
            }
        }
        let few = solve(&EXAMPLE.replace("mbit = 24.0", "mbit = 2.0"));
        let left = few.accesses[1].hours[20].usable_mbit;
        let expected = plain.accesses[1].usable_mbit - 2.0 * 2.0;
        assert!((left / expected - 1.0).abs() < 0.02, "{left} {expected}");
    }

    #[test]
    fn more_cells_carry_more_and_each_has_its_own_background() {
        let one = solve(&EXAMPLE.replace("cells = 2", "cells = 1"));
        let three = solve(&EXAMPLE.replace("cells = 2", "cells = 3"));
        let hour = |outcome: &Outcome, hour: usize| outcome.accesses[1].hours[hour].clone();
        assert!((hour(&three, 3).usable_mbit / hour(&one, 3).usable_mbit - 3.0).abs() < 1e-9);
        assert!((hour(&three, 20).background_mbit - 72.0).abs() < 1e-9);
        assert!(hour(&three, 20).gateway_mbit > hour(&one, 20).gateway_mbit);
    }

    #[test]
    fn busy_hours_may_go_on_after_midnight() {
        let text = EXAMPLE.replace("busy_from_hour = 9.0", "busy_from_hour = 20.0");
        let outcome = solve(&text);
        let load = |hour: usize| -> f64 {
            let hours = outcome.accesses.iter().map(|it| it.hours[hour].load_mbit);
            hours.sum()
        };
        assert!(load(23) > 2.0 * load(12) && load(5) > 2.0 * load(12) && load(6) < load(5));
    }

    #[test]
    fn who_has_one_access_only_is_told() {
        let outcome = solve(EXAMPLE);
        // 95 % and 90 %, each alone.
        let single = 100.0 * (0.95 * 0.1 + 0.05 * 0.9);
        assert!((outcome.groups[1].single_percent - single).abs() < 1e-9);
    }

    #[test]
    fn errors_name_line_field_and_an_example() {
        let cases = [
            (
                "rate_mbit = 30.0",
                "rate_mbit = nan",
                "line 26: access[1].rate_mbit",
            ),
            ("coverage = 0.95", "coverage = 1.5", "access[1].coverage"),
            ("coverage = 0.95", "coverage = -0.1", "access[1].coverage"),
            (
                "price_per_gb = 2.5",
                "price_per_gb = inf",
                "access[1].price_per_gb",
            ),
            ("count = 60", "count = \"many\"", "line"),
            ("kbit = 12.0", "kbit = -1.0", "patients[0].traffic[0].kbit"),
            (
                "\"LTE operator B\"]",
                "\"LTE operator C\"]",
                "patients[1].accesses[1]",
            ),
            ("rtt_ms = 24.0", "rtt = 24.0", "line 18"),
            (
                "to_hour = 23",
                "to_hour = 7",
                "access[1].background[0].to_hour",
            ),
            (
                "per_patient = true",
                "per_patient = true\ncells = 4",
                "access[0].cells",
            ),
            (
                "busy_from_hour = 9.0",
                "busy_from_hour = -1.0",
                "busy_from_hour",
            ),
        ];
        for (from, to, expected) in cases {
            let text = EXAMPLE.replacen(from, to, 1);
            let error = read("plan.toml", &text).unwrap_err().to_string();
            assert!(
                error.contains("plan.toml: line ") && error.contains(expected),
                "{to}: {error}"
            );
            assert!(error.contains("for example"), "{to}: {error}");
        }
    }
}
