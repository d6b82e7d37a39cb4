//! The catalogue of metrics in force: names, codes, units and the range that a working sensor can
//! report.
//!
//! The built-in entries are a document of the program, `catalogue.json`. People add entries by
//! documents of the same form. A built-in entry never changes at run time, so NEWS2 and the
//! built-in rules rest on constants.
//!
//! A process has one catalogue, and entries of its metrics are never removed. So a lookup needs no
//! parameter, and the same number means the same metric in every service of the process.
//!
//! The plausible range is wide on purpose, because it separates readings from faults, not health
//! from illness. A heart rate of 0 is a reading (asystole), but an SpO2 of 0 is a probe on the
//! table.

mod conversion;
mod document;

use std::{collections::HashMap, sync::LazyLock};

use contracts::vitals::Metric;
use parking_lot::RwLock;

pub use conversion::Accepted;
pub use document::{
    Form, LANGUAGES, MetricDocument, Names, Rhythm as MetricRhythm, Word as MetricWord,
};

use crate::refusal::Invalid;

/// Entries that people can add. More are refused.
pub const ADDED_MAX: usize = 250;
/// Versions of added entries that a process takes. A process that has taken so many keeps the last
/// ones until it restarts, because entries are never freed.
const TAKEN_MAX: usize = 20_000;

/// Form of a metric: one number per sample, or a chunk of an evenly spaced waveform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Value,
    /// An ordinal value or a count: 0, 1, 2, ...
    Step,
    /// `axes` interleaved channels.
    Waveform {
        axes: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    pub metric: Metric,
    /// Kebab-case, used in URLs, rule files and stream names.
    pub name: &'static str,
    /// Display name.
    pub display: &'static str,
    pub loinc: Option<&'static str>,
    /// UCUM.
    pub unit: &'static str,
    pub reading: Reading,
    /// Inclusive.
    pub range: (f64, f64),
    /// An accepted reading, for error messages.
    pub example: f64,
    pub document: &'static MetricDocument,
}

impl Entry {
    fn of(document: MetricDocument) -> Entry {
        // Entries live as long as the process: see `TAKEN_MAX`.
        let document: &'static MetricDocument = Box::leak(Box::new(document));
        Entry {
            metric: document.metric(),
            name: &document.key,
            display: document.names.get("en").map_or(&document.key, |name| name),
            loinc: document.loinc.as_deref(),
            unit: &document.unit,
            reading: match document.reading {
                Form::Value => Reading::Value,
                Form::Step => Reading::Step,
                Form::Waveform { axes } => Reading::Waveform { axes },
            },
            range: document.range,
            example: document.example,
            document,
        }
    }

    pub fn is_built_in(&self) -> bool {
        built_in(self.metric).is_some_and(|it| it.name == self.name)
    }

    /// The accepted unit of this name, other than the metric's own.
    pub fn accepted(&self, unit: &str) -> Option<&'static Accepted> {
        self.document.accepted.iter().find(|it| it.unit == unit)
    }

    /// All units that sensors may send, the metric's own first.
    pub fn units(&self) -> impl Iterator<Item = &'static str> {
        let others = self.document.accepted.iter().map(|it| it.unit.as_str());
        std::iter::once(self.unit).chain(others)
    }
}

const BUILT_IN_JSON: &str = include_str!("catalogue.json");

/// By number.
static BUILT_IN: LazyLock<HashMap<i32, &'static Entry>> = LazyLock::new(|| {
    let documents: Vec<MetricDocument> =
        serde_json::from_str(BUILT_IN_JSON).unwrap_or_else(|error| {
            // A test reads the file, so this would be a program that was built wrongly.
            panic!("catalogue.json: {error}")
        });
    let entries = documents.into_iter().map(Entry::of);
    entries
        .map(|entry| (entry.metric.number(), &*Box::leak(Box::new(entry))))
        .collect()
});

#[derive(Default)]
struct Added {
    /// By number: the version, and its entry.
    entries: HashMap<i32, (u32, &'static Entry)>,
    taken: usize,
}

static ADDED: LazyLock<RwLock<Added>> = LazyLock::new(RwLock::default);

fn built_in(metric: Metric) -> Option<&'static Entry> {
    BUILT_IN.get(&metric.number()).copied()
}

/// The catalogue's entry. `None`: this process does not know the metric.
pub fn entry(metric: Metric) -> Option<&'static Entry> {
    built_in(metric).or_else(|| {
        let added = ADDED.read();
        added.entries.get(&metric.number()).map(|(_, entry)| *entry)
    })
}

/// All entries, in the order of charts. Entries without a chart come last.
pub fn entries() -> Vec<&'static Entry> {
    let mut entries: Vec<_> = BUILT_IN.values().copied().collect();
    {
        let added = ADDED.read();
        entries.extend(added.entries.values().map(|(_, entry)| *entry));
    }
    entries.sort_by_key(|it| {
        let order = it.document.chart.as_ref().map_or(u32::MAX, |it| it.order);
        (order, it.name)
    });
    entries
}

/// Refuses a document that may not be added to the catalogue of this process.
pub fn check_metric(document: &MetricDocument) -> Result<(), Invalid> {
    check(document, &ADDED.read())
}

fn check(document: &MetricDocument, added: &Added) -> Result<(), Invalid> {
    let number = document.metric().number();
    if BUILT_IN
        .get(&number)
        .is_some_and(|it| it.name == document.key)
    {
        let reason = format!("{} is built in and cannot be changed", document.key);
        return Err(Invalid::new("key", reason, "another key"));
    }
    let before = added.entries.get(&number).map(|(_, entry)| entry.document);
    let before = before.filter(|before| before.key == document.key);
    let of_people = added.entries.values().map(|(_, entry)| entry.document);
    let all = BUILT_IN.values().map(|it| it.document).chain(of_people);
    document.check_added(before, all)
}

/// Takes a version of an added entry. An older version than the one in force changes nothing.
/// Returns whether the catalogue changed.
pub fn take(version: u32, document: MetricDocument) -> Result<bool, Invalid> {
    let mut added = ADDED.write();
    let number = document.metric().number();
    let known = added.entries.get(&number);
    if let Some((newest, entry)) = known
        && entry.name == document.key
        && (*newest >= version || *entry.document == document)
    {
        return Ok(false);
    }
    check(&document, &added)?;
    if (known.is_none() && added.entries.len() >= ADDED_MAX) || added.taken >= TAKEN_MAX {
        let reason = format!("there are {ADDED_MAX} metrics, or {TAKEN_MAX} versions");
        return Err(Invalid::new(
            "metric",
            reason,
            "restart after removing some",
        ));
    }
    added.taken += 1;
    let entry: &'static Entry = Box::leak(Box::new(Entry::of(document)));
    added.entries.insert(number, (version, entry));
    Ok(true)
}

/// Kebab-case name. A metric that this process does not know has none.
pub fn name(metric: Metric) -> &'static str {
    entry(metric).map_or("unknown-metric", |entry| entry.name)
}

/// Display name. Empty for a metric that this process does not know.
pub(crate) fn display(metric: Metric) -> &'static str {
    entry(metric).map_or("", |entry| entry.display)
}

pub fn by_name(name: &str) -> Option<&'static Entry> {
    entry(Metric::of_key(name)).filter(|entry| entry.name == name)
}

/// Serialises a metric as its kebab-case name.
pub mod metric_name {
    use serde::Deserialize;

    use super::*;

    pub fn serialize<S: serde::Serializer>(metric: &Metric, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(name(*metric))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Metric, D::Error> {
        let text = String::deserialize(from)?;
        by_name(&text).map(|entry| entry.metric).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no metric, for example \"heart-rate\""))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_built_in_entry_is_valid_and_found_by_number_and_name() {
        let documents: Vec<MetricDocument> = serde_json::from_str(BUILT_IN_JSON).unwrap();
        let mut codes = BTreeSet::new();
        for document in &documents {
            let text = serde_json::to_string(document).unwrap();
            assert_eq!(&MetricDocument::from_json(&text).unwrap(), document);
            let found = entry(document.metric()).unwrap();
            assert_eq!(found.name, document.key, "numbers are unique");
            assert_eq!(by_name(&document.key).unwrap().metric, document.metric());
            assert!(codes.insert(document.loinc.clone().unwrap_or(document.key.clone())));
        }
        let built_in = entries().into_iter().filter(|it| it.is_built_in());
        assert_eq!(built_in.count(), documents.len());
        for number in 1..=12 {
            assert!(entry(Metric::from_number(number)).is_some(), "{number}");
        }
        assert!(entry(Metric::Unspecified).is_none());
        assert!(by_name("pulse").is_none());
    }

    #[test]
    fn the_parameters_of_news2_have_their_roles_and_no_other_metric_has_one() {
        let with_role = entries()
            .into_iter()
            .filter(|it| it.document.news2.is_some());
        let with_role: BTreeSet<Metric> = with_role.map(|it| it.metric).collect();
        assert_eq!(with_role, crate::news2::PARAMETERS.into());
    }

    fn lactate() -> MetricDocument {
        MetricDocument::from_json(
            r#"{"key": "lactate", "names": {"en": "Lactate", "de": "Laktat", "es": "Lactato"},
            "loinc": "2524-7", "unit": "mmol/L", "accepted": [{"unit": "mg/dL", "divide": 9.008}],
            "range": [0.1, 30], "example": 1.2, "decimals": 2, "reading": {"kind": "value"},
            "stale_after_s": 3600, "rhythm": "occasional"}"#,
        )
        .unwrap()
    }

    #[test]
    fn an_added_entry_is_known_and_a_later_version_may_not_change_its_unit() {
        assert!(take(1, lactate()).unwrap());
        assert!(!take(1, lactate()).unwrap(), "again");
        assert_eq!(by_name("lactate").unwrap().unit, "mmol/L");
        let changed = |edit: fn(&mut MetricDocument)| {
            let mut document = lactate();
            edit(&mut document);
            document
        };
        let refused = |edit| take(2, changed(edit)).unwrap_err().field;
        assert_eq!(refused(|it| it.unit = "mg/dL".into()), "unit");
        assert_eq!(refused(|it| it.reading = Form::Step), "unit");
        assert_eq!(refused(|it| it.accepted.clear()), "accepted");
        assert_eq!(refused(|it| it.news2 = Some("pulse".into())), "news2");
        assert!(take(2, changed(|it| it.range.1 = 40.0)).unwrap());
        assert!(!take(1, lactate()).unwrap(), "an older version");
        assert_eq!(by_name("lactate").unwrap().range.1, 40.0);
        for key in ["heart-rate", "glucose"] {
            let mut own = lactate();
            own.key = key.into();
            assert_eq!(take(9, own).unwrap_err().field, "key", "{key}");
        }
        let mut same_code = lactate();
        same_code.key = "lactate-2".into();
        same_code.loinc = Some("8867-4".into());
        assert_eq!(take(1, same_code).unwrap_err().field, "loinc");
    }

    #[test]
    fn a_wrong_document_is_refused_by_field() {
        let refused = |edit: fn(&mut MetricDocument)| {
            let mut document = lactate();
            edit(&mut document);
            let text = serde_json::to_string(&document).unwrap();
            MetricDocument::from_json(&text).unwrap_err().field
        };
        assert_eq!(refused(|it| it.key = "Lactate".into()), "key");
        assert_eq!(refused(|it| drop(it.names.remove("de"))), "names");
        assert_eq!(refused(|it| it.loinc = Some("2524-8".into())), "loinc");
        assert_eq!(refused(|it| it.unit = "mmol / L".into()), "unit");
        assert_eq!(refused(|it| it.range = (3.0, 3.0)), "range");
        assert_eq!(refused(|it| it.example = 31.0), "example");
        assert_eq!(refused(|it| it.decimals = Some(9)), "decimals");
        assert_eq!(refused(|it| it.stale_after_s = 0), "stale_after_s");
        assert_eq!(refused(|it| it.accepted[0].divide = 0.0), "accepted");
        assert_eq!(
            refused(|it| it.accepted[0].unit = "mmol/L".into()),
            "accepted"
        );
        assert_eq!(refused(|it| it.reading = Form::Step), "accepted");
        let wrong_physics = |it: &mut MetricDocument| {
            it.unit = "Cel".into();
            it.accepted[0].unit = "[degF]".into();
        };
        assert_eq!(refused(wrong_physics), "accepted");
        let unknown = r#"{"key": "x", "colour": "red"}"#;
        assert_eq!(
            MetricDocument::from_json(unknown).unwrap_err().field,
            "metric"
        );
    }
}
