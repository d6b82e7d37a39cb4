//! The entry of one metric as people write it, and its validation.

use std::collections::{BTreeMap, BTreeSet};

use contracts::vitals::Metric;
use serde::{Deserialize, Serialize};

use super::conversion::{Accepted, contradiction};
use crate::refusal::{Invalid, validate_text};

/// Languages in which an entry has its words.
pub const LANGUAGES: [&str; 3] = ["en", "de", "es"];
/// Bytes of a document. A gateway takes all documents in one message.
const BYTES_MAX: usize = 8 << 10;
/// Bytes of a key.
const KEY_BYTES_MAX: usize = 64;
/// Bytes of a name, a unit, a LOINC code or a group.
const WORD_BYTES_MAX: usize = 80;
/// Accepted units, choices and limit lines of one entry, each.
const ITEMS_MAX: usize = 32;
/// Axes of a waveform.
const AXES_MAX: usize = 16;
/// A reading that is older than 31 days is never current.
const STALE_S_MAX: u32 = 31 * 86_400;
/// Most digits after the decimal point that an entry may ask for.
const DECIMALS_MAX: u8 = 6;

/// Name by language.
pub type Names = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricDocument {
    /// Kebab-case, used in URLs, rule files and stream names. The metric's number follows from it.
    pub key: String,
    pub names: Names,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loinc: Option<String>,
    /// UCUM.
    pub unit: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<Accepted>,
    /// The values that a working sensor can report, in the metric's own unit. Inclusive.
    pub range: (f64, f64),
    pub example: f64,
    /// Most digits after the decimal point in the metric's own unit. `None`: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decimals: Option<u8>,
    pub reading: Form,
    /// The words of a coded metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Word>,
    pub stale_after_s: u32,
    pub rhythm: Rhythm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<Chart>,
    /// Parameter of the NEWS2 score. The score has seven, and all are built in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub news2: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Form {
    Value,
    Step,
    Waveform { axes: usize },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Word {
    pub value: f64,
    pub names: Names,
}

/// Whether a sensor reports all the time, or somebody measures now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rhythm {
    Continuous,
    Occasional,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chart {
    pub group: String,
    pub order: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Word>,
}

impl MetricDocument {
    /// Refuses a document that is not valid by itself.
    pub fn from_json(text: &str) -> Result<MetricDocument, Invalid> {
        if text.len() > BYTES_MAX {
            let reason = format!("is longer than {BYTES_MAX} bytes");
            return Err(Invalid::new("metric", reason, "fewer choices"));
        }
        let document: MetricDocument = serde_json::from_str(text).map_err(|error| {
            let example = "what `braid catalogue show glucose --json` prints";
            Invalid::new("metric", error.to_string(), example)
        })?;
        document.check()?;
        Ok(document)
    }

    pub fn metric(&self) -> Metric {
        Metric::of_key(&self.key)
    }

    fn check(&self) -> Result<(), Invalid> {
        self.check_words()?;
        self.check_numbers()?;
        self.check_units()?;
        let sizes = [self.accepted.len(), self.choices.len(), self.limits().len()];
        if sizes.iter().any(|size| *size > ITEMS_MAX) {
            let reason = format!("a list has more than {ITEMS_MAX} entries");
            return Err(Invalid::new("accepted", reason, "one unit"));
        }
        Ok(())
    }

    fn limits(&self) -> &[Word] {
        self.chart.as_ref().map_or(&[], |chart| &chart.limits)
    }

    fn check_words(&self) -> Result<(), Invalid> {
        let is_key = self.key.len() <= KEY_BYTES_MAX
            && self.key.starts_with(|it: char| it.is_ascii_lowercase())
            && !self.key.ends_with('-')
            && !self.key.contains("--")
            && self
                .key
                .bytes()
                .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-');
        if !is_key {
            return Err(Invalid::new(
                "key",
                format!("is not 1 to {KEY_BYTES_MAX} lower-case letters, digits and hyphens"),
                "\"capillary-glucose\"",
            ));
        }
        check_names("names", &self.names)?;
        for word in &self.choices {
            check_names("choices.names", &word.names)?;
        }
        for word in self.limits() {
            check_names("chart.limits.names", &word.names)?;
        }
        if let Some(loinc) = &self.loinc {
            let is_loinc = loinc.split_once('-').is_some_and(|(number, check)| {
                let digits = |it: &str| it.bytes().all(|byte| byte.is_ascii_digit());
                (1..=7).contains(&number.len())
                    && digits(number)
                    && check.parse() == Ok(check_digit(number))
            });
            if !is_loinc {
                let reason = format!("{loinc:?} is no LOINC code: its check digit is wrong");
                return Err(Invalid::new("loinc", reason, "\"14743-9\""));
            }
        }
        if let Some(chart) = &self.chart {
            validate_text(
                "chart.group",
                &chart.group,
                WORD_BYTES_MAX,
                "\"metabolism\"",
            )?;
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), Invalid> {
        let (low, high) = self.range;
        if !(low.is_finite() && high.is_finite() && low < high) {
            let reason = format!("{low} to {high} is no range");
            return Err(Invalid::new("range", reason, "[0.5, 60]"));
        }
        let holds = |value: f64| (low..=high).contains(&value);
        if !holds(self.example) {
            let reason = format!("{} is outside {low} to {high}", self.example);
            return Err(Invalid::new("example", reason, low.to_string()));
        }
        if let Some(word) = self.choices.iter().find(|it| !holds(it.value)) {
            let reason = format!("{} is outside {low} to {high}", word.value);
            return Err(Invalid::new("choices.value", reason, low.to_string()));
        }
        if let Some(word) = self.limits().iter().find(|it| !holds(it.value)) {
            let reason = format!("{} is outside {low} to {high}", word.value);
            return Err(Invalid::new("chart.limits.value", reason, low.to_string()));
        }
        let is_coded = matches!(self.reading, Form::Step);
        if !self.choices.is_empty() {
            let values: BTreeSet<u64> = self.choices.iter().map(|it| it.value.to_bits()).collect();
            let is_whole = self.choices.iter().all(|it| it.value.fract() == 0.0);
            if !is_coded || !is_whole || values.len() != self.choices.len() {
                let reason = "need the reading {\"kind\": \"step\"} and whole, different values";
                return Err(Invalid::new("choices", reason, "0, 1, 2"));
            }
        }
        let axes_max = match self.reading {
            Form::Waveform { axes } => axes,
            _ => 1,
        };
        if !(1..=AXES_MAX).contains(&axes_max) {
            let reason = format!("{axes_max} axes are outside 1 to {AXES_MAX}");
            return Err(Invalid::new("reading.axes", reason, "1"));
        }
        if !(1..=STALE_S_MAX).contains(&self.stale_after_s) {
            let reason = format!("{} is outside 1 to {STALE_S_MAX}", self.stale_after_s);
            return Err(Invalid::new("stale_after_s", reason, "28800"));
        }
        let decimals = self.accepted.iter().map(|it| it.decimals);
        if decimals
            .chain([self.decimals])
            .flatten()
            .any(|it| it > DECIMALS_MAX)
        {
            let reason = format!("is above {DECIMALS_MAX}");
            return Err(Invalid::new("decimals", reason, "1"));
        }
        Ok(())
    }

    fn check_units(&self) -> Result<(), Invalid> {
        let is_unit = |unit: &str| {
            (1..=WORD_BYTES_MAX).contains(&unit.len())
                && unit.bytes().all(|it| it.is_ascii_graphic())
        };
        let mut units = BTreeSet::from([self.unit.as_str()]);
        for accepted in &self.accepted {
            let refuse = |reason: String| Err(Invalid::new("accepted", reason, "\"mg/dL\""));
            if !units.insert(&accepted.unit) {
                return refuse(format!("{} is there twice", accepted.unit));
            }
            if !matches!(self.reading, Form::Value) {
                return refuse("only a reading of the kind value is converted".to_owned());
            }
            if let Some(flaw) = accepted.flaw() {
                return refuse(flaw);
            }
            if let Some(known) = contradiction(accepted, &self.unit) {
                return refuse(known);
            }
        }
        match units.iter().find(|unit| !is_unit(unit)) {
            Some(unit) => {
                let reason = format!("{unit:?} is no UCUM unit");
                Err(Invalid::new("unit", reason, "\"mmol/L\""))
            }
            None => Ok(()),
        }
    }

    /// Refuses a document that may not follow `before` beside `others`, which may contain it.
    pub(super) fn check_added<'a>(
        &self,
        before: Option<&MetricDocument>,
        others: impl IntoIterator<Item = &'a MetricDocument>,
    ) -> Result<(), Invalid> {
        let refuse = |field, reason: String, example: &str| {
            Err(Invalid::new(
                field,
                format!("{}: {reason}", self.key),
                example,
            ))
        };
        if self.news2.is_some() {
            let reason = "the score has seven parameters, and all are built in".to_owned();
            return refuse("news2", reason, "leave the field out");
        }
        for other in others.into_iter().filter(|it| it.key != self.key) {
            if other.metric() == self.metric() {
                let reason = format!("has the number of {}", other.key);
                return refuse("key", reason, "another key");
            }
            if self.loinc.is_some() && other.loinc == self.loinc {
                let reason = format!("{} has this code", other.key);
                return refuse("loinc", reason, "a code of its own");
            }
        }
        let Some(before) = before else {
            return Ok(());
        };
        if before.unit != self.unit || before.reading != self.reading {
            let was = serde_json::json!({"unit": before.unit, "reading": before.reading});
            let reason = "readings are stored in the former unit and form".to_owned();
            return refuse("unit", reason, &format!("{was}, or another key"));
        }
        let has = |unit: &str| self.accepted.iter().any(|it| it.unit == unit);
        if let Some(gone) = before.accepted.iter().find(|it| !has(&it.unit)) {
            let reason = format!("{} is gone, and sensors may send it", gone.unit);
            return refuse("accepted", reason, "keep the unit");
        }
        let has = |value: f64| self.choices.iter().any(|it| it.value == value);
        if let Some(gone) = before.choices.iter().find(|it| !has(it.value)) {
            let reason = format!("{} is gone, and readings may have it", gone.value);
            return refuse("choices", reason, "keep the choice");
        }
        Ok(())
    }
}

fn check_names(field: &'static str, names: &Names) -> Result<(), Invalid> {
    let example = r#"{"en": "Low", "de": "niedrig", "es": "Baja"}"#;
    for language in LANGUAGES {
        let Some(name) = names.get(language) else {
            let reason = format!("has no word in {language}");
            return Err(Invalid::new(field, reason, example));
        };
        validate_text(field, name, WORD_BYTES_MAX, example)?;
    }
    match names.keys().find(|it| !LANGUAGES.contains(&it.as_str())) {
        Some(other) => Err(Invalid::new(
            field,
            format!("{other:?} is no language"),
            example,
        )),
        None => Ok(()),
    }
}

/// The digit behind the hyphen of a LOINC code (Mod 10).
fn check_digit(number: &str) -> u32 {
    let digits = number.bytes().rev().map(|byte| u32::from(byte - b'0'));
    let sum: u32 = digits
        .enumerate()
        .map(|(place, digit)| match place % 2 {
            0 => digit * 2 / 10 + digit * 2 % 10,
            _ => digit,
        })
        .sum();
    (10 - sum % 10) % 10
}
