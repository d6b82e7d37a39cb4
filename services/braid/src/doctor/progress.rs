//! Whether the installation does its work: the progress of every group against the ends of the bus,
//! and the test alert.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{Bus, Topic, keys_of_partitions, partition_of};
use clocks::CheckedClock;
use consumer_health::{Duty, Pace, Report, Source, Standing, Watcher, duty, gap};
use contracts::canary::NAME;
use store::{AlertsQuery, QueryError, Scope, Store, TimescaleStore};

use vitals::canary::turns;

use super::{finding::Finding, people};
use crate::engines::{BusConfig, STORE_FILE, StoreConfig, StoreUrl};

/// Time after which a position behind which records wait counts as standing still.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The test alert is raised and cleared once a minute, or when it is the partition's turn.
const CANARY_AGE_MAX: Duration = Duration::from_secs(90);
const CANARY_TURN: Duration = Duration::from_secs(60);
const RUNBOOK: &str = "infra/runbooks.md#standingstill";

/// Another check has reported an engine that cannot be queried.
pub async fn look(store: &StoreConfig, bus: &BusConfig, within: Duration) -> Vec<Finding> {
    let Some(store) = open(store, within).await else {
        return Vec::new();
    };
    let now_us = CheckedClock::of_machine().now_us();
    let people = people::look(store.as_ref(), now_us).await;
    let Ok(bus) = bus.examine(within).await else {
        return people;
    };
    // Concurrent, because a person waits for the slowest.
    let [a, b, c, d, e, f] = duty::ALL.map(|duty| progress(&bus, &store, duty, within));
    let (a, b, c, d, e, f) = tokio::join!(a, b, c, d, e, f);
    let canary = canary(bus.as_ref(), store.as_ref()).await;
    let mut findings = vec![a, b, c, d, e, f, canary];
    findings.extend(gaps(store.as_ref()).await);
    findings.extend(people);
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

/// The test alert of each partition of `vitals`.
async fn canary(bus: &dyn Bus, store: &dyn Store) -> Finding {
    const SUBJECT: &str = "canary";
    const TO_DO: &str = "infra/runbooks.md#canarymissing";
    let partitions = match bus.partitions(Topic::Vitals).await {
        Ok(partitions) => partitions,
        Err(error) => return Finding::failed(SUBJECT, error.to_string(), TO_DO),
    };
    let now_us = CheckedClock::of_machine().now_us();
    let mut ages = BTreeMap::new();
    for (partition, name) in keys_of_partitions(NAME, partitions) {
        match newest_us(store, &name).await {
            Ok(newest_us) => ages.insert(partition, newest_us.map(|it| age(now_us, it))),
            Err(error) => return Finding::failed(SUBJECT, error.to_string(), TO_DO),
        };
    }
    let own = partition_of(NAME, partitions);
    let is_alone = ages
        .iter()
        .all(|(partition, age)| *partition == own || age.is_none());
    if is_alone {
        // Ingest of the version before sends one canary.
        ages.retain(|partition, _| *partition == own);
    }
    if ages.values().all(Option::is_none) {
        return Finding::warning(
            SUBJECT,
            "no test alert is stored",
            "start ingest without --canary=false, and look again after a minute",
        );
    }
    let max = CANARY_AGE_MAX + CANARY_TURN * (turns(partitions) - 1);
    let late = ages
        .iter()
        .filter(|(_, age)| age.is_none_or(|age| age > max));
    let late: Vec<u32> = late.map(|(partition, _)| *partition).collect();
    let oldest = ages.values().flatten().max().copied().unwrap_or_default();
    let says = format!("the last test alert is {} s old", oldest.as_secs());
    if late.is_empty() {
        Finding::ok(SUBJECT, says)
    } else if late.len() == ages.len() {
        Finding::failed(SUBJECT, says, TO_DO)
    } else {
        let named = bus::listed(&late);
        let says = format!("the test alert of partition {named} of {partitions} is missing");
        Finding::failed(SUBJECT, says, TO_DO)
    }
}

fn age(now_us: i64, at_us: i64) -> Duration {
    Duration::from_micros(now_us.saturating_sub(at_us).max(0).unsigned_abs())
}

async fn newest_us(store: &dyn Store, name: &str) -> Result<Option<i64>, QueryError> {
    let query = AlertsQuery {
        patient: Some(name.to_owned()),
        include_resolved: true,
        limit: 2,
        ..AlertsQuery::default()
    };
    let alerts = store.alerts(&Scope::Service, &query).await?;
    Ok(alerts.iter().map(|alert| alert.changed_us).max())
}
