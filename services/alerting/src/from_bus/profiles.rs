//! Queries the register for a patient's tenant and SpO2 scale before the patient is judged.

use std::{collections::BTreeMap, future::Future};

use futures::{StreamExt, stream};
use service_kit::Backoff;
use store::{PatientEntry, QueryError, Scope, Spo2Scale};
use vitals::Profile;

use super::JudgingState;

/// Concurrent queries to the register. Fewer than a member's connections, so that other queries
/// find one.
const ASKED_AT_ONCE: usize = 3;
impl JudgingState {
    /// Fetches the profiles of these patients. False: shutdown came before a patient without any
    /// profile got one.
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
                is_known &= !self.engines.has_no_profile(&key);
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

    /// The register's entry. `None`: no answer, and a known profile stays. A patient without a
    /// profile is not judged before the register answers, because other rules would end open
    /// alerts.
    async fn patient(&self, key: &str) -> Option<Option<PatientEntry>> {
        let mut backoff = Backoff::for_reconnect();
        loop {
            self.turns.beat();
            match self.store.patient(&Scope::Service, key).await {
                Ok(entry) => return Some(entry),
                // A damaged entry stays damaged. The default rules are better than no judgement.
                Err(error @ QueryError::Unreadable(_)) if self.engines.has_no_profile(key) => {
                    tracing::error!(patient = key, %error, "the register entry is unreadable; judged as an unregistered patient");
                    return Some(None);
                }
                Err(error) => {
                    tracing::warn!(patient = key, %error, "the patient's scale and rules are unknown");
                }
            }
            if !self.engines.has_no_profile(key) {
                return None;
            }
            tokio::select! {
                () = self.context.shutdown().requested() => return None,
                () = backoff.wait() => {}
            }
        }
    }
}

/// Queries run concurrently, because alerts wait for all answers.
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
        // Answers once this many queries are waiting.
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
