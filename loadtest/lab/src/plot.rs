//! Charts as SVG text: lines, distributions, boxes, bars and heat tables, on a light background.
//!
//! Each chart also gives its data as CSV and, through `serde`, as JSON. The palette is by Okabe and
//! Ito; series differ by dashes or labels as well, so that a print without colours is readable.

mod axis;
mod bars;
mod boxes;
mod csv;
mod heat;
mod lines;
mod map;
mod stack;
mod svg;

pub use axis::{Axis, Scale};
pub use bars::{Bar, BarGroup, Bars};
pub use boxes::{BoxGroup, Boxes, Spread};
pub(crate) use csv::csv_field;
pub use heat::{Cell, Heat, Verdict};
pub use lines::{Lines, Marker, Series};
pub use map::{Field, Map, Mark};
pub use stack::Stack;
pub(crate) use svg::COLOURS;

use serde::Serialize;

/// Any chart.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Plot {
    Lines(Lines),
    Boxes(Boxes),
    Bars(Bars),
    Heat(Heat),
    Stack(Stack),
    Map(Map),
}

impl Plot {
    pub fn title(&self) -> &str {
        match self {
            Self::Lines(plot) => &plot.title,
            Self::Boxes(plot) => &plot.title,
            Self::Bars(plot) => &plot.title,
            Self::Heat(plot) => &plot.title,
            Self::Stack(plot) => &plot.title,
            Self::Map(plot) => &plot.title,
        }
    }

    /// The chart as an SVG element of its own.
    pub fn svg(&self) -> String {
        match self {
            Self::Lines(plot) => plot.svg(),
            Self::Boxes(plot) => plot.svg(),
            Self::Bars(plot) => plot.svg(),
            Self::Heat(plot) => plot.svg(),
            Self::Stack(plot) => plot.svg(),
            Self::Map(plot) => plot.svg(),
        }
    }

    /// The data of the chart, one value a line.
    pub fn csv(&self) -> String {
        match self {
            Self::Lines(plot) => plot.csv(),
            Self::Boxes(plot) => plot.csv(),
            Self::Bars(plot) => plot.csv(),
            Self::Heat(plot) => plot.csv(),
            Self::Stack(plot) => plot.csv(),
            Self::Map(plot) => plot.csv(),
        }
    }
}

impl From<Lines> for Plot {
    fn from(plot: Lines) -> Self {
        Self::Lines(plot)
    }
}

impl From<Boxes> for Plot {
    fn from(plot: Boxes) -> Self {
        Self::Boxes(plot)
    }
}

impl From<Bars> for Plot {
    fn from(plot: Bars) -> Self {
        Self::Bars(plot)
    }
}

impl From<Heat> for Plot {
    fn from(plot: Heat) -> Self {
        Self::Heat(plot)
    }
}

impl From<Stack> for Plot {
    fn from(plot: Stack) -> Self {
        Self::Stack(plot)
    }
}

impl From<Map> for Plot {
    fn from(plot: Map) -> Self {
        Self::Map(plot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charts() -> Vec<Plot> {
        let x = Axis::new("time", "s");
        let y = Axis::new("rate", "Mbit/s").from_zero();
        let lines = Lines::new("a <b> & \"c\"", x, y)
            .series("ours", &[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)])
            .series("nothing", &[])
            .steps("paper", &[(0.0, 2.0), (2.0, 2.0)]);
        let cdf = Lines::cdf("ratio", Axis::new("ratio", "")).sample("one value", &[4.0]);
        let boxes = Boxes::new("efficiency", Axis::new("efficiency", "%"))
            .group("loss", &[("TCP", &[1.0, 2.0, 9.0][..]), ("none", &[][..])]);
        let bars = Bars::new("times", Axis::new("time", "s"), &["small", "large"]).series(
            "ours",
            &[Bar::with_whiskers(1.0, 0.5, 1.5), Bar::value(2.0)],
        );
        let heat = Heat::new("cells", &["p50", "p99"]).row(
            "video",
            vec![
                Cell::new("+12 %", Verdict::Better),
                Cell::new("-3 %", Verdict::Worse),
            ],
        );
        let stack = Stack::new(
            "shares",
            Axis::new("time", "s"),
            Axis::new("rate", ""),
            &[0.0, 1.0],
        )
        .layer("one", &[1.0, f64::NAN])
        .layer("two", &[2.0, 3.0]);
        let map = Map::new("way", "m")
            .way("centre", &[(0.0, 0.0), (10.0, 5.0)])
            .mark("B1 <b>", (3.0, 3.0), true)
            .field(Field::new(
                (0.0, 0.0),
                (10.0, 10.0),
                4,
                "capacity",
                |x, y| x + y,
            ));
        vec![
            stack.into(),
            map.into(),
            lines.into(),
            cdf.into(),
            boxes.into(),
            bars.into(),
            heat.into(),
        ]
    }

    #[test]
    fn every_chart_is_well_formed_and_names_no_value_that_is_not_a_number() {
        for plot in charts() {
            let svg = plot.svg();
            assert!(
                svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
                "{svg}"
            );
            for bad in ["NaN", "inf", "<b>"] {
                assert!(!svg.contains(bad), "{bad} in {svg}");
            }
            assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        }
    }

    #[test]
    fn every_chart_gives_its_data_as_csv_with_a_header() {
        for plot in charts() {
            let csv = plot.csv();
            let columns = |line: &str| line.split(',').count();
            let header = csv.lines().next().map(columns);
            assert!(csv.lines().count() > 1, "{csv}");
            assert!(
                csv.lines().all(|line| Some(columns(line)) == header),
                "{csv}"
            );
        }
    }

    #[test]
    fn a_distribution_ends_below_one_where_a_value_is_infinite() {
        let values = [1.0, f64::INFINITY, 2.0, f64::INFINITY];
        let chart = Lines::cdf("times", Axis::new("time", "s")).sample("runs", &values);
        assert_eq!(
            chart.series[0].points,
            [(1.0, 0.0), (1.0, 0.25), (2.0, 0.5)]
        );
    }

    #[test]
    fn a_field_with_a_comma_is_quoted() {
        assert_eq!(csv_field("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
