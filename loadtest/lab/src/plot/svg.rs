//! Elements of SVG, and the frame that every chart with two axes has.

use std::fmt::Write;

use super::axis::Fitted;

/// Points of one series that are drawn; a longer series is thinned before it is drawn.
pub(crate) const POINTS_MAX: usize = 2_000;
/// Width of every chart, in pixels of the picture.
pub(crate) const WIDTH: f64 = 640.0;
/// Okabe and Ito, darkest first; the yellow is left out, for it does not show on white.
pub(crate) const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];
pub(crate) const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];
pub(crate) const INK: &str = "#222222";
const GRID: &str = "#dddddd";
const FONT: &str = "font-family=\"Helvetica, Arial, sans-serif\"";
/// Mean width of a character of 12 px.
const CHARACTER: f64 = 6.4;

pub(crate) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

pub(crate) fn dash(index: usize) -> &'static str {
    DASHES[index % DASHES.len()]
}

/// Width of a text of `size` pixels, roughly.
pub(crate) fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * CHARACTER * size / 12.0
}

pub(crate) fn escape(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// A picture that grows.
pub(crate) struct Canvas {
    text: String,
}

impl Canvas {
    pub(crate) fn new(height: f64, title: &str) -> Self {
        let title = escape(title);
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
             width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{title}\" {FONT}>\n\
             <title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n"
        );
        let mut canvas = Self { text };
        let size = if width_of(&title, 15.0) > WIDTH - 24.0 {
            12.5
        } else {
            15.0
        };
        let style = format!("font-size=\"{size}\" font-weight=\"bold\" fill=\"{INK}\"");
        canvas.raw(&format!("<text x=\"12\" y=\"22\" {style}>{title}</text>"));
        canvas
    }

    pub(crate) fn raw(&mut self, element: &str) {
        self.text.push_str(element);
        self.text.push('\n');
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        // A string never refuses what is written to it.
        let _ = writeln!(
            self.text,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>"
        );
    }

    pub(crate) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, style: &str) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
        );
    }

    /// `anchor` is start, middle or end.
    pub(crate) fn words(&mut self, x: f64, y: f64, size: f64, anchor: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" \
             fill=\"{INK}\">{text}</text>"
        );
    }

    /// On a white edge, for text over shades or curves.
    pub(crate) fn haloed(&mut self, x: f64, y: f64, size: f64, anchor: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" \
             fill=\"{INK}\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\">{text}</text>"
        );
    }

    pub(crate) fn turned(&mut self, x: f64, y: f64, degrees: f64, anchor: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.text,
            "<text transform=\"translate({x:.1} {y:.1}) rotate({degrees})\" font-size=\"12\" \
             text-anchor=\"{anchor}\" fill=\"{INK}\">{text}</text>"
        );
    }

    pub(crate) fn done(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Where the data is drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Area {
    pub(crate) fn x(&self, share: f64) -> f64 {
        self.left + share * (self.right - self.left)
    }

    pub(crate) fn y(&self, share: f64) -> f64 {
        self.bottom - share * (self.bottom - self.top)
    }
}

/// Space on the left for the ticks and the label of the vertical axis.
pub(crate) fn left_of(axis: &Fitted) -> f64 {
    let widths = axis.ticks.iter().map(|tick| width_of(&tick.1, 12.0));
    38.0 + widths.fold(0.0, f64::max)
}

/// Grid, ticks and label of the vertical axis.
pub(crate) fn vertical(canvas: &mut Canvas, area: Area, axis: &Fitted, label: &str) {
    for (tick, text) in &axis.ticks {
        let Some(y) = axis.share(*tick).map(|share| area.y(share)) else {
            continue;
        };
        canvas.line(
            (area.left, y),
            (area.right, y),
            &format!("stroke=\"{GRID}\""),
        );
        canvas.words(area.left - 6.0, y + 4.0, 12.0, "end", text);
    }
    canvas.turned(16.0, (area.top + area.bottom) / 2.0, -90.0, "middle", label);
}

/// Grid, ticks and label of the horizontal axis.
pub(crate) fn horizontal(canvas: &mut Canvas, area: Area, axis: &Fitted, label: &str) {
    for (tick, text) in &axis.ticks {
        let Some(x) = axis.share(*tick).map(|share| area.x(share)) else {
            continue;
        };
        canvas.line(
            (x, area.top),
            (x, area.bottom),
            &format!("stroke=\"{GRID}\""),
        );
        canvas.words(x, area.bottom + 17.0, 12.0, "middle", text);
    }
    let middle = (area.left + area.right) / 2.0;
    canvas.words(middle, area.bottom + 36.0, 12.0, "middle", label);
}

/// Vertical lines with their names at the top.
pub(crate) fn moments(canvas: &mut Canvas, area: Area, axis: &Fitted, moments: &[(String, f64)]) {
    let style = "stroke=\"#555555\" stroke-dasharray=\"1 3\" stroke-width=\"1.5\"";
    for (name, value) in moments {
        if let Some(at) = axis.share(*value).map(|share| area.x(share)) {
            canvas.line((at, area.top), (at, area.bottom), style);
            // A short name stands beside its line on the same side everywhere.
            let is_end = name.chars().count() > 3 && at > (area.left + area.right) / 2.0;
            let (anchor, shift) = if is_end {
                ("end", -4.0)
            } else {
                ("start", 3.0)
            };
            canvas.haloed(at + shift, area.top + 10.0, 11.0, anchor, name);
        }
    }
}

/// The two axes themselves, drawn over the grid.
pub(crate) fn frame(canvas: &mut Canvas, area: Area) {
    let style = format!("stroke=\"{INK}\"");
    canvas.line((area.left, area.top), (area.left, area.bottom), &style);
    canvas.line((area.left, area.bottom), (area.right, area.bottom), &style);
}

/// Rows of a legend: each entry with its place in it.
pub(crate) struct Legend {
    pub(crate) places: Vec<(f64, f64)>,
    pub(crate) height: f64,
}

/// Places for the entries from left to right, below the title.
pub(crate) fn legend(names: &[&str]) -> Legend {
    let mut places = Vec::new();
    let (mut x, mut y) = (12.0, 42.0);
    for name in names {
        let width = 34.0 + width_of(name, 12.0);
        if x > 12.0 && x + width > WIDTH - 8.0 {
            (x, y) = (12.0, y + 18.0);
        }
        places.push((x, y));
        x += width + 10.0;
    }
    let height = if names.is_empty() { 34.0 } else { y + 12.0 };
    Legend { places, height }
}
