//! `braid-lab kernel`: which parts run with which flags, and the tables that they print.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::baseline::{self, Transport, available_congestions, best_alone};
use super::bed::{Kept, KernelError, KernelReport};
use super::compare::{Comparison, believed, compare, scenarios, shortened};
use super::identities::Identities;
use super::permission::refusal;
use super::{budget, mixed, product, speed, transfer, yardstick};
use crate::error::LabError;
use crate::figures::{Figure, table};
use crate::identity::Identity;
use crate::mix::Mix;
use crate::packet::HEADER_SHARE;
use crate::rival;
use crate::scenario::Scenario;
use crate::selection::Selection;

use crate::studies::yardstick::names;
use crate::wire::NOT_COMPLETED;

/// Percentage points within which real and virtual time agree.
const POINTS_MAX: f64 = 3.0;
/// PALS scenarios of each case when not said otherwise; each of them is seven runs in the table of
/// baselines.
const COMPARED_SCENARIOS: u32 = 2;
const BASELINE_SCENARIOS: u32 = 1;
/// Scenarios that have to agree.
const WITHIN_MIN: f64 = 5.0;
/// Least rate of the emulator, in Mbit/s, when the links limit nothing.
const UNLIMITED_MBIT_MIN: f64 = 1000.0;
/// Flows of the product's table beside one.
const FLOWS: u32 = 8;

const BUFFERS_LEFT_OUT: &str =
    "in real time the tunnel has its own buffers: those of the file are for virtual time";

const ONLY: &str = "Only figures whose id starts with this: kernel.emulator, kernel.vs_virtual, \
     kernel.baseline, kernel.product, kernel.yardstick, kernel.budget";
const EXAMPLES: &str = "\
Examples:
  braid-lab kernel                                all, some twenty minutes
  braid-lab kernel --only kernel.vs_virtual.pals  PALS in both times
  braid-lab kernel --only kernel.product --direction upload
  braid-lab kernel --only kernel.budget           a month on a SIM card, 6 min
  braid-lab kernel --file scenario.toml           one scenario in both times
  braid-lab kernel --only kernel.yardstick        mqvpn's, an inner QUIC flow
  braid-lab kernel --only kernel.baseline --json  beside TCP and MPTCP, as JSON

Needs root, /dev/net/tun and iproute2. Namespaces are called braidlab-<process>-<number>-<role> and
go with the run; those of a run that was killed go with the next one. Each run lasts some ten
seconds. A run in which the machine did not keep up is repeated.";

/// Kernel time: real sockets in network namespaces through an emulator of the same links, beside
/// virtual time, TCP and MPTCP.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = EXAMPLES)]
#[command(mut_arg("only", |only| only.help(ONLY).long_help(ONLY)))]
pub struct KernelOptions {
    /// Seed of everything random.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
    /// PALS scenarios of each case (no loss, loss, handover): 2 beside virtual time, 1 in the table
    /// of baselines.
    #[arg(long, env = "BRAID_LAB_SCENARIOS")]
    pub scenarios: Option<u32>,
    #[command(flatten)]
    pub selection: Selection,
    /// Print the figures as a JSON array.
    #[arg(long, env = "BRAID_LAB_JSON", default_value_t = false)]
    pub json: bool,
    /// A scenario file to run in both times, instead of the experiments.
    #[arg(long, env = "BRAID_LAB_FILE")]
    pub file: Option<PathBuf>,
    /// How often a run is made at most until the machine keeps up with it.
    #[arg(long, env = "BRAID_LAB_ATTEMPTS", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=20))]
    pub attempts: u32,
}

/// State and results of one command.
struct Session<'a> {
    options: &'a KernelOptions,
    identity: &'a Identity,
    identities: Identities,
    figures: Vec<Figure>,
    /// Runs that were shown and are not to be believed.
    doubtful: u32,
    /// Scenarios that agree with virtual time.
    within: u32,
}

impl KernelOptions {
    /// Runs what is asked for; failure when a target is missed or the machine did not keep up.
    pub fn run(&self, identity: &Identity) -> Result<ExitCode, LabError> {
        if let Some(reason) = refusal()? {
            let all = "kernel".to_owned();
            let skipped = self.selection.only.as_ref().unwrap_or(&all);
            println!("SKIPPED: every row of {skipped}: {reason}");
            return Ok(ExitCode::SUCCESS);
        }
        let identities = Identities::new().map_err(KernelError::from)?;
        let mut session = Session {
            options: self,
            identity,
            identities,
            figures: Vec::new(),
            doubtful: 0,
            within: 0,
        };
        match &self.file {
            Some(file) => session.file(file)?,
            None => session.experiments()?,
        }
        session.finish()
    }
}

impl Session<'_> {
    fn file(&mut self, file: &Path) -> Result<(), LabError> {
        let scenario = Scenario::from_file_for_kernel(file)?;
        if let Some(mix) = &scenario.mix {
            return self.mixed(&scenario, mix);
        }
        if scenario.buffers.is_some() {
            self.say(BUFFERS_LEFT_OUT);
        }
        self.say_comparison_header();
        self.compare(&scenario.name.clone(), "", &scenario)
    }

    /// An application's traffic in both times.
    fn mixed(&mut self, scenario: &Scenario, mix: &Mix) -> Result<(), LabError> {
        if scenario.buffers.is_some() {
            self.say(BUFFERS_LEFT_OUT);
        }
        let attempts = self.options.attempts;
        let both = mixed::run(scenario, mix, self.identity, &self.identities, attempts)?;
        let judged = self.judge(&both.real_time.kept);
        let error = both.real_time.report.error.as_deref().unwrap_or_default();
        let runs = both.attempts;
        self.say(&format!(
            "{}: reference is virtual time; runs in real time: {runs} {judged} {error}",
            scenario.name
        ));
        self.figures.extend(both.figures(&scenario.name));
        Ok(())
    }

    fn experiments(&mut self) -> Result<(), LabError> {
        if self.options.selection.wants("kernel.emulator") {
            self.emulator()?;
        }
        if self.options.selection.wants("kernel.vs_virtual") {
            self.say_comparison_header();
            let per_case = self.options.scenarios.unwrap_or(COMPARED_SCENARIOS);
            for (direction, suffix) in self.options.selection.directions() {
                for (id, scenario) in scenarios(self.options.seed, per_case, direction) {
                    if self
                        .options
                        .selection
                        .wants(&format!("kernel.vs_virtual.{id}{suffix}"))
                    {
                        self.compare(&id, suffix, &scenario)?;
                    }
                }
            }
            self.figures.push(Figure::at_least(
                "kernel.vs_virtual.within",
                "count",
                None,
                WITHIN_MIN,
                self.within.into(),
            ));
        }
        if self.options.selection.wants("kernel.baseline") {
            self.baselines()?;
        }
        if self.options.selection.wants("kernel.product") {
            self.products()?;
        }
        if self.options.selection.wants("kernel.yardstick") {
            self.yardstick()?;
        }
        if self.options.selection.wants("kernel.budget") {
            self.budget()?;
        }
        Ok(())
    }

    /// A line for people; with `--json` they are spared it.
    fn say(&self, line: &str) {
        if self.options.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }

    fn judge(&mut self, kept: &Kept) -> &'static str {
        if kept.up {
            ""
        } else {
            self.doubtful += 1;
            "THE MACHINE DID NOT KEEP UP"
        }
    }

    fn emulator(&mut self) -> Result<(), LabError> {
        let speed = speed::measure()?;
        let how = if speed.independent {
            "iperf3"
        } else {
            "own TCP flow"
        };
        self.say(&format!(
            "emulator without limits ({how}, one TCP flow): {:.0} Mbit/s, written {:.2} ms late \
             at p99",
            speed.mbit, speed.kept.emulator.p99_ms
        ));
        self.figures.push(Figure::at_least(
            "kernel.emulator.unlimited",
            "Mbit/s",
            None,
            UNLIMITED_MBIT_MIN,
            speed.mbit,
        ));
        Ok(())
    }

    fn say_comparison_header(&self) {
        self.say(&format!(
            "{:<32} {:>7} {:>14} {:>7} {:>7} {:>9} {:>9} {:>5}",
            "efficiency from connect(), %",
            "virtual",
            "its mean, dev.",
            "real",
            "points",
            "emulator",
            "endpoints",
            "runs"
        ));
    }

    fn compare(&mut self, id: &str, suffix: &str, scenario: &Scenario) -> Result<(), LabError> {
        let name = format!("{id}{suffix}");
        let comparison = compare(
            &name,
            scenario,
            self.identity,
            &self.identities,
            self.options.attempts,
        )?;
        let judged = self.judge(&comparison.real_time.kept);
        let Comparison {
            virtual_time,
            real_time,
            attempts,
            ..
        } = &comparison;
        let points = comparison.points();
        let agrees = points.abs() <= POINTS_MAX && real_time.kept.up;
        self.within += u32::from(agrees);
        // Both run into the limit when that is how the scenario ends.
        let error = real_time.report.error.as_deref();
        let error = error.filter(|_| real_time.report.error != virtual_time.error);
        self.say(&format!(
            "{name:<32} {:>7.2} {:>7.2} {:>6.2} {:>7.2} {points:>+7.2} {:>6.2} ms {:>6.2} ms \
             {attempts:>5} {} {judged} {}",
            virtual_time.efficiency_connect,
            comparison.virtual_mean,
            comparison.virtual_deviation,
            real_time.report.efficiency_connect,
            real_time.kept.emulator.p99_ms,
            real_time.kept.endpoints.p99_ms,
            if agrees { "within" } else { "BEYOND" },
            error.unwrap_or_default(),
        ));
        let of = |part: &str| format!("kernel.vs_virtual.{name}{part}");
        self.figures.extend([
            Figure::shown(of(""), "points", Some(POINTS_MAX), points.abs()),
            Figure::shown(
                of(".from_mean"),
                "points",
                None,
                real_time.report.efficiency_connect - comparison.virtual_mean,
            ),
            Figure::shown(
                of(".real"),
                "%",
                Some(virtual_time.efficiency_connect),
                real_time.report.efficiency_connect,
            ),
        ]);
        Ok(())
    }

    /// TCP and MPTCP of the kernel beside the tunnel.
    fn baselines(&mut self) -> Result<(), LabError> {
        self.say_run_header();
        let per_case = self.options.scenarios.unwrap_or(BASELINE_SCENARIOS);
        for (direction, suffix) in self.options.selection.directions() {
            let all = scenarios(self.options.seed, per_case, direction);
            for (id, scenario) in all {
                let name = format!("kernel.baseline.{id}{suffix}");
                let compared = id.starts_with("pals.") || id == "rival.near";
                if compared && self.options.selection.wants(&name) {
                    self.baseline(&name, &scenario)?;
                }
            }
        }
        Ok(())
    }

    fn baseline(&mut self, name: &str, scenario: &Scenario) -> Result<(), LabError> {
        let attempts = self.options.attempts;
        let ours = believed(attempts, || transfer::run(scenario, &self.identities))?;
        let ours = self.row(&format!("{name}.ours"), ours);
        let best = best_alone(scenario);
        let mut most: f64 = 0.0;
        for congestion in available_congestions() {
            for (transport, scenario) in [(Transport::Tcp, &best), (Transport::Mptcp, scenario)] {
                let run = believed(attempts, || baseline::run(scenario, transport, congestion))?;
                let label = format!("{name}.{}_{congestion}", transport.name());
                most = most.max(self.row(&label, run));
            }
        }
        self.figures.push(Figure::at_least(
            format!("{name}.ours_to_best"),
            "x",
            None,
            1.0,
            ours / most.max(1e-3),
        ));
        Ok(())
    }

    fn say_run_header(&self) {
        self.say(&format!(
            "{:<46} {:>8} {:>11} {:>7} {:>9} {:>9} {:>5}",
            "run", "Mbit/s", "of links, %", "gap, s", "emulator", "endpoints", "runs"
        ));
    }

    /// Shows a run; its goodput from connect() in Mbit/s.
    fn row(&mut self, name: &str, (run, attempts): (KernelReport, u32)) -> f64 {
        let judged = self.judge(&run.kept);
        let report = &run.report;
        let mbit = report.delivered_bytes as f64 * 8e-6 / report.from_connect_s.max(1e-3);
        let gap = report
            .bulk_gap_ms
            .map_or_else(|| "-".to_owned(), |gap_ms| format!("{:.2}", gap_ms / 1e3));
        self.say(&format!(
            "{name:<46} {mbit:>8.2} {:>11.2} {gap:>7} {:>6.2} ms {:>6.2} ms {attempts:>5} \
             {judged} {}",
            report.efficiency_connect,
            run.kept.emulator.p99_ms,
            run.kept.endpoints.p99_ms,
            match report.error.as_deref() {
                Some(NOT_COMPLETED) => "ran to its limit",
                other => other.unwrap_or_default(),
            },
        ));
        self.figures.push(Figure::shown(name, "Mbit/s", None, mbit));
        mbit
    }

    /// TCP through forwarder, tunnel and proxy service.
    fn products(&mut self) -> Result<(), LabError> {
        self.say_run_header();
        for (direction, suffix) in self.options.selection.directions() {
            let prefix = format!("kernel.product{suffix}");
            for (id, scenario) in product::scenarios(self.options.seed, direction) {
                if self.options.selection.wants(&format!("{prefix}.{id}")) {
                    self.product(&prefix, id, scenario)?;
                }
            }
        }
        Ok(())
    }

    fn product(&mut self, prefix: &str, id: &str, scenario: Scenario) -> Result<(), LabError> {
        let name = format!("{prefix}.{id}");
        let attempts = self.options.attempts;
        let Some(target) = rival::target_of(id) else {
            let run = believed(attempts, || product::run(&scenario, &self.identities))?;
            let figures = product::figures(prefix, id, &run.0.report);
            self.row(&name, run);
            self.figures.extend(figures);
            return Ok(());
        };
        for (flows, label) in [(1, "one_flow"), (FLOWS, "eight_flows")] {
            let mut scenario = shortened(scenario.clone());
            scenario.streams = flows;
            let run = believed(attempts, || product::run(&scenario, &self.identities))?;
            let share = run.0.report.efficiency_stream / HEADER_SHARE;
            self.row(&format!("{name}.{label}.run"), run);
            let figure = Figure::at_least(format!("{name}.{label}"), "%", None, target, share);
            self.figures.push(figure);
        }
        Ok(())
    }

    /// Profiles of the public yardstick with an inner QUIC flow: both paths beside the best leg.
    fn yardstick(&mut self) -> Result<(), LabError> {
        self.say_run_header();
        for profile in names() {
            let name = format!("kernel.yardstick.{profile}");
            if !self.options.selection.wants(&name) {
                continue;
            }
            let Some(scenario) = yardstick::scenario(profile, self.options.seed)? else {
                continue;
            };
            let legs = yardstick::run(&scenario, &self.identities, self.options.attempts)?;
            let (best, ratio) = (legs.best_leg_mbit(), legs.ratio());
            let figure = legs.figure(profile);
            for (leg, run) in yardstick::NAMES.into_iter().zip(legs.runs) {
                self.row(&format!("{name}.{leg}"), run);
            }
            self.say(&format!(
                "{name}: {ratio:.2} times the best single leg ({best:.1} Mbit/s)"
            ));
            self.figures.push(figure);
        }
        Ok(())
    }

    /// Bytes of a gateway in a month.
    fn budget(&mut self) -> Result<(), LabError> {
        let program = crate::shipped::braid()?;
        self.say(
            "bytes of IP packets both ways, some minutes of each case extrapolated to 30 days:",
        );
        let selection = &self.options.selection;
        let wanted = |case: &budget::Case| {
            let id = format!("kernel.budget.{}", case.name);
            selection.wants(&id)
        };
        for (case, counted) in budget::run_all(&program, self.options.seed, wanted) {
            let counted = counted?;
            let [used, standby] = counted.mb_a_month;
            // Late packets are counted as well; those that the emulation lost are not.
            let judged = if counted.kept_up {
                ""
            } else {
                ", on a busy machine"
            };
            self.say(&format!(
                "{:<12} {used:>9.1} MB on the path in use, {standby:>9.1} MB on the metered \
                 standby, by {} s{judged}",
                case.name, case.counted_s
            ));
            self.figures.extend(budget::figures(&case, &counted));
        }
        Ok(())
    }

    fn finish(self) -> Result<ExitCode, LabError> {
        let chosen = |figure: &Figure| {
            let only = self.options.selection.only.as_ref();
            only.is_none_or(|only| figure.id.starts_with(only.as_str()))
        };
        let figures: Vec<Figure> = self.figures.into_iter().filter(chosen).collect();
        let mut out = std::io::stdout().lock();
        if self.options.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&figures)?)?;
        } else {
            write!(out, "\n{}", table(&figures))?;
        }
        if self.doubtful > 0 {
            eprintln!(
                "{} runs are not to be believed: the emulator wrote packets later than 1 ms, or \
                 the endpoints' timers fired later than 5 ms, at p99. Stop other load on the machine, \
                 or give more --attempts.",
                self.doubtful
            );
        }
        let met = self.doubtful == 0 && figures.iter().all(|figure| figure.met);
        Ok(if met {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
