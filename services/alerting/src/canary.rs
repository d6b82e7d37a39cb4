//! The canary in alerting. Its rule is fixed, its alerts notify no person, and its old alerts are
//! removed.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use service_kit::Shutdown;
use store::{Expire, Store};
use vitals::RuleSet;

pub(crate) use contracts::canary::{NAME, is_canary};

/// Canary alerts older than this are removed. At one a minute about ten remain.
const KEPT_US: i64 = 600_000_000;
const REMOVED_EVERY: Duration = Duration::from_secs(300);

static RULES: LazyLock<Arc<RuleSet>> = LazyLock::new(|| Arc::new(vitals::canary::rules()));

/// The rules of this patient if it is the canary.
pub(crate) fn rules(patient: &str) -> Option<Arc<RuleSet>> {
    is_canary(patient).then(|| Arc::clone(&RULES))
}

/// Removes the old rows of the canary.
pub(crate) async fn remove_old(store: Arc<dyn Store>, shutdown: Shutdown) {
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(REMOVED_EVERY) => {}
        }
        let before_us = contracts::now_us().saturating_sub(KEPT_US);
        if let Err(error) = store.expire(Expire::CanaryAlerts, before_us).await {
            tracing::debug!(%error, "the canary's old alerts are removed later");
        }
    }
}
