//! Rules in force for each patient: the contract between the service that validates teams and rule
//! sets, and every service that applies them. Pure.
//!
//! A patient's own set comes before the set of the patient's group, which comes before the
//! tenant's.

use std::collections::{BTreeMap, HashMap};

use contracts::alerts::Document;
use serde::Deserialize;

use crate::rules::subjects;

/// The groups in a team's document. The other fields concern notices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct TeamGroups {
    #[serde(default)]
    patients: BTreeMap<String, Membership>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Membership {
    group: Option<String>,
}

impl TeamGroups {
    pub fn read(team: &Document) -> Result<TeamGroups, String> {
        serde_json::from_str(&team.body).map_err(|error| error.to_string())
    }

    pub fn group(&self, patient: &str) -> Option<&str> {
        self.patients.get(patient)?.group.as_deref()
    }
}

/// Rules in force of all tenants. `R` is the service's own form of a rule set.
#[derive(Clone, Debug, PartialEq)]
pub struct RulesInForce<R> {
    /// By tenant.
    teams: HashMap<String, TeamGroups>,
    /// By tenant and subject.
    rules: HashMap<(String, String), R>,
}

impl<R> Default for RulesInForce<R> {
    fn default() -> Self {
        RulesInForce {
            teams: HashMap::new(),
            rules: HashMap::new(),
        }
    }
}

impl<R> RulesInForce<R> {
    /// `None` in place of a rule set: it was withdrawn.
    pub fn new(
        teams: impl IntoIterator<Item = (Document, TeamGroups)>,
        rules: impl IntoIterator<Item = (Document, Option<R>)>,
    ) -> RulesInForce<R> {
        let teams = teams.into_iter().map(|(it, groups)| (it.tenant, groups));
        let rules = rules
            .into_iter()
            .filter_map(|(it, set)| Some(((it.tenant, it.subject), set?)));
        RulesInForce {
            teams: teams.collect(),
            rules: rules.collect(),
        }
    }

    /// `None`: the built-in or configured rules apply.
    pub fn of(&self, tenant: &str, patient: &str) -> Option<&R> {
        let team = self.teams.get(tenant);
        let group = team.and_then(|team| team.group(patient));
        subjects(patient, group).find_map(|subject| self.rules.get(&(tenant.to_owned(), subject)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn document(tenant: &str, subject: &str, body: &str) -> Document {
        Document {
            tenant: tenant.into(),
            subject: subject.into(),
            body: body.into(),
            ..Document::default()
        }
    }

    #[test]
    fn the_narrowest_set_of_the_own_tenant_holds() {
        let team = r#"{"contacts": [], "patients": {"ada": {"group": "copd", "person": ["x"]}}}"#;
        let team = document("one", "default", team);
        let groups = TeamGroups::read(&team).unwrap();
        let set = |tenant: &str, subject: &str, set| (document(tenant, subject, ""), set);
        let in_force = |own: Option<u8>| {
            let rules = [
                set("one", "default", Some(1)),
                set("one", "group:copd", Some(2)),
                set("one", "patient:ada", own),
                set("two", "default", Some(9)),
            ];
            RulesInForce::new([(team.clone(), groups.clone())], rules)
        };
        let some = in_force(Some(3));
        assert_eq!(some.of("one", "ada"), Some(&3));
        assert_eq!(some.of("one", "ben"), Some(&1));
        assert_eq!(some.of("two", "ada"), Some(&9));
        assert_eq!(some.of("three", "ada"), None);
        assert_eq!(in_force(None).of("one", "ada"), Some(&2), "taken back");
    }

    #[test]
    fn a_team_that_cannot_be_read_is_refused_with_a_reason() {
        let reason = TeamGroups::read(&document("one", "default", r#"{"patients": 7}"#));
        assert!(reason.unwrap_err().contains("map"));
    }
}
