//! Bars in groups, each with whiskers where a spread is known.

use std::fmt::Write;

use serde::Serialize;

use super::axis::Axis;
use super::csv::csv_field;
use super::svg::{self, Area, Canvas, INK, WIDTH};

const HEIGHT: f64 = 320.0;

/// A value, and the ends of its whiskers.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Bar {
    /// None where nothing was measured or published.
    pub value: Option<f64>,
    pub whiskers: Option<(f64, f64)>,
}

impl Bar {
    pub fn value(value: f64) -> Self {
        Self {
            value: Some(value),
            whiskers: None,
        }
    }

    pub fn none() -> Self {
        Self {
            value: None,
            whiskers: None,
        }
    }

    pub fn with_whiskers(value: f64, low: f64, high: f64) -> Self {
        Self {
            value: Some(value),
            whiskers: Some((low, high)),
        }
    }

    /// Mean, with a whisker of one standard deviation either way.
    pub fn of(values: &[f64]) -> Self {
        let finite: Vec<f64> = values
            .iter()
            .copied()
            .filter(|value| value.is_finite())
            .collect();
        if finite.is_empty() {
            return Self::none();
        }
        let mean = crate::report::mean(&finite);
        let deviation = crate::report::deviation(&finite);
        Self::with_whiskers(mean, mean - deviation, mean + deviation)
    }
}

/// One colour: a bar for each category.
#[derive(Debug, Clone, Serialize)]
pub struct BarGroup {
    pub name: String,
    pub bars: Vec<Bar>,
}

/// Bars over categories.
#[derive(Debug, Clone, Serialize)]
pub struct Bars {
    pub title: String,
    pub y: Axis,
    pub categories: Vec<String>,
    pub series: Vec<BarGroup>,
    /// Horizontal lines with their names.
    pub levels: Vec<(String, f64)>,
}

impl Bars {
    pub fn new(title: &str, y: Axis, categories: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            y,
            categories: categories.iter().map(|&name| name.to_owned()).collect(),
            series: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// One bar for each category; missing ones are left out.
    pub fn series(mut self, name: &str, bars: &[Bar]) -> Self {
        self.series.push(BarGroup {
            name: name.to_owned(),
            bars: bars.to_vec(),
        });
        self
    }

    pub fn level(mut self, name: &str, value: f64) -> Self {
        self.levels.push((name.to_owned(), value));
        self
    }

    pub fn csv(&self) -> String {
        let mut text = "category,series,value,low,high\n".to_owned();
        let optional =
            |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        for series in &self.series {
            for (category, bar) in self.categories.iter().zip(&series.bars) {
                // A string never refuses what is written to it.
                let _ = writeln!(
                    text,
                    "{},{},{},{},{}",
                    csv_field(category),
                    csv_field(&series.name),
                    optional(bar.value),
                    optional(bar.whiskers.map(|ends| ends.0)),
                    optional(bar.whiskers.map(|ends| ends.1)),
                );
            }
        }
        text
    }

    pub(crate) fn svg(&self) -> String {
        let bars = || self.series.iter().flat_map(|series| &series.bars);
        let whiskers = bars()
            .filter_map(|bar| bar.whiskers)
            .flat_map(|ends| [ends.0, ends.1]);
        let values = bars().filter_map(|bar| bar.value).chain(whiskers);
        let y = self
            .y
            .fit(values.chain(self.levels.iter().map(|level| level.1)));
        let names: Vec<&str> = self
            .series
            .iter()
            .map(|series| series.name.as_str())
            .collect();
        let legend = svg::legend(&names);
        let left = svg::left_of(&y);
        let group = (WIDTH - 16.0 - left) / self.categories.len().max(1) as f64;
        let texts = self.categories.iter().map(|name| svg::width_of(name, 12.0));
        let longest = texts.fold(0.0, f64::max);
        let turned = longest > group - 4.0;
        let below = if turned {
            longest.min(140.0) * 0.65 + 22.0
        } else {
            28.0
        };
        let mut canvas = Canvas::new(HEIGHT + legend.height + below - 28.0, &self.title);
        let area = Area {
            left,
            right: WIDTH - 16.0,
            top: legend.height + 4.0,
            bottom: HEIGHT + legend.height - 28.0,
        };
        svg::vertical(&mut canvas, area, &y, &self.y.text());
        let width = group * 0.8 / self.series.len().max(1) as f64;
        let at = |value: f64| y.share(value).map_or(area.bottom, |share| area.y(share));
        for (index, (series, place)) in self.series.iter().zip(&legend.places).enumerate() {
            let style = format!(
                "fill=\"{}\" stroke=\"{INK}\" stroke-width=\"0.5\"",
                svg::colour(index)
            );
            canvas.rect(place.0, place.1 - 10.0, 18.0, 11.0, &style);
            canvas.words(place.0 + 24.0, place.1, 12.0, "start", &series.name);
            for (number, bar) in series.bars.iter().take(self.categories.len()).enumerate() {
                let x = area.left + group * (number as f64 + 0.1) + width * index as f64;
                let Some(value) = bar.value.filter(|value| value.is_finite()) else {
                    continue;
                };
                // Bars stand on zero, or on the lower end of an axis that does not reach it.
                let (base, top) = (at(0.0), at(value));
                let height = (base - top).abs();
                canvas.rect(x, top.min(base), width * 0.94, height, &style);
                if let Some((low, high)) = bar.whiskers {
                    let middle = x + width * 0.47;
                    let line = format!("stroke=\"{INK}\"");
                    canvas.line((middle, at(low)), (middle, at(high)), &line);
                    for end in [low, high] {
                        let half = (width * 0.2).min(5.0);
                        canvas.line((middle - half, at(end)), (middle + half, at(end)), &line);
                    }
                }
            }
        }
        for (number, category) in self.categories.iter().enumerate() {
            let middle = area.left + group * (number as f64 + 0.5);
            if turned {
                canvas.turned(middle + 4.0, area.bottom + 12.0, -40.0, "end", category);
            } else {
                canvas.words(middle, area.bottom + 16.0, 12.0, "middle", category);
            }
        }
        for (name, value) in &self.levels {
            if let Some(at) = y.share(*value).map(|share| area.y(share)) {
                let style = "stroke=\"#555555\" stroke-dasharray=\"1 3\" stroke-width=\"1.5\"";
                canvas.line((area.left, at), (area.right, at), style);
                canvas.words(area.right - 2.0, at - 4.0, 11.0, "end", name);
            }
        }
        svg::frame(&mut canvas, area);
        canvas.done()
    }
}
