//! Lines over a numeric axis: series in time, curves, steps, and cumulative distributions.

use std::fmt::Write;

use serde::Serialize;

use super::axis::{Axis, Fitted};
use super::csv::csv_field;
use super::svg::{self, Area, Canvas, POINTS_MAX, WIDTH};

const HEIGHT: f64 = 300.0;

/// How the points of a series are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Marker {
    Line,
    /// The value holds until the next point.
    Steps,
    /// Points alone.
    Dots,
    /// A line with a dot at each point.
    LineAndDots,
}

#[derive(Debug, Clone, Serialize)]
pub struct Series {
    pub name: String,
    pub marker: Marker,
    /// A value that is not finite breaks the line.
    pub points: Vec<(f64, f64)>,
}

/// Series over two numeric axes.
#[derive(Debug, Clone, Serialize)]
pub struct Lines {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    /// Horizontal lines, such as a target, with their names.
    pub levels: Vec<(String, f64)>,
    /// Vertical lines, such as a cut, with their names.
    pub moments: Vec<(String, f64)>,
}

impl Lines {
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self {
            title: title.to_owned(),
            x,
            y,
            series: Vec::new(),
            levels: Vec::new(),
            moments: Vec::new(),
        }
    }

    /// A plot of cumulative distributions; [`Lines::sample`] adds one.
    pub fn cdf(title: &str, x: Axis) -> Self {
        Self::new(title, x, Axis::new("cumulative share", "").range(0.0, 1.0))
    }

    pub fn series(self, name: &str, points: &[(f64, f64)]) -> Self {
        self.with(name, Marker::Line, points)
    }

    pub fn steps(self, name: &str, points: &[(f64, f64)]) -> Self {
        self.with(name, Marker::Steps, points)
    }

    pub fn dots(self, name: &str, points: &[(f64, f64)]) -> Self {
        self.with(name, Marker::Dots, points)
    }

    pub fn with(mut self, name: &str, marker: Marker, points: &[(f64, f64)]) -> Self {
        let (name, points) = (name.to_owned(), points.to_vec());
        self.series.push(Series {
            name,
            marker,
            points,
        });
        self
    }

    /// The cumulative distribution of a sample. Infinite values count, so that a curve ends below
    /// one where something never happened.
    pub fn sample(self, name: &str, values: &[f64]) -> Self {
        let numbers = values.iter().copied().filter(|value| !value.is_nan());
        let sorted = crate::report::sorted(numbers);
        let count = sorted.len() as f64;
        let finite = sorted.iter().filter(|value| value.is_finite());
        let first = finite.clone().next().map(|&value| (value, 0.0));
        let rest = finite
            .zip(1..)
            .map(|(&value, rank)| (value, f64::from(rank) / count));
        let points: Vec<(f64, f64)> = first.into_iter().chain(rest).collect();
        self.with(name, Marker::Steps, &points)
    }

    /// A horizontal line.
    pub fn level(mut self, name: &str, value: f64) -> Self {
        self.levels.push((name.to_owned(), value));
        self
    }

    /// A vertical line.
    pub fn moment(mut self, name: &str, value: f64) -> Self {
        self.moments.push((name.to_owned(), value));
        self
    }

    pub fn csv(&self) -> String {
        let mut text = format!(
            "series,{},{}\n",
            csv_field(&self.x.text()),
            csv_field(&self.y.text())
        );
        let levels = self
            .levels
            .iter()
            .map(|(name, value)| (name, String::new(), value.to_string()));
        let moments = self
            .moments
            .iter()
            .map(|(name, value)| (name, value.to_string(), String::new()));
        let points = self.series.iter().flat_map(|series| {
            let points = series.points.iter();
            points.map(|(x, y)| (&series.name, x.to_string(), y.to_string()))
        });
        for (name, x, y) in points.chain(levels).chain(moments) {
            // A string never refuses what is written to it.
            let _ = writeln!(text, "{},{x},{y}", csv_field(name));
        }
        text
    }

    pub(crate) fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let xs = all()
            .map(|point| point.0)
            .chain(self.moments.iter().map(|moment| moment.1));
        let x = self.x.fit(xs);
        let y = self.y.fit(
            all()
                .map(|point| point.1)
                .chain(self.levels.iter().map(|level| level.1)),
        );
        let names: Vec<&str> = self
            .series
            .iter()
            .map(|series| series.name.as_str())
            .collect();
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
        svg::frame(&mut canvas, area);
        for (index, (series, place)) in self.series.iter().zip(&legend.places).enumerate() {
            let sample = [(0.0, 0.0), (20.0, 0.0)].map(|(dx, _)| (place.0 + dx, place.1 - 4.0));
            stroke(&mut canvas, &sample, series.marker, index);
            canvas.words(place.0 + 26.0, place.1, 12.0, "start", &series.name);
            for piece in pieces(series, &x, &y, area) {
                stroke(&mut canvas, &piece, series.marker, index);
            }
        }
        let style = "stroke=\"#555555\" stroke-dasharray=\"1 3\" stroke-width=\"1.5\"";
        for (name, value) in &self.levels {
            if let Some(at) = y.share(*value).map(|share| area.y(share)) {
                canvas.line((area.left, at), (area.right, at), style);
                canvas.haloed(area.right - 2.0, at - 4.0, 11.0, "end", name);
            }
        }
        svg::moments(&mut canvas, area, &x, &self.moments);
        if all().next().is_none() {
            let (x, y) = (area.x(0.5), area.y(0.5));
            canvas.words(x, y, 13.0, "middle", "no run has a value");
        }
        canvas.done()
    }
}

/// The series on the picture, in pieces without a value that is not finite.
fn pieces(series: &Series, x: &Fitted, y: &Fitted, area: Area) -> Vec<Vec<(f64, f64)>> {
    let every = series.points.len().div_ceil(POINTS_MAX).max(1);
    let mut pieces = vec![Vec::new()];
    let last = series.points.len().saturating_sub(1);
    for (index, point) in series.points.iter().enumerate() {
        if index % every != 0 && index != last {
            continue;
        }
        let place = x.share(point.0).zip(y.share(point.1));
        let Some(piece) = pieces.last_mut() else {
            continue;
        };
        match place {
            Some((at_x, at_y)) => {
                let place = (area.x(at_x), area.y(at_y));
                if let (Marker::Steps, Some(&(_, before))) = (series.marker, piece.last()) {
                    piece.push((place.0, before));
                }
                piece.push(place);
            }
            None if piece.is_empty() => {}
            None => pieces.push(Vec::new()),
        }
    }
    pieces.retain(|piece: &Vec<(f64, f64)>| !piece.is_empty());
    pieces
}

fn stroke(canvas: &mut Canvas, points: &[(f64, f64)], marker: Marker, index: usize) {
    let colour = svg::colour(index);
    if marker != Marker::Dots && points.len() > 1 {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        let dash = match svg::dash(index) {
            "" => String::new(),
            dash => format!(" stroke-dasharray=\"{dash}\""),
        };
        canvas.raw(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-linejoin=\"round\"{dash}/>",
            path.trim_end()
        ));
    }
    if matches!(marker, Marker::Dots | Marker::LineAndDots) || points.len() == 1 {
        for (x, y) in points {
            canvas.raw(&format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            ));
        }
    }
}
