//! Areas upon each other over a numeric axis: how a sum is made up.

use std::fmt::Write;

use serde::Serialize;

use super::axis::Axis;
use super::csv::csv_field;
use super::svg::{self, Area, Canvas, POINTS_MAX, WIDTH};

const HEIGHT: f64 = 300.0;

#[derive(Debug, Clone, Serialize)]
pub struct Stack {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub at: Vec<f64>,
    /// The first layer lies below; a value that is not a number counts as zero.
    pub layers: Vec<(String, Vec<f64>)>,
    /// Vertical lines with their names.
    pub moments: Vec<(String, f64)>,
}

impl Stack {
    pub fn new(title: &str, x: Axis, y: Axis, at: &[f64]) -> Self {
        Self {
            title: title.to_owned(),
            x,
            y: y.from_zero(),
            at: at.to_vec(),
            layers: Vec::new(),
            moments: Vec::new(),
        }
    }

    pub fn layer(mut self, name: &str, values: &[f64]) -> Self {
        self.layers.push((name.to_owned(), values.to_vec()));
        self
    }

    pub fn moment(mut self, name: &str, value: f64) -> Self {
        self.moments.push((name.to_owned(), value));
        self
    }

    pub fn csv(&self) -> String {
        let names = self.layers.iter().map(|layer| csv_field(&layer.0));
        let head: Vec<String> = std::iter::once(csv_field(&self.x.text()))
            .chain(names)
            .collect();
        let mut text = head.join(",") + "\n";
        for (index, at) in self.at.iter().enumerate() {
            let _ = write!(text, "{at}");
            for (_, values) in &self.layers {
                let _ = write!(text, ",{}", value_at(values, index));
            }
            text.push('\n');
        }
        text
    }

    pub(crate) fn svg(&self) -> String {
        let every = self.at.len().div_ceil(POINTS_MAX / 2).max(1);
        let last = self.at.len().saturating_sub(1);
        let chosen: Vec<usize> = (0..self.at.len())
            .filter(|index| index % every == 0 || *index == last)
            .collect();
        let sum = |index: usize| -> f64 {
            self.layers
                .iter()
                .map(|layer| value_at(&layer.1, index))
                .sum()
        };
        let x = self.x.fit(self.at.iter().copied());
        let y = self.y.fit(chosen.iter().map(|&index| sum(index)));
        let names: Vec<&str> = self.layers.iter().map(|layer| layer.0.as_str()).collect();
        let legend = svg::legend(&names);
        let mut canvas = Canvas::new(HEIGHT + legend.height, &self.title);
        let area = Area {
            left: svg::left_of(&y),
            right: WIDTH - 24.0,
            top: legend.height + 4.0,
            bottom: HEIGHT + legend.height - 46.0,
        };
        svg::vertical(&mut canvas, area, &y, &self.y.text());
        svg::horizontal(&mut canvas, area, &x, &self.x.text());
        let mut below = vec![0.0; self.at.len()];
        for (index, ((_, values), place)) in self.layers.iter().zip(&legend.places).enumerate() {
            let style = format!("fill=\"{}\" fill-opacity=\"0.75\"", svg::colour(index));
            canvas.rect(place.0, place.1 - 10.0, 20.0, 11.0, &style);
            canvas.words(place.0 + 26.0, place.1, 12.0, "start", names[index]);
            let point = |at: usize, value: f64| {
                let place = x.share(self.at[at]).zip(y.share(value));
                place.map(|(to_x, to_y)| format!("{:.1},{:.1} ", area.x(to_x), area.y(to_y)))
            };
            let mut outline = String::new();
            for &at in &chosen {
                outline += &point(at, below[at] + value_at(values, at)).unwrap_or_default();
            }
            for &at in chosen.iter().rev() {
                outline += &point(at, below[at]).unwrap_or_default();
            }
            for &at in &chosen {
                below[at] += value_at(values, at);
            }
            canvas.raw(&format!(
                "<polygon points=\"{}\" {style}/>",
                outline.trim_end()
            ));
        }
        svg::moments(&mut canvas, area, &x, &self.moments);
        svg::frame(&mut canvas, area);
        canvas.done()
    }
}

fn value_at(values: &[f64], index: usize) -> f64 {
    values
        .get(index)
        .copied()
        .filter(|it| it.is_finite())
        .unwrap_or(0.0)
}
