//! Writes a refused batch piece by piece, so that one bad piece does not block the others.

use bus::Topic;
use contracts::alerts::Alert;
use store::AlertsBatch;

use super::{GROUP, JudgingState, count_transitions};
use crate::{dead_letters::bury_alert, to_store::Outcome};

impl JudgingState {
    /// Called after the store refused a batch: writes each state alone, so that one bad state
    /// blocks no other. False: the service ends.
    pub(super) async fn store_each_state(&mut self) -> bool {
        for state in self.engines.states() {
            let patient = state.key.clone();
            // Proves the claim and moves no offset.
            let claim = self
                .claims
                .progress_to([(Topic::Vitals, state.partition, 0)]);
            let batch = AlertsBatch {
                states: vec![state],
                ..AlertsBatch::default()
            };
            match self.writer.write(&batch, &claim, &self.turns).await {
                Outcome::Refused(reason) => {
                    tracing::error!(
                        patient,
                        reason,
                        "the store refuses this state; after a restart the rules of this patient start afresh"
                    );
                }
                Outcome::Fenced(partitions) => self.fenced(partitions),
                Outcome::Ended => return false,
                Outcome::Stored | Outcome::Conflict { .. } => {}
            }
        }
        // Progress alone is never refused. It is written with the next batch.
        self.engines.stored();
        self.unstored_records = 0;
        true
    }

    /// Called after the store refused transitions without a batch of the bus: writes each alert
    /// alone. An alert that the store will never take becomes a dead letter. False: the service
    /// ends.
    pub(super) async fn store_each_transition(
        &mut self,
        transitions: Vec<Alert>,
        now_us: i64,
    ) -> bool {
        self.engines.keep();
        for alert in transitions {
            let batch = AlertsBatch {
                transitions: vec![alert.clone()],
                ..AlertsBatch::default()
            };
            // Proves the claim and moves no offset.
            let partition = self.engines.partition_of(&alert.patient);
            let partition = partition.map(|it| (Topic::Vitals, it, 0));
            let claim = self.claims.progress_to(partition);
            let reason = match self.writer.write(&batch, &claim, &self.turns).await {
                Outcome::Stored => {
                    count_transitions(&batch);
                    continue;
                }
                Outcome::Ended => return false,
                Outcome::Fenced(_) => continue,
                Outcome::Refused(reason) => reason,
                Outcome::Conflict { .. } => "the store has different rows of this alert".to_owned(),
            };
            let ending = self.context.shutdown().requested();
            if !bury_alert(&*self.bus, &alert, GROUP, &reason, now_us, ending).await {
                return false;
            }
        }
        true
    }
}
