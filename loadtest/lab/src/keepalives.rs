//! `braid-lab keepalive`: the paper on measurements at the level of IP, with the prober that
//! ships, in virtual time.

mod cost;
mod cuts;
mod drive;
pub(crate) mod estimates;
mod optimum;
mod tunnel;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::error::LabError;
use crate::exhibit::Exhibit;
use crate::exports;
use crate::to_terminal;

/// Cuts, hours of watching for false alarms, and seconds of the drive.
const WHOLE: (u32, u32, usize) = (1000, 96, 3600);
const QUICK: (u32, u32, usize) = (1000, 24, 600);

/// Flags of `keepalive`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct KeepaliveOptions {
    /// Seed of everything random.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Less virtual time: a day of watching, ten minutes of the drive.
    #[arg(long, env = "BRAID_LAB_QUICK", default_value_t = false)]
    pub quick: bool,
    /// Print the figures as a JSON array.
    #[arg(long, env = "BRAID_LAB_JSON", default_value_t = false)]
    pub json: bool,
    /// Write charts (SVG, CSV, JSON) to this folder.
    #[arg(long, env = "BRAID_LAB_OUT")]
    pub out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  braid-lab keepalive
  braid-lab keepalive --quick --out target/keepalive     charts and their data";

impl KeepaliveOptions {
    /// Runs all parts and prints their rows; failure when a target is missed.
    pub fn run(&self) -> Result<ExitCode, LabError> {
        let exhibit = study(self.seed, self.quick);
        if let Some(folder) = &self.out {
            exports::write(folder, &exhibit)?;
        }
        let notes = [exhibit.notes, exhibit.skipped].concat();
        to_terminal::print(&exhibit.figures, &notes, self.json)
    }
}

/// The whole paper, for the report.
pub fn study(seed: u64, quick: bool) -> Exhibit {
    let (cuts, hours, seconds) = if quick { QUICK } else { WHOLE };
    let flag = if quick { " --quick" } else { "" };
    let command = format!("braid-lab keepalive --seed {seed}{flag}");
    let mut exhibit = Exhibit::new("Keepalive and selection of the access", &command);
    exhibit.notes.push(
        "assumed: links of 10 Mbit/s with the delay split evenly; 50 data packets a second beside \
         the probes where loss is measured; false alarms at T_KA 200 ms, above the round trip"
            .to_owned(),
    );
    optimum::add(&mut exhibit);
    estimates::add(&mut exhibit, seed);
    cuts::add(&mut exhibit, seed, cuts, hours);
    cost::add(&mut exhibit);
    drive::add(&mut exhibit, seed, seconds);
    exhibit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figure;

    #[test]
    fn estimates_and_optimum_are_those_of_the_paper() {
        let mut exhibit = Exhibit::default();
        optimum::add(&mut exhibit);
        estimates::add(&mut exhibit, 3);
        let missed: Vec<&Figure> = exhibit.figures.iter().filter(|row| !row.met).collect();
        assert!(missed.is_empty(), "{missed:?}");
        let referenced = exhibit.figures.iter().filter(|row| row.reference.is_some());
        assert!(referenced.count() >= 6);
        for number in [
            "tradeoff",
            "range",
            "loss.k",
            "false_positives.k",
            "responsiveness.t_ka",
        ] {
            let id = format!("keepalive.{number}");
            assert!(exhibit.plots.iter().any(|it| it.id == id), "{id}");
        }
    }
}
