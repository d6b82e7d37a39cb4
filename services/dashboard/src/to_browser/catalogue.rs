//! The catalogue of metrics, as the page reads it.

use contracts::query::{MetricEntry, MetricWord};
use vitals::{Entry, MetricRhythm, Names, Reading};

/// Digits after the decimal point of a metric whose entry asks for none.
const DECIMALS: u8 = 1;

pub(crate) fn shown(entry: &Entry) -> MetricEntry {
    let document = entry.document;
    let chart = document.chart.as_ref();
    let decimals = match entry.reading {
        Reading::Step => 0,
        _ => document.decimals.unwrap_or(DECIMALS),
    };
    MetricEntry {
        metric: entry.metric.number(),
        key: entry.name.to_owned(),
        names: names(&document.names),
        loinc: entry.loinc.unwrap_or_default().to_owned(),
        unit: entry.unit.to_owned(),
        accepted_units: entry.units().skip(1).map(str::to_owned).collect(),
        decimals: decimals.into(),
        lowest: entry.range.0,
        highest: entry.range.1,
        choices: words(&document.choices),
        limits: chart.map_or_else(Vec::new, |chart| words(&chart.limits)),
        chart_group: chart.map_or_else(String::new, |chart| chart.group.clone()),
        waveform: matches!(entry.reading, Reading::Waveform { .. }),
        stale_after_s: document.stale_after_s,
        occasional: document.rhythm == MetricRhythm::Occasional,
    }
}

fn words(words: &[vitals::MetricWord]) -> Vec<MetricWord> {
    let words = words.iter().map(|word| MetricWord {
        value: word.value,
        names: names(&word.names),
    });
    words.collect()
}

fn names(names: &Names) -> std::collections::HashMap<String, String> {
    names.clone().into_iter().collect()
}
