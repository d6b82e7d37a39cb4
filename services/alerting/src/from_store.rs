//! Looks at what the store has heard of everybody, and writes what silence and lost paths come to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use service_kit::Context;
use store::{AlertsBatch, AlertsQuery, QueryError, Scope, Store, WriteError};
use tokio::{sync::Notify, time::MissedTickBehavior};
use vitals::RuleSet;

use crate::{
    SILENCE_MAX,
    silence_watch::{Known, assess},
};

/// How often it is looked.
const ROUND: Duration = Duration::from_secs(5);
/// Open alerts read in one round; silences of older ones are told no second time, and judged when others have ended.
const OPEN_MAX: usize = 10_000;
/// What two clocks of the core may differ by.
const AHEAD_US_MAX: i64 = 30_000_000;
/// Tries to write a round; each leaves out at least one that was written before.
const ATTEMPTS_MAX: usize = 8;
/// Silences remembered that are open beyond [`OPEN_MAX`]; past it all are met anew.
const TOLD_MAX: usize = 100_000;

#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("{0}")]
    Write(#[from] WriteError),
}

pub(crate) async fn run(
    store: Arc<dyn Store>,
    outbox: Arc<Notify>,
    rules: Arc<RuleSet>,
    silent_after_us: i64,
    context: Context,
) {
    let check = context.health().check("silence");
    let turns = context.health().progress("silence", SILENCE_MAX);
    let shutdown = context.shutdown().clone();
    let mut tick =
        tokio::time::interval(ROUND.min(Duration::from_micros(silent_after_us.unsigned_abs())));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut told, mut ahead) = (BTreeSet::new(), Ahead::default());
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            _ = tick.tick() => turns.beat(),
        }
        let round = round(
            store.as_ref(),
            &rules,
            silent_after_us,
            &mut told,
            &mut ahead,
        );
        match round.await {
            Ok(written) => {
                check.ok();
                if written > 0 {
                    metrics::counter!("braid_alerting_silence_transitions_total")
                        .increment(written);
                    outbox.notify_one();
                }
            }
            Err(error) => check.failing(error.to_string()),
        }
    }
}

/// Times that are still to come: written by a clock that was set back since. Each counts from when it was first met, or nobody who falls
/// silent would be missed until then.
#[derive(Default)]
struct Ahead(BTreeMap<i64, i64>);

impl Ahead {
    fn put_right<'a>(&mut self, times: impl Iterator<Item = &'a mut i64>, now_us: i64) {
        let before = std::mem::take(&mut self.0);
        for time_us in times.filter(|time_us| **time_us > now_us + AHEAD_US_MAX) {
            let met_us = before
                .get(time_us)
                .map_or(now_us, |met_us| now_us.min(*met_us));
            self.0.insert(*time_us, met_us);
            *time_us = met_us;
        }
    }
}

/// `told`: silences that the store has, beyond what is read of it.
async fn round(
    store: &dyn Store,
    rules: &RuleSet,
    silent_after_us: i64,
    told: &mut BTreeSet<String>,
    ahead: &mut Ahead,
) -> Result<u64, RoundError> {
    let query = AlertsQuery {
        limit: OPEN_MAX,
        ..AlertsQuery::default()
    };
    let open = store.alerts(&Scope::Service, &query).await?;
    let mut latest = store.latest_vitals(&Scope::Service, None).await?;
    let mut reports = store.latest_paths(&Scope::Service, None).await?;
    let now_us = contracts::now_us();
    let arrivals = latest.iter_mut().map(|latest| &mut latest.ingest_time_us);
    let reported = reports.iter_mut().map(|report| &mut report.time_us);
    ahead.put_right(arrivals.chain(reported), now_us);
    let mut contested = BTreeSet::new();
    for _ in 0..ATTEMPTS_MAX {
        let mut transitions = assess(&Known {
            latest: &latest,
            reports: &reports,
            open: &open,
            told,
            rules,
            silent_after_us,
            now_us,
        });
        transitions.retain(|alert| !contested.contains(&alert.id));
        if transitions.is_empty() {
            return Ok(0);
        }
        let raised: BTreeSet<String> = transitions
            .iter()
            .filter(|alert| alert.revision == 1)
            .map(|alert| alert.id.clone())
            .collect();
        let batch = AlertsBatch {
            transitions,
            states: Vec::new(),
        };
        match store.write_alerts(batch, Vec::new()).await {
            Ok(written) => return Ok(written.new),
            // Another member was first, somebody has acknowledged, or it is open and was not read: no reason to keep the others.
            Err(WriteError::Conflict(ids)) => {
                if told.len() >= TOLD_MAX {
                    told.clear();
                }
                told.extend(ids.iter().filter(|id| raised.contains(*id)).cloned());
                contested.extend(ids);
            }
            Err(error) => return Err(error.into()),
        }
    }
    // The next round goes on from here.
    Ok(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::{
        alerts::{Alert, AlertState},
        vitals::{Metric, Sample, sample::Reading},
    };
    use store::{SqliteStore, VitalsBatch};

    use super::*;

    const HOUR_US: i64 = 3_600_000_000;

    async fn hear(store: &dyn Store, device: &str, at_us: i64) {
        let sample = Sample {
            device: device.into(),
            patient: device.into(),
            gateway: device.into(),
            sequence: at_us as u64,
            metric: Metric::HeartRate.into(),
            device_time_us: at_us,
            ingest_time_us: at_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        let batch = VitalsBatch {
            samples: vec![sample],
            ..VitalsBatch::default()
        };
        store
            .write_vitals(Arc::new(batch), Vec::new())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn open_alerts_beyond_those_read_keep_no_silence_untold() {
        let directory = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        let rules = RuleSet::default_set();
        let now_us = contracts::now_us();
        let (mut told, mut ahead) = (BTreeSet::new(), Ahead::default());
        hear(store, "first", now_us - HOUR_US).await;
        hear(store, "well", now_us).await;
        let written = round(store, &rules, 60_000_000, &mut told, &mut ahead)
            .await
            .unwrap();
        assert!(written > 0);
        // So many newer ones that the silence that was told is not read any more.
        let others = (0..OPEN_MAX).map(|number| Alert {
            id: format!("other-{number}"),
            patient: "other".into(),
            rule: "fall".into(),
            state: AlertState::Active.into(),
            since_us: now_us,
            revision: 1,
            ..Alert::default()
        });
        let batch = AlertsBatch {
            transitions: others.collect(),
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        hear(store, "second", now_us - HOUR_US / 2).await;
        let written = round(store, &rules, 60_000_000, &mut told, &mut ahead)
            .await
            .unwrap();
        assert!(written > 0, "the second one's");
        let written = round(store, &rules, 60_000_000, &mut told, &mut ahead)
            .await
            .unwrap();
        assert_eq!(written, 0, "and none again");
    }

    #[test]
    fn what_a_clock_ahead_has_heard_counts_from_when_it_is_met() {
        let mut ahead = Ahead::default();
        let mut heard_at = |now_us| {
            let mut times = [5 * HOUR_US, HOUR_US];
            ahead.put_right(times.iter_mut(), now_us);
            times
        };
        assert_eq!(heard_at(2 * HOUR_US), [2 * HOUR_US, HOUR_US]);
        assert_eq!(heard_at(3 * HOUR_US), [2 * HOUR_US, HOUR_US]);
        assert_eq!(heard_at(5 * HOUR_US), [5 * HOUR_US, HOUR_US]);
    }
}
