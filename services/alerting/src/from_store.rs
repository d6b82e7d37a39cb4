//! Looks at what the store has heard of everybody, and writes what silence and lost paths come to.

use std::{sync::Arc, time::Duration};

use service_kit::Context;
use store::{AlertsBatch, AlertsQuery, QueryError, Scope, Store, WriteError};
use tokio::{sync::Notify, time::MissedTickBehavior};
use vitals::RuleSet;

use crate::silence_watch::{Known, assess};

/// How often it is looked.
const ROUND: Duration = Duration::from_secs(5);
/// Open alerts read in one round; beyond, silences of the oldest are judged when others have ended.
const OPEN_MAX: usize = 10_000;

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
    let shutdown = context.shutdown().clone();
    let mut tick =
        tokio::time::interval(ROUND.min(Duration::from_micros(silent_after_us.unsigned_abs())));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            _ = tick.tick() => {}
        }
        match round(store.as_ref(), &rules, silent_after_us).await {
            Ok(written) => {
                check.ok();
                if written > 0 {
                    metrics::counter!("braid_alerting_silence_transitions_total")
                        .increment(written);
                    outbox.notify_one();
                }
            }
            // Another member was first, or somebody has acknowledged: the next round sees it.
            Err(RoundError::Write(WriteError::Conflict(_))) => {}
            Err(error) => check.failing(error.to_string()),
        }
    }
}

async fn round(
    store: &dyn Store,
    rules: &RuleSet,
    silent_after_us: i64,
) -> Result<u64, RoundError> {
    let query = AlertsQuery {
        limit: OPEN_MAX,
        ..AlertsQuery::default()
    };
    let open = store.alerts(&Scope::Service, &query).await?;
    let latest = store.latest_vitals(&Scope::Service, None).await?;
    let reports = store.latest_paths(&Scope::Service, None).await?;
    let transitions = assess(&Known {
        latest: &latest,
        reports: &reports,
        open: &open,
        rules,
        silent_after_us,
        now_us: contracts::now_us(),
    });
    if transitions.is_empty() {
        return Ok(0);
    }
    let batch = AlertsBatch {
        transitions,
        states: Vec::new(),
    };
    Ok(store.write_alerts(batch, Vec::new()).await?.new)
}
