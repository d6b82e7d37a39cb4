//! Whether people are reached, and patients watched, by what the store holds.
//!
//! Positions of consumers say only that alerts are taken up. Without a proven channel nobody reads
//! them, and a cut gateway stands still without any consumer standing still.

use std::collections::BTreeMap;
use std::time::Duration;

use contracts::paths::End;
use store::{QueryError, Scope, Store, each_latest_path};

use super::finding::Finding;

/// A gateway with a device in use that sent nothing for this long does not watch its patients.
const UNHEARD_MAX: Duration = Duration::from_secs(60);
/// Assignments read at once.
const PAGE: usize = 1_000;
/// Gateways that one finding names; further ones are counted.
const NAMED_MAX: usize = 5;
const SUBJECT_CHANNELS: &str = "channels";
const SUBJECT_GATEWAYS: &str = "gateways";
const PUT_CHANNEL: &str = "configure --smtp, --webhook or --mqtt of alerting, and confirm its heartbeat \
                           (`braid alerts confirm`)";
const LOOK_AT_GATEWAYS: &str =
    "look at power and network of the gateway; of all at once: at the proxy";

pub async fn look(store: &dyn Store, now_us: i64) -> Vec<Finding> {
    let failed = |error: QueryError| {
        let to_do = "see the finding about the store";
        Finding::failed("store", error.to_string(), to_do)
    };
    vec![
        channels(store).await.unwrap_or_else(failed),
        gateways(store, now_us).await.unwrap_or_else(failed),
    ]
}

async fn channels(store: &dyn Store) -> Result<Finding, QueryError> {
    let proofs = store.proofs().await?;
    let confirmed = proofs.iter().filter(|it| it.confirmed_us.is_some());
    let mut names: Vec<&str> = confirmed.map(|it| it.channel.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Ok(match names.as_slice() {
        [] => Finding::warning(
            SUBJECT_CHANNELS,
            "no channel is proven, so it is unknown whether anybody is notified of an alert",
            PUT_CHANNEL,
        ),
        names => Finding::ok(
            SUBJECT_CHANNELS,
            format!("confirmed by a receiver: {}", names.join(", ")),
        ),
    })
}

/// When something of each gateway with a device in use last came; 0: never.
async fn heard(store: &dyn Store, now_us: i64) -> Result<BTreeMap<String, i64>, QueryError> {
    let (mut heard, mut worn) = (BTreeMap::new(), Vec::new());
    let mut after = String::new();
    loop {
        let page = store.assignments_at(&Scope::Service, now_us, &after, PAGE);
        let page = page.await?;
        let Some(last) = page.last() else { break };
        after.clone_from(&last.device);
        for it in page {
            heard.insert(it.gateway.clone(), 0);
            worn.push((it.gateway, it.patient));
        }
    }
    each_latest_path(store, &Scope::Service, 0, |report| {
        if report.end() == End::Gateway
            && let Some(at_us) = heard.get_mut(&report.gateway)
        {
            *at_us = (*at_us).max(report.time_us);
        }
    })
    .await?;
    for (gateway, patient) in worn {
        let Some(at_us) = heard.get_mut(&gateway).filter(|it| is_old(**it, now_us)) else {
            continue;
        };
        for sample in store.latest_vitals(&Scope::Service, Some(&patient)).await? {
            if sample.gateway == gateway {
                *at_us = (*at_us).max(sample.ingest_time_us);
            }
        }
    }
    Ok(heard)
}

fn age(at_us: i64, now_us: i64) -> Duration {
    Duration::from_micros(now_us.saturating_sub(at_us).max(0).unsigned_abs())
}

fn is_old(at_us: i64, now_us: i64) -> bool {
    age(at_us, now_us) > UNHEARD_MAX
}

async fn gateways(store: &dyn Store, now_us: i64) -> Result<Finding, QueryError> {
    let heard = heard(store, now_us).await?;
    let mut silent: Vec<_> = heard
        .iter()
        .filter(|(_, at)| is_old(**at, now_us))
        .collect();
    silent.sort_by_key(|(_, at_us)| **at_us);
    if silent.is_empty() {
        let says = format!("{} with patients, all heard within a minute", heard.len());
        return Ok(Finding::ok(SUBJECT_GATEWAYS, says));
    }
    let named = silent
        .iter()
        .take(NAMED_MAX)
        .map(|(gateway, at_us)| match at_us {
            0 => format!("{gateway} never"),
            at_us => format!("{gateway} {} s ago", age(**at_us, now_us).as_secs()),
        });
    let named = named.collect::<Vec<_>>().join(", ");
    let says = format!(
        "the patients of {} of {} gateways are not watched; last heard: {named}",
        silent.len(),
        heard.len()
    );
    Ok(match silent.len() == heard.len() {
        true => Finding::failed(SUBJECT_GATEWAYS, says, LOOK_AT_GATEWAYS),
        false => Finding::warning(SUBJECT_GATEWAYS, says, LOOK_AT_GATEWAYS),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::vitals::{Metric, Sample, sample::Reading};
    use store::{DEFAULT_TENANT, DeviceEntry, Proof, ProofsStore, Register, SqliteStore};
    use store::{VitalsBatch, VitalsStore};

    use super::super::finding::State;
    use super::*;

    const NOW_US: i64 = 1_800_000_000_000_000;
    const S: i64 = 1_000_000;

    async fn worn(store: &SqliteStore, gateway: &str) {
        let entry = DeviceEntry {
            id: format!("belt-{gateway}"),
            tenant: DEFAULT_TENANT.into(),
            gateway: gateway.into(),
            patient: format!("patient-{gateway}"),
            registered_us: 0,
        };
        store.put_device(&entry).await.unwrap();
    }

    async fn arrived(store: &SqliteStore, gateway: &str, at_us: i64) {
        let sample = Sample {
            device: format!("belt-{gateway}"),
            stream: "heart-rate".into(),
            patient: format!("patient-{gateway}"),
            gateway: gateway.into(),
            metric: Metric::HeartRate.into(),
            unit: "/min".into(),
            sequence: at_us.unsigned_abs(),
            device_time_us: at_us,
            gateway_time_us: at_us,
            ingest_time_us: at_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        let batch = VitalsBatch {
            samples: vec![sample],
            ..VitalsBatch::default()
        };
        store.write_vitals(batch.into(), Vec::new()).await.unwrap();
    }

    #[tokio::test]
    async fn four_minutes_into_a_cut_of_all_gateways_not_all_is_well() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let states = async || {
            let found = look(&store, NOW_US).await;
            found.into_iter().map(|it| it.state).collect::<Vec<_>>()
        };
        // No device is worn, and no channel exists.
        assert_eq!(states().await, [State::Warning, State::Ok]);
        worn(&store, "gw-1").await;
        worn(&store, "gw-2").await;
        arrived(&store, "gw-1", NOW_US - 270 * S).await;
        let found = look(&store, NOW_US).await;
        assert_eq!(found[1].state, State::Failed, "{found:?}");
        assert!(found[1].says.contains("2 of 2 gateways"), "{found:?}");
        assert!(
            found[1].says.contains("gw-2 never, gw-1 270 s ago"),
            "{found:?}"
        );
        arrived(&store, "gw-2", NOW_US - 5 * S).await;
        assert_eq!(states().await[1], State::Warning);
        arrived(&store, "gw-1", NOW_US - S).await;
        assert_eq!(states().await[1], State::Ok);
    }

    #[tokio::test]
    async fn people_are_notified_only_where_a_receiver_has_confirmed_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let sent = Proof {
            channel: "email".into(),
            recipient: "ann@example.org".into(),
            token: Proof::token_of("s1"),
            sent_us: NOW_US,
            ..Proof::default()
        };
        store.begin_proof(&sent, None).await.unwrap();
        let unproven = channels(&store).await.unwrap();
        assert_eq!(unproven.state, State::Warning);
        assert!(unproven.says.contains("unknown whether anybody"));
        let confirmed = store.confirm_proof(&sent.token, "ann", NOW_US).await;
        assert!(confirmed.unwrap().is_some());
        let proven = channels(&store).await.unwrap();
        assert_eq!(
            (proven.state, &*proven.says),
            (State::Ok, "confirmed by a receiver: email")
        );
    }
}
