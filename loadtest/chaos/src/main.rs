//! `chaos`: a seeded chaos run over separate processes on a real Kafka and a real TimescaleDB.
//! `make chaos` builds and starts it.

use std::{os::unix::process::CommandExt, path::PathBuf, process::Command, process::ExitCode};

use chaos::{
    plan::{SECONDS_MAX, SECONDS_MIN},
    run::{self, Options},
};
use clap::Parser;

/// Runs all services as separate processes while processes, engines, links, disks, clocks and
/// sensors fail by a plan that follows from the seed.
///
/// People acknowledge some alerts. Devices get other wearers while their readings wait. Every
/// process is restarted in turn. At the end a gateway is revoked. A run of 5 minutes or more ends
/// with a restore of the database. A run of 20 minutes has outages of 12 minutes and of 25 hours,
/// the latter by a step of all clocks. A full disk needs root, and a step of a clock needs `cc`.
///
/// Judged are readings, alerts of thresholds, falls and NEWS2, acknowledgements, reminders,
/// silences, calls and letters. Exit status 1: one of them is missing, doubled or wrong. Exit
/// status 2: the run could not be made.
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  chaos --seed 7\n  chaos --seed 7 --minutes 20 --json > chaos.json"
)]
struct Arguments {
    /// Seed of the readings and the faults.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Minutes of faults, from 1 to 60; the start and the end take up to some minutes more.
    #[arg(long, value_name = "MINUTES", default_value_t = 3.0)]
    minutes: f64,
    /// Print JSON instead of a table.
    #[arg(long, default_value_t = false)]
    json: bool,
    /// Keep the logs of a good run as well.
    #[arg(long, default_value_t = false)]
    keep: bool,
    /// The binary under test; by default the one beside this one.
    #[arg(long, value_name = "FILE")]
    braid: Option<PathBuf>,
}

/// Set in the mount namespace of the run.
const INSIDE: &str = "CHAOS_INSIDE";

/// Continues in a mount namespace of its own, so that no mount outlives the run. Without the right
/// to make one the run goes on here.
fn enter_namespace() {
    if std::env::var_os(INSIDE).is_some() || !rustix::process::geteuid().is_root() {
        return;
    }
    let namespace = ["--mount", "--propagation", "private"];
    let is_possible = Command::new("unshare")
        .args(namespace)
        .arg("true")
        .status()
        .is_ok_and(|status| status.success());
    if let (true, Ok(program)) = (is_possible, std::env::current_exe()) {
        let arguments = std::env::args_os().skip(1);
        let mut inside = Command::new("unshare");
        inside.args(namespace).arg(program).args(arguments);
        // It returns only if it fails.
        let error = inside.env(INSIDE, "yes").exec();
        eprintln!("chaos: no mount namespace: {error}");
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    enter_namespace();
    let seconds = arguments.minutes * 60.0;
    if !(f64::from(SECONDS_MIN)..=f64::from(SECONDS_MAX)).contains(&seconds) {
        eprintln!("chaos: --minutes must be from 1 to 60, for example --minutes 3");
        return ExitCode::from(64);
    }
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("braid"));
    let Some(braid) = arguments
        .braid
        .or_else(beside)
        .filter(|braid| braid.is_file())
    else {
        eprintln!(
            "chaos: no braid beside this program: cargo build --workspace --bins, or --braid FILE"
        );
        return ExitCode::from(64);
    };
    let options = Options {
        braid,
        seed: arguments.seed,
        seconds: seconds as u32,
        keep: arguments.keep,
    };
    match run::run(&options) {
        Ok(report) => {
            if arguments.json {
                println!("{}", serde_json::json!(report));
            } else {
                println!("{report}");
            }
            ExitCode::from(u8::from(!report.is_good()))
        }
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::from(2)
        }
    }
}
