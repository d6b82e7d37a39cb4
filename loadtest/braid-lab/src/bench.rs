//! `braid-lab bench`: figures of this machine, each beside its target. Where the target is a ratio,
//! its reference is measured in the same run. Services are processes and engines are real, as in an
//! installation.

mod alerts;
pub mod bare;
mod command;
mod core;
mod drain;
mod embedded;
mod end_to_end;
mod figure;
mod fleet;
mod flood;
mod line;
mod lossy_gateway;
mod plan;
mod publish;
mod readings;
mod sensor;
mod sink;
mod speed;
mod through_tun;

use std::io::Write;
use std::process::ExitCode;

use crate::failure::Failure;
pub use command::BenchCommand;
use figure::Figure;
use plan::{Measurement, PLAN, names};
use readings::unusable;

impl BenchCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let ids = || PLAN.iter().flat_map(|it| it.ids);
        if let Some(unknown) = self
            .only
            .iter()
            .find(|only| !ids().any(|id| names(only, id)))
        {
            let all: Vec<&str> = ids().copied().collect();
            return Err(Failure::other(format!(
                "no figure {unknown:?}; there are {}",
                all.join(", ")
            )));
        }
        let wanted: Vec<&Measurement> = PLAN
            .iter()
            .filter(|it| it.ids.iter().any(|id| self.wants(id)))
            .collect();
        if wanted.iter().any(|it| it.needs_engines) {
            // Scripts of the sources start the engines; their absence is reported before minutes
            // are spent on other figures.
            testkit::sources::file(testkit::kafka::SCRIPT).map_err(Failure::other)?;
        }
        let mut figures = Vec::new();
        for measurement in wanted {
            figures.extend((measurement.measure)(&self)?);
        }
        figures.retain(|figure| self.wants(figure.id));
        self.print(&figures)?;
        Ok(match figures.iter().all(|figure| figure.met) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| names(only, id))
    }

    fn print(&self, figures: &[Figure]) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(figures).map_err(Failure::other)?;
        if let Some(folder) = self.out.parent() {
            std::fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
        }
        std::fs::write(&self.out, &json).map_err(|error| unusable(&self.out, &error))?;
        let mut text = String::new();
        if self.json {
            text = json + "\n";
        } else {
            text += &format!(
                "{:<28} {:>12} {:>12} {:>12}  {:<10} {}\n",
                "figure", "reference", "target", "measured", "unit", "met"
            );
            for figure in figures {
                text += &format!(
                    "{:<28} {:>12} {:>12} {:>12}  {:<10} {}\n",
                    figure.id,
                    figure.reference.map_or("-".to_owned(), readable),
                    figure.target.map_or("-".to_owned(), readable),
                    readable(figure.measured),
                    figure.unit,
                    match (figure.target, figure.met) {
                        (None, _) => "",
                        (Some(_), true) => "yes",
                        (Some(_), false) => "NO",
                    }
                );
            }
        }
        std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(Failure::other)
    }
}

/// Three significant digits of small values, and no fraction of large ones.
fn readable(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.3}"),
        ..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_names_its_figures_and_no_other() {
        let named = |only: &str| -> Vec<&str> {
            let ids = PLAN.iter().flat_map(|it| it.ids);
            ids.copied().filter(|id| names(only, id)).collect()
        };
        assert_eq!(named("store"), ["ingest.sink_vs_copy"]);
        assert_eq!(
            named("end_to_end"),
            ["end_to_end.samples_per_s", "end_to_end.memory_growth"]
        );
        assert_eq!(named("fleet.lost"), ["fleet.lost"]);
        assert!(named("flee").is_empty());
    }

    #[test]
    fn a_figure_comes_from_one_measurement() {
        let mut ids: Vec<&str> = PLAN.iter().flat_map(|it| it.ids).copied().collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
