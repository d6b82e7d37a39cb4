//! A figure: what was measured beside what was published and what is asked for.

use serde::Serialize;

/// Which side of the target is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    AtLeast,
    AtMost,
    /// Published for comparison only.
    Shown,
}

/// One row of a table of targets.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Section and row of the experiments, for example `pals.loss.efficiency`.
    pub id: String,
    pub unit: &'static str,
    /// What the paper or the rival reached.
    pub reference: Option<f64>,
    pub target: Option<f64>,
    pub measured: f64,
    pub met: bool,
    #[serde(skip)]
    pub goal: Goal,
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
            unit,
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
            unit,
            reference,
            target: Some(target),
            measured,
            met: measured <= target,
            goal: Goal::AtMost,
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
            unit,
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
                format!(
                    "{} {}",
                    if figure.goal == Goal::AtLeast {
                        ">="
                    } else {
                        "<="
                    },
                    number(target)
                )
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
