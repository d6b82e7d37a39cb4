//! The rules and the SpO2 scale that were in force for a patient at a time in the past. Both come
//! from documents, version by version.

use std::{collections::BTreeMap, sync::Arc};

use contracts::alerts::Document;
use store::{DOCUMENTS_MAX, QueryError, SPO2_SCALE, ScaleBody, Scope, Spo2Scale, Store};
use vitals::{RuleSet, rules::subjects};

use crate::{
    documents::{DEFAULT, RULES, TEAM},
    rules_in_force,
    team::Team,
};

/// History of one tenant. As in alerting, an unreadable version leaves the previous one in force,
/// and an empty one withdraws the rules.
#[derive(Debug, Default)]
pub struct RulesThen {
    teams: Vec<Since<Team>>,
    /// By subject.
    rules: BTreeMap<String, Vec<Since<Arc<RuleSet>>>>,
    /// By patient: the scale before the first recorded change, and the changes.
    scales: BTreeMap<String, (Spo2Scale, Vec<Since<Spo2Scale>>)>,
}

/// In force from this time on. `None`: nothing is.
#[derive(Debug)]
struct Since<T> {
    at_us: i64,
    what: Option<T>,
}

fn at<T>(history: &[Since<T>], time_us: i64) -> Option<&T> {
    let begun = history.partition_point(|it| it.at_us <= time_us);
    history[..begun].last()?.what.as_ref()
}

impl RulesThen {
    /// Reads the history of these patients and their groups.
    pub async fn read(
        store: &dyn Store,
        scope: &Scope,
        patients: impl IntoIterator<Item = &str>,
    ) -> Result<RulesThen, QueryError> {
        let team = |it: &Document| match it.body.is_empty() {
            true => Some(None),
            false => Team::from_json(&it.body).ok().map(Some),
        };
        let teams = history(store, scope, TEAM, DEFAULT, team).await?;
        let mut wanted = Vec::new();
        let mut scales = BTreeMap::new();
        for patient in patients {
            let body = |it: &Document| {
                let body: ScaleBody = serde_json::from_str(&it.body).ok()?;
                Some(Some(body))
            };
            let changes = history(store, scope, SPO2_SCALE, patient, body).await?;
            let first = changes.first().and_then(|it| it.what);
            if let Some(first) = first {
                let changes = changes.into_iter().map(|it| Since {
                    at_us: it.at_us,
                    what: it.what.map(|it| Spo2Scale::of_number(it.scale)),
                });
                let before = Spo2Scale::of_number(first.before);
                scales.insert(patient.to_owned(), (before, changes.collect()));
            }
            let groups = teams
                .iter()
                .filter_map(|it| it.what.as_ref()?.group(patient));
            let groups = groups.map(Some).chain([None]);
            wanted.extend(groups.flat_map(|group| subjects(patient, group)));
        }
        wanted.sort();
        wanted.dedup();
        let set = |it: &Document| {
            let set = rules_in_force::rules_of(it).ok()?;
            let set = set.map(|set| RuleSet {
                version: it.version,
                ..set
            });
            Some(set.map(Arc::new))
        };
        let mut rules = BTreeMap::new();
        for subject in wanted {
            let versions = history(store, scope, RULES, &subject, set).await?;
            if !versions.is_empty() {
                rules.insert(subject, versions);
            }
        }
        Ok(RulesThen {
            teams,
            rules,
            scales,
        })
    }

    /// The patient's scale at this time. `None`: no change was ever recorded.
    pub fn scale(&self, patient: &str, time_us: i64) -> Option<Spo2Scale> {
        let (before, changes) = self.scales.get(patient)?;
        Some(at(changes, time_us).copied().unwrap_or(*before))
    }

    /// The patient's rules at this time. `None`: those that alerting was started with.
    pub fn of(&self, patient: &str, time_us: i64) -> Option<&Arc<RuleSet>> {
        let group = at(&self.teams, time_us).and_then(|team| team.group(patient));
        subjects(patient, group).find_map(|subject| at(self.rules.get(&subject)?, time_us))
    }
}

/// Versions of a document, oldest first.
async fn history<T>(
    store: &dyn Store,
    scope: &Scope,
    kind: &str,
    subject: &str,
    read: impl Fn(&Document) -> Option<Option<T>>,
) -> Result<Vec<Since<T>>, QueryError> {
    let versions = store.stored_history(scope, kind, subject, DOCUMENTS_MAX);
    let versions = versions.await?.into_iter().rev();
    let readable = versions.filter_map(|stored| stored.document.ok());
    let mut history: Vec<Since<T>> = Vec::new();
    for document in readable {
        let Some(what) = read(&document) else {
            continue;
        };
        // A later version applies from when it was stored, even if the clock was set back in
        // between.
        let earlier_us = history.last().map_or(i64::MIN, |it| it.at_us);
        history.push(Since {
            at_us: document.at_us.max(earlier_us),
            what,
        });
    }
    Ok(history)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::{Change, DEFAULT_TENANT, SqliteStore, record_scale};

    use super::*;

    #[tokio::test]
    async fn the_spo2_scale_of_a_time_is_the_one_that_was_recorded_last_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path()).unwrap();
        use Spo2Scale::{One, Two};
        for (at_us, change) in [(100, (One, Two)), (200, (Two, One))] {
            let by = Change {
                author: "Eve".into(),
                reason: "blood gas".into(),
                at_us,
            };
            let recorded = record_scale(&store, DEFAULT_TENANT, "ada", change, &by);
            recorded.await.unwrap();
        }
        let scope = Scope::tenant(DEFAULT_TENANT);
        let then = RulesThen::read(&store, &scope, ["ada", "ben"])
            .await
            .unwrap();
        let scales = [99, 100, 199, 200, i64::MAX].map(|at_us| then.scale("ada", at_us));
        assert_eq!(scales, [One, Two, Two, One, One].map(Some));
        assert_eq!(then.scale("ben", 100), None);
    }
}
