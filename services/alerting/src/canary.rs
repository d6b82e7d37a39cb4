//! The canaries in alerting. Their rule is fixed, and their old alerts are removed. Their notices
//! go the way of all notices, to a channel without a receiver. So an outcome `delivered` in the
//! store proves that notices are decided and delivered; the dashboard looks for it.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use contracts::alerts::{Alert, Notice, NoticeReason};
use service_kit::Shutdown;
use store::{Expire, NoticesBatch, Store};
use vitals::RuleSet;

pub(crate) use contracts::canary::is_canary;

/// Canary alerts older than this are removed. At one a minute about ten of each canary remain.
const KEPT_US: i64 = 600_000_000;
const REMOVED_EVERY: Duration = Duration::from_secs(300);

static RULES: LazyLock<Arc<RuleSet>> = LazyLock::new(|| Arc::new(vitals::canary::rules()));

/// The channel of the canaries' notices.
pub(crate) const CHANNEL: &str = "canary";

/// The notice of a canary's alert, which belongs to no tenant and needs no person.
pub(crate) fn decision(alert: &Alert, now_us: i64) -> NoticesBatch {
    NoticesBatch {
        notices: vec![Notice {
            id: format!("{}/{}/{CHANNEL}", alert.id, alert.revision),
            alert: Some(alert.clone()),
            channel: CHANNEL.to_owned(),
            reason: NoticeReason::News.into(),
            created_us: now_us,
            due_us: now_us,
            ..Notice::default()
        }],
        ..NoticesBatch::default()
    }
}

/// The rules of this patient if it is a canary.
pub(crate) fn rules(patient: &str) -> Option<Arc<RuleSet>> {
    is_canary(patient).then(|| Arc::clone(&RULES))
}

/// Removes the old rows of the canaries.
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
