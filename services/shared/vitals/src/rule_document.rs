//! A rule set as people write it and as the store keeps it: their own rules, and the built-in ones
//! that stay.
//!
//! A document with `"extends": "built-in"` keeps every built-in rule. Its own rules replace those
//! of the same identifier. A document with `"extends": "none"`, or without the word, is the whole
//! set, so each built-in rule that it does not name is lost. Gateway and core resolve a document by
//! this code. A gateway of an older version does not know the word, so the core sends it
//! [`for_gateway`].

use std::{borrow::Cow, collections::BTreeMap};

use contracts::vitals::Metric;
use serde::{Deserialize, Serialize};

use crate::{
    condition::Condition,
    news2,
    refusal::Invalid,
    rules::{Rule, RuleSet},
};

/// Advice for a document that loses falls or NEWS2.
pub const PUT_EXTENDS: &str =
    "add \"extends\": \"built-in\" to the rule set, or \"none\" if that is wanted";

/// Whether a document keeps the built-in rules that it does not replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extends {
    BuiltIn,
    None,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleDocument {
    pub name: String,
    pub version: u32,
    /// `None`: as [`Extends::None`], but nobody has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extends: Option<Extends>,
    /// By name of the metric.
    #[serde(default)]
    pub stale_after_s: BTreeMap<String, u32>,
    #[serde(default)]
    pub rules: Vec<Rule>,
}

impl RuleDocument {
    /// The built-in set, for people to begin from.
    pub fn built_in() -> RuleDocument {
        RuleDocument::of(RuleSet::default_set(), Some(Extends::BuiltIn))
    }

    pub fn of(set: RuleSet, extends: Option<Extends>) -> RuleDocument {
        RuleDocument {
            name: set.name,
            version: set.version,
            extends,
            stale_after_s: set.stale_after_s,
            rules: set.rules,
        }
    }

    /// Refuses a document whose resolved set is invalid.
    pub fn from_json(text: &str) -> Result<RuleDocument, Invalid> {
        let document: RuleDocument = serde_json::from_str(text).map_err(|error| {
            Invalid::new("rules", error.to_string(), "what `braid rules show` prints")
        })?;
        document.resolve().validate()?;
        Ok(document)
    }

    /// The rules that hold.
    pub fn resolve(&self) -> RuleSet {
        let mut set = RuleSet {
            name: self.name.clone(),
            version: self.version,
            stale_after_s: self.stale_after_s.clone(),
            rules: self.rules.clone(),
        };
        if self.extends == Some(Extends::BuiltIn) {
            let built_in = RuleSet::default_set();
            let kept = built_in
                .rules
                .into_iter()
                .filter(|rule| !self.has(&rule.id));
            set.rules.extend(kept);
            for (metric, seconds) in built_in.stale_after_s {
                set.stale_after_s.entry(metric).or_insert(seconds);
            }
        }
        set
    }

    /// Identifiers of the built-in rules that the document loses. Those of falls and NEWS2 come
    /// first.
    pub fn lost(&self) -> Vec<String> {
        if self.extends == Some(Extends::BuiltIn) {
            return Vec::new();
        }
        let mut lost = RuleSet::default_set().rules;
        lost.retain(|rule| !self.has(&rule.id));
        lost.sort_by_key(|rule| !is_vital(&rule.condition));
        lost.into_iter().map(|rule| rule.id).collect()
    }

    /// Sentence about the lost rules. `None`: no rule is lost.
    pub fn says_lost(&self) -> Option<String> {
        let lost = self.lost();
        (!lost.is_empty()).then(|| format!("this set has no rule for: {}", lost.join(", ")))
    }

    /// Whether the document loses falls or high NEWS2 scores without saying so.
    pub fn is_unsaid(&self) -> bool {
        let has = |of: fn(&Condition) -> bool| self.rules.iter().any(|rule| of(&rule.condition));
        self.extends.is_none() && !(has(is_fall) && has(is_high_news2))
    }

    /// Refuses a document that is unsaid. Stored documents and files of earlier versions stay in
    /// force, with a warning.
    pub fn check_extends(&self) -> Result<(), Invalid> {
        if !self.is_unsaid() {
            return Ok(());
        }
        Err(Invalid::new(
            "extends",
            format!(
                "is missing, and {}; with \"none\" these would raise no alert",
                self.says_lost().unwrap_or_default()
            ),
            "\"built-in\", which keeps them",
        ))
    }

    fn has(&self, id: &str) -> bool {
        self.rules.iter().any(|rule| rule.id == id)
    }
}

impl RuleSet {
    /// The rules that hold by a document.
    pub fn from_json(text: &str) -> Result<RuleSet, Invalid> {
        RuleDocument::from_json(text).map(|document| document.resolve())
    }
}

fn is_fall(condition: &Condition) -> bool {
    matches!(condition, Condition::Fall { .. })
}

fn is_high_news2(condition: &Condition) -> bool {
    matches!(condition, Condition::News2 { from, to } if (*from..=*to).contains(&news2::HIGH_FROM))
}

fn is_vital(condition: &Condition) -> bool {
    matches!(
        condition,
        Condition::Fall { .. } | Condition::News2 { .. } | Condition::News2Red
    )
}

/// The body of a stored document as gateways of every version read it. Rules about frozen sensors
/// are left out, because only the core judges them and an older gateway refuses the kind. Without
/// `takes_catalogue`, so are rules about metrics of the catalogue. A body that this version cannot
/// read stays as it is, because the gateway may be newer.
pub fn for_gateway(body: &str, takes_catalogue: bool) -> Cow<'_, str> {
    let Ok(document) = RuleDocument::from_json(body) else {
        return Cow::Borrowed(body);
    };
    let mut set = document.resolve();
    let count = set.rules.len();
    set.rules.retain(|rule| !rule.condition.is_frozen());
    if !takes_catalogue {
        let is_known = |metric: Metric| metric == Metric::Unspecified || metric.is_numbered();
        set.rules.retain(|rule| is_known(rule.condition.metric()));
        set.stale_after_s
            .retain(|key, _| is_known(Metric::of_key(key)));
    }
    let is_plain = document.extends.is_none()
        && set.rules.len() == count
        && set.stale_after_s == document.stale_after_s;
    // A gateway refuses a set without rules.
    if is_plain || set.rules.is_empty() {
        return Cow::Borrowed(body);
    }
    // Finite numbers and texts always become JSON.
    serde_json::to_string(&set).map_or(Cow::Borrowed(body), Cow::Owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ONE_RULE: &str = r#"{"name": "ada", "version": 1, EXTENDS
        "stale_after_s": {"spo2": 60},
        "rules": [
            {"id": "spo2-low", "priority": "high",
             "condition": {"kind": "below", "metric": "spo2", "limit": 88.0, "clear": 89.0}}
        ]}"#;

    fn one_rule(extends: &str) -> RuleDocument {
        RuleDocument::from_json(&ONE_RULE.replace("EXTENDS", extends)).unwrap()
    }

    #[test]
    fn an_extended_set_keeps_every_rule_that_it_does_not_replace() {
        let built_in = RuleSet::default_set();
        let document = one_rule(r#""extends": "built-in","#);
        let set = document.resolve();
        set.validate().unwrap();
        assert_eq!(set.rules.len(), built_in.rules.len());
        for rule in &built_in.rules {
            let held = set.rules.iter().find(|it| it.id == rule.id).unwrap();
            assert_eq!(held == rule, rule.id != "spo2-low", "{}", rule.id);
        }
        assert_eq!(set.stale_after_s["spo2"], 60);
        assert_eq!(
            set.stale_after_s["heart-rate"],
            built_in.stale_after_s["heart-rate"]
        );
        assert_eq!((document.lost(), document.says_lost()), (Vec::new(), None));
        document.check_extends().unwrap();
        // A set without rules of its own is the built-in one.
        let none = r#"{"name": "default", "version": 3, "extends": "built-in"}"#;
        let set = RuleDocument::from_json(none).unwrap().resolve();
        assert_eq!(set, built_in);
        assert_eq!(RuleDocument::built_in().resolve(), built_in);
    }

    #[test]
    fn a_set_that_loses_falls_or_news2_is_refused_unless_it_says_so() {
        let silent = one_rule("");
        assert_eq!(silent.resolve().rules.len(), 1, "a stored one still holds");
        assert!(silent.is_unsaid());
        let refused = silent.check_extends().unwrap_err();
        assert_eq!(refused.field, "extends");
        let said = "this set has no rule for: fall, news2-high, news2-medium, news2-red, heart-";
        assert!(refused.reason.contains(said), "{refused}");
        assert!(!refused.reason.contains("spo2-low"), "{refused}");
        let explicit = one_rule(r#""extends": "none","#);
        assert_eq!(explicit.resolve(), silent.resolve());
        explicit.check_extends().unwrap();
        assert_eq!(explicit.lost(), silent.lost());
        // The rules count, not their names.
        let mut renamed = RuleDocument::of(RuleSet::default_set(), None);
        for rule in &mut renamed.rules {
            rule.id.insert_str(0, "own-");
        }
        renamed.check_extends().unwrap();
        for is_gone in [is_fall, is_high_news2] {
            let mut without = renamed.clone();
            without.rules.retain(|rule| !is_gone(&rule.condition));
            without.check_extends().unwrap_err();
        }
    }

    #[test]
    fn a_document_survives_json_and_refuses_what_it_does_not_know() {
        for extends in ["", r#""extends": "none","#, r#""extends": "built-in","#] {
            let document = one_rule(extends);
            let text = serde_json::to_string(&document).unwrap();
            assert_eq!(RuleDocument::from_json(&text).unwrap(), document);
        }
        let refused = |extends| {
            let text = ONE_RULE.replace("EXTENDS", extends);
            RuleDocument::from_json(&text).unwrap_err()
        };
        assert!(
            refused(r#""extends": "builtin","#)
                .reason
                .contains("built-in")
        );
        assert!(refused(r#""extend": "none","#).reason.contains("extends"));
        let mut twice = one_rule(r#""extends": "built-in","#);
        twice.rules.push(twice.rules[0].clone());
        let text = serde_json::to_string(&twice).unwrap();
        assert_eq!(
            RuleDocument::from_json(&text).unwrap_err().field,
            "rules.id"
        );
        let empty = r#"{"name": "x", "version": 1, "rules": []}"#;
        assert_eq!(RuleDocument::from_json(empty).unwrap_err().field, "rules");
    }

    /// A gateway of an older version refuses unknown fields.
    #[test]
    fn a_gateway_gets_the_whole_set_without_the_word() {
        for extends in [r#""extends": "built-in","#, r#""extends": "none","#] {
            let body = ONE_RULE.replace("EXTENDS", extends);
            let sent = for_gateway(&body, true);
            let old: RuleSet = serde_json::from_str(&sent).unwrap();
            let mut judged = one_rule(extends).resolve();
            judged.rules.retain(|rule| !rule.condition.is_frozen());
            assert_eq!(old, judged);
        }
        let plain = ONE_RULE.replace("EXTENDS", "");
        for unchanged in [plain.as_str(), "of a newer version", ""] {
            assert!(matches!(for_gateway(unchanged, true), Cow::Borrowed(it) if it == unchanged));
        }
    }
    #[test]
    fn an_older_gateway_gets_no_rule_about_a_metric_that_it_does_not_know() {
        let of_glucose = r#""extends": "none","#;
        let body = ONE_RULE
            .replace("EXTENDS", of_glucose)
            .replace("\"spo2\": 60", "\"spo2\": 60, \"glucose\": 900")
            .replace(
                "\"rules\": [",
                r#""rules": [{"id": "glucose-low", "priority": "high",
                "condition": {"kind": "below", "metric": "glucose", "limit": 3.9, "clear": 4.2}},"#,
            );
        let whole: RuleSet = serde_json::from_str(&for_gateway(&body, true)).unwrap();
        assert_eq!((whole.rules.len(), whole.stale_after_s.len()), (2, 2));
        let older: RuleSet = serde_json::from_str(&for_gateway(&body, false)).unwrap();
        assert_eq!((older.rules.len(), older.stale_after_s.len()), (1, 1));
        assert_eq!(older.rules[0].id, "spo2-low");
    }
}
