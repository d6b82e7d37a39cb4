//! `braid-lab compare OLD.json NEW.json`: figures before and after a change, in pairs.
//!
//! Each file holds what `braid-lab ... --json` printed, once for each seed, in the same order of
//! seeds. A pair is one figure of one seed. The mean of the differences of an id has an interval of
//! 95 %, by Student's t; one pair has none. The last row is the mean over all ids, relative to the
//! old value and signed so that more is better.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::Serialize;

use crate::figures::{Figure, Goal};

/// Quantiles of Student's t at 97.5 %, from one degree of freedom on.
const T: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

#[derive(Debug, Clone, clap::Args)]
pub struct CompareOptions {
    /// Figures before the change: the output of `--json`, one array for each seed.
    pub old: PathBuf,
    /// Figures after the change, with the same seeds in the same order.
    pub new: PathBuf,
    /// Only figures whose id begins so.
    #[arg(long, env = "BRAID_LAB_COMPARE_ONLY")]
    pub only: Option<String>,
    /// Print the rows as a JSON array.
    #[arg(long, env = "BRAID_LAB_COMPARE_JSON", default_value_t = false)]
    pub json: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("cannot read {}: {source}", file.display())]
    Read {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("{} holds no figures of `braid-lab --json`: {source}", file.display())]
    Parse {
        file: PathBuf,
        source: serde_json::Error,
    },
    #[error("{old} arrays before and {new} after: each seed needs one in both files")]
    Seeds { old: usize, new: usize },
    #[error("no figure is in both files")]
    Nothing,
    #[error("cannot print")]
    Print(#[from] std::io::Error),
    #[error("cannot encode the rows")]
    Encode(#[from] serde_json::Error),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every pair is equal.
    Same,
    Better,
    Worse,
    /// The interval holds zero, or one pair has no interval.
    Open,
    /// The figure has no better side.
    Shown,
}

/// One id over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub id: String,
    pub unit: String,
    pub goal: Goal,
    pub pairs: usize,
    pub old: f64,
    pub new: f64,
    /// Mean of new minus old.
    pub difference: f64,
    /// Half of the interval; `None` with one pair.
    pub half: Option<f64>,
    pub verdict: Verdict,
}

impl CompareOptions {
    pub fn run(&self) -> Result<ExitCode, CompareError> {
        let (old, new) = (read(&self.old)?, read(&self.new)?);
        let mut rows = compare(&old, &new)?;
        if let Some(only) = &self.only {
            rows.retain(|row| row.id.starts_with(only.as_str()));
        }
        if rows.is_empty() {
            return Err(CompareError::Nothing);
        }
        rows.extend(overall(&rows));
        let mut out = std::io::stdout().lock();
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        } else {
            write!(out, "{}", table(&rows))?;
            for (of, without) in [(&old, &new), (&new, &old)] {
                for id in missing(of, without) {
                    let file = if std::ptr::eq(of, &old) { "old" } else { "new" };
                    writeln!(out, "{id} is in the {file} file only")?;
                }
            }
        }
        let is_worse = rows.iter().any(|row| row.verdict == Verdict::Worse);
        Ok(if is_worse {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// The arrays of a file: one for each seed.
fn read(file: &Path) -> Result<Vec<Vec<Figure>>, CompareError> {
    let text = std::fs::read_to_string(file).map_err(|source| CompareError::Read {
        file: file.to_owned(),
        source,
    })?;
    let arrays = serde_json::Deserializer::from_str(&text).into_iter();
    arrays
        .collect::<Result<_, _>>()
        .map_err(|source| CompareError::Parse {
            file: file.to_owned(),
            source,
        })
}

fn missing(of: &[Vec<Figure>], without: &[Vec<Figure>]) -> Vec<String> {
    let has = |id: &str| without.iter().flatten().any(|figure| figure.id == id);
    let mut found: Vec<String> = of
        .iter()
        .flatten()
        .map(|figure| figure.id.clone())
        .collect();
    found.retain(|id| !has(id));
    found.sort();
    found.dedup();
    found
}

/// A row for each id that both files have, in order of ids.
pub fn compare(old: &[Vec<Figure>], new: &[Vec<Figure>]) -> Result<Vec<Row>, CompareError> {
    if old.len() != new.len() {
        let (old, new) = (old.len(), new.len());
        return Err(CompareError::Seeds { old, new });
    }
    let mut pairs: BTreeMap<&str, Vec<(&Figure, &Figure)>> = BTreeMap::new();
    for (old, new) in old.iter().zip(new) {
        for before in old {
            if let Some(after) = new.iter().find(|figure| figure.id == before.id) {
                pairs.entry(&before.id).or_default().push((before, after));
            }
        }
    }
    Ok(pairs
        .into_iter()
        .map(|(id, pairs)| row(id, &pairs))
        .collect())
}

fn row(id: &str, pairs: &[(&Figure, &Figure)]) -> Row {
    let differences: Vec<f64> = pairs
        .iter()
        .map(|(old, new)| difference(old.measured, new.measured))
        .collect();
    let goal = pairs.first().map_or(Goal::Shown, |(old, _)| old.goal);
    let unit = pairs.first().map(|(old, _)| old.unit.to_string());
    let (difference, half) = interval(&differences);
    Row {
        id: id.to_owned(),
        unit: unit.unwrap_or_default(),
        goal,
        pairs: pairs.len(),
        old: mean(pairs.iter().map(|(old, _)| old.measured)),
        new: mean(pairs.iter().map(|(_, new)| new.measured)),
        difference,
        half,
        verdict: verdict(&differences, difference, half, goal),
    }
}

/// Values that never came are infinite: two of them are equal.
fn difference(old: f64, new: f64) -> f64 {
    if old == new { 0.0 } else { new - old }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// Mean and half of its interval of 95 %.
fn interval(values: &[f64]) -> (f64, Option<f64>) {
    let mean = mean(values.iter().copied());
    if values.len() < 2 {
        return (mean, None);
    }
    let freedom = values.len() - 1;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    // Past the table by its first term in 1 / n.
    let t = T.get(freedom - 1).copied();
    let t = t.unwrap_or(1.96 + 2.372 / freedom as f64);
    let error = (squares / freedom as f64 / values.len() as f64).sqrt();
    (mean, Some(t * error))
}

fn verdict(differences: &[f64], difference: f64, half: Option<f64>, goal: Goal) -> Verdict {
    let Some(gain) = gain(goal, difference) else {
        return Verdict::Shown;
    };
    if differences.iter().all(|it| *it == 0.0) {
        return Verdict::Same;
    }
    // Something came in one file and never in the other: no interval is needed.
    let is_beyond = match half {
        _ if !difference.is_finite() => true,
        Some(half) => difference.abs() > half,
        None => false,
    };
    if is_beyond && gain > 0.0 {
        Verdict::Better
    } else if is_beyond && gain < 0.0 {
        Verdict::Worse
    } else {
        Verdict::Open
    }
}

/// The difference with its sign so that more is better.
fn gain(goal: Goal, difference: f64) -> Option<f64> {
    match goal {
        Goal::AtLeast => Some(difference),
        Goal::AtMost => Some(-difference),
        Goal::Shown | Goal::Within => None,
    }
}

/// The mean over ids with a better side, in per cent of the old value.
fn overall(rows: &[Row]) -> Option<Row> {
    let judged = rows.iter().filter(|row| row.difference.is_finite());
    let judged = judged.filter(|row| row.old.is_finite() && row.old != 0.0);
    let gains: Vec<f64> = judged
        .filter_map(|row| Some(gain(row.goal, row.difference)? * 100.0 / row.old.abs()))
        .collect();
    if gains.len() < 2 {
        return None;
    }
    let (difference, half) = interval(&gains);
    Some(Row {
        id: "all".to_owned(),
        unit: "% better".to_owned(),
        goal: Goal::AtLeast,
        pairs: gains.len(),
        old: 0.0,
        new: difference,
        difference,
        half,
        verdict: verdict(&gains, difference, half, Goal::AtLeast),
    })
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

/// The rows as people read them.
pub fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.id.len()).max().unwrap_or(2);
    let mut text = format!(
        "{:width$}  {:>5}  {:>10}  {:>10}  {:>10}  {:>10}  {:9} verdict\n",
        "id", "pairs", "old", "new", "difference", "± 95 %", "unit"
    );
    for row in rows {
        let half = row.half.map_or_else(|| "-".to_owned(), number);
        let verdict = match row.verdict {
            Verdict::Same => "same",
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Open => "open",
            Verdict::Shown => "",
        };
        let _ = writeln!(
            text,
            "{:width$}  {:>5}  {:>10}  {:>10}  {:>10}  {half:>10}  {:9} {verdict}",
            row.id,
            row.pairs,
            number(row.old),
            number(row.new),
            number(row.difference),
            row.unit,
        );
    }
    text
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
