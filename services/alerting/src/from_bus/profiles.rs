//! Asks the register which rules hold for a patient before anything is judged of them.

use std::{collections::BTreeMap, future::Future};

use futures::{StreamExt, stream};
use service_kit::Backoff;
use store::{PatientEntry, QueryError, Scope, Spo2Scale};
use vitals::Profile;

use super::Loop;

/// Patients of whom the register is asked at the same time: fewer than a member has connections for, so that other questions find one.
const ASKED_AT_ONCE: usize = 3;
impl Loop {
    /// Which rules hold for these patients. False when the service ends before it is known of somebody whom nobody here knows.
    pub(super) async fn fetch_profiles(
        &mut self,
        wanted: BTreeMap<String, u32>,
        now_us: i64,
    ) -> bool {
        let this = &*self;
        let ask = |key: String| async move {
            let entry = this.patient(&key).await;
            (key, entry)
        };
        let mut is_known = true;
        for ((key, entry), partition) in ask_side_by_side(wanted, ask).await {
            let Some(entry) = entry else {
                is_known &= !self.engines.is_stranger(&key);
                continue;
            };
            let (tenant, spo2_scale) = entry.map_or((String::new(), Spo2Scale::One), |entry| {
                (entry.tenant, entry.spo2_scale)
            });
            let profile = Profile { spo2_scale };
            self.engines
                .set_profile(&key, partition, &tenant, profile, now_us);
        }
        is_known
    }

    /// The register's entry. `None`: no answer, and what was known of the patient stays; of a stranger nothing is judged before
    /// there is an answer, because other rules would end what is open.
    async fn patient(&self, key: &str) -> Option<Option<PatientEntry>> {
        let mut backoff = Backoff::for_reconnect();
        loop {
            self.turns.beat();
            match self.store.patient(&Scope::Service, key).await {
                Ok(entry) => return Some(entry),
                // It stays so, and the rules of everybody are better than none.
                Err(error @ QueryError::Unreadable(_)) if self.engines.is_stranger(key) => {
                    tracing::error!(patient = key, %error, "judged as a patient whom nobody registered");
                    return Some(None);
                }
                Err(error) => {
                    tracing::warn!(patient = key, %error, "the patient's scale and rules are unknown");
                }
            }
            if !self.engines.is_stranger(key) {
                return None;
            }
            tokio::select! {
                () = self.context.shutdown().requested() => return None,
                () = backoff.wait() => {}
            }
        }
    }
}

/// Alerts wait for all answers, so nobody's question waits for another's.
async fn ask_side_by_side<F: Future>(
    wanted: BTreeMap<String, u32>,
    ask: impl Fn(String) -> F,
) -> Vec<(F::Output, u32)> {
    let asking = stream::iter(wanted).map(|(key, partition)| {
        let answer = ask(key);
        async move { (answer.await, partition) }
    });
    asking.buffer_unordered(ASKED_AT_ONCE).collect().await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tokio::sync::Barrier;

    use super::*;

    #[tokio::test]
    async fn nobodys_question_waits_for_anothers() {
        let keys = (0..2 * ASKED_AT_ONCE).map(|number| (number.to_string(), 3));
        // Answers when so many are asked.
        let together = Barrier::new(ASKED_AT_ONCE);
        let ask = |key: String| async {
            together.wait().await;
            key
        };
        let asking = ask_side_by_side(keys.clone().collect(), ask);
        let asked = tokio::time::timeout(Duration::from_secs(30), asking);
        let mut answers = asked.await.unwrap();
        answers.sort_unstable();
        let mut expected: Vec<(String, u32)> = keys.collect();
        expected.sort_unstable();
        assert_eq!(answers, expected);
    }
}
