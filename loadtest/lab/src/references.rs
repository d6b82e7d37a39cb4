//! The values that papers and other projects print, read from `references.toml` and nowhere else.
//!
//! A figure of the lab finds its reference by its own id: `figure("pals.loss.efficiency")`. The
//! direction in an id does not matter, since the papers measure one direction.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::figures::Figure;

const TEXT: &str = include_str!("../references.toml");
/// Parts of an id that name a variant of ours.
const VARIANTS: [&str; 3] = ["download", "upload", "by_capacity"];

/// A printed value, with where it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    pub value: f64,
    pub unit: String,
    /// Short name of the paper, a key of `[paper]`.
    pub paper: String,
    /// Table, figure or section.
    pub place: String,
}

/// The reference of a figure of the lab, or the lack of one.
#[derive(Debug, Clone, PartialEq)]
pub enum Comparison {
    Reference(Reference),
    /// There is none, for this reason.
    NoReference(String),
    /// The data file says nothing, which a test and the report refuse.
    Missing,
}

/// Pairs of networks, in the order of the verdicts in the file.
pub const PAIRS: [&str; 3] = ["wlan_wlan", "3g_3g", "wlan_3g"];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    paper: BTreeMap<String, Paper>,
    source: Vec<Source>,
    /// By protocol, then by application: one word for each pair.
    verdict: BTreeMap<String, BTreeMap<String, [String; 3]>>,
    figure: BTreeMap<String, Entry>,
    chart: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Paper {
    title: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    id: String,
    paper: String,
    place: String,
    unit: Option<String>,
    units: Option<Vec<String>>,
    columns: Vec<String>,
    #[allow(dead_code, reason = "for readers of the file")]
    note: Option<String>,
    rows: BTreeMap<String, Vec<f64>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Entry {
    Value(String),
    Percent { percent: [String; 2] },
    None { none: String },
}

struct Library {
    document: Document,
    values: BTreeMap<String, Reference>,
}

/// A file that cannot be read is empty here; a test reads it strictly.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| parse(TEXT).unwrap_or_else(|_| index(Document::default())))
}

fn parse(text: &str) -> Result<Library, toml::de::Error> {
    toml::from_str(text).map(index)
}

fn index(document: Document) -> Library {
    let mut values = BTreeMap::new();
    for source in &document.source {
        for (row, cells) in &source.rows {
            for (index, (column, &value)) in source.columns.iter().zip(cells).enumerate() {
                let own = source.units.as_ref().and_then(|units| units.get(index));
                let unit = own.or(source.unit.as_ref()).cloned().unwrap_or_default();
                let (paper, place) = (source.paper.clone(), source.place.clone());
                if value.is_finite() {
                    let id = format!("{}.{row}.{column}", source.id);
                    values.insert(
                        id,
                        Reference {
                            value,
                            unit,
                            paper,
                            place,
                        },
                    );
                }
            }
        }
    }
    Library { document, values }
}

/// The value with this id, `source.row.column`.
pub fn reference(id: &str) -> Option<Reference> {
    library().values.get(id).cloned()
}

/// The number alone.
pub fn value(id: &str) -> Option<f64> {
    library().values.get(id).map(|reference| reference.value)
}

/// Compares the figure with this id.
pub fn comparison(id: &str) -> Comparison {
    look_up(&library().document.figure, id)
}

/// The reference of the figure with this id, if there is one.
pub fn figure(id: &str) -> Option<f64> {
    match comparison(id) {
        Comparison::Reference(reference) => Some(reference.value),
        Comparison::NoReference(_) | Comparison::Missing => None,
    }
}

/// Which figure of a paper a chart redraws, as `paper, place`, or why it redraws none.
pub fn chart(id: &str) -> Option<String> {
    let entries = &library().document.chart;
    match longest(entries, id)? {
        Entry::Value(text) => Some(text.clone()),
        Entry::None { none } => Some(none.clone()),
        Entry::Percent { .. } => None,
    }
}

/// Title of a paper by its short name.
pub fn title(paper: &str) -> Option<&'static str> {
    let paper = library().document.paper.get(paper)?;
    Some(&paper.title)
}

/// The paper's word on multipath for an application over the pair `PAIRS[pair]`.
pub fn verdict(protocol: &str, application: &str, pair: usize) -> Option<&'static str> {
    let words = library().document.verdict.get(protocol)?.get(application)?;
    words.get(pair).map(String::as_str)
}

fn look_up(entries: &BTreeMap<String, Entry>, id: &str) -> Comparison {
    match longest(entries, id) {
        None => Comparison::Missing,
        Some(Entry::None { none }) => Comparison::NoReference(none.clone()),
        Some(Entry::Value(value)) => {
            reference(value).map_or(Comparison::Missing, Comparison::Reference)
        }
        Some(Entry::Percent {
            percent: [part, whole],
        }) => match (reference(part), reference(whole)) {
            (Some(part), Some(whole)) => Comparison::Reference(Reference {
                value: 100.0 * part.value / whole.value,
                unit: "%".to_owned(),
                ..part
            }),
            _ => Comparison::Missing,
        },
    }
}

/// The entry for the id itself, or the longest one that ends with a dot and begins the id.
fn longest<'a>(entries: &'a BTreeMap<String, Entry>, id: &str) -> Option<&'a Entry> {
    let id = plain(id);
    if let Some(entry) = entries.get(&id) {
        return Some(entry);
    }
    let prefixes = entries
        .iter()
        .filter(|(key, _)| key.ends_with('.') && id.starts_with(*key));
    prefixes
        .max_by_key(|(key, _)| key.len())
        .map(|(_, entry)| entry)
}

/// The id without our variants: direction, and the second reading of the latency.
fn plain(id: &str) -> String {
    let parts = id.split('.').filter(|part| !VARIANTS.contains(part));
    let parts = parts.map(|part| if part == "pals_one_way" { "pals" } else { part });
    parts.collect::<Vec<&str>>().join(".")
}

/// A row that is met when it measures the published value, within a tolerance.
pub(crate) fn published(id: &str, unit: &'static str, tolerance: f64, measured: f64) -> Figure {
    match figure(id) {
        Some(reference) => Figure::within(id, unit, reference, tolerance, measured),
        None => Figure::shown(id, unit, None, measured),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_is_readable_and_every_entry_leads_to_a_value() {
        let library = parse(TEXT).unwrap();
        for (id, entry) in &library.document.figure {
            if !matches!(entry, Entry::None { .. }) {
                assert!(
                    matches!(
                        look_up(&library.document.figure, id),
                        Comparison::Reference(_)
                    ),
                    "{id}"
                );
            }
        }
        for source in &library.document.source {
            assert!(
                library.document.paper.contains_key(&source.paper),
                "{}",
                source.id
            );
            assert!(!source.place.is_empty(), "{}", source.id);
            let units = source.units.as_ref().map(Vec::len);
            assert!(
                units.is_none_or(|units| units == source.columns.len()),
                "{}",
                source.id
            );
            assert!(
                source.units.is_some() || source.unit.is_some(),
                "{}",
                source.id
            );
            for (row, cells) in &source.rows {
                assert_eq!(cells.len(), source.columns.len(), "{} {row}", source.id);
            }
        }
    }

    #[test]
    fn a_figure_finds_the_value_of_its_own_table_in_either_direction() {
        let tables = [
            ("pals.loss.efficiency", 87.37),
            ("pals_one_way.download.loss.efficiency", 87.37),
            ("regional.download.usa.worst.time", 101.52),
            ("lte.upload.residential.case4", 100.0 * 18.12 / 25.94),
            ("rival.asymmetric.eight_flows", 84.0),
            ("rival.asymmetric.one_flow", 67.0),
        ];
        for (id, expected) in tables {
            let found = figure(id).unwrap_or_default();
            assert!((found - expected).abs() < 1e-9, "{id} {found}");
        }
        assert!(matches!(
            comparison("rival.symmetric.eight_flows"),
            Comparison::NoReference(_)
        ));
        assert_eq!(comparison("nothing.of.the.kind"), Comparison::Missing);
    }

    #[test]
    fn every_verdict_is_a_known_word() {
        let words = ["better", "slightly_better", "same", "worse"];
        for applications in library().document.verdict.values() {
            assert_eq!(applications.len(), 10);
            for verdict in applications.values().flatten() {
                assert!(words.contains(&verdict.as_str()), "{verdict}");
            }
        }
    }
}
