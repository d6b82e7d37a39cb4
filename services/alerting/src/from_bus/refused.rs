//! What the store refuses as a whole, written piece by piece: no piece holds up another.

use bus::{Delivery, Topic};
use prost::Message;
use store::AlertsBatch;

use super::{Loop, count_transitions};
use crate::to_store::Outcome;

impl Loop {
    /// After a refusal: a state that the store will never take holds up no other. False as above.
    pub(super) async fn store_each_state(&mut self) -> bool {
        for state in self.engines.states() {
            let patient = state.key.clone();
            // Holds the claim and moves nothing.
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
                        "after a restart the rules of this patient begin anew"
                    );
                }
                Outcome::Fenced(partitions) => self.fenced(partitions),
                Outcome::Ended => return false,
                Outcome::Stored | Outcome::Conflict { .. } => {}
            }
        }
        // Progress alone is never refused; it goes with what comes next.
        self.engines.stored();
        self.held = 0;
        true
    }

    /// After a refusal of what time brought: each alert by itself, and one that the store will never take goes to the dead letters.
    pub(super) async fn store_each_transition(&mut self, now_us: i64) {
        let transitions = self.engines.on_time(now_us, self.heard_us);
        self.engines.keep();
        for alert in transitions {
            let batch = AlertsBatch {
                transitions: vec![alert.clone()],
                ..AlertsBatch::default()
            };
            // Holds the claim and moves nothing.
            let partition = self.engines.partition_of(&alert.patient);
            let partition = partition.map(|it| (Topic::Vitals, it, 0));
            let claim = self.claims.progress_to(partition);
            let reason = match self.writer.write(&batch, &claim, &self.turns).await {
                Outcome::Stored => {
                    count_transitions(&batch);
                    continue;
                }
                Outcome::Ended => return,
                Outcome::Fenced(_) => continue,
                Outcome::Refused(reason) => reason,
                Outcome::Conflict { .. } => "the store has other rows of this alert".to_owned(),
            };
            let letter = Delivery {
                topic: Topic::Alerts,
                partition: 0,
                offset: 0,
                key: alert.patient.clone(),
                value: alert.encode_to_vec().into(),
                headers: Vec::new(),
                published_us: now_us,
            };
            if !self.bury(&letter, &reason).await {
                return;
            }
        }
    }
}
