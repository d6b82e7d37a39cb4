//! `braid-lab budget`: what a gateway costs on a SIM card, and what its alerts gain or lose by it.
//!
//! Bytes are those of IP packets both ways, UDP and IP headers included, of two paths in virtual
//! time, and extrapolated to a month. A run of a few minutes is subtracted from a longer one of the
//! same seed, so the handshakes are not counted.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use data_budget::{Exchange, FRAMES_BYTES, Gateway, MONTH_S, report_bytes, upload_bytes};
use rayon::prelude::*;

use crate::error::LabError;
use crate::exhibit::Exhibit;
use crate::exports;
use crate::figures::Figure;
use crate::identity::Identity;
use crate::mechanisms::Mechanisms;
use crate::plot::{Axis, Bar, BarGroup, Bars, Lines};
use crate::report::{percentile, sorted};
use crate::scenario::{Controller, Direction, Half, Interface, Scenario};
use crate::seed::derive_seed;
use crate::thin::{Regular, Thin};
use crate::to_terminal;
use crate::world;

/// Not counted: handshakes, and the dense pings of new paths.
const WARM_S: f64 = 30.0;
/// Counted hours of an idle gateway, and of one with vitals.
const IDLE_S: f64 = 4.0 * 3600.0;
const VITALS_S: f64 = 600.0;
/// Interface numbers: the path in use has the shorter round trip.
const IN_USE: usize = 0;
const STANDBY: usize = 1;
/// An electrocardiogram: 250 readings a second of two bytes.
const ECG_RAW_BYTES_PER_S: f64 = 500.0;
const ALERT_BYTES: u64 = 220 + FRAMES_BYTES as u64;

/// Silent cuts of the path in use, each with one alert afterwards.
const CUTS: u32 = 400;
const CUTS_QUICK: u32 = 60;
/// The standby was last asked at a random time before, up to its interval, and longer than this
/// ago in many runs.
const CUT_FROM_S: f64 = 60.0;
const CUT_WITHIN_S: f64 = 25.0;
/// From the cut to the alert, at most.
const ALERT_WITHIN_S: f64 = 5.0;
const RTT_MS: (f64, f64) = (20.0, 120.0);

/// Flags of `budget`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BudgetOptions {
    /// Seed of everything random.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Fewer cuts.
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
  braid-lab budget
  braid-lab budget --quick --out target/budget     charts and their data";

impl BudgetOptions {
    /// Runs all parts and prints their rows; failure when a target is missed.
    pub fn run(&self, identity: &Identity) -> Result<ExitCode, LabError> {
        let exhibit = study(identity, self.seed, self.quick)?;
        if let Some(folder) = &self.out {
            exports::write(folder, &exhibit)?;
        }
        to_terminal::print(&exhibit.figures, &exhibit.notes, self.json)
    }
}

/// The whole table.
pub fn study(identity: &Identity, seed: u64, quick: bool) -> Result<Exhibit, LabError> {
    let flag = if quick { " --quick" } else { "" };
    let mut exhibit = Exhibit::new(
        "Data budget of a gateway",
        &format!("braid-lab budget --seed {seed}{flag}"),
    );
    exhibit.notes.push(format!(
        "assumed: round trips of 30 and 60 ms; by the encoder that ships, an upload of six samples \
         has {} bytes, one of sixty {}, one of 250 readings {}, and a report of the paths {}",
        upload_bytes(6, false, 1),
        upload_bytes(6, false, 10),
        upload_bytes(0, true, 1),
        report_bytes(),
    ));
    monthly_rows(&mut exhibit, identity, seed)?;
    alert_rows(
        &mut exhibit,
        identity,
        seed,
        if quick { CUTS_QUICK } else { CUTS },
    )?;
    Ok(exhibit)
}

/// Six streams of one value a second.
fn vitals(freshness_s: u64) -> Gateway {
    Gateway {
        streams: 6,
        freshness_s,
        ..Gateway::default()
    }
}

fn cases() -> [(&'static str, Gateway, f64); 4] {
    let ecg = Gateway {
        electrocardiogram: true,
        ..Gateway::default()
    };
    [
        ("idle", Gateway::default(), IDLE_S),
        ("vitals_1s", vitals(1), VITALS_S),
        ("vitals_10s", vitals(10), VITALS_S),
        ("ecg", ecg, VITALS_S),
    ]
}

fn flow(exchange: Exchange) -> Regular {
    Regular {
        every: exchange.every,
        bytes: exchange.bytes,
        answer_bytes: exchange.answer_bytes,
    }
}

fn scenario(name: &str, seed: u64, thin: Thin, limit_s: f64) -> Scenario {
    let interfaces = vec![
        Interface::symmetric("wifi", 20.0, 30.0, 0.0),
        Interface::symmetric("cellular", 10.0, 60.0, 0.0),
    ];
    let controller = Controller::Ours;
    let mut scenario = Scenario::transfer(
        name,
        seed,
        Direction::Upload,
        1,
        controller,
        limit_s,
        interfaces,
    );
    scenario.thin = Some(thin);
    scenario
}

/// Bytes a month on each link, both ways.
fn monthly(
    identity: &Identity,
    seed: u64,
    name: &str,
    gateway: &Gateway,
    counted_s: f64,
) -> Result<[f64; 2], LabError> {
    let thin = Thin {
        flows: gateway.exchanges().into_iter().map(flow).collect(),
        alert: None,
    };
    let after = |limit_s: f64| -> Result<[f64; 2], LabError> {
        let scenario = scenario(name, seed, thin.clone(), limit_s);
        let report = world::run(&scenario, identity, Mechanisms::default())?;
        Ok([IN_USE, STANDBY].map(|link| {
            let both = report
                .both_ways_bytes
                .get(link)
                .copied()
                .unwrap_or_default();
            both.iter().sum::<u64>() as f64
        }))
    };
    let (first, whole) = (after(WARM_S)?, after(WARM_S + counted_s)?);
    Ok([IN_USE, STANDBY].map(|link| (whole[link] - first[link]) * MONTH_S / counted_s))
}

fn monthly_rows(exhibit: &mut Exhibit, identity: &Identity, seed: u64) -> Result<(), LabError> {
    let cases = cases();
    let mut bars = [Vec::new(), Vec::new()];
    for (name, gateway, counted_s) in &cases {
        let bytes = monthly(identity, seed, name, gateway, *counted_s)?;
        let [used, standby] = bytes.map(|bytes| bytes / 1e6);
        let id = |what: &str| format!("budget.{name}.{what}");
        exhibit.figures.extend(match *name {
            "idle" => vec![
                Figure::at_most(id("in_use"), "MB/month", Some(8_750.0), 50.0, used),
                Figure::at_most(id("standby"), "MB/month", Some(2_500.0), 20.0, standby),
            ],
            "vitals_1s" => vec![Figure::at_most(
                id("both"),
                "MB/month",
                Some(17_300.0),
                1_200.0,
                used + standby,
            )],
            "vitals_10s" => vec![Figure::at_most(
                id("both"),
                "MB/month",
                None,
                300.0,
                used + standby,
            )],
            _ => {
                let raw = ECG_RAW_BYTES_PER_S * MONTH_S / 1e6;
                vec![Figure::at_most(
                    id("by_raw"),
                    "x",
                    None,
                    1.5,
                    (used + standby) / raw,
                )]
            }
        });
        for (bars, value) in bars.iter_mut().zip([used, standby]) {
            bars.push(Bar::value(value));
        }
    }
    let names: Vec<&str> = cases.iter().map(|case| case.0).collect();
    let axis = Axis::new("bytes of IP packets", "MB a month").log();
    let mut chart = Bars::new("Data of a gateway in a month", axis, &names);
    for (name, bars) in ["path in use", "standby"].into_iter().zip(bars) {
        chart.series.push(BarGroup {
            name: name.to_owned(),
            bars,
        });
    }
    exhibit.plot("budget.month", chart);
    Ok(())
}

/// Milliseconds from the raising of an alert to its arrival; infinite when it never came.
fn alert_ms(identity: &Identity, seed: u64, number: u32, busy: bool) -> Result<f64, LabError> {
    let draw = |index: u64| {
        let bits = derive_seed(seed, 9_000 + u64::from(number) * 16 + index);
        (bits >> 11) as f64 / (1u64 << 53) as f64
    };
    let rtt = |share: f64| RTT_MS.0 + (RTT_MS.1 - RTT_MS.0) * share;
    let (first, second) = (rtt(draw(0)), rtt(draw(1)));
    let cut_s = CUT_FROM_S + CUT_WITHIN_S * draw(2);
    let alert_s = cut_s + ALERT_WITHIN_S * draw(3);
    let thin = Thin {
        flows: busy
            .then(|| vitals(1).exchanges().into_iter().take(1).map(flow))
            .into_iter()
            .flatten()
            .collect(),
        alert: Some((Duration::from_secs_f64(alert_s), ALERT_BYTES)),
    };
    let mut scenario = scenario(
        "alert",
        derive_seed(seed, u64::from(number)),
        thin,
        alert_s + 30.0,
    );
    let half = |ms: f64| Half::constant(20.0, ms / 2.0);
    let mut cut = half(first.min(second));
    cut.changes = vec![(cut_s, false)];
    scenario.interfaces = vec![
        Interface::alike("wifi", cut),
        Interface::alike("cellular", half(first.max(second))),
    ];
    let report = world::run(&scenario, identity, Mechanisms::default())?;
    Ok(report.vitals_ms_p50.unwrap_or(f64::INFINITY))
}

fn alert_rows(
    exhibit: &mut Exhibit,
    identity: &Identity,
    seed: u64,
    cuts: u32,
) -> Result<(), LabError> {
    let x = Axis::new("from the alert to its arrival", "ms").from_zero();
    let mut chart = Lines::cdf("Alerts after a silent cut of the path in use", x);
    for (name, busy) in [("idle", false), ("vitals", true)] {
        let delays = (0..cuts)
            .into_par_iter()
            .map(|number| alert_ms(identity, seed, number, busy))
            .collect::<Result<Vec<f64>, LabError>>()?;
        let delays = sorted(delays);
        let at = |share: f64| percentile(&delays, share).unwrap_or(f64::INFINITY);
        let id = |what: &str| format!("budget.alert.{name}.{what}");
        exhibit.figures.extend([
            Figure::at_most(id("p50"), "ms", None, 250.0, at(0.5)),
            Figure::at_most(id("p99"), "ms", None, 600.0, at(0.99)),
        ]);
        chart = chart.sample(name, &delays);
    }
    exhibit.plot("budget.alerts", chart);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_a_month_is_that_of_the_simulator() {
        let identity = Identity::new().expect("an identity");
        for (name, gateway, counted_s) in cases() {
            let simulated = monthly(&identity, 7, name, &gateway, counted_s).expect("runs");
            let [used, standby] = simulated.map(|bytes| bytes / 1e6);
            let sum = gateway.month();
            for (sum, simulated) in [(sum.in_use_mb, used), (sum.standby_mb, standby)] {
                assert!(
                    (sum / simulated - 1.0).abs() < 0.1,
                    "{name}: {sum} {simulated}"
                );
            }
        }
    }

    #[test]
    fn an_idle_gateway_fits_a_sim_card_and_its_alerts_come_in_time() {
        let identity = Identity::new().expect("an identity");
        let exhibit = study(&identity, 5, true).expect("runs");
        let text = crate::figures::table(&exhibit.figures);
        let missed: Vec<&Figure> = exhibit.figures.iter().filter(|row| !row.met).collect();
        assert_eq!(exhibit.figures.len(), 9);
        assert!(missed.is_empty(), "{text}");
        assert_eq!(exhibit.plots.len(), 2);
    }
}
