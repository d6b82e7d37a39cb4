//! Rules, teams and silences in force, as this member last read them. It polls the store, so a
//! change needs no restart.

use std::{collections::HashMap, sync::Arc, time::Duration};

use contracts::alerts::{Alert, Document};
use service_kit::{Backoff, Context, Warning};
use store::{
    Damaged, Otherwise, PUT_ANEW, QueryError, RULES, Reported, SILENCE, Store, TEAM, in_force,
};
use tokio::sync::watch;
use vitals::{PUT_EXTENDS, RuleDocument, RuleSet, rules::subjects};

use crate::{silence::SilenceInForce, team::Team};

/// Rule sets that a warning names; of more it gives the number.
const LOSING_NAMED_MAX: usize = 3;
/// Interval of the poll for new documents.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct DocumentsInForce {
    /// By tenant.
    teams: HashMap<String, Team>,
    silences: Vec<SilenceInForce>,
    /// By tenant and subject. Each set carries the version of its document.
    rules: HashMap<(String, String), Arc<RuleSet>>,
    /// Rule sets that lose falls or NEWS2 and do not say so, by their subject.
    losing: Vec<String>,
}

pub(crate) type Reader = watch::Receiver<Arc<DocumentsInForce>>;

impl DocumentsInForce {
    pub(crate) fn tenants_with_team(&self) -> impl Iterator<Item = &String> {
        self.teams.keys()
    }

    pub(crate) fn teams(&self) -> impl Iterator<Item = (&String, &Team)> {
        self.teams.iter()
    }

    pub(crate) fn team(&self, tenant: &str) -> Option<&Team> {
        self.teams.get(tenant)
    }

    /// The silence of this alert that lasts longest.
    pub(crate) fn silence(
        &self,
        tenant: &str,
        alert: &Alert,
        now_us: i64,
    ) -> Option<&SilenceInForce> {
        self.silences
            .iter()
            .filter(|silence| silence.tenant == tenant && silence.until_us > now_us)
            .filter(|silence| silence.silence.covers(alert))
            .max_by_key(|silence| silence.until_us)
    }

    /// The patient's own rules, else the group's, else the tenant's. `None`: the configured rules
    /// apply.
    pub(crate) fn rules(&self, tenant: &str, patient: &str) -> Option<&Arc<RuleSet>> {
        let group = self.team(tenant).and_then(|team| team.group(patient));
        subjects(patient, group).find_map(|subject| self.rules.get(&(tenant.to_owned(), subject)))
    }

    pub(crate) fn new(
        teams: Vec<(Document, Team)>,
        silences: Vec<(Document, SilenceInForce)>,
        rules: Vec<(Document, Option<RuleSet>)>,
    ) -> DocumentsInForce {
        let in_force = rules.iter().filter(|(_, set)| set.is_some());
        let losing = in_force.filter(|(document, _)| loses(document));
        let losing = losing.map(|(it, _)| format!("{} of tenant {}", it.subject, it.tenant));
        let losing = losing.collect();
        let rules = rules.into_iter().filter_map(|(document, set)| {
            // Alerts carry the version of the document, so that it can be found. The version inside
            // the body is ignored.
            let set = RuleSet {
                version: document.version,
                ..set?
            };
            Some(((document.tenant, document.subject), Arc::new(set)))
        });
        let teams = teams.into_iter();
        DocumentsInForce {
            teams: teams.map(|(it, team)| (it.tenant, team)).collect(),
            silences: silences.into_iter().map(|(_, silence)| silence).collect(),
            rules: rules.collect(),
            losing,
        }
    }

    /// `put` refuses such sets, but those of an earlier version stay in force as they are.
    fn losing_warning(&self) -> Option<Warning> {
        let named = self.losing.iter().take(LOSING_NAMED_MAX).cloned();
        let mut named: Vec<String> = named.collect();
        if self.losing.len() > LOSING_NAMED_MAX {
            named.push(format!("and {} more", self.losing.len() - LOSING_NAMED_MAX));
        }
        (!named.is_empty()).then(|| Warning {
            says: format!(
                "falls or high NEWS2 scores raise no alert by the rules of {}",
                named.join(", ")
            ),
            to_do: PUT_EXTENDS.to_owned(),
        })
    }
}

/// Whether the rules lose falls or NEWS2 without saying so.
fn loses(document: &Document) -> bool {
    let rules = RuleDocument::from_json(&document.body);
    rules.is_ok_and(|rules| rules.is_unsaid())
}

/// `None`: the rules were withdrawn by an empty body.
pub(crate) fn rules_of(document: &Document) -> Result<Option<RuleSet>, String> {
    if document.body.is_empty() {
        return Ok(None);
    }
    let set = RuleSet::from_json(&document.body);
    set.map(Some).map_err(|error| error.to_string())
}

/// Also returns the documents that cannot be read. An unreadable silence is ignored, because an
/// extra notice is safer than a missing one.
pub(crate) async fn load(
    store: &dyn Store,
) -> Result<(DocumentsInForce, Vec<Damaged>), QueryError> {
    let now_us = contracts::now_us();
    // Before the rules, which may name metrics of it.
    let catalogue = store::take_catalogue(store).await?;
    let team = |it: &Document| Team::from_json(&it.body).map_err(|error| error.to_string());
    let teams = in_force(store, TEAM, now_us, Otherwise::Earlier, team).await?;
    let silence = |it: &Document| SilenceInForce::read(it).map_err(|error| error.to_string());
    let silences = in_force(store, SILENCE, now_us, Otherwise::Nothing, silence).await?;
    let rules = in_force(store, RULES, now_us, Otherwise::Earlier, rules_of).await?;
    let damaged = [
        catalogue.damaged,
        teams.damaged,
        silences.damaged,
        rules.damaged,
    ]
    .concat();
    let in_force = DocumentsInForce::new(teams.documents, silences.documents, rules.documents);
    Ok((in_force, damaged))
}

/// Reads the documents for the first time and spawns the task that keeps them current. `None`:
/// shutdown came first.
pub(crate) async fn open(store: Arc<dyn Store>, context: &Context) -> Option<Reader> {
    let check = context.health().check("documents");
    let shutdown = context.shutdown().clone();
    let mut backoff = Backoff::for_reconnect();
    let warning = context.health().warning("damaged-documents");
    let losing = context.health().warning("rules-without-built-in");
    let mut reported = Reported::default();
    let mut read = async move |store: &dyn Store| {
        // The version comes first, so that the next poll finds a document stored during the read.
        let newest = store.newest_document().await?;
        let (in_force, damaged) = load(store).await?;
        let says = reported.report("alerting", damaged);
        warning.set(says.map(|says| Warning {
            says,
            to_do: PUT_ANEW.to_owned(),
        }));
        losing.set(in_force.losing_warning());
        Ok::<_, QueryError>((newest, Arc::new(in_force)))
    };
    let (mut seen, in_force) = loop {
        match read(store.as_ref()).await {
            Ok(first) => break first,
            Err(error) => {
                check.failing(error.to_string());
                tokio::select! {
                    () = shutdown.requested() => return None,
                    () = backoff.wait() => {}
                }
            }
        }
    };
    check.ok();
    let (sender, reader) = watch::channel(in_force);
    context.tasks().spawn(async move {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                () = tokio::time::sleep(POLL) => {}
            }
            match store.newest_document().await {
                Ok(newest) if newest == seen => check.ok(),
                Ok(_) => match read(store.as_ref()).await {
                    Ok((newest, in_force)) => {
                        seen = newest;
                        tracing::info!(newest, "teams, rules and silences are read anew");
                        // Without readers the service is shutting down.
                        let _ = sender.send(in_force);
                        check.ok();
                    }
                    Err(error) => check.failing(error.to_string()),
                },
                Err(error) => check.failing(error.to_string()),
            }
        }
    });
    Some(reader)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{documents::DEFAULT, team::EXAMPLE};

    #[test]
    fn the_narrowest_rules_hold() {
        let document = |tenant: &str, subject: &str, version| Document {
            tenant: tenant.into(),
            subject: subject.into(),
            version,
            ..Document::default()
        };
        let set = RuleSet::default_set;
        let version = |rules: &[(Document, Option<RuleSet>)], tenant: &str, patient: &str| {
            let team = Team::from_json(EXAMPLE).unwrap();
            let teams = vec![(document("one", DEFAULT, 1), team)];
            let in_force = DocumentsInForce::new(teams, Vec::new(), rules.to_vec());
            in_force.rules(tenant, patient).map(|set| set.version)
        };
        let mut rules = vec![
            (document("one", DEFAULT, 11), Some(set())),
            (document("one", "group:copd", 12), Some(set())),
            (document("one", "patient:ada", 13), Some(set())),
        ];
        assert_eq!(version(&rules, "one", "ada"), Some(13));
        assert_eq!(version(&rules, "one", "ben"), Some(11));
        assert_eq!(version(&rules, "two", "ada"), None, "another tenant's");
        rules[2].1 = None;
        assert_eq!(version(&rules, "one", "ada"), Some(12), "taken back");
    }

    #[test]
    fn stored_rules_that_lose_falls_hold_and_are_said() {
        let says = |extends: &str| {
            let body = r#"{"name": "ada", "version": 1, EXTENDS "rules": [
                {"id": "hers", "priority": "high", "condition":
                    {"kind": "above", "metric": "heart-rate", "limit": 99, "clear": 90}}]}"#;
            let document = Document {
                tenant: "one".into(),
                subject: "patient:ada".into(),
                body: body.replace("EXTENDS", extends),
                ..Document::default()
            };
            let set = rules_of(&document).unwrap();
            let in_force = DocumentsInForce::new(Vec::new(), Vec::new(), vec![(document, set)]);
            let count = in_force.rules("one", "ada").unwrap().rules.len();
            (count, in_force.losing_warning().map(|it| it.says))
        };
        let (count, warning) = says("");
        assert_eq!(count, 1);
        assert!(warning.unwrap().contains("patient:ada of tenant one"));
        assert_eq!(says(r#""extends": "none","#), (1, None));
        let built_in = RuleSet::default_set().rules.len();
        assert_eq!(says(r#""extends": "built-in","#), (built_in + 1, None));
    }
}
