//! Documents with people's decisions about alerting: the kinds and their validation. The API and
//! the command line validate before they store.

use std::collections::BTreeSet;

use contracts::alerts::Document;
use store::{AlertsQuery, Damaged, QueryError, Scope, Store, StoredDocument};
use vitals::{
    Invalid, RuleDocument, RuleSet, TeamGroups, silence, validate_identifier, validate_text,
};

use crate::{
    rules_in_force,
    silence::{SILENCE_US_MAX, Silence},
    team::Team,
};

pub use store::{RULES, SILENCE, TEAM};
pub use vitals::rules::DEFAULT_SUBJECT as DEFAULT;

/// Bytes of a document's body; a longer one is refused.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes of an author's name and of a reason.
const AUTHOR_BYTES_MAX: usize = 200;
const REASON_BYTES_MAX: usize = 4000;
/// Similar names in a refusal.
const NEAREST_MAX: usize = 3;
/// Newest alerts of a tenant that are searched for rules that no document has.
const SEEN_ALERTS_MAX: usize = 1_000;

/// Checks everything but the version, which only the store can check.
pub fn check(document: &Document) -> Result<(), Invalid> {
    check_signed(document)?;
    check_body(document)
}

/// Checks the fields that every kind needs: tenant, author, reason, and the size of the body.
pub fn check_signed(document: &Document) -> Result<(), Invalid> {
    validate_identifier("tenant", &document.tenant, "default")?;
    validate_text("author", &document.author, AUTHOR_BYTES_MAX, "Ada Nurse")?;
    validate_text(
        "reason",
        &document.reason,
        REASON_BYTES_MAX,
        "sensor is being replaced",
    )?;
    if document.body.len() > BODY_BYTES_MAX {
        return Err(Invalid::new(
            "body",
            format!("is longer than {BODY_BYTES_MAX} bytes"),
            "{}",
        ));
    }
    Ok(())
}

fn check_body(document: &Document) -> Result<(), Invalid> {
    match document.kind.as_str() {
        TEAM => {
            lasting(document)?;
            subject(document.subject == DEFAULT, document, DEFAULT)?;
            Team::from_json(&document.body)?;
            // Ingest and the dashboard read the groups by this contract.
            TeamGroups::read(document)
                .map(drop)
                .map_err(|reason| Invalid::new("patients", reason, "{}"))
        }
        RULES => {
            lasting(document)?;
            let is_named = document
                .subject
                .strip_prefix("group:")
                .or(document.subject.strip_prefix("patient:"))
                .is_some_and(|name| validate_identifier("subject", name, "ada").is_ok());
            subject(
                is_named || document.subject == DEFAULT,
                document,
                "patient:ada",
            )?;
            // An empty body withdraws the rules, and the next wider set applies.
            if document.body.is_empty() {
                return Ok(());
            }
            RuleDocument::from_json(&document.body)?.check_extends()
        }
        SILENCE => {
            validate_identifier("subject", &document.subject, "silence-1")?;
            let length_us = document.until_us.saturating_sub(document.at_us);
            if document.until_us == 0 || length_us > SILENCE_US_MAX {
                return Err(Invalid::new(
                    "until_us",
                    format!(
                        "a silence needs an end, at most {} days away",
                        SILENCE_US_MAX / 86_400_000_000
                    ),
                    (document.at_us + 3_600_000_000).to_string(),
                ));
            }
            Silence::from_json(&document.body).map(drop)
        }
        other => Err(Invalid::new(
            "kind",
            format!("{other:?} is not a kind; kinds are team, rules and silence"),
            "silence",
        )),
    }
}

/// Identifiers of the built-in rules that this document loses.
pub fn rules_lost(document: &Document) -> Vec<String> {
    if document.kind != RULES || document.body.is_empty() {
        return Vec::new();
    }
    let rules = RuleDocument::from_json(&document.body);
    rules.map(|rules| rules.lost()).unwrap_or_default()
}

/// Known rules of this tenant's alerts: built-in, configured, stored, and those of recent alerts.
pub async fn known_rules(
    store: &dyn Store,
    tenant: &str,
    configured: &RuleSet,
) -> Result<BTreeSet<String>, QueryError> {
    let scope = Scope::tenant(tenant);
    let mut known: BTreeSet<String> = silence::ALL.into_iter().map(str::to_owned).collect();
    let mut add = |set: &RuleSet| known.extend(set.rules.iter().map(|rule| rule.id.clone()));
    add(&RuleSet::default_set());
    add(configured);
    let rules = store.stored_documents(&scope, RULES, contracts::now_us());
    for document in rules
        .await?
        .into_iter()
        .filter_map(StoredDocument::readable)
    {
        if let Ok(set) = RuleSet::from_json(&document.body) {
            add(&set);
        }
    }
    // A gateway may use a rule file of its own. Its rules are known by their alerts.
    let seen = AlertsQuery {
        include_resolved: true,
        limit: SEEN_ALERTS_MAX,
        ..AlertsQuery::default()
    };
    let seen = store.alerts(&scope, &seen).await?;
    known.extend(seen.into_iter().map(|alert| alert.rule));
    Ok(known)
}

/// Documents of all tenants that cannot be read.
pub async fn damaged(store: &dyn Store) -> Result<Vec<Damaged>, QueryError> {
    Ok(rules_in_force::load(store).await?.1)
}

/// Refuses a silence of a rule that no alert can have. A silence that is over passes, so that it
/// can be ended.
pub fn check_rule(document: &Document, known: &BTreeSet<String>) -> Result<(), Invalid> {
    if document.kind != SILENCE || document.until_us <= document.at_us {
        return Ok(());
    }
    refuse_rule(&Silence::from_json(&document.body)?.rule, known)
}

/// Refuses a rule that is not known. Empty: every rule.
pub fn refuse_rule(rule: &str, known: &BTreeSet<String>) -> Result<(), Invalid> {
    if rule.is_empty() || known.contains(rule) {
        return Ok(());
    }
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    Err(Invalid::new(
        "rule",
        format!(
            "no alert can have the rule {rule:?}{}; known rules are {}",
            nearest(rule, known),
            names.join(", ")
        ),
        "battery-low",
    ))
}

/// Refuses rules and silences of a patient whom the register does not know. A document that takes
/// something back, or has ended, passes.
pub async fn check_patient(
    store: &dyn Store,
    document: &Document,
) -> Result<Result<(), Invalid>, QueryError> {
    let patient = match document.kind.as_str() {
        RULES if !document.body.is_empty() => document.subject.strip_prefix("patient:"),
        _ => None,
    };
    let silenced = match document.kind == SILENCE && document.until_us > document.at_us {
        true => Silence::from_json(&document.body).map_or_else(|_| String::new(), |it| it.patient),
        false => String::new(),
    };
    let patient = patient.unwrap_or(&silenced);
    if patient.is_empty() {
        return Ok(Ok(()));
    }
    let scope = Scope::tenant(document.tenant.clone());
    if store.patient(&scope, patient).await?.is_some() {
        return Ok(Ok(()));
    }
    let known = store.patients(&scope).await?;
    let known: BTreeSet<String> = known.into_iter().map(|it| it.id).collect();
    Ok(Err(Invalid::new(
        "patient",
        format!(
            "{patient:?} is not in the register{}",
            nearest(patient, &known)
        ),
        "a patient of `braid register list`",
    )))
}

/// The most similar known names, as the end of a sentence.
fn nearest(name: &str, known: &BTreeSet<String>) -> String {
    let distance = |known: &String| strsim::damerau_levenshtein(name, known);
    let mut near: Vec<&String> = known
        .iter()
        .filter(|it| distance(it) <= (name.chars().count() / 3).max(1))
        .collect();
    near.sort_by_key(|it| distance(it));
    near.truncate(NEAREST_MAX);
    match near.as_slice() {
        [] => String::new(),
        near => format!(
            "; near are {}",
            near.iter()
                .map(|it| it.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

fn lasting(document: &Document) -> Result<(), Invalid> {
    if document.until_us == 0 {
        return Ok(());
    }
    Err(Invalid::new("until_us", "only a silence has an end", "0"))
}

fn subject(is_known: bool, document: &Document, example: &str) -> Result<(), Invalid> {
    if is_known {
        return Ok(());
    }
    Err(Invalid::new(
        "subject",
        format!(
            "{:?} is not a subject of {}",
            document.subject, document.kind
        ),
        example,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_document_is_refused_by_field() {
        let good = Document {
            kind: SILENCE.into(),
            tenant: "default".into(),
            subject: "s-1".into(),
            version: 1,
            author: "Ada".into(),
            reason: "why".into(),
            at_us: 1_000_000,
            until_us: 2_000_000,
            body: r#"{"patient": "ada"}"#.into(),
        };
        check(&good).unwrap();
        let refused = |edit: fn(&mut Document)| {
            let mut document = good.clone();
            edit(&mut document);
            check(&document).unwrap_err().field
        };
        assert_eq!(refused(|d| d.tenant.clear()), "tenant");
        assert_eq!(refused(|d| d.author = " ".into()), "author");
        assert_eq!(refused(|d| d.author = "eve\n\u{1b}[2J".into()), "author");
        assert_eq!(refused(|d| d.reason = "a\tb".into()), "reason");
        assert_eq!(refused(|d| d.reason.clear()), "reason");
        assert_eq!(refused(|d| d.reason = "x".repeat(4001)), "reason");
        assert_eq!(refused(|d| d.kind = "x".into()), "kind");
        assert_eq!(refused(|d| d.until_us = 0), "until_us");
        assert_eq!(refused(|d| d.until_us = i64::MAX), "until_us");
        assert_eq!(refused(|d| d.kind = TEAM.into()), "until_us");
        let rules = Document {
            kind: RULES.into(),
            subject: "patient:ada".into(),
            until_us: 0,
            body: serde_json::to_string(&RuleSet::default_set()).unwrap(),
            ..good.clone()
        };
        check(&rules).unwrap();
        assert_eq!(rules_lost(&rules), Vec::<String>::new());
        let one_rule = |extends: &str| {
            let body = r#"{"name": "ada", "version": 1, EXTENDS "rules": [
                {"id": "spo2-low", "priority": "high", "condition":
                    {"kind": "below", "metric": "spo2", "limit": 86, "clear": 88}}]}"#;
            Document {
                body: body.replace("EXTENDS", extends),
                ..rules.clone()
            }
        };
        assert_eq!(check(&one_rule("")).unwrap_err().field, "extends");
        let without = one_rule(r#""extends": "none","#);
        check(&without).unwrap();
        assert_eq!(rules_lost(&without)[..2], ["fall", "news2-high"]);
        let with = one_rule(r#""extends": "built-in","#);
        check(&with).unwrap();
        assert_eq!(rules_lost(&with), Vec::<String>::new());
        let strange = Document {
            subject: "ward:3".into(),
            ..rules.clone()
        };
        assert_eq!(check(&strange).unwrap_err().field, "subject");
        let empty = Document {
            body: String::new(),
            ..rules
        };
        check(&empty).unwrap();
    }
}
