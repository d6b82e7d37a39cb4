//! Arguments of `braid-lab bench`.

use std::path::PathBuf;
use std::time::Duration;

/// `braid-lab bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid-lab bench\n  braid-lab bench --only embedded.samples_per_s --seconds 30\n  braid-lab bench --json > figures.json\n\nKafka and TimescaleDB are started by scripts of Braid's sources: work in them, or name their folder in BRAID_SOURCES."
)]
pub struct BenchCommand {
    /// Measure only this figure, or this group, such as `speed`; may be repeated.
    #[arg(long, value_name = "ID")]
    pub(super) only: Vec<String>,
    /// Seconds of each throughput measurement; the target of `end_to_end` holds for 300.
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) seconds: u64,
    /// Gateways of `fleet`, each with two paths and 6 samples/s.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub(super) gateways: u32,
    /// File of the diagram of `fleet`'s samples, second by second.
    #[arg(long, value_name = "FILE", default_value = "target/fleet.svg")]
    pub(super) plot: PathBuf,
    /// Print a JSON array instead of a table.
    #[arg(long)]
    pub(super) json: bool,
    /// Additional file for the JSON array.
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    pub(super) out: PathBuf,
}

impl BenchCommand {
    pub(super) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
