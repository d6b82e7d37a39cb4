//! Whether the installation does its work: the progress of every group against the ends of the bus,
//! and the test alert.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::Bus;
use clocks::CheckedClock;
use consumer_health::{Duty, Pace, Report, Source, Standing, Watcher, duty, gap};
use contracts::canary::NAME;
use store::{AlertsQuery, Scope, Store, TimescaleStore};

use super::finding::Finding;
use crate::engines::{BusConfig, STORE_FILE, StoreConfig, StoreUrl};

/// Time after which a position behind which records wait counts as standing still.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The test alert is raised and cleared once a minute.
const CANARY_AGE_MAX: Duration = Duration::from_secs(90);
const RUNBOOK: &str = "infra/runbooks.md#standingstill";

/// Empty if an engine cannot be queried. Another check has reported that.
pub async fn look(store: &StoreConfig, bus: &BusConfig, within: Duration) -> Vec<Finding> {
    let Some(store) = open(store, within).await else {
        return Vec::new();
    };
    let Ok(bus) = bus.examine(within).await else {
        return Vec::new();
    };
    // Concurrent, because a person waits for the slowest.
    let [a, b, c, d, e, f] = duty::ALL.map(|duty| progress(&bus, &store, duty, within));
    let (a, b, c, d, e, f) = tokio::join!(a, b, c, d, e, f);
    let canary = canary(store.as_ref()).await;
    let mut findings = vec![a, b, c, d, e, f, canary];
    findings.extend(gaps(store.as_ref()).await);
    findings
}

/// Records that a lost bus may have taken with it.
async fn gaps(store: &dyn Store) -> Vec<Finding> {
    let since_us = gap::shown_since(CheckedClock::of_machine().now_us());
    match store.log_gaps(since_us).await {
        Ok(gaps) => gap::sentences(&gaps)
            .into_iter()
            .map(|says| Finding::warning("bus", says, gap::TO_DO))
            .collect(),
        Err(error) => vec![Finding::failed("store", error.to_string(), RUNBOOK)],
    }
}

async fn open(config: &StoreConfig, within: Duration) -> Option<Arc<dyn Store>> {
    match &config.store {
        StoreUrl::Embedded(dir) if !dir.join(STORE_FILE).exists() => None,
        StoreUrl::Embedded(_) => config.open_now().await.ok(),
        StoreUrl::Timescale(url) => {
            let options = config.options(url).ok()?;
            let opening = TimescaleStore::open_to_look(&options);
            let opened = tokio::time::timeout(within, opening).await.ok()?.ok()?;
            Some(Arc::new(opened))
        }
    }
}

async fn progress(
    bus: &Arc<dyn Bus>,
    store: &Arc<dyn Store>,
    duty: Duty,
    within: Duration,
) -> Finding {
    let pace = Pace {
        patience: PATIENCE,
        within,
        ..Pace::default()
    };
    let (bus, store) = (Arc::clone(bus), Arc::clone(store));
    let source = Source::Duty(duty);
    let of = source.of();
    let mut watcher = Watcher::new(bus, store, source, pace, CheckedClock::of_machine());
    let begun = Instant::now();
    loop {
        let standing = watcher.look().await;
        let is_over = begun.elapsed() > PATIENCE;
        match standing {
            Standing::Well { behind: 0 } => {
                return Finding::ok(duty.service, format!("{}: all that is there", duty.does));
            }
            Standing::Well { behind } if is_over => {
                let says = format!("{}: {behind} records behind, and moving", duty.does);
                return Finding::ok(duty.service, says);
            }
            Standing::Unknown if is_over => {
                let says = format!("it is unknown whether {}", duty.does);
                return Finding::failed(duty.service, says, RUNBOOK);
            }
            Standing::Unknown | Standing::Well { .. } => tokio::time::sleep(LOOK_EVERY).await,
            Standing::Still { behind, .. } => {
                let says = format!(
                    "{}: {behind} records wait in {of}, and the stored position has not moved for {PATIENCE:?}",
                    duty.stands
                );
                return Finding::failed(duty.service, says, RUNBOOK);
            }
            Standing::Unanswered { .. } => {
                let report = Report::new(duty.stands, duty.does, of, &standing);
                let says = report.map_or_else(String::new, |report| report.says);
                return Finding::failed(duty.service, says, RUNBOOK);
            }
        }
    }
}

async fn canary(store: &dyn Store) -> Finding {
    const SUBJECT: &str = "canary";
    const TO_DO: &str = "infra/runbooks.md#canarymissing";
    let query = AlertsQuery {
        patient: Some(NAME.to_owned()),
        include_resolved: true,
        limit: 2,
        ..AlertsQuery::default()
    };
    let alerts = match store.alerts(&Scope::Service, &query).await {
        Ok(alerts) => alerts,
        Err(error) => return Finding::failed(SUBJECT, error.to_string(), TO_DO),
    };
    let Some(last_us) = alerts.iter().map(|alert| alert.changed_us).max() else {
        return Finding::warning(
            SUBJECT,
            "no test alert is stored",
            "start ingest without --canary=false, and look again after a minute",
        );
    };
    let now_us = CheckedClock::of_machine().now_us();
    let age_us = now_us.saturating_sub(last_us).max(0).unsigned_abs();
    let age = Duration::from_micros(age_us);
    let says = format!("the last test alert is {} s old", age.as_secs());
    if age > CANARY_AGE_MAX {
        Finding::failed(SUBJECT, says, TO_DO)
    } else {
        Finding::ok(SUBJECT, says)
    }
}
