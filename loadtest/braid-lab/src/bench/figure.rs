//! Figures, and what they are made of.

use std::time::Duration;

use serde::Serialize;

/// One row of the table.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    pub(super) id: &'static str,
    pub(super) unit: &'static str,
    /// Measured in the same run, if the target is a ratio to it.
    pub(super) reference: Option<f64>,
    pub(super) target: Option<f64>,
    pub(super) measured: f64,
    pub(super) met: bool,
}

impl Figure {
    pub(super) fn at_most(
        id: &'static str,
        unit: &'static str,
        measured: f64,
        target: f64,
    ) -> Figure {
        Figure {
            id,
            unit,
            reference: None,
            target: Some(target),
            measured,
            met: measured <= target,
        }
    }

    pub(super) fn at_least(
        id: &'static str,
        unit: &'static str,
        measured: f64,
        target: f64,
    ) -> Figure {
        Figure {
            met: measured >= target,
            ..Figure::at_most(id, unit, measured, target)
        }
    }

    /// Sets the reference, measured in the same run.
    pub(super) fn against(self, reference: f64) -> Figure {
        Figure {
            reference: Some(reference),
            ..self
        }
    }

    pub(super) fn plain(id: &'static str, unit: &'static str, measured: f64) -> Figure {
        Figure {
            id,
            unit,
            reference: None,
            target: None,
            measured,
            met: true,
        }
    }
}

pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The samples must be sorted.
pub(super) fn quantile_ms(samples: &[Duration], share: f64) -> f64 {
    let rank = (samples.len() as f64 * share).ceil() as usize;
    let sample = samples.get(rank.saturating_sub(1));
    sample.map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
}
