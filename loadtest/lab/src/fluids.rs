//! `braid-lab fluid`: the fluid model of a convoy (the paper of Bejan and others), and of any
//! network from a file.

mod charts;
mod experiments;
mod page;
mod rows;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::fluid::{Experiment, Run};

use crate::error::LabError;
use crate::exhibit::Exhibit;
use crate::exports;
use crate::scenario::read_bounded;
use crate::to_terminal;

use experiments::{read, solve};

pub use experiments::EXPERIMENTS;

const FILE_BYTES_MAX: u64 = 1 << 20;

/// Flags of `fluid`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct FluidOptions {
    /// One experiment by name (one-station, three-stations, convoy, static, competitor, responsive,
    /// threshold), or a TOML file; all seven when not given.
    #[arg(long, env = "BRAID_LAB_EXPERIMENT", value_name = "NAME|FILE.toml")]
    pub experiment: Option<String>,
    /// Print the figures as a JSON array.
    #[arg(long, env = "BRAID_LAB_JSON", default_value_t = false)]
    pub json: bool,
    /// Write charts (SVG, CSV, JSON) and the page of the convoy to this folder.
    #[arg(long, env = "BRAID_LAB_OUT")]
    pub out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  braid-lab fluid                       the seven experiments of the paper
  braid-lab fluid --out target/fluid    charts, data, and a convoy with a slider
  braid-lab fluid --experiment static --json
  braid-lab fluid --experiment my-network.toml --out charts";

impl FluidOptions {
    /// Solves the experiments and prints their rows; failure when a target is missed.
    pub fn run(&self) -> Result<ExitCode, LabError> {
        let mut figures = Vec::new();
        let mut notes = Vec::new();
        for experiment in self.chosen()? {
            let run = solve(&experiment)?;
            let exhibit = exhibit(&experiment, &run);
            notes.extend(
                exhibit
                    .notes
                    .iter()
                    .map(|it| format!("{}: {it}", experiment.name)),
            );
            if let Some(folder) = &self.out {
                let folder = folder.join(&experiment.name);
                exports::write(&folder, &exhibit)?;
                if !experiment.way.is_empty() {
                    exports::write_file(&folder, "convoy.html", &page::html(&experiment, &run))?;
                }
            }
            figures.extend(exhibit.figures);
        }
        if self.experiment.is_none() {
            figures.extend(rows::speed()?);
        }
        to_terminal::print(&figures, &notes, self.json)
    }

    fn chosen(&self) -> Result<Vec<Experiment>, LabError> {
        let Some(name) = &self.experiment else {
            return EXPERIMENTS.iter().map(|it| read(it.0, it.1)).collect();
        };
        if let Some((name, text)) = EXPERIMENTS.iter().find(|it| it.0 == name) {
            return Ok(vec![read(name, text)?]);
        }
        let file = Path::new(name);
        if file.extension().is_none_or(|it| it != "toml") {
            let names: Vec<&str> = EXPERIMENTS.iter().map(|it| it.0).collect();
            return Err(LabError::NoExperiment {
                name: name.clone(),
                known: names.join(", "),
            });
        }
        let text = read_bounded(file, FILE_BYTES_MAX)?;
        Ok(vec![read(name, &text)?])
    }
}

/// One of the paper's experiments by name, solved, for the report.
pub fn study(name: &str) -> Result<Exhibit, LabError> {
    let found = EXPERIMENTS.iter().find(|it| it.0 == name);
    let (name, text) = found.ok_or_else(|| LabError::NoExperiment {
        name: name.to_owned(),
        known: EXPERIMENTS.map(|it| it.0).join(", "),
    })?;
    let experiment = read(name, text)?;
    let run = solve(&experiment)?;
    let mut exhibit = exhibit(&experiment, &run);
    if *name == "convoy" {
        exhibit.figures.extend(rows::speed()?);
        exhibit.fragment = Some(page::fragment(&experiment, &run));
    }
    Ok(exhibit)
}

fn exhibit(experiment: &Experiment, run: &Run) -> Exhibit {
    let title = format!("Fluid model: {}", experiment.title);
    let command = format!("braid-lab fluid --experiment {}", experiment.name);
    let mut exhibit = Exhibit::new(&title, &command);
    for assumed in &experiment.assumed {
        exhibit.notes.push(format!("assumed: {assumed}"));
    }
    for warning in &run.warnings {
        exhibit.notes.push(format!("warning: {warning}"));
    }
    exhibit.figures = rows::of(experiment, run);
    charts::draw(experiment, run, &mut exhibit);
    exhibit
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::figures::Figure;

    /// All that the paper publishes of its experiments.
    #[test]
    fn every_experiment_meets_what_the_paper_publishes() {
        let mut rows: Vec<Figure> = Vec::new();
        for (name, text) in EXPERIMENTS {
            let experiment = read(name, text).unwrap();
            assert_eq!(experiment.name, name);
            let run = solve(&experiment).unwrap();
            let exhibit = exhibit(&experiment, &run);
            assert_eq!(exhibit.plots.len(), experiment.figures.len());
            rows.extend(exhibit.figures);
        }
        let missed: Vec<&Figure> = rows.iter().filter(|row| !row.met).collect();
        assert!(missed.is_empty(), "{missed:?}");
        assert!(rows.iter().filter(|row| row.reference.is_some()).count() >= 12);
    }

    #[test]
    fn every_figure_from_4_to_17_is_drawn() {
        let drawn: String = EXPERIMENTS.iter().map(|it| it.1).collect();
        for number in 4..=17 {
            assert!(
                drawn.contains(&format!("\"figure-{number:02}-")),
                "figure {number}"
            );
        }
    }

    #[test]
    fn the_page_needs_no_network() {
        let experiment = read("convoy", EXPERIMENTS[2].1).unwrap();
        let run = solve(&experiment).unwrap();
        let html = page::html(&experiment, &run);
        let outside = html.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !outside.contains("http") && !outside.contains("src="),
            "a link leads outside"
        );
        assert!(html.contains("slider.type = \"range\""));
        assert!(html.len() < 600_000, "{} bytes", html.len());
    }
}
