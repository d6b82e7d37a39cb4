//! `braid bench`: figures of this machine, each beside its target. Where the target is a ratio, its
//! reference is measured in the same run. Services are processes and engines are real, as in an
//! installation.

mod alerts;
pub mod bare;
mod core;
mod embedded;
mod end_to_end;
mod fleet;
mod line;
mod lossy_gateway;
mod plan;
mod publish;
mod sensor;
mod sink;
mod speed;
mod through_tun;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

use serde::Serialize;

use crate::process::Failure;
use plan::{Measurement, PLAN, names};

/// Longest wait for an action of a process; then the measurement fails.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// `braid bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid bench\n  braid bench --only embedded.samples_per_s --seconds 30\n  braid bench --json > figures.json\n\nKafka and TimescaleDB are started by scripts of Braid's sources: work in them, or name their folder in BRAID_SOURCES."
)]
pub struct BenchCommand {
    /// Measure only this figure, or this group, such as `speed`; may be repeated.
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Seconds of each throughput measurement; the target of `end_to_end` holds for 300.
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Gateways of `fleet`, each with two paths and 10 samples/s.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=5000))]
    gateways: u32,
    /// File of the diagram of `fleet`'s samples, second by second.
    #[arg(long, value_name = "FILE", default_value = "target/fleet.svg")]
    plot: PathBuf,
    /// Print a JSON array instead of a table.
    #[arg(long)]
    json: bool,
    /// Additional file for the JSON array.
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    out: PathBuf,
}

/// One row of the table.
#[derive(Debug, Serialize)]
struct Figure {
    id: &'static str,
    unit: &'static str,
    /// Measured in the same run, if the target is a ratio to it.
    reference: Option<f64>,
    target: Option<f64>,
    measured: f64,
    met: bool,
}

impl Figure {
    fn at_most(id: &'static str, unit: &'static str, measured: f64, target: f64) -> Figure {
        Figure {
            id,
            unit,
            reference: None,
            target: Some(target),
            measured,
            met: measured <= target,
        }
    }

    fn at_least(id: &'static str, unit: &'static str, measured: f64, target: f64) -> Figure {
        Figure {
            met: measured >= target,
            ..Figure::at_most(id, unit, measured, target)
        }
    }

    /// Sets the reference, measured in the same run.
    fn against(self, reference: f64) -> Figure {
        Figure {
            reference: Some(reference),
            ..self
        }
    }

    fn plain(id: &'static str, unit: &'static str, measured: f64) -> Figure {
        Figure {
            id,
            unit,
            reference: None,
            target: None,
            measured,
            met: true,
        }
    }
}

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
        self.tell(&figures)?;
        Ok(match figures.iter().all(|figure| figure.met) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| names(only, id))
    }

    fn tell(&self, figures: &[Figure]) -> Result<(), Failure> {
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

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The samples must be sorted.
fn quantile_ms(samples: &[Duration], share: f64) -> f64 {
    let rank = (samples.len() as f64 * share).ceil() as usize;
    let sample = samples.get(rank.saturating_sub(1));
    sample.map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
}

/// Three significant digits of small values, and no fraction of large ones.
fn readable(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.3}"),
        ..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Resident memory.
fn memory_mib(child: &Child) -> Result<f64, Failure> {
    let path = format!("/proc/{}/status", child.id());
    let text = std::fs::read_to_string(&path).map_err(|error| unusable(&path, &error))?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kib| kib / 1024.0)
        .ok_or_else(|| Failure::other(format!("{path} has no VmRSS")))
}

/// A metric's value, summed over the labels that `name` leaves open; 0 without an answer or without
/// the metric.
async fn metric(admin: SocketAddr, name: &str) -> f64 {
    let text = scrape(admin).await.unwrap_or_default();
    text.lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn is_ready(admin: SocketAddr) -> bool {
    let answer = ask(admin, "/readyz").await;
    answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

async fn scrape(admin: SocketAddr) -> std::io::Result<String> {
    ask(admin, "/metrics").await
}

async fn ask(admin: SocketAddr, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(admin).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: braid\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn unusable(path: impl AsRef<Path>, error: &std::io::Error) -> Failure {
    Failure::other(format!("{}: {error}", path.as_ref().display()))
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
