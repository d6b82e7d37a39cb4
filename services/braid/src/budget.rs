//! `braid budget`: what a gateway sends and receives in a month.

use std::time::Duration;

use data_budget::{Gateway, Month};
use serde::Serialize;
use service_kit::ConfigError;

use crate::process::{self, Failure};

/// Highest price of a gigabyte; a higher one is a slip.
const PRICE_MAX: f64 = 1e6;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid budget\n  braid budget --streams 6 --freshness-ms 10000 --price-per-gb 4\n  braid budget --ecg --json\n\nHandshakes and what a lossy network repeats are not counted."
)]
pub struct BudgetCommand {
    /// Streams of one value a second.
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = clap::value_parser!(u8).range(..=64))]
    streams: u8,
    /// An electrocardiogram of 250 readings a second as well.
    #[arg(long)]
    ecg: bool,
    /// The gateway's `--freshness-ms`: readings of that time travel together.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(..=60_000))]
    freshness_ms: u64,
    /// The gateway's `--path-report-beat-s`.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    path_report_beat_s: u64,
    /// Price of a gigabyte (1,000,000,000 bytes) on either access.
    #[arg(long, value_name = "PRICE")]
    price_per_gb: Option<f64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Printed {
    #[serde(flatten)]
    month: Month,
    both_mb: f64,
    price: Option<f64>,
}

impl BudgetCommand {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(price) = self.price_per_gb
            && !(0.0..=PRICE_MAX).contains(&price)
        {
            return Err(Failure::Config(ConfigError::new(
                "price_per_gb",
                format!("{price} is not between 0 and {PRICE_MAX}"),
                "--price-per-gb 4",
            )));
        }
        let printed = self.printed();
        if self.json {
            return process::json(&printed);
        }
        println!("{:<12} {:>10}", "30 days", "MB");
        for (name, mb) in [
            ("path in use", printed.month.in_use_mb),
            ("standby", printed.month.standby_mb),
            ("both", printed.both_mb),
        ] {
            println!("{name:<12} {mb:>10.1}");
        }
        if let Some(price) = printed.price {
            println!("{:<12} {price:>10.2}", "price");
        }
        Ok(())
    }

    fn printed(&self) -> Printed {
        let gateway = Gateway {
            streams: self.streams.into(),
            electrocardiogram: self.ecg,
            freshness_s: self.freshness_ms / 1_000,
            report_every: Duration::from_secs(self.path_report_beat_s),
        };
        let month = gateway.month();
        let both_mb = month.both_mb();
        let price = self.price_per_gb.map(|price| both_mb / 1e3 * price);
        Printed {
            month,
            both_mb,
            price,
        }
    }
}
