//! Open alerts that nobody has decided about: the bus that carried them was lost.

use contracts::alerts::Alert;
use service_kit::CheckHandle;
use store::{AlertsQuery, QueryError, Scope};

use super::Decider;
use crate::canary::is_canary;

/// Open alerts that are looked at, those that matter most. Beyond it the rest is counted and
/// logged.
const OPEN_MAX: usize = 10_000;

impl Decider {
    /// Decides every open alert without a notice and without a timer. The others were decided
    /// before, and nobody is told twice. False: shutdown came before the end.
    pub(super) async fn tell_untold(&self, check: &CheckHandle) -> bool {
        loop {
            match self.untold().await {
                Ok(untold) => {
                    for alert in &untold {
                        if !self.on_alert(alert, check).await {
                            return false;
                        }
                    }
                    return true;
                }
                Err(error) => check.failing(error.to_string()),
            }
            self.turns.beat();
            tokio::select! {
                () = self.shutdown.requested() => return false,
                () = tokio::time::sleep(super::TICK) => {}
            }
        }
    }

    async fn untold(&self) -> Result<Vec<Alert>, QueryError> {
        let query = AlertsQuery {
            include_resolved: false,
            limit: OPEN_MAX,
            ..AlertsQuery::default()
        };
        let open = self.store.alerts(&Scope::Service, &query).await?;
        if open.len() >= OPEN_MAX {
            tracing::error!("more than {OPEN_MAX} alerts are open; the rest is not looked at");
        }
        let mut untold = Vec::new();
        for alert in open {
            self.turns.beat();
            let is_decided = is_canary(&alert.patient)
                || self.store.timer(&alert.id).await?.is_some()
                || !self
                    .store
                    .notices(&Scope::Service, &alert.id)
                    .await?
                    .is_empty();
            if !is_decided {
                untold.push(alert);
            }
        }
        Ok(untold)
    }
}
