//! An axis: its label, its range, and where its ticks stand.

use serde::Serialize;

/// Ticks that an axis aims at.
const TICKS: f64 = 6.0;
/// Ticks that any axis has at most.
const TICKS_MAX: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    Linear,
    Log,
}

#[derive(Debug, Clone, Serialize)]
pub struct Axis {
    pub label: String,
    pub unit: String,
    pub scale: Scale,
    /// Ends that are given; the data gives the others.
    pub from: Option<f64>,
    pub to: Option<f64>,
}

impl Axis {
    pub fn new(label: &str, unit: &str) -> Self {
        Self {
            label: label.to_owned(),
            unit: unit.to_owned(),
            scale: Scale::Linear,
            from: None,
            to: None,
        }
    }

    pub fn from_zero(mut self) -> Self {
        self.from = Some(0.0);
        self
    }

    pub fn range(mut self, from: f64, to: f64) -> Self {
        (self.from, self.to) = (Some(from), Some(to));
        self
    }

    /// Powers of ten; values of zero and below are not drawn.
    pub fn log(mut self) -> Self {
        self.scale = Scale::Log;
        self
    }

    /// Label with unit.
    pub(crate) fn text(&self) -> String {
        match self.unit.as_str() {
            "" => self.label.clone(),
            unit => format!("{} [{unit}]", self.label),
        }
    }

    /// Range and ticks for the data; values that are not finite are left out.
    pub(crate) fn fit(&self, values: impl Iterator<Item = f64>) -> Fitted {
        let log = self.scale == Scale::Log;
        let usable = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let ends = usable.fold(None, |ends: Option<(f64, f64)>, value| {
            let (low, high) = ends.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        let (low, high) = ends.unwrap_or(if log { (1.0, 10.0) } else { (0.0, 1.0) });
        let low = self.from.unwrap_or(low);
        let high = self.to.unwrap_or(high).max(low);
        if log {
            fit_log(low, high)
        } else {
            self.fit_linear(low, high)
        }
    }

    fn fit_linear(&self, low: f64, high: f64) -> Fitted {
        let span = if high > low {
            high - low
        } else {
            low.abs().max(1.0)
        };
        let step = round_step(span / TICKS);
        let from = self.from.unwrap_or((low / step).floor() * step);
        let to = self.to.unwrap_or((high / step).ceil() * step);
        let to = if to > from { to } else { from + step };
        let first = (from / step).ceil() as i64;
        let ticks = (first..)
            .map(|index| index as f64 * step)
            .take_while(|tick| *tick <= to + step * 1e-6)
            .take(TICKS_MAX);
        let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
        let ticks = ticks
            .map(|tick| (tick, linear_text(tick, decimals)))
            .collect();
        Fitted {
            from,
            to,
            log: false,
            ticks,
        }
    }
}

/// 1, 2 or 5 times a power of ten, no less than `raw`.
fn round_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|step| step * power >= raw * 0.999);
    step.unwrap_or(10.0) * power
}

fn linear_text(tick: f64, decimals: usize) -> String {
    if tick.abs() >= 1e6 {
        return format!("{:.1}M", tick / 1e6);
    }
    // No negative zero.
    let tick = if tick.abs() < 1e-9 { 0.0 } else { tick };
    format!("{tick:.decimals$}")
}

fn fit_log(low: f64, high: f64) -> Fitted {
    let low = low.max(1e-12);
    let high = high.max(low * 1.01);
    let decades = (high / low).log10();
    // Over few decades there are ticks between the powers of ten.
    let steps: &[f64] = if decades < 2.5 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let grid: Vec<f64> = (first..=last)
        .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
        .collect();
    let below = grid.iter().rev().find(|tick| **tick <= low * 1.001);
    let above = grid.iter().find(|tick| **tick >= high * 0.999);
    let from = below.copied().unwrap_or(low);
    let to = above.copied().unwrap_or(high);
    let inside: Vec<f64> = grid
        .into_iter()
        .filter(|tick| (from..=to).contains(tick))
        .collect();
    let every = inside.len().div_ceil(TICKS_MAX).max(1);
    let ticks = inside
        .into_iter()
        .step_by(every)
        .map(|tick| (tick, log_text(tick)))
        .collect();
    Fitted {
        from,
        to,
        log: true,
        ticks,
    }
}

fn log_text(tick: f64) -> String {
    let power = tick.log10().floor();
    if (-3.0..5.0).contains(&power) {
        let decimals = (-power).max(0.0) as usize;
        format!("{tick:.decimals$}")
    } else {
        format!("{:.0}e{power}", tick / 10f64.powf(power))
    }
}

/// An axis with its range and ticks.
#[derive(Debug, Clone)]
pub(crate) struct Fitted {
    from: f64,
    to: f64,
    log: bool,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Fitted {
    /// Where a value stands, as a share of the axis; values beyond the ends stand at the ends.
    pub(crate) fn share(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.log && value <= 0.0) {
            return None;
        }
        let place = |value: f64| if self.log { value.log10() } else { value };
        let share = (place(value) - place(self.from)) / (place(self.to) - place(self.from));
        Some(share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis, values: &[f64]) -> Vec<String> {
        let fitted = axis.fit(values.iter().copied());
        fitted.ticks.into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_data() {
        let axis = Axis::new("x", "");
        assert_eq!(texts(&axis, &[0.3, 9.7]), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(
            texts(&axis, &[0.0, 0.1]),
            ["0.00", "0.02", "0.04", "0.06", "0.08", "0.10"]
        );
        let log = axis.clone().log();
        let powers = ["1", "10", "100", "1000", "10000"];
        assert_eq!(texts(&log, &[0.0, 3.0, 4000.0]), powers);
        assert_eq!(texts(&log, &[60.0, 99.0]), ["50", "100"]);
        assert_eq!(texts(&log, &[0.3, 1.2]), ["0.2", "0.5", "1", "2"]);
    }

    #[test]
    fn data_without_width_or_without_values_still_gives_an_axis() {
        let axis = Axis::new("x", "");
        for values in [
            &[][..],
            &[7.0][..],
            &[f64::NAN, f64::INFINITY][..],
            &[0.0][..],
        ] {
            let fitted = axis.fit(values.iter().copied());
            assert!(
                fitted.ticks.len() >= 2 && fitted.to > fitted.from,
                "{values:?} {fitted:?}"
            );
        }
    }
}
