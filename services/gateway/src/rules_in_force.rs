//! Rules that the core has sent, and the wearing intervals of this gateway's devices. Pure.
//!
//! An unreadable part changes nothing. Only a valid set replaces a set, and a patient whose own set
//! is invalid keeps the rules in force before. So a mistake in the core, or a newer core, leaves no
//! patient without rules.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use contracts::vitals::{
    CatalogueEntry, DeviceInterval, FollowRulesResponse, PatientRules, RulesDocument,
};
use vitals::{
    Invalid, MetricDocument, Profile, RuleSet, Spo2Scale,
    attribution::{Interval, When, attribute},
};

/// Patients in one answer. A larger answer is refused as a whole.
pub const PATIENTS_MAX: usize = 1024;
/// Intervals in one answer. A larger answer is refused as a whole; the core sends no more.
pub const INTERVALS_MAX: usize = 8192;
/// Uncertainty of the gateway's clock. A device whose wearer changed within this time is a subject
/// of its own.
const DOUBT_US: i64 = 120_000_000;

/// Reason why a part of an answer is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("rules {subject:?} version {version} are not used: {reason}")]
    Set {
        subject: String,
        version: u32,
        reason: Invalid,
    },
    #[error("metric {key:?} version {version} is not used: {reason}")]
    Metric {
        key: String,
        version: u32,
        reason: Invalid,
    },
    #[error("rules {subject:?} of patient {patient:?} are missing")]
    Missing { patient: String, subject: String },
    #[error("rules for {0} patients in one answer exceed {PATIENTS_MAX}")]
    TooMany(usize),
    #[error("{0} intervals of devices in one answer exceed {INTERVALS_MAX}")]
    TooManyIntervals(usize),
}

/// Rules and profile of a patient or device.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// `None`: the gateway's own rules.
    pub rules: Option<(String, Arc<RuleSet>)>,
    pub profile: Profile,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RulesInForce {
    /// By subject: the document as received, and its rule set.
    documents: BTreeMap<String, (RulesDocument, Arc<RuleSet>)>,
    patients: BTreeMap<String, PatientRules>,
    /// By patient and by device.
    judged: HashMap<String, Judged>,
    /// By device: its wearing intervals at this gateway. The gateway's name is left out.
    worn: BTreeMap<String, Vec<Interval>>,
    /// Whether `worn` contains every device of the gateway.
    has_all: bool,
    /// By key: the entries of the catalogue that are in use. They are never removed, so that a core
    /// that was restored from a backup takes none away.
    catalogue: BTreeMap<String, CatalogueEntry>,
}

impl RulesInForce {
    /// The rules in force after this answer, and the refused parts of the answer.
    pub fn take(&self, answer: FollowRulesResponse) -> (RulesInForce, Vec<Refused>) {
        if answer.patients.len() > PATIENTS_MAX {
            return (self.clone(), vec![Refused::TooMany(answer.patients.len())]);
        }
        let intervals = answer.intervals.len();
        if intervals > INTERVALS_MAX {
            return (self.clone(), vec![Refused::TooManyIntervals(intervals)]);
        }
        let mut refused = Vec::new();
        let mut in_force = RulesInForce {
            has_all: answer.has_intervals,
            catalogue: self.catalogue.clone(),
            ..RulesInForce::default()
        };
        // Before the rules, which may name metrics of it.
        for entry in answer.catalogue {
            match take_entry(&entry) {
                Ok(()) => drop(in_force.catalogue.insert(entry.key.clone(), entry)),
                Err(reason) => refused.push(Refused::Metric {
                    key: entry.key,
                    version: entry.version,
                    reason,
                }),
            }
        }
        for it in answer.intervals {
            let interval = Interval {
                patient: it.patient,
                gateway: String::new(),
                from_us: it.from_us,
                until_us: it.until_us,
            };
            in_force.worn.entry(it.device).or_default().push(interval);
        }
        for document in answer.documents {
            let subject = document.subject.clone();
            match RuleSet::from_json(&document.body) {
                Ok(set) => {
                    // As in the core, an alert carries the version of the document, not the version
                    // inside its body.
                    let version = document.version;
                    let set = Arc::new(RuleSet { version, ..set });
                    in_force.documents.insert(subject, (document, set));
                }
                Err(reason) => {
                    if let Some(before) = self.documents.get(&subject) {
                        in_force.documents.insert(subject.clone(), before.clone());
                    }
                    refused.push(Refused::Set {
                        subject,
                        version: document.version,
                        reason,
                    });
                }
            }
        }
        for mut patient in answer.patients {
            if !patient.subject.is_empty() && !in_force.documents.contains_key(&patient.subject) {
                let is_reported = refused.iter().any(
                    |it| matches!(it, Refused::Set { subject, .. } if *subject == patient.subject),
                );
                if !is_reported {
                    refused.push(Refused::Missing {
                        patient: patient.patient.clone(),
                        subject: patient.subject.clone(),
                    });
                }
                patient.subject = self.held_before(&patient.patient, &mut in_force);
            }
            in_force.patients.insert(patient.patient.clone(), patient);
        }
        in_force.close();
        (in_force, refused)
    }

    /// Subject of the patient's rules before, which are kept. Empty: there were none.
    fn held_before(&self, patient: &str, in_force: &mut RulesInForce) -> String {
        let Some(before) = self.patients.get(patient) else {
            return String::new();
        };
        if let Some(held) = self.documents.get(&before.subject) {
            let subject = before.subject.clone();
            in_force
                .documents
                .entry(subject)
                .or_insert_with(|| held.clone());
        }
        before.subject.clone()
    }

    /// Drops documents without a patient, and sets the rules of each patient and device.
    fn close(&mut self) {
        let patients = &self.patients;
        self.documents
            .retain(|subject, _| patients.values().any(|it| it.subject == *subject));
        for (id, patient) in patients {
            let document = self.documents.get(&patient.subject);
            let judged = Judged {
                rules: document.map(|(_, set)| (patient.subject.clone(), Arc::clone(set))),
                profile: Profile {
                    spo2_scale: Spo2Scale::of_number(patient.spo2_scale.into()),
                },
            };
            for device in &patient.devices {
                self.judged.insert(device.clone(), judged.clone());
            }
            self.judged.insert(id.clone(), judged);
        }
    }

    /// Rules and profile of this patient or device. `None`: the core has sent none.
    pub fn judged(&self, subject: &str) -> Option<&Judged> {
        self.judged.get(subject)
    }

    /// The patient who wore the device at that time. `None`: no patient did, or the clock is too
    /// uncertain.
    pub fn wearer(&self, device: &str, time_us: i64) -> Option<&str> {
        let intervals = self.worn.get(device)?;
        let interval = attribute(intervals, "", When::at(time_us, DOUBT_US));
        interval.ok().map(|it| it.patient.as_str())
    }

    /// Whether the core knows the device at this gateway. True as well if the core has not sent all
    /// devices.
    pub fn knows(&self, device: &str) -> bool {
        !self.has_all || self.worn.contains_key(device)
    }

    /// Whether every assignment of the device was over at that time: nobody wore it.
    pub fn has_ended(&self, device: &str, time_us: i64) -> bool {
        let is_over = |it: &Interval| it.until_us.saturating_add(DOUBT_US) < time_us;
        let worn = self.worn.get(device);
        self.has_all && worn.is_some_and(|worn| worn.iter().all(is_over))
    }

    /// Version in force of each document.
    pub fn versions(&self) -> impl Iterator<Item = (&str, u32)> {
        let documents = self.documents.iter();
        documents.map(|(subject, (document, _))| (subject.as_str(), document.version))
    }

    /// The answer that gives these rules in force when an empty state takes it.
    pub fn to_answer(&self) -> FollowRulesResponse {
        FollowRulesResponse {
            documents: self.documents.values().map(|it| it.0.clone()).collect(),
            patients: self.patients.values().cloned().collect(),
            intervals: self.worn.iter().flat_map(of_device).collect(),
            has_intervals: self.has_all,
            catalogue: self.catalogue.values().cloned().collect(),
            ..FollowRulesResponse::default()
        }
    }
}

/// The catalogue of the process bounds the number of entries.
fn take_entry(entry: &CatalogueEntry) -> Result<(), Invalid> {
    let document = MetricDocument::from_json(&entry.body)?;
    if document.key != entry.key {
        let reason = format!("describes {}", document.key);
        return Err(Invalid::new("key", reason, entry.key.as_str()));
    }
    vitals::take(entry.version, document).map(drop)
}

fn of_device((device, worn): (&String, &Vec<Interval>)) -> impl Iterator<Item = DeviceInterval> {
    worn.iter().map(move |it| DeviceInterval {
        device: device.clone(),
        patient: it.patient.clone(),
        from_us: it.from_us,
        until_us: it.until_us,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn document(subject: &str, version: u32) -> RulesDocument {
        RulesDocument {
            subject: subject.into(),
            version,
            body: serde_json::to_string(&RuleSet::default_set()).unwrap(),
        }
    }

    fn broken(subject: &str, version: u32) -> RulesDocument {
        RulesDocument {
            body: r#"{"name": "x", "version": 1, "rules": []}"#.into(),
            ..document(subject, version)
        }
    }

    fn answer(documents: Vec<RulesDocument>, of: &[(&str, &str)]) -> FollowRulesResponse {
        let patients = of.iter().map(|(patient, subject)| PatientRules {
            patient: (*patient).into(),
            devices: vec![format!("belt-of-{patient}")],
            subject: (*subject).into(),
            spo2_scale: 1,
        });
        FollowRulesResponse {
            documents,
            patients: patients.collect(),
            ..FollowRulesResponse::default()
        }
    }

    /// Subject and version of the rules for a patient or device.
    fn held<'a>(in_force: &'a RulesInForce, who: &str) -> Option<(&'a str, u32)> {
        let (subject, set) = in_force.judged(who)?.rules.as_ref()?;
        Some((subject.as_str(), set.version))
    }

    #[test]
    fn patients_and_their_devices_are_judged_by_the_same() {
        let (in_force, refused) = RulesInForce::default().take(answer(
            vec![document("default", 3), document("patient:ada", 7)],
            &[("ada", "patient:ada"), ("ben", "default"), ("eve", "")],
        ));
        assert_eq!(refused, []);
        for who in ["ada", "belt-of-ada"] {
            assert_eq!(held(&in_force, who), Some(("patient:ada", 7)));
        }
        assert_eq!(held(&in_force, "belt-of-ben"), Some(("default", 3)));
        assert_eq!(
            in_force.judged("eve").map(|it| it.rules.is_none()),
            Some(true)
        );
        assert_eq!(in_force.judged("nobody"), None);
        let mut scale_two = answer(Vec::new(), &[("ada", "")]);
        scale_two.patients[0].spo2_scale = 2;
        let (in_force, _) = in_force.take(scale_two);
        let scale = in_force.judged("belt-of-ada").unwrap().profile.spo2_scale;
        assert_eq!((scale, held(&in_force, "ada")), (Spo2Scale::Two, None));
    }

    #[test]
    fn a_broken_set_changes_nothing_and_is_said() {
        let (good, _) = RulesInForce::default().take(answer(
            vec![document("default", 3), document("patient:ada", 7)],
            &[("ada", "patient:ada"), ("ben", "default")],
        ));
        // The next version of a set in force, and the first set of a patient who had other rules.
        let (in_force, refused) = good.take(answer(
            vec![broken("patient:ada", 8), broken("patient:ben", 1)],
            &[("ada", "patient:ada"), ("ben", "patient:ben")],
        ));
        assert_eq!(held(&in_force, "ada"), Some(("patient:ada", 7)));
        assert_eq!(held(&in_force, "ben"), Some(("default", 3)));
        let said: Vec<String> = refused.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0]
                .starts_with(r#"rules "patient:ada" version 8 are not used: rules: has 0 rules"#),
            "{said:?}"
        );
        // The same answer again, after a restart with the stored rules.
        let (kept, refused) = RulesInForce::default().take(in_force.to_answer());
        assert_eq!((&kept, refused.as_slice()), (&in_force, &[][..]));
        // The core sends a valid set.
        let (in_force, refused) = kept.take(answer(
            vec![document("patient:ada", 9), document("patient:ben", 2)],
            &[("ada", "patient:ada"), ("ben", "patient:ben")],
        ));
        assert_eq!(refused, []);
        assert_eq!(
            in_force.versions().collect::<Vec<_>>(),
            [("patient:ada", 9), ("patient:ben", 2)]
        );
    }

    #[test]
    fn a_broken_set_for_somebody_new_leaves_them_to_the_gateways_own_rules() {
        let (in_force, refused) = RulesInForce::default().take(answer(
            vec![broken("default", 1)],
            &[("ada", "default"), ("ben", "group:none")],
        ));
        assert_eq!(
            (held(&in_force, "ada"), held(&in_force, "ben")),
            (None, None)
        );
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(matches!(&refused[1], Refused::Missing { patient, .. } if patient == "ben"));
    }

    #[test]
    fn the_catalogue_comes_before_the_rules_that_name_its_metrics_and_is_kept() {
        let entry = CatalogueEntry {
            key: "ketones".into(),
            version: 1,
            body: r#"{"key": "ketones", "names": {"en": "Ketones", "de": "Ketone",
                "es": "Cetonas"}, "unit": "mmol/L", "range": [0, 20], "example": 0.3,
                "reading": {"kind": "value"}, "stale_after_s": 3600, "rhythm": "occasional"}"#
                .into(),
        };
        let rules = RulesDocument {
            body: r#"{"name": "x", "version": 1, "rules": [{"id": "ketones-high",
                "priority": "high", "condition": {"kind": "above", "metric": "ketones",
                "limit": 1.5, "clear": 1.2}}]}"#
                .into(),
            ..document("patient:ada", 1)
        };
        let told = FollowRulesResponse {
            catalogue: vec![entry.clone()],
            ..answer(vec![rules], &[("ada", "patient:ada")])
        };
        let (in_force, refused) = RulesInForce::default().take(told);
        assert_eq!(
            (refused, held(&in_force, "ada")),
            (Vec::new(), Some(("patient:ada", 1)))
        );
        let (kept, _) = RulesInForce::default().take(in_force.to_answer());
        assert_eq!(kept, in_force, "on disk");
        let wrong = CatalogueEntry {
            key: "lactate".into(),
            ..entry
        };
        let (after, refused) = in_force.take(FollowRulesResponse {
            catalogue: vec![wrong],
            ..in_force.to_answer()
        });
        assert!(matches!(&refused[..], [Refused::Metric { key, .. }] if key == "lactate"));
        assert_eq!(after, in_force);
    }

    #[test]
    fn what_is_taken_back_holds_no_longer() {
        let (in_force, _) = RulesInForce::default()
            .take(answer(vec![document("default", 1)], &[("ada", "default")]));
        let (gone, refused) = in_force.take(answer(Vec::new(), &[("ada", "")]));
        assert_eq!((held(&gone, "ada"), refused.as_slice()), (None, &[][..]));
        let (nobody, _) = in_force.take(FollowRulesResponse::default());
        assert_eq!(nobody, RulesInForce::default());
    }

    #[test]
    fn who_wore_a_device_is_known_by_time_and_kept() {
        const HOUR_US: i64 = 3_600_000_000;
        let interval = |patient: &str, from_us, until_us| DeviceInterval {
            device: "belt".into(),
            patient: patient.into(),
            from_us,
            until_us,
        };
        let mut told = answer(Vec::new(), &[]);
        told.intervals = vec![
            interval("ben", HOUR_US, i64::MAX),
            interval("ada", i64::MIN, HOUR_US),
        ];
        let (partial, _) = RulesInForce::default().take(told.clone());
        assert!(partial.knows("other"), "these may not be all");
        told.has_intervals = true;
        let (in_force, refused) = RulesInForce::default().take(told);
        assert_eq!(refused, []);
        assert!(in_force.knows("belt") && !in_force.knows("other"));
        assert!(
            RulesInForce::default().knows("belt"),
            "nobody has said anything"
        );
        assert_eq!(in_force.wearer("belt", 0), Some("ada"));
        assert_eq!(in_force.wearer("belt", 2 * HOUR_US), Some("ben"));
        assert_eq!(
            in_force.wearer("belt", HOUR_US + 1),
            None,
            "too close to tell"
        );
        assert_eq!(in_force.wearer("other", 0), None);
        let (kept, _) = RulesInForce::default().take(in_force.to_answer());
        assert_eq!(kept, in_force);
        let mut many = answer(Vec::new(), &[]);
        many.intervals = vec![interval("ada", 0, 1); INTERVALS_MAX + 1];
        let (same, refused) = in_force.take(many);
        assert_eq!(same, in_force);
        assert_eq!(refused, [Refused::TooManyIntervals(INTERVALS_MAX + 1)]);
    }

    #[test]
    fn patients_are_bounded() {
        let names: Vec<String> = (0..=PATIENTS_MAX).map(|n| format!("p{n}")).collect();
        let of: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let (in_force, refused) = RulesInForce::default().take(answer(Vec::new(), &of));
        assert_eq!(refused, [Refused::TooMany(PATIENTS_MAX + 1)]);
        assert_eq!(in_force, RulesInForce::default());
    }
}
