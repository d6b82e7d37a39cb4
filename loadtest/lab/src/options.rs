//! Flags of the experiments and of the report.

use std::path::PathBuf;

use crate::scenario::Controller;
use crate::selection::Selection;

/// Flags that all experiments take.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Seed of everything random.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Scenarios (or repetitions) per figure.
    #[arg(long, env = "BRAID_LAB_SCENARIOS")]
    pub scenarios: Option<u32>,
    #[command(flatten)]
    pub selection: Selection,
    /// Only the run with this name, as the CSV file has it; figures are then of this run alone.
    #[arg(long, env = "BRAID_LAB_RUN")]
    pub run: Option<String>,
    /// Print the figures as a JSON array.
    #[arg(long, env = "BRAID_LAB_JSON", default_value_t = false)]
    pub json: bool,
    /// Write one line per run to this file.
    #[arg(long, env = "BRAID_LAB_CSV")]
    pub csv: Option<PathBuf>,
    /// Congestion control.
    #[arg(long, env = "BRAID_LAB_CONTROLLER", value_enum, default_value_t = Controller::Ours)]
    pub controller: Controller,
    /// Mahimahi traces of recorded drives: files, or folders of files named *.down. Without any
    /// those runs are skipped.
    #[arg(long, env = "BRAID_LAB_TRACES", value_delimiter = ',')]
    pub traces: Vec<PathBuf>,
    /// Set where runs are only compared: figures without a target are then not needed.
    #[arg(skip)]
    pub compares: bool,
}

/// Flags of `all`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportOptions {
    /// Seed of everything random.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Few runs of each experiment: the whole report in less than three minutes.
    #[arg(long, env = "BRAID_LAB_QUICK", default_value_t = false)]
    pub quick: bool,
    /// Folder of the report, its charts and its data.
    #[arg(long, env = "BRAID_LAB_OUT", default_value = "target/lab")]
    pub out: PathBuf,
    /// Only experiments whose id begins with this: a section (pals, lte, keepalive, fluid,
    /// applications, yardstick, steering) or one experiment, such as pals.loss.
    #[arg(long, env = "BRAID_LAB_ONLY")]
    pub only: Option<String>,
    /// Mahimahi traces of recorded drives: files, or folders of files named *.down. May be
    /// repeated.
    #[arg(long, env = "BRAID_LAB_TRACES", value_delimiter = ',')]
    pub traces: Vec<PathBuf>,
    /// Run everything again, also what is finished.
    #[arg(long, env = "BRAID_LAB_AGAIN", default_value_t = false)]
    pub again: bool,
    /// List the experiments and run nothing.
    #[arg(long, default_value_t = false)]
    pub list: bool,
}

const EXAMPLES: &str = "\
Examples:
  braid-lab all --quick                     every experiment with few runs
  braid-lab all --only pals --seed 77       one section
  braid-lab all --traces drives/            with recorded drives
  braid-lab all --out report --again        nothing taken from an earlier run";

impl ReportOptions {
    /// For the report of one scenario.
    pub(crate) fn for_file(seed: u64, out: PathBuf) -> Self {
        let (quick, again, list) = (false, false, false);
        Self {
            seed,
            quick,
            out,
            only: None,
            traces: Vec::new(),
            again,
            list,
        }
    }
}
