//! Box plots in groups: median, quartiles, 5th and 95th percentile, mean, and the extremes.

use std::fmt::Write;

use serde::Serialize;

use super::axis::Axis;
use super::csv::csv_field;
use super::svg::{self, Area, Canvas, INK, WIDTH};

const HEIGHT: f64 = 340.0;
const BOX_MAX: f64 = 34.0;
/// Names below the boxes need so much width each, even turned; otherwise a legend has them.
const NAME_SLOT_MIN: f64 = 20.0;

/// A sample by its order statistics.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub count: usize,
    pub mean: f64,
    pub min: f64,
    pub p5: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub p95: f64,
    pub max: f64,
}

impl Spread {
    /// None of a sample without finite values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let finite = values.iter().copied().filter(|value| value.is_finite());
        let sorted = crate::report::sorted(finite);
        let at = |share| crate::report::percentile(&sorted, share);
        Some(Self {
            count: sorted.len(),
            mean: crate::report::mean(&sorted),
            min: *sorted.first()?,
            p5: at(0.05)?,
            p25: at(0.25)?,
            p50: at(0.5)?,
            p75: at(0.75)?,
            p95: at(0.95)?,
            max: *sorted.last()?,
        })
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct BoxGroup {
    pub name: String,
    /// None where nothing was measured.
    pub boxes: Vec<(String, Option<Spread>)>,
}

/// Boxes over one axis; a box has the same colour in every group that has its name.
#[derive(Debug, Clone, Serialize)]
pub struct Boxes {
    pub title: String,
    pub y: Axis,
    pub groups: Vec<BoxGroup>,
    /// Horizontal lines with their names.
    pub levels: Vec<(String, f64)>,
}

impl Boxes {
    pub fn new(title: &str, y: Axis) -> Self {
        let (groups, levels) = (Vec::new(), Vec::new());
        Self {
            title: title.to_owned(),
            y,
            groups,
            levels,
        }
    }

    pub fn group(mut self, name: &str, samples: &[(&str, &[f64])]) -> Self {
        let boxes = samples
            .iter()
            .map(|(name, values)| ((*name).to_owned(), Spread::of(values)));
        self.groups.push(BoxGroup {
            name: name.to_owned(),
            boxes: boxes.collect(),
        });
        self
    }

    pub fn level(mut self, name: &str, value: f64) -> Self {
        self.levels.push((name.to_owned(), value));
        self
    }

    pub fn csv(&self) -> String {
        let mut text = "group,name,count,mean,min,p5,p25,p50,p75,p95,max\n".to_owned();
        for group in &self.groups {
            for (name, spread) in &group.boxes {
                let values = match spread {
                    Some(spread) => format!(
                        "{},{},{},{},{},{},{},{},{}",
                        spread.count,
                        spread.mean,
                        spread.min,
                        spread.p5,
                        spread.p25,
                        spread.p50,
                        spread.p75,
                        spread.p95,
                        spread.max
                    ),
                    None => "0,,,,,,,,".to_owned(),
                };
                // A string never refuses what is written to it.
                let _ = writeln!(
                    text,
                    "{},{},{values}",
                    csv_field(&group.name),
                    csv_field(name)
                );
            }
        }
        text
    }

    /// Names of the boxes, each once, in the order of their appearance.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.groups.iter().flat_map(|group| &group.boxes) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    pub(crate) fn svg(&self) -> String {
        let spreads = self
            .groups
            .iter()
            .flat_map(|group| &group.boxes)
            .filter_map(|entry| entry.1);
        let ends = spreads.flat_map(|spread| [spread.min, spread.max]);
        let y = self
            .y
            .fit(ends.chain(self.levels.iter().map(|level| level.1)));
        let names = self.names();
        let longest = names
            .iter()
            .map(|name| svg::width_of(name, 11.0))
            .fold(0.0, f64::max);
        let count: usize = self.groups.iter().map(|group| group.boxes.len() + 1).sum();
        let left = svg::left_of(&y);
        let slot = (WIDTH - 16.0 - left) / count.max(1) as f64;
        let crowded = longest > slot && slot < NAME_SLOT_MIN;
        let turned = longest > slot && !crowded;
        let below = if turned {
            longest.min(110.0) * 0.75 + 34.0
        } else {
            46.0
        };
        let legend = svg::legend(if crowded { &names } else { &[] });
        let above = if crowded { legend.height - 34.0 } else { 0.0 };
        let mut canvas = Canvas::new(HEIGHT + above + below - 46.0, &self.title);
        let area = Area {
            left,
            right: WIDTH - 16.0,
            top: 38.0 + above,
            bottom: HEIGHT + above - 46.0,
        };
        for (index, (name, at)) in names.iter().zip(&legend.places).enumerate() {
            let colour = svg::colour(index);
            let style = format!("fill=\"{colour}\" fill-opacity=\"0.35\" stroke=\"{colour}\"");
            canvas.rect(at.0, at.1 - 10.0, 18.0, 11.0, &style);
            canvas.words(at.0 + 26.0, at.1, 12.0, "start", name);
        }
        svg::vertical(&mut canvas, area, &y, &self.y.text());
        let mut x = area.left + slot / 2.0;
        for group in &self.groups {
            let from = x;
            for (name, spread) in &group.boxes {
                let middle = x + slot / 2.0;
                let index = names
                    .iter()
                    .position(|other| other == name)
                    .unwrap_or_default();
                let at = |value: f64| y.share(value).map_or(area.bottom, |share| area.y(share));
                match spread {
                    Some(spread) => draw(&mut canvas, middle, slot, index, &at, spread),
                    None => canvas.words(middle, area.bottom - 6.0, 11.0, "middle", "none"),
                }
                if turned {
                    canvas.turned(middle + 4.0, area.bottom + 12.0, -40.0, "end", name);
                } else if !crowded {
                    canvas.words(middle, area.bottom + 15.0, 11.0, "middle", name);
                }
                x += slot;
            }
            canvas.words(
                (from + x) / 2.0,
                area.bottom + below - 10.0,
                12.0,
                "middle",
                &group.name,
            );
            x += slot;
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

/// Box from quartile to quartile, whiskers to the 5th and 95th percentile, dots at the extremes.
fn draw(
    canvas: &mut Canvas,
    x: f64,
    slot: f64,
    index: usize,
    at: &dyn Fn(f64) -> f64,
    spread: &Spread,
) {
    let half = (slot * 0.7).min(BOX_MAX) / 2.0;
    let colour = svg::colour(index);
    let line = format!("stroke=\"{INK}\"");
    canvas.line((x, at(spread.p5)), (x, at(spread.p95)), &line);
    for end in [spread.p5, spread.p95] {
        canvas.line((x - half / 2.0, at(end)), (x + half / 2.0, at(end)), &line);
    }
    let (top, bottom) = (at(spread.p75), at(spread.p25));
    let style = format!("fill=\"{colour}\" fill-opacity=\"0.35\" stroke=\"{colour}\"");
    canvas.rect(x - half, top, half * 2.0, (bottom - top).max(1.0), &style);
    let median = at(spread.p50);
    let bold = format!("stroke=\"{INK}\" stroke-width=\"2\"");
    canvas.line((x - half, median), (x + half, median), &bold);
    for extreme in [spread.min, spread.max] {
        let y = at(extreme);
        canvas.raw(&format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"none\" stroke=\"{colour}\"/>"
        ));
    }
    let mean = at(spread.mean);
    canvas.raw(&format!(
        "<path d=\"M {:.1} {mean:.1} h 7 m -3.5 -3.5 v 7\" stroke=\"{INK}\" fill=\"none\"/>",
        x - 3.5
    ));
}
