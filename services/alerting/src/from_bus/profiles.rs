//! Queries the register for a patient's tenant and SpO2 scale.
//!
//! A patient without a profile is judged only after the register has answered. A known profile
//! stays in use, and rounds of questions beside the judging refresh it.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use futures::{StreamExt, stream};
use service_kit::Backoff;
use store::{PatientEntry, QueryError};

use super::JudgingState;
use super::register::{Refreshed, judged_as, refresh};

/// Concurrent queries to the register. Fewer than a member's connections, so that other queries
/// find one.
const ASKED_AT_ONCE: usize = 3;
/// Known profiles refreshed per tick, the oldest first. As each is refreshed about once a minute,
/// this suffices for all patients of a member.
const REFRESHED_PER_TICK_MAX: usize = 1024;

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
