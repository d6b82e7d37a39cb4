//! A figure: what was measured beside what was published and what is asked for.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

/// Which side of the target is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast,
    AtMost,
    /// Close to the target, from either side.
    Within,
    /// Published for comparison only.
    Shown,
}

/// One row of a table of targets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// Section and row of the experiments, for example `pals.loss.efficiency`.
    pub id: String,
    pub unit: Cow<'static, str>,
    /// The value of the paper or of the other project.
    pub reference: Option<f64>,
    pub target: Option<f64>,
    /// JSON has no infinity: a value that never came is null there.
    #[serde(deserialize_with = "null_is_infinite")]
    pub measured: f64,
    pub met: bool,
    pub goal: Goal,
}

fn null_is_infinite<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(input)?.unwrap_or(f64::INFINITY))
}

impl Figure {
    pub fn at_least(
        id: impl Into<String>,
        unit: &'static str,
        reference: Option<f64>,
        target: f64,
        measured: f64,
    ) -> Self {
        Self {
            id: id.into(),
            unit: Cow::Borrowed(unit),
            reference,
            target: Some(target),
            measured,
            met: measured >= target,
            goal: Goal::AtLeast,
        }
    }

    pub fn at_most(
        id: impl Into<String>,
        unit: &'static str,
        reference: Option<f64>,
        target: f64,
        measured: f64,
    ) -> Self {
        Self {
            id: id.into(),
            unit: Cow::Borrowed(unit),
            reference,
            target: Some(target),
            measured,
            met: measured <= target,
            goal: Goal::AtMost,
        }
    }

    /// As published, within a tolerance.
    pub fn within(
        id: impl Into<String>,
        unit: &'static str,
        reference: f64,
        tolerance: f64,
        measured: f64,
    ) -> Self {
        Self {
            id: id.into(),
            unit: Cow::Borrowed(unit),
            reference: Some(reference),
            target: Some(reference),
            measured,
            met: (measured - reference).abs() <= tolerance,
            goal: Goal::Within,
        }
    }

    pub fn shown(
        id: impl Into<String>,
        unit: &'static str,
        reference: Option<f64>,
        measured: f64,
    ) -> Self {
        Self {
            id: id.into(),
            unit: Cow::Borrowed(unit),
            reference,
            target: None,
            measured,
            met: true,
            goal: Goal::Shown,
        }
    }
}

impl Figure {
    /// The same measurement with nothing asked of it.
    pub fn without_target(self) -> Self {
        Self {
            target: None,
            met: true,
            goal: Goal::Shown,
            ..self
        }
    }

    /// The same figure of a named variant.
    pub fn prefixed(self, name: &str) -> Self {
        Self {
            id: format!("{name}.{}", self.id),
            ..self
        }
    }
}

/// The rows as people read them.
pub fn table(figures: &[Figure]) -> String {
    let width = figures
        .iter()
        .map(|figure| figure.id.len())
        .max()
        .unwrap_or(2)
        .max(2);
    let mut text = format!(
        "{:width$}  {:>10}  {:>12}  {:>10}  {:8}\n",
        "id", "reference", "target", "measured", "unit"
    );
    for figure in figures {
        let reference = figure.reference.map_or_else(|| "-".to_owned(), number);
        let target = figure.target.map_or_else(
            || "-".to_owned(),
            |target| {
                let sign = match figure.goal {
                    Goal::AtLeast => ">=",
                    Goal::AtMost | Goal::Shown => "<=",
                    Goal::Within => "~",
                };
                format!("{sign} {}", number(target))
            },
        );
        let verdict = match (figure.goal, figure.met) {
            (Goal::Shown, _) => "",
            (_, true) => "met",
            (_, false) => "MISSED",
        };
        let measured = number(figure.measured);
        text += &format!(
            "{:width$}  {reference:>10}  {target:>12}  {measured:>10}  {:8} {verdict}\n",
            figure.id, figure.unit
        );
    }
    text
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}
