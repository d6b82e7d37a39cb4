//! Which rules hold for the patients of a gateway. Pure, given the documents and the register.
//!
//! A document that extends the built-in rules is sent as a whole set, because older gateways do not
//! know the word. Other documents are sent unchanged. The gateway decides whether it can use a rule
//! set, because its version of the rules may differ from the core's.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    alerts::Document,
    vitals::{CatalogueEntry, DeviceInterval, FollowRulesResponse, PatientRules, RulesDocument},
};
use prost::Message;
use sha2::{Digest, Sha256};
use store::{Assignment, Spo2Scale};
use vitals::TeamGroups;

/// Bytes of the documents in one answer, below what a gateway takes in one message (4 MiB). A
/// gateway whose patients need more gets an error and keeps its last rules.
pub(crate) const ANSWER_BYTES_MAX: usize = 3 << 20;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the catalogue and the rules of this gateway's patients have {0} bytes, more than the {ANSWER_BYTES_MAX} of one answer"
)]
pub(crate) struct TooLarge(usize);

/// A rule set as gateways read it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Handed {
    whole: RulesDocument,
    /// For gateways that do not take the catalogue.
    older: RulesDocument,
}

/// Rule sets in force of all tenants, and the added entries of the catalogue.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RulesInForce {
    rules: vitals::RulesInForce<Handed>,
    catalogue: Vec<CatalogueEntry>,
}

/// The documents as gateways get them.
pub(crate) fn in_force(
    teams: Vec<(Document, TeamGroups)>,
    rules: impl IntoIterator<Item = Document>,
    catalogue: impl IntoIterator<Item = Document>,
) -> RulesInForce {
    let rules = rules.into_iter().map(|rules| {
        let document = |takes_catalogue| RulesDocument {
            subject: rules.subject.clone(),
            version: rules.version,
            body: vitals::for_gateway(&rules.body, takes_catalogue).into_owned(),
        };
        // An empty body withdraws the rules.
        let set = (!rules.body.is_empty()).then(|| Handed {
            whole: document(true),
            older: document(false),
        });
        (rules, set)
    });
    let catalogue = catalogue.into_iter().map(|entry| CatalogueEntry {
        key: entry.subject,
        version: entry.version,
        body: entry.body,
    });
    RulesInForce {
        rules: vitals::RulesInForce::new(teams, rules),
        catalogue: catalogue.collect(),
    }
}

/// A patient who wears a device of the gateway, or did lately.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wearer {
    /// Devices that the patient wears at present.
    pub devices: Vec<String>,
    pub scale: Spo2Scale,
}

/// A gateway takes no readings that are older: see `ClockBounds::GATEWAY`.
const LATELY_US: i64 = 31 * 24 * 3600 * 1_000_000;
/// Intervals in one answer, the newest. Beyond it the gateway does not refuse unknown devices.
pub(crate) const INTERVALS_MAX: usize = 8192;

/// The recent wearing intervals of one gateway.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Worn {
    /// By patient.
    pub wearers: BTreeMap<String, Wearer>,
    pub intervals: Vec<DeviceInterval>,
    /// These are all intervals.
    pub is_whole: bool,
}

impl Worn {
    pub(crate) fn new(mut assignments: Vec<Assignment>, now_us: i64) -> Worn {
        assignments.retain(|it| it.until_us > now_us.saturating_sub(LATELY_US));
        assignments.sort_by_key(|it| (std::cmp::Reverse(it.until_us), it.from_us));
        let is_whole = assignments.len() <= INTERVALS_MAX;
        assignments.truncate(INTERVALS_MAX);
        let mut worn = Worn {
            is_whole,
            ..Worn::default()
        };
        for it in assignments {
            let is_open = it.is_open();
            let wearer = worn.wearers.entry(it.patient.clone()).or_default();
            if is_open {
                wearer.devices.push(it.device.clone());
            }
            worn.intervals.push(DeviceInterval {
                device: it.device,
                patient: it.patient,
                from_us: it.from_us,
                until_us: it.until_us,
            });
        }
        worn
    }
}

/// The answer to a gateway of the tenant: the catalogue, the rules of these wearers, and their
/// intervals.
pub(crate) fn answer(
    in_force: &RulesInForce,
    tenant: &str,
    worn: &Worn,
    takes_catalogue: bool,
) -> Result<FollowRulesResponse, TooLarge> {
    let mut answer = FollowRulesResponse {
        intervals: worn.intervals.clone(),
        has_intervals: worn.is_whole,
        ..FollowRulesResponse::default()
    };
    let mut told = BTreeSet::new();
    for (patient, wearer) in &worn.wearers {
        let handed = in_force.rules.of(tenant, patient);
        let document = handed.map(|it| match takes_catalogue {
            true => &it.whole,
            false => &it.older,
        });
        if let Some(document) = document
            && told.insert(&document.subject)
        {
            answer.documents.push(document.clone());
        }
        answer.patients.push(PatientRules {
            patient: patient.clone(),
            devices: wearer.devices.clone(),
            subject: document.map(|it| it.subject.clone()).unwrap_or_default(),
            spo2_scale: wearer.scale.number().into(),
        });
    }
    if takes_catalogue {
        answer.catalogue.clone_from(&in_force.catalogue);
    }
    let of_rules = answer.documents.iter().map(|it| it.body.len());
    let of_catalogue = answer.catalogue.iter().map(|it| it.body.len());
    let bytes = of_rules.chain(of_catalogue).sum();
    if bytes > ANSWER_BYTES_MAX {
        return Err(TooLarge(bytes));
    }
    answer.digest = digest(&answer);
    Ok(answer)
}

/// Never 0, which means none.
fn digest(answer: &FollowRulesResponse) -> u64 {
    let hash = Sha256::digest(answer.encode_to_vec());
    let number = hash.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    number.unwrap_or_default().max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn document(tenant: &str, subject: &str, version: u32, body: &str) -> Document {
        Document {
            tenant: tenant.into(),
            subject: subject.into(),
            version,
            body: body.into(),
            ..Document::default()
        }
    }

    fn assignment(device: &str, patient: &str, from_us: i64, until_us: i64) -> Assignment {
        Assignment {
            device: device.into(),
            tenant: "one".into(),
            gateway: "gw".into(),
            patient: patient.into(),
            from_us,
            until_us,
            entered: store::Change::by_program("test"),
        }
    }

    fn people(of: &[(&str, &str)]) -> Worn {
        let assignments = of.iter();
        let assignments =
            assignments.map(|(device, patient)| assignment(device, patient, 0, i64::MAX));
        Worn::new(assignments.collect(), 0)
    }

    #[test]
    fn who_wore_a_device_lately_is_told_and_older_and_more_is_not() {
        let now_us = 2 * LATELY_US;
        let worn = Worn::new(
            vec![
                assignment("d1", "ada", 0, now_us - LATELY_US),
                assignment("d1", "ben", now_us - LATELY_US, now_us - 9),
                assignment("d1", "eve", now_us - 9, i64::MAX),
            ],
            now_us,
        );
        let patients: Vec<_> = worn.wearers.iter().collect();
        assert_eq!(patients.len(), 2, "{patients:?}");
        assert_eq!(
            (patients[0].0.as_str(), patients[0].1.devices.len()),
            ("ben", 0)
        );
        assert_eq!(patients[1].1.devices, ["d1"]);
        assert!(worn.is_whole && worn.intervals.len() == 2);
        let many = (0..=INTERVALS_MAX as i64).map(|n| assignment("d1", "ada", n, n + 1));
        let worn = Worn::new(many.collect(), 0);
        assert_eq!(
            (worn.intervals.len(), worn.is_whole),
            (INTERVALS_MAX, false)
        );
        assert_eq!(
            worn.intervals[0].until_us,
            INTERVALS_MAX as i64 + 1,
            "the newest"
        );
    }

    fn read(rules: Vec<Document>) -> RulesInForce {
        let team =
            r#"{"contacts": [], "patients": {"ada": {"group": "copd"}, "eve": {"person": []}}}"#;
        let team = document("one", "default", 1, team);
        let groups = TeamGroups::read(&team).unwrap();
        in_force(vec![(team, groups)], rules, Vec::new())
    }

    #[test]
    fn the_narrowest_document_holds_and_goes_once() {
        let mut rules = vec![
            document("one", "default", 11, "of all"),
            document("one", "group:copd", 12, "of the group"),
            document("one", "patient:ada", 13, "of ada"),
            document("one", "patient:someone-else", 14, "not asked for"),
            document("two", "patient:ben", 15, "of another tenant"),
        ];
        let wearers = people(&[("d1", "ada"), ("d2", "ada"), ("d3", "ben"), ("d4", "eve")]);
        let told = |rules: &[Document]| {
            let answer = super::answer(&read(rules.to_vec()), "one", &wearers, true).unwrap();
            let documents = answer.documents.iter();
            let documents = documents.map(|it| (it.subject.clone(), it.version));
            let patients = answer.patients.iter();
            let patients = patients.map(|it| (it.devices.len(), it.subject.clone()));
            (documents.collect::<Vec<_>>(), patients.collect::<Vec<_>>())
        };
        let default = || "default".to_owned();
        let (documents, patients) = told(&rules);
        assert_eq!(documents, [("patient:ada".to_owned(), 13), (default(), 11)]);
        assert_eq!(
            patients,
            [
                (2, "patient:ada".to_owned()),
                (1, default()),
                (1, default())
            ]
        );
        rules[2].body.clear();
        let (_, patients) = told(&rules);
        assert_eq!(patients[0].1, "group:copd", "taken back");
        let (documents, patients) = told(&rules[4..]);
        assert_eq!(documents, [], "another tenant's");
        assert_eq!(patients[1], (1, String::new()));
    }

    #[test]
    fn a_set_that_extends_the_built_in_one_is_sent_whole() {
        let own = r#"{"name": "ada", "version": 1, "extends": "built-in", "rules": []}"#;
        let rules = read(vec![document("one", "patient:ada", 1, own)]);
        let answer = super::answer(&rules, "one", &people(&[("d1", "ada")]), true).unwrap();
        let body = &answer.documents[0].body;
        assert!(!body.contains("extends"), "{body}");
        let set = vitals::RuleSet::from_json(body).unwrap();
        // Only the core judges sensors, and an older gateway does not know this kind.
        let mut built_in = vitals::RuleSet::default_set().rules;
        let is_frozen = |it: &vitals::Condition| matches!(it, vitals::Condition::Frozen { .. });
        built_in.retain(|rule| !is_frozen(&rule.condition));
        assert_eq!(set.rules, built_in);
    }

    #[test]
    fn the_catalogue_goes_to_gateways_that_take_it() {
        let rules = r#"{"name": "x", "version": 1, "extends": "built-in", "rules": [
            {"id": "glucose-low", "priority": "high",
             "condition": {"kind": "below", "metric": "glucose", "limit": 3.9, "clear": 4.2}}]}"#;
        let in_force = super::in_force(
            Vec::new(),
            [document("one", "default", 1, rules)],
            [document("*", "lactate", 2, "an entry")],
        );
        let told = |takes_catalogue| {
            let worn = people(&[("d1", "ada")]);
            let answer = answer(&in_force, "one", &worn, takes_catalogue).unwrap();
            let has_rule = answer.documents[0].body.contains("glucose-low");
            (answer.catalogue, has_rule, answer.digest)
        };
        let (catalogue, has_rule, digest) = told(true);
        assert_eq!((&*catalogue[0].key, catalogue[0].version), ("lactate", 2));
        assert!(has_rule);
        let (none, has_rule, older) = told(false);
        assert!(none.is_empty() && !has_rule && digest != older);
    }

    #[test]
    fn an_answer_is_bounded() {
        let body = "x".repeat(ANSWER_BYTES_MAX);
        let rules = |subject| document("one", subject, 1, &body);
        let in_force = read(vec![rules("default"), rules("patient:ada")]);
        let two = people(&[("d1", "ben"), ("d2", "eve")]);
        assert!(
            answer(&in_force, "one", &two, true).is_ok(),
            "one set for both"
        );
        let more = people(&[("d1", "ben"), ("d2", "ada")]);
        assert_eq!(
            answer(&in_force, "one", &more, true),
            Err(TooLarge(2 * ANSWER_BYTES_MAX))
        );
    }
}
