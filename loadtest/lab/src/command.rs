//! `braid-lab ...`: which experiments are run with which flags, and how the figures are printed.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::budget::BudgetOptions;
use crate::compare::CompareOptions;
use crate::error::LabError;
use crate::experiments::{self, Findings};
use crate::exports;
use crate::figures::Figure;
use crate::fluids::FluidOptions;
use crate::given;
use crate::identity::Identity;
use crate::keepalives::KeepaliveOptions;
use crate::kernel::KernelOptions;
use crate::mechanisms::Mechanisms;
use crate::options::{Options, ReportOptions};
use crate::plans::PlanOptions;
use crate::report::RunReport;
use crate::runner::Runner;
use crate::scenario::Scenario;
use crate::to_terminal;

/// The experiments in virtual time.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum LabCommand {
    /// PALS: randomised transfers without loss, with loss, and with a path cut.
    Pals(Options),
    /// PALS: regional capacities.
    Regional(Options),
    /// Transfers over LTE drives, synthetic and recorded.
    Lte(Options),
    /// The figure of a link that comes and goes.
    Figure6(Options),
    /// The profiles of the closest open project.
    Rival(Options),
    /// Two to eight unequal paths against the best of them alone, and one more each.
    Unequal(Options),
    /// Fairness, added delay and a falling rate at one bottleneck.
    Bottleneck(Options),
    /// Steering modes and caps: shares of each path, both directions.
    Steering(SteeringOptions),
    /// Random runs in which everything happens: bytes arrive or the connection ends with a typed
    /// error.
    Robust(Options),
    /// All of these except `steering`, which takes other flags.
    Targets(Options),
    /// The report: every experiment of the five papers as one HTML file, with its data beside it.
    All(ReportOptions),
    /// Each experiment with each controller.
    Controllers(Options),
    /// The gain of each mechanism: PALS with one of them switched off.
    Mechanisms(Options),
    /// The simulator's speed in multiples of real time, on this machine.
    Speed(Options),
    /// The fluid model of a convoy, or of any network from a file.
    Fluid(FluidOptions),
    /// Keepalive measurements and the selection of an access by them.
    Keepalive(KeepaliveOptions),
    /// Bytes of a gateway in a month, and the delay of its alerts over a silent cut.
    Budget(BudgetOptions),
    /// Rates of a plan (`braid plan`) beside the packet simulator.
    Plan(PlanOptions),
    /// One scenario from a TOML file.
    Run(RunOptions),
    /// Figures before and after a change, in pairs of seeds; failure when one got worse.
    Compare(CompareOptions),
    /// Real sockets in network namespaces, beside virtual time, TCP and MPTCP (needs root).
    Kernel(KernelOptions),
}

/// Flags of `steering`.
#[derive(Debug, Clone, clap::Args)]
pub struct SteeringOptions {
    #[command(flatten)]
    pub options: Options,
    /// Directory for a plot of each mode, as SVG and CSV.
    #[arg(long, env = "BRAID_LAB_OUT", value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Flags of `run`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunOptions {
    /// The scenario file.
    #[arg(
        long = "file",
        env = "BRAID_LAB_FILE",
        required_unless_present = "given"
    )]
    pub file: Option<PathBuf>,
    /// The same without a flag.
    #[arg(value_name = "FILE", conflicts_with = "file")]
    pub given: Option<PathBuf>,
    /// Write a report as `all` does, with the runs that the file's [compare] asks for.
    #[arg(long, env = "BRAID_LAB_REPORT", default_value_t = false)]
    pub report: bool,
    /// Folder of the report.
    #[arg(long, env = "BRAID_LAB_OUT", default_value = "target/lab")]
    pub out: PathBuf,
}

const RUN_EXAMPLES: &str = "\
Examples, from loadtest/lab/scenarios:
  braid-lab run two-links.toml                     one run, as JSON
  braid-lab run own-trace.toml --report --out mine  a report over a drive";

impl LabCommand {
    /// The flags of an experiment with figures.
    fn options(&self) -> Option<&Options> {
        match self {
            Self::Run(_)
            | Self::Kernel(_)
            | Self::Compare(_)
            | Self::All(_)
            | Self::Fluid(_)
            | Self::Keepalive(_)
            | Self::Budget(_)
            | Self::Plan(_) => None,
            Self::Steering(steering) => Some(&steering.options),
            Self::Pals(options)
            | Self::Regional(options)
            | Self::Lte(options)
            | Self::Figure6(options)
            | Self::Rival(options)
            | Self::Unequal(options)
            | Self::Bottleneck(options)
            | Self::Robust(options)
            | Self::Targets(options)
            | Self::Controllers(options)
            | Self::Mechanisms(options)
            | Self::Speed(options) => Some(options),
        }
    }

    /// Runs the experiments and prints their figures; failure when a target is missed.
    pub fn run(self) -> Result<ExitCode, LabError> {
        let mut runner = Runner::new(Identity::new()?, true);
        if let Some(options) = self.options() {
            runner = runner
                .only_run(options.run.clone())
                .select(options.selection.clone());
        }
        match self {
            Self::Pals(options) => finish(&options, experiments::pals(&runner, &options)?),
            Self::Regional(options) => finish(&options, experiments::regional(&runner, &options)?),
            Self::Lte(options) => finish(&options, experiments::lte(&runner, &options)?),
            Self::Figure6(options) => finish(&options, experiments::figure6(&runner, &options)?),
            Self::Rival(options) => finish(&options, experiments::rival(&runner, &options)?),
            Self::Unequal(options) => finish(&options, experiments::unequal(&runner, &options)?),
            Self::Bottleneck(options) => {
                finish(&options, experiments::bottleneck(&runner, &options)?)
            }
            Self::Steering(SteeringOptions { options, out }) => {
                let (findings, charts) = experiments::steering(&runner, &options)?;
                if let Some(folder) = &out {
                    exports::write_charts(folder, &charts)?;
                }
                finish(&options, findings)
            }
            Self::Robust(options) => finish(&options, experiments::robust(&runner, &options)?),
            Self::Targets(options) => finish(&options, experiments::all(&runner, &options)?),
            Self::Controllers(mut options) => {
                let findings = experiments::controllers(&runner, &options)?;
                // The rows bear the controller's name before the id, so the runs were chosen
                // already.
                options.selection.only = None;
                finish(&options, findings)
            }
            Self::Mechanisms(options) => {
                finish(&options, experiments::mechanisms(&runner, &options)?)
            }
            Self::Kernel(options) => options.run(runner.identity()),
            Self::Fluid(options) => options.run(),
            Self::Keepalive(options) => options.run(),
            Self::Budget(options) => options.run(runner.identity()),
            Self::Plan(options) => options.run(),
            Self::All(options) => options.run(),
            Self::Compare(options) => Ok(options.run()?),
            Self::Speed(options) => finish(&options, experiments::speed(&runner)?),
            Self::Run(options) => {
                let Some(file) = options.given.or(options.file) else {
                    return Ok(ExitCode::FAILURE);
                };
                let scenario = Scenario::from_file(&file)?;
                if options.report {
                    let file = file.display().to_string();
                    return given::run(&runner, &scenario, &file, options.out);
                }
                let reports = runner.run("scenario", &[scenario], Mechanisms::default())?;
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}", serde_json::to_string_pretty(&reports)?)?;
                Ok(if reports.iter().all(|report| report.completed) {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                })
            }
        }
    }
}

fn finish(options: &Options, outcome: Findings) -> Result<ExitCode, LabError> {
    let chosen = |figure: &&Figure| {
        options
            .selection
            .only
            .as_ref()
            .is_none_or(|only| figure.id.starts_with(only.as_str()))
    };
    let figures: Vec<Figure> = outcome.figures.iter().filter(chosen).cloned().collect();
    if let (Some(only), true) = (&options.selection.only, figures.is_empty()) {
        return Err(LabError::NoFigure(only.clone()));
    }
    if let Some(file) = &options.csv {
        write_csv(file, &outcome.reports).map_err(|source| LabError::Write {
            file: file.clone(),
            source,
        })?;
    }
    to_terminal::print(&figures, &[], options.json)
}

fn write_csv(file: &PathBuf, reports: &[RunReport]) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::fs::File::create(file)?);
    writeln!(
        out,
        "name,seed,controller,completed,bytes,from_connect_s,from_stream_s,\
         efficiency_connect,efficiency_stream,utilisation,payload_share,bulk_gap_ms,\
         vitals_gap_ms,vitals_lost,paths_opened,paths_closed,packets,error"
    )?;
    let optional =
        |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
    for report in reports {
        writeln!(
            out,
            "{},{},{},{},{},{:.6},{:.6},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{},{},{}",
            report.name,
            report.seed,
            report.controller,
            report.completed,
            report.delivered_bytes,
            report.from_connect_s,
            report.from_stream_s,
            report.efficiency_connect,
            report.efficiency_stream,
            report.utilisation,
            report.payload_share,
            optional(report.bulk_gap_ms),
            optional(report.vitals_gap_ms),
            report.vitals_lost,
            report.paths_opened,
            report.paths_closed,
            report.packets,
            report.error.as_deref().unwrap_or("").replace(',', ";"),
        )?;
    }
    out.flush()
}
