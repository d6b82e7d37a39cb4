//! The rules that the core has handed out, and who wore which device at this gateway, as far as this gateway can judge by them: pure.
//!
//! What cannot be read changes nothing. A set is replaced only by one that is in order, and a patient whose own set is not goes on by
//! what held before; so a mistake in the core, or a core that is newer than this gateway, leaves nobody without rules.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use contracts::vitals::{DeviceInterval, FollowRulesResponse, PatientRules, RulesDocument};
use vitals::{
    Invalid, Profile, RuleSet, Spo2Scale,
    attribution::{Interval, When, attribute},
};

/// Patients in one book; an answer with more is refused whole.
pub const PATIENTS_MAX: usize = 1024;
/// Intervals in one book; an answer with more is refused whole. A core hands out no more.
pub const INTERVALS_MAX: usize = 8192;
/// The gateway does not know by how much its own clock is wrong. Within this of a change of hands a device is judged by itself.
const DOUBT_US: i64 = 120_000_000;

/// What was handed out and is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("rules {subject:?} version {version} are not used: {reason}")]
    Set {
        subject: String,
        version: u32,
        reason: Invalid,
    },
    #[error("patient {patient:?} is to be judged by rules {subject:?}, which are not there")]
    Missing { patient: String, subject: String },
    #[error("rules for {0} patients at once, at most {PATIENTS_MAX} are taken")]
    TooMany(usize),
    #[error("{0} intervals of devices at once, at most {INTERVALS_MAX} are taken")]
    TooManyIntervals(usize),
}

/// By which rules somebody is judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// `None`: by the gateway's own.
    pub rules: Option<(String, Arc<RuleSet>)>,
    pub profile: Profile,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rulebook {
    /// By subject: what holds for somebody, as it came and as it was read.
    documents: BTreeMap<String, (RulesDocument, Arc<RuleSet>)>,
    patients: BTreeMap<String, PatientRules>,
    /// By patient and by device.
    judged: HashMap<String, Judged>,
    /// By device: who wore it at this gateway. None has a gateway's name, since all are of this one.
    worn: BTreeMap<String, Vec<Interval>>,
    /// These are all devices of the gateway.
    has_all: bool,
}

impl Rulebook {
    /// The book after this answer, and what of the answer is not in it.
    pub fn take(&self, answer: FollowRulesResponse) -> (Rulebook, Vec<Refused>) {
        if answer.patients.len() > PATIENTS_MAX {
            return (self.clone(), vec![Refused::TooMany(answer.patients.len())]);
        }
        let intervals = answer.intervals.len();
        if intervals > INTERVALS_MAX {
            return (self.clone(), vec![Refused::TooManyIntervals(intervals)]);
        }
        let mut refused = Vec::new();
        let mut book = Rulebook {
            has_all: answer.has_intervals,
            ..Rulebook::default()
        };
        for it in answer.intervals {
            let interval = Interval {
                patient: it.patient,
                gateway: String::new(),
                from_us: it.from_us,
                until_us: it.until_us,
            };
            book.worn.entry(it.device).or_default().push(interval);
        }
        for document in answer.documents {
            let subject = document.subject.clone();
            match RuleSet::from_json(&document.body) {
                Ok(set) => {
                    // As the core does: an alert names the version of the document, whatever its author wrote inside.
                    let version = document.version;
                    let set = Arc::new(RuleSet { version, ..set });
                    book.documents.insert(subject, (document, set));
                }
                Err(reason) => {
                    if let Some(before) = self.documents.get(&subject) {
                        book.documents.insert(subject.clone(), before.clone());
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
            if !patient.subject.is_empty() && !book.documents.contains_key(&patient.subject) {
                let is_told = refused.iter().any(
                    |it| matches!(it, Refused::Set { subject, .. } if *subject == patient.subject),
                );
                if !is_told {
                    refused.push(Refused::Missing {
                        patient: patient.patient.clone(),
                        subject: patient.subject.clone(),
                    });
                }
                patient.subject = self.held_before(&patient.patient, &mut book);
            }
            book.patients.insert(patient.patient.clone(), patient);
        }
        book.close();
        (book, refused)
    }

    /// Subject of what held for the patient, which the book has then; empty: nothing did.
    fn held_before(&self, patient: &str, book: &mut Rulebook) -> String {
        let Some(before) = self.patients.get(patient) else {
            return String::new();
        };
        if let Some(held) = self.documents.get(&before.subject) {
            let subject = before.subject.clone();
            book.documents
                .entry(subject)
                .or_insert_with(|| held.clone());
        }
        before.subject.clone()
    }

    /// Drops what holds for nobody, and writes down who is judged by what.
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

    /// By which rules this patient, or whoever wears this device, is judged. `None`: nothing was handed out for them.
    pub fn judged(&self, subject: &str) -> Option<&Judged> {
        self.judged.get(subject)
    }

    /// Who wore the device at that time. `None`: nobody did, or the gateway cannot tell.
    pub fn wearer(&self, device: &str, time_us: i64) -> Option<&str> {
        let intervals = self.worn.get(device)?;
        let interval = attribute(intervals, "", When::at(time_us, DOUBT_US));
        interval.ok().map(|it| it.patient.as_str())
    }

    /// Whether the core lets this gateway speak for the device, now or lately; also when the core has not said for which.
    pub fn knows(&self, device: &str) -> bool {
        !self.has_all || self.worn.contains_key(device)
    }

    /// Version in force of each document.
    pub fn versions(&self) -> impl Iterator<Item = (&str, u32)> {
        let documents = self.documents.iter();
        documents.map(|(subject, (document, _))| (subject.as_str(), document.version))
    }

    /// The answer that makes this book out of an empty one.
    pub fn to_answer(&self) -> FollowRulesResponse {
        FollowRulesResponse {
            documents: self.documents.values().map(|it| it.0.clone()).collect(),
            patients: self.patients.values().cloned().collect(),
            intervals: self.worn.iter().flat_map(of_device).collect(),
            has_intervals: self.has_all,
        }
    }
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

    /// Subject and version by which somebody is judged.
    fn held<'a>(book: &'a Rulebook, who: &str) -> Option<(&'a str, u32)> {
        let (subject, set) = book.judged(who)?.rules.as_ref()?;
        Some((subject.as_str(), set.version))
    }

    #[test]
    fn patients_and_their_devices_are_judged_by_the_same() {
        let (book, refused) = Rulebook::default().take(answer(
            vec![document("default", 3), document("patient:ada", 7)],
            &[("ada", "patient:ada"), ("ben", "default"), ("eve", "")],
        ));
        assert_eq!(refused, []);
        for who in ["ada", "belt-of-ada"] {
            assert_eq!(held(&book, who), Some(("patient:ada", 7)));
        }
        assert_eq!(held(&book, "belt-of-ben"), Some(("default", 3)));
        assert_eq!(book.judged("eve").map(|it| it.rules.is_none()), Some(true));
        assert_eq!(book.judged("nobody"), None);
        let mut scale_two = answer(Vec::new(), &[("ada", "")]);
        scale_two.patients[0].spo2_scale = 2;
        let (book, _) = book.take(scale_two);
        let scale = book.judged("belt-of-ada").unwrap().profile.spo2_scale;
        assert_eq!((scale, held(&book, "ada")), (Spo2Scale::Two, None));
    }

    #[test]
    fn a_broken_set_changes_nothing_and_is_said() {
        let (good, _) = Rulebook::default().take(answer(
            vec![document("default", 3), document("patient:ada", 7)],
            &[("ada", "patient:ada"), ("ben", "default")],
        ));
        // The next version of a set that held, and the first of one for somebody who was judged by another.
        let (book, refused) = good.take(answer(
            vec![broken("patient:ada", 8), broken("patient:ben", 1)],
            &[("ada", "patient:ada"), ("ben", "patient:ben")],
        ));
        assert_eq!(held(&book, "ada"), Some(("patient:ada", 7)));
        assert_eq!(held(&book, "ben"), Some(("default", 3)));
        let said: Vec<String> = refused.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0]
                .starts_with(r#"rules "patient:ada" version 8 are not used: rules: has 0 rules"#),
            "{said:?}"
        );
        // The same again, after a restart with what was kept.
        let (kept, refused) = Rulebook::default().take(book.to_answer());
        assert_eq!((&kept, refused.as_slice()), (&book, &[][..]));
        // Mended.
        let (book, refused) = kept.take(answer(
            vec![document("patient:ada", 9), document("patient:ben", 2)],
            &[("ada", "patient:ada"), ("ben", "patient:ben")],
        ));
        assert_eq!(refused, []);
        assert_eq!(
            book.versions().collect::<Vec<_>>(),
            [("patient:ada", 9), ("patient:ben", 2)]
        );
    }

    #[test]
    fn a_broken_set_for_somebody_new_leaves_them_to_the_gateways_own_rules() {
        let (book, refused) = Rulebook::default().take(answer(
            vec![broken("default", 1)],
            &[("ada", "default"), ("ben", "group:none")],
        ));
        assert_eq!((held(&book, "ada"), held(&book, "ben")), (None, None));
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(matches!(&refused[1], Refused::Missing { patient, .. } if patient == "ben"));
    }

    #[test]
    fn what_is_taken_back_holds_no_longer() {
        let (book, _) =
            Rulebook::default().take(answer(vec![document("default", 1)], &[("ada", "default")]));
        let (gone, refused) = book.take(answer(Vec::new(), &[("ada", "")]));
        assert_eq!((held(&gone, "ada"), refused.as_slice()), (None, &[][..]));
        let (nobody, _) = book.take(FollowRulesResponse::default());
        assert_eq!(nobody, Rulebook::default());
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
        let (partial, _) = Rulebook::default().take(told.clone());
        assert!(partial.knows("other"), "these may not be all");
        told.has_intervals = true;
        let (book, refused) = Rulebook::default().take(told);
        assert_eq!(refused, []);
        assert!(book.knows("belt") && !book.knows("other"));
        assert!(
            Rulebook::default().knows("belt"),
            "nobody has said anything"
        );
        assert_eq!(book.wearer("belt", 0), Some("ada"));
        assert_eq!(book.wearer("belt", 2 * HOUR_US), Some("ben"));
        assert_eq!(book.wearer("belt", HOUR_US + 1), None, "too close to tell");
        assert_eq!(book.wearer("other", 0), None);
        let (kept, _) = Rulebook::default().take(book.to_answer());
        assert_eq!(kept, book);
        let mut many = answer(Vec::new(), &[]);
        many.intervals = vec![interval("ada", 0, 1); INTERVALS_MAX + 1];
        let (same, refused) = book.take(many);
        assert_eq!(same, book);
        assert_eq!(refused, [Refused::TooManyIntervals(INTERVALS_MAX + 1)]);
    }

    #[test]
    fn patients_are_bounded() {
        let names: Vec<String> = (0..=PATIENTS_MAX).map(|n| format!("p{n}")).collect();
        let of: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let (book, refused) = Rulebook::default().take(answer(Vec::new(), &of));
        assert_eq!(refused, [Refused::TooMany(PATIENTS_MAX + 1)]);
        assert_eq!(book, Rulebook::default());
    }
}
