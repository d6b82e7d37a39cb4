//! Queries the register for a patient's tenant and SpO2 scale.
//!
//! A patient without a profile is judged only after the register has answered. Its records wait
//! for that, and other patients are judged meanwhile. A known profile stays in use, and rounds of
//! questions beside the judging refresh it.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use service_kit::Warning;
use tokio::time::{Instant, timeout_at};

use super::deferred::{Later, Readable};
use super::register::{Refreshed, judged_as, refresh};
use super::{ANSWERS_MAX, JudgingState, Records};
use crate::rule_engines::Evaluation;
use crate::to_store::Outcome;

/// Wait for the profiles of patients that are new here. It suffices for a register that answers.
/// Then their records wait, and the others are judged.
const NEW_WITHIN: Duration = Duration::from_millis(250);
/// Known profiles refreshed per tick, the oldest first. As each is refreshed about once a minute,
/// this suffices for all patients of a member.
const REFRESHED_PER_TICK_MAX: usize = 1024;

impl JudgingState {
    /// Asks for the profiles of these patients, which have none, and waits a moment for those that
    /// were not asked for before.
    pub(super) async fn ask_for_profiles(&mut self, wanted: BTreeMap<String, u32>) {
        let new = self.ask_beside(wanted);
        let deadline = Instant::now() + NEW_WITHIN;
        self.apply_answers();
        while new.iter().any(|key| self.asked_for.contains_key(key))
            && timeout_at(deadline, self.questions.answered())
                .await
                .is_ok()
        {
            self.apply_answers();
        }
    }

    /// Asks for the profiles of these patients. Returns those that were not asked for before.
    pub(super) fn ask_beside(&mut self, wanted: BTreeMap<String, u32>) -> Vec<String> {
        let mut new = Vec::new();
        for (key, partition) in wanted {
            if self.questions.ask(&key) {
                new.push(key.clone());
            }
            self.asked_for.insert(key, partition);
        }
        new
    }

    /// Applies the register's answers about patients without a profile.
    pub(super) fn apply_answers(&mut self) {
        let now_us = self.now_us();
        for (key, entry) in self.questions.answers() {
            // The partition may have moved to another member meanwhile.
            if let Some(partition) = self.asked_for.remove(&key) {
                let judged = judged_as(entry);
                let (tenant, profile) = (&judged.tenant, judged.profile);
                self.engines
                    .set_profile(&key, partition, tenant, profile, now_us);
                self.engines.set_departed(&key, judged.has_departed);
            }
        }
    }

    /// Divides the records: those of patients without a profile wait.
    pub(super) fn divide<'a>(&self, records: &'a Records) -> (Cow<'a, [Readable]>, Later) {
        let (readable, offsets) = (&records.readable, &records.offsets);
        if self.engines.without_profile(readable).is_empty() {
            return (Cow::Borrowed(readable), Later::default());
        }
        let has_profile = |patient: &str| self.engines.has_profile(patient);
        let (now, later) = Later::divide(readable, offsets, has_profile);
        (Cow::Owned(now), later)
    }

    /// Judges the deferred records of patients that have a profile by now. At the bound it waits
    /// for the register. False: the service ends.
    pub(super) async fn judge_deferred_within_bound(&mut self) -> bool {
        while self.judge_deferred().await {
            if !self.deferred.is_full() {
                return true;
            }
            self.turns.beat();
            self.show_deferred();
            tokio::select! {
                () = self.context.shutdown().requested() => return false,
                () = self.questions.answered() => {}
                () = tokio::time::sleep(NEW_WITHIN) => {}
            }
            self.apply_answers();
        }
        false
    }

    /// Judges the deferred records of patients that have a profile by now. False: the service ends.
    pub(super) async fn judge_deferred(&mut self) -> bool {
        for _ in 0..ANSWERS_MAX {
            let Some(evaluation) = self.evaluate_deferred() else {
                return true;
            };
            let outcome = match evaluation.transitions.is_empty() {
                true => Outcome::Stored,
                false => self.write(evaluation.transitions, &[]).await,
            };
            match outcome {
                Outcome::Stored => {
                    self.end_deferral(evaluation.samples, evaluation.skipped);
                    return true;
                }
                // The engines have adopted the stored rows.
                Outcome::Conflict { .. } => {}
                Outcome::Fenced(partitions) => self.fenced(partitions),
                Outcome::Refused(reason) => {
                    tracing::error!(reason, "the store refuses transitions of deferred records");
                    break;
                }
                Outcome::Ended => return false,
            }
        }
        let Some(evaluation) = self.evaluate_deferred() else {
            return true;
        };
        let now_us = self.now_us();
        let stored = self.store_each_transition(evaluation.transitions, now_us);
        let is_stored = stored.await;
        if is_stored {
            self.end_deferral(evaluation.samples, evaluation.skipped);
        }
        is_stored
    }

    /// An attempt. `None`: no deferred record can be judged.
    fn evaluate_deferred(&mut self) -> Option<Evaluation> {
        let has_profile = |patient: &str| self.engines.has_profile(patient);
        let records = self.deferred.judgeable(has_profile);
        let now_us = self.now_us();
        (!records.is_empty()).then(|| self.engines.evaluate(&records, now_us))
    }

    /// They are judged, and progress may pass them.
    fn end_deferral(&mut self, samples: u64, skipped: u64) {
        self.engines.keep();
        let has_profile = |patient: &str| self.engines.has_profile(patient);
        self.unstored_records += self.deferred.remove(has_profile);
        metrics::counter!("braid_alerting_samples_total").increment(samples);
        metrics::counter!("braid_alerting_skipped_samples_total").increment(skipped);
    }

    /// Shows the records that wait for the register.
    pub(super) fn show_deferred(&self) {
        let (patients, records) = self.deferred.len();
        metrics::gauge!("braid_alerting_records_without_profile").set(records as f64);
        self.waiting.set((records > 0).then(|| Warning {
            says: format!(
                "{records} records of {patients} patients are not judged: the register does not say which rules hold"
            ),
            to_do: "look at the store: queries for patients do not return".to_owned(),
        }));
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
            let profile = answer.as_ref().map(|it| (it.tenant.as_str(), it.profile));
            self.engines.renew_profile(key, profile, refreshed.asked_us);
            if let Some(judged) = answer {
                self.engines.set_departed(key, judged.has_departed);
            }
        }
    }
}

#[cfg(test)]
#[path = "profiles_tests.rs"]
mod tests;
