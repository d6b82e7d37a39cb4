//! Which rules were in force for a patient at some time of the past: the documents, version by version.

use std::{collections::BTreeMap, sync::Arc};

use contracts::alerts::Document;
use store::{DOCUMENTS_MAX, QueryError, Scope, Store};
use vitals::{RuleSet, rules::subjects};

use crate::{
    book,
    documents::{DEFAULT, RULES, TEAM},
    team::Team,
};

/// Of one tenant. As alerting does: a version that cannot be read leaves the version before in force, an empty one takes the rules back.
#[derive(Debug, Default)]
pub struct RulesThen {
    teams: Vec<Since<Team>>,
    /// By subject.
    rules: BTreeMap<String, Vec<Since<Arc<RuleSet>>>>,
}

/// In force from then on; `None`: nothing is.
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
    /// For these patients; other subjects are not read.
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
        for patient in patients {
            let groups = teams
                .iter()
                .filter_map(|it| it.what.as_ref()?.group(patient));
            let groups = groups.map(Some).chain([None]);
            wanted.extend(groups.flat_map(|group| subjects(patient, group)));
        }
        wanted.sort();
        wanted.dedup();
        let set = |it: &Document| {
            let set = book::rules_of(it).ok()?;
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
        Ok(RulesThen { teams, rules })
    }

    /// `None`: those that alerting was started with.
    pub fn of(&self, patient: &str, time_us: i64) -> Option<&Arc<RuleSet>> {
        let group = at(&self.teams, time_us).and_then(|team| team.group(patient));
        subjects(patient, group).find_map(|subject| at(self.rules.get(&subject)?, time_us))
    }
}

/// Oldest first.
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
        // A later version holds from its putting on, also when the clock was set back in between.
        let earlier_us = history.last().map_or(i64::MIN, |it| it.at_us);
        history.push(Since {
            at_us: document.at_us.max(earlier_us),
            what,
        });
    }
    Ok(history)
}
