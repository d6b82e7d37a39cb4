//! Bus and store, reached as a service reaches them.

use std::time::Duration;

use bus::{Bus, Topic};
use service_kit::ConfigError;
use store::TimescaleStore;
use store::timescale::Examined;

use super::finding::Finding;
use crate::engines::{BusConfig, StoreConfig, StoreUrl};

const QUARANTINE: &str = "quarantine";
const QUARANTINE_TO_DO: &str =
    "see whose they are with `braid quarantine list`; assign or discard them";
/// Time limit of a query. A healthy network needs less.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(50);

pub async fn store(config: &StoreConfig, clock_max: Duration, within: Duration) -> Vec<Finding> {
    const SUBJECT: &str = "store";
    let refused = |error: ConfigError| vec![Finding::failed(SUBJECT, error.reason, error.example)];
    let url = match &config.store {
        StoreUrl::Timescale(url) => url,
        StoreUrl::Embedded(dir) => {
            // Opening it would create an empty one.
            if !dir.join(crate::engines::STORE_FILE).exists() {
                let says = format!("there is no store in {}", dir.display());
                return vec![Finding::failed(
                    SUBJECT,
                    says,
                    "--store sqlite:DIRECTORY of a running installation",
                )];
            }
            return match config.open_now().await {
                Ok(store) => {
                    let says = format!("SQLite in {}", dir.display());
                    let mut findings = vec![Finding::ok(SUBJECT, says)];
                    findings.extend(documents(&*store).await);
                    findings.push(quarantine(&*store).await);
                    findings
                }
                Err(error) => refused(error),
            };
        }
    };
    let options = match config.options(url) {
        Ok(options) => options,
        Err(error) => return refused(error),
    };
    match tokio::time::timeout(within, TimescaleStore::examine(&options)).await {
        Ok(Ok(examined)) => {
            let mut findings = timescale(&examined, clock_max);
            let opening = TimescaleStore::open_to_look(&options);
            let looked = async {
                match opening.await {
                    Ok(store) => quarantine(&store).await,
                    Err(error) => Finding::failed(QUARANTINE, error.to_string(), QUARANTINE_TO_DO),
                }
            };
            let looked = tokio::time::timeout(within, looked).await;
            findings.push(looked.unwrap_or_else(|_| {
                let says = format!("no answer within {within:?}");
                Finding::failed(QUARANTINE, says, QUARANTINE_TO_DO)
            }));
            findings
        }
        Ok(Err(error)) => refused(crate::engines::store_refusal(&error)),
        Err(_) => {
            let says = format!("TimescaleDB has not answered within {within:?}");
            vec![Finding::failed(
                SUBJECT,
                says,
                "is the address right, and the server up? --store postgres://USER@HOST:PORT/DATABASE",
            )]
        }
    }
}

/// The check of an embedded store, which has no checksums. Services report the faults of a
/// database.
async fn documents(store: &dyn store::Store) -> Vec<Finding> {
    const SUBJECT: &str = "documents";
    match alerting::documents::damaged(store).await {
        Ok(damaged) if damaged.is_empty() => {
            vec![Finding::ok(
                SUBJECT,
                "rules, teams and silences can be read",
            )]
        }
        Ok(damaged) => damaged
            .iter()
            .map(|it| Finding::warning(SUBJECT, it.to_string(), store::PUT_ANEW))
            .collect(),
        Err(error) => vec![Finding::failed(
            SUBJECT,
            error.to_string(),
            "restore the store from a copy (infra/backup)",
        )],
    }
}

async fn quarantine(store: &dyn store::Store) -> Finding {
    match store.quarantine_fill().await {
        Ok(fill) if fill.is_empty() => {
            Finding::ok(QUARANTINE, "every reading belongs to a patient")
        }
        Ok(fill) => {
            let entries: u64 = fill.iter().map(|of| of.entries).sum();
            let says = format!(
                "{entries} readings, gaps or alerts of {} gateways belong to no patient",
                fill.len()
            );
            Finding::warning(QUARANTINE, says, QUARANTINE_TO_DO)
        }
        Err(error) => Finding::failed(QUARANTINE, error.to_string(), QUARANTINE_TO_DO),
    }
}

fn timescale(examined: &Examined, clock_max: Duration) -> Vec<Finding> {
    let edition = if examined.edition.community {
        "Community"
    } else {
        "Apache-2"
    };
    let says = format!(
        "PostgreSQL {} with TimescaleDB {} ({edition}) at {}, schema version {}",
        examined.version, examined.extension, examined.address, examined.schema
    );
    let mut findings = vec![Finding::ok("store", says)];
    let says = format!(
        "round trip {:.1} ms",
        examined.round_trip.as_secs_f64() * 1e3
    );
    findings.push(if examined.round_trip > ROUND_TRIP_MAX {
        Finding::warning("store", says, "bring database and services closer together")
    } else {
        Finding::ok("store", says)
    });
    let ahead_ms = examined.clock_ahead_us as f64 / 1e3;
    let says = format!("the database's clock is {ahead_ms:+.1} ms from this machine's");
    let apart = Duration::from_micros(examined.clock_ahead_us.unsigned_abs());
    findings.push(if apart > clock_max + examined.round_trip {
        Finding::failed(
            "clock",
            says,
            "synchronise both machines (chrony, systemd-timesyncd): times of alerts come from both",
        )
    } else {
        Finding::ok("clock", says)
    });
    findings
}

pub async fn bus(config: &BusConfig, within: Duration) -> Vec<Finding> {
    const SUBJECT: &str = "bus";
    let bus = match config.examine(within).await {
        Ok(bus) => bus,
        Err(error) => return vec![Finding::failed(SUBJECT, error.reason, error.example)],
    };
    let mut findings = Vec::new();
    findings.push(match tokio::time::timeout(within, bus.ready()).await {
        Ok(Ok(())) => Finding::ok(SUBJECT, format!("{} takes a write", config.bus)),
        Ok(Err(error)) => Finding::failed(SUBJECT, error.to_string(), "see the brokers' logs"),
        Err(_) => Finding::failed(
            SUBJECT,
            format!("no write within {within:?}"),
            "see the brokers' logs",
        ),
    });
    let mut topics = Vec::new();
    for topic in Topic::ALL {
        match bus.partitions(topic).await {
            Ok(count) => topics.push(format!("{topic} {count}")),
            Err(error) => findings.push(Finding::failed(
                "topics",
                format!("{topic}: {error}"),
                "start a service that creates it",
            )),
        }
    }
    findings.push(Finding::ok(
        "topics",
        format!("partitions: {}", topics.join(", ")),
    ));
    findings.extend(dead_letters(bus.as_ref(), within).await);
    findings
}

async fn dead_letters(bus: &dyn Bus, within: Duration) -> Option<Finding> {
    let count = async {
        let mut reader = bus
            .read_back(Topic::DeadLetters)
            .await
            .map_err(|e| e.to_string())?;
        reader.lag().await.map_err(|e| e.to_string())
    };
    match tokio::time::timeout(within, count).await {
        Ok(Ok(0)) => Some(Finding::ok("dead letters", "none")),
        Ok(Ok(count)) => Some(Finding::warning(
            "dead letters",
            format!("{count} records that a service could not use"),
            "braid dead-letters list",
        )),
        Ok(Err(error)) => Some(Finding::failed(
            "dead letters",
            error,
            "braid dead-letters list",
        )),
        // The finding about the cluster has already been reported.
        Err(_) => None,
    }
}
