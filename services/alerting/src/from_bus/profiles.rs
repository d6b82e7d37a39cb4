//! Queries the register for a patient's tenant and SpO2 scale.
//!
//! A patient without a profile is judged only after the register has answered. A known profile
//! stays in use, and rounds of questions beside the judging refresh it.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use service_kit::Backoff;
use store::{PatientEntry, QueryError, Scope, Spo2Scale, Store};
use tokio::time::timeout;
use vitals::Profile;

use super::JudgingState;

/// Concurrent queries to the register. Fewer than a member's connections, so that other queries
/// find one.
const ASKED_AT_ONCE: usize = 3;
/// Known profiles refreshed per tick, the oldest first. As each is refreshed about once a minute,
/// this suffices for all patients of a member.
const REFRESHED_PER_TICK_MAX: usize = 1024;
/// Limit of one question about a known profile. Then the round ends, and the patient is asked for
/// again with the next expiry.
const REFRESH_LIMIT: Duration = Duration::from_secs(2);

/// The register, as judging asks it.
#[async_trait]
pub(super) trait Entries: Send + Sync {
    async fn entry(&self, key: &str) -> Result<Option<PatientEntry>, QueryError>;
}

#[async_trait]
impl Entries for Arc<dyn Store> {
    async fn entry(&self, key: &str) -> Result<Option<PatientEntry>, QueryError> {
        self.patient(&Scope::Service, key).await
    }
}

/// Result of one round of questions about known patients.
pub(super) struct Refreshed {
    asked_us: i64,
    /// By patient: tenant and profile. `None`: no answer.
    answers: Vec<(String, Option<(String, Profile)>)>,
}

impl JudgingState {
    /// Fetches the profiles of these patients, which have none. False: shutdown came before each
    /// got one.
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
                is_known = false;
                continue;
            };
            let (tenant, profile) = judged_as(entry);
            self.engines
                .set_profile(&key, partition, &tenant, profile, now_us);
        }
        is_known
    }

    /// The register's entry. `None`: shutdown. The patient is not judged before the register
    /// answers, because other rules would end open alerts.
    async fn patient(&self, key: &str) -> Option<Option<PatientEntry>> {
        let mut backoff = Backoff::for_reconnect();
        loop {
            self.turns.beat();
            match self.register.entry(key).await {
                Ok(entry) => return Some(entry),
                // A damaged entry stays damaged. The default rules are better than no judgement.
                Err(error @ QueryError::Unreadable(_)) => {
                    tracing::error!(patient = key, %error, "the register entry is unreadable; judged as an unregistered patient");
                    return Some(None);
                }
                Err(error) => {
                    tracing::warn!(patient = key, %error, "the patient's scale and rules are unknown");
                }
            }
            tokio::select! {
                () = self.context.shutdown().requested() => return None,
                () = backoff.wait() => {}
            }
        }
    }

    /// Applies the round of questions that has ended, and begins the next one. Waits for neither.
    pub(super) fn refresh_profiles(&mut self, now_us: i64) {
        while let Some(ended) = self.refreshing.try_join_next() {
            match ended {
                Ok(refreshed) => self.apply(&refreshed),
                Err(error) => tracing::error!(%error, "a refresh of profiles failed"),
            }
        }
        if !self.refreshing.is_empty() {
            return;
        }
        let keys = self
            .engines
            .with_old_profile(now_us, REFRESHED_PER_TICK_MAX);
        if !keys.is_empty() {
            let register = Arc::clone(&self.register);
            self.refreshing.spawn(refresh(register, keys, now_us));
        }
    }

    fn apply(&mut self, refreshed: &Refreshed) {
        for (key, answer) in &refreshed.answers {
            let answer = answer.as_ref().map(|it| (it.0.as_str(), it.1));
            self.engines.renew_profile(key, answer, refreshed.asked_us);
        }
    }
}

/// Asks one question at a time, because no alert waits for the answers. Ends early if the register
/// does not answer; patients not asked for come first in the next round.
async fn refresh(register: Arc<dyn Entries>, keys: Vec<String>, asked_us: i64) -> Refreshed {
    let mut answers = Vec::new();
    for key in keys {
        match timeout(REFRESH_LIMIT, register.entry(&key)).await {
            Ok(Ok(entry)) => answers.push((key, Some(judged_as(entry)))),
            Ok(Err(error @ QueryError::Unreadable(_))) => {
                tracing::error!(patient = key, %error, "the register entry is unreadable; the known profile stays");
                answers.push((key, None));
            }
            Ok(Err(error)) => {
                tracing::warn!(patient = key, %error, "known profiles are refreshed later");
                break;
            }
            // Perhaps only this patient's query hangs. It must not be the first of each round.
            Err(_) => {
                tracing::warn!(
                    patient = key,
                    "the register does not answer; known profiles are refreshed later"
                );
                answers.push((key, None));
                break;
            }
        }
    }
    Refreshed { asked_us, answers }
}

/// Tenant and profile. An unregistered patient has no tenant and the first scale.
fn judged_as(entry: Option<PatientEntry>) -> (String, Profile) {
    let (tenant, spo2_scale) = entry.map_or((String::new(), Spo2Scale::One), |entry| {
        (entry.tenant, entry.spo2_scale)
    });
    (tenant, Profile { spo2_scale })
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
#[path = "profiles_tests.rs"]
mod tests;
