//! The decisions in force, as this member last read them. Looked after every second, so that a change needs no restart.

use std::{collections::HashMap, sync::Arc, time::Duration};

use contracts::alerts::{Alert, Document};
use service_kit::{Backoff, Context};
use store::{QueryError, Scope, Store};
use tokio::sync::watch;
use vitals::{RuleSet, rules::subjects};

use crate::{
    documents::{RULES, SILENCE, TEAM},
    silence::InForce,
    team::Team,
};

/// How often the store is asked whether there is something new.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Book {
    /// By tenant.
    teams: HashMap<String, Team>,
    silences: Vec<InForce>,
    /// By tenant and subject; each says the version of its document.
    rules: HashMap<(String, String), Arc<RuleSet>>,
}

pub(crate) type Reader = watch::Receiver<Arc<Book>>;

impl Book {
    pub(crate) fn team(&self, tenant: &str) -> Option<&Team> {
        self.teams.get(tenant)
    }

    /// The silence over this alert that lasts longest.
    pub(crate) fn silence(&self, tenant: &str, alert: &Alert, now_us: i64) -> Option<&InForce> {
        self.silences
            .iter()
            .filter(|silence| silence.tenant == tenant && silence.until_us > now_us)
            .filter(|silence| silence.silence.covers(alert))
            .max_by_key(|silence| silence.until_us)
    }

    /// The patient's own rules, else the group's, else the tenant's; `None`: those of the configuration.
    pub(crate) fn rules(&self, tenant: &str, patient: &str) -> Option<&Arc<RuleSet>> {
        let group = self.team(tenant).and_then(|team| team.group(patient));
        subjects(patient, group).find_map(|subject| self.rules.get(&(tenant.to_owned(), subject)))
    }

    pub(crate) fn read(teams: &[Document], silences: &[Document], rules: &[Document]) -> Book {
        let mut book = Book::default();
        // An empty body takes the rules back.
        for document in rules.iter().filter(|document| !document.body.is_empty()) {
            match RuleSet::from_json(&document.body) {
                Ok(set) => {
                    // Alerts carry the version by which the document is found again, whatever its author wrote inside.
                    let set = RuleSet {
                        version: document.version,
                        ..set
                    };
                    let key = (document.tenant.clone(), document.subject.clone());
                    book.rules.insert(key, Arc::new(set));
                }
                Err(error) => unreadable(document, &error),
            }
        }
        for document in teams {
            match Team::from_json(&document.body) {
                Ok(team) => {
                    book.teams.insert(document.tenant.clone(), team);
                }
                Err(error) => unreadable(document, &error),
            }
        }
        for document in silences {
            match InForce::read(document) {
                Ok(silence) => book.silences.push(silence),
                Err(error) => unreadable(document, &error),
            }
        }
        book
    }
}

/// Checked before it was stored, so an older program meets a newer one's document.
fn unreadable(document: &Document, error: &dyn std::fmt::Display) {
    tracing::error!(
        kind = document.kind,
        tenant = document.tenant,
        subject = document.subject,
        version = document.version,
        %error,
        "a document cannot be read and does not hold"
    );
}

async fn load(store: &dyn Store) -> Result<Book, QueryError> {
    let now_us = contracts::now_us();
    let teams = store.documents(&Scope::Service, TEAM, now_us).await?;
    let silences = store.documents(&Scope::Service, SILENCE, now_us).await?;
    let rules = store.documents(&Scope::Service, RULES, now_us).await?;
    Ok(Book::read(&teams, &silences, &rules))
}

/// The book, once it is read for the first time, and the task that keeps it up to date. `None`: shutdown came first.
pub(crate) async fn open(store: Arc<dyn Store>, context: &Context) -> Option<Reader> {
    let check = context.health().check("documents");
    let shutdown = context.shutdown().clone();
    let mut backoff = Backoff::for_reconnect();
    let read = async |store: &dyn Store| {
        // The number first: what is put while the rest is read is found the next time.
        let newest = store.newest_document().await?;
        Ok::<_, QueryError>((newest, Arc::new(load(store).await?)))
    };
    let (mut seen, book) = loop {
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
    let (sender, reader) = watch::channel(book);
    context.tasks().spawn(async move {
        loop {
            tokio::select! {
                () = shutdown.requested() => return,
                () = tokio::time::sleep(POLL) => {}
            }
            match store.newest_document().await {
                Ok(newest) if newest == seen => check.ok(),
                Ok(_) => match read(store.as_ref()).await {
                    Ok((newest, book)) => {
                        seen = newest;
                        tracing::info!(newest, "teams, rules and silences are read anew");
                        // Without readers the service is ending.
                        let _ = sender.send(book);
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
        let document = |kind: &str, tenant: &str, subject: &str, version, body: &str| Document {
            kind: kind.into(),
            tenant: tenant.into(),
            subject: subject.into(),
            version,
            body: body.into(),
            ..Document::default()
        };
        let set = serde_json::to_string(&RuleSet::default_set()).unwrap();
        let teams = [document(TEAM, "one", DEFAULT, 1, EXAMPLE)];
        let version = |rules: &[Document], tenant: &str, patient: &str| {
            let book = Book::read(&teams, &[], rules);
            book.rules(tenant, patient).map(|set| set.version)
        };
        let mut rules = vec![
            document(RULES, "one", DEFAULT, 11, &set),
            document(RULES, "one", "group:copd", 12, &set),
            document(RULES, "one", "patient:ada", 13, &set),
        ];
        assert_eq!(version(&rules, "one", "ada"), Some(13));
        assert_eq!(version(&rules, "one", "ben"), Some(11));
        assert_eq!(version(&rules, "two", "ada"), None, "another tenant's");
        rules[2].body.clear();
        assert_eq!(version(&rules, "one", "ada"), Some(12), "taken back");
        rules[1].body = "{".into();
        assert_eq!(version(&rules, "one", "ada"), Some(11), "unreadable");
    }
}
