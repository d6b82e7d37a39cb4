//! Time from a reading's upload to the call of the webhook for high alerts, beside 10,000 alerts of
//! lower priority. Also the number of notices that are delivered in a second.
//!
//! The flood is written to the store as alerting writes it, so it goes through outbox, bus,
//! decision and queue of notices. The high alerts come from readings, as in [`super::alerts`].

use std::time::{Duration, Instant};

use contracts::alerts::{Alert, AlertState};
use contracts::vitals::Priority;
use store::{AlertsBatch, AlertsStore};
use tokio::time::MissedTickBehavior;

use super::alerts::{Calls, DATED_BACK, RULE, SETTLE, ill, receive, times_of};
use super::core::{Core, Gateway};
use super::line::free_port;
use super::readings::{PATIENCE, POLL_INTERVAL};
use crate::failure::{Failure, block_on};

const FLOOD: usize = 10_000;
const FLOOD_PATIENTS: usize = 1_700;
/// Alerts of one transaction.
const TOGETHER: usize = 500;
const HIGH_PER_S: u32 = 20;
/// High alerts at most, which end with the flood.
const HIGH_MAX: u32 = 400;

pub(super) struct Measured {
    /// Delays of high alerts, sorted.
    pub high: Vec<Duration>,
    pub deliveries_per_s: f64,
}

pub(super) fn measure() -> Result<Measured, Failure> {
    let calls = Calls::default();
    let url = format!("http://{}/", receive(calls.clone())?);
    block_on(async {
        let mut core = Core::start().await?;
        let listen = free_port()?.to_string();
        core.serve("alerting", &["--listen", &listen, "--webhook", &url])
            .await?;
        let mut gateway = core.gateway("probe", HIGH_MAX).await?;
        tokio::time::sleep(SETTLE).await;
        let begun = Instant::now();
        let (flooded, high) = tokio::join!(flood(&core, &calls), probe(&mut gateway, &calls));
        flooded?;
        let took = begun.elapsed();
        let sent = high?;
        let delivered = calls.lock().len();
        Ok(Measured {
            high: times_of(&calls, &sent).await?,
            deliveries_per_s: delivered as f64 / took.as_secs_f64(),
        })
    })?
}

fn is_over(calls: &Calls) -> bool {
    let calls = calls.lock();
    calls.keys().filter(|key| key.starts_with("flood-")).count() >= FLOOD
}

/// Returns when all of the flood is delivered.
async fn flood(core: &Core, calls: &Calls) -> Result<(), Failure> {
    for first in (0..FLOOD).step_by(TOGETHER) {
        let transitions = (first..first + TOGETHER).map(of_flood).collect();
        let batch = AlertsBatch {
            transitions,
            ..AlertsBatch::default()
        };
        let written = core.store().write_alerts(batch, Vec::new()).await;
        written.map_err(Failure::other)?;
    }
    let deadline = Instant::now() + 5 * PATIENCE;
    while !is_over(calls) {
        if Instant::now() > deadline {
            let delivered = calls.lock().len();
            return Err(Failure::other(format!(
                "{delivered} of {FLOOD} are delivered"
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

fn of_flood(number: usize) -> Alert {
    let now_us = contracts::now_us();
    let priority = match number % 2 {
        0 => Priority::Low,
        _ => Priority::Medium,
    };
    Alert {
        id: format!("flood-{number}"),
        // The receiver counts by patient.
        patient: format!("flood-{number}"),
        gateway: format!("flood-gateway-{}", number % FLOOD_PATIENTS),
        rule: RULE.to_owned(),
        state: AlertState::Active.into(),
        priority: priority.into(),
        since_us: now_us,
        changed_us: now_us,
        recorded_us: now_us,
        revision: 1,
        ..Alert::default()
    }
}

/// Patients with the time of their upload. The end of the gateway would cancel its last uploads.
async fn probe(gateway: &mut Gateway, calls: &Calls) -> Result<Vec<(String, Instant)>, Failure> {
    let mut sent = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / HIGH_PER_S);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for probe in 0..HIGH_MAX {
        tick.tick().await;
        if is_over(calls) {
            break;
        }
        let readings = gateway.readings(probe..probe + 1, 2, DATED_BACK, ill);
        let patient = readings.first().map(|sample| sample.device.clone());
        sent.push((patient.unwrap_or_default(), Instant::now()));
        gateway.upload(readings).await?;
    }
    Ok(sent)
}
