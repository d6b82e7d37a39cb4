//! A diagram of a fleet's run, second by second, as SVG.

use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 180.0;
/// Room for numbers at the left, and for the title above.
const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const BELOW: f64 = 24.0;
/// Horizontal lines without the one at zero.
const LINES: u32 = 4;
const COLOURS: [&str; 4] = ["#1f77b4", "#d95f02", "#2a9d3a", "#7a5195"];

/// One diagram; a second without a value leaves a gap in its line.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) unit: &'static str,
    pub(super) lines: Vec<(&'static str, Vec<Option<f64>>)>,
}

/// All panels below one another over the same seconds.
pub(super) fn svg(title: &str, panels: &[Panel]) -> String {
    let tall = TOP + panels.len() as f64 * (TOP + HEIGHT + BELOW);
    let wide = LEFT + WIDTH + 20.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {tall}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{wide}\" height=\"{tall}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut top = TOP;
    for panel in panels {
        draw(&mut text, panel, top + TOP);
        top += TOP + HEIGHT + BELOW;
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, panel: &Panel, top: f64) {
    let values = || panel.lines.iter().flat_map(|(_, values)| values);
    let high = ceiling(values().flatten().copied().fold(0.0, f64::max));
    let seconds = panel.lines.iter().map(|(_, values)| values.len()).max();
    let across = WIDTH / seconds.unwrap_or_default().max(2).saturating_sub(1) as f64;
    let down = |value: f64| top + HEIGHT * (1.0 - value / high);
    let mut out = String::new();
    let mut x = LEFT;
    let _ = write!(
        out,
        "<text x=\"{x}\" y=\"{:.1}\">{}, {}",
        top - 8.0,
        escaped(panel.title),
        escaped(panel.unit)
    );
    for ((name, _), colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
        let _ = write!(
            out,
            "<tspan dx=\"14\" fill=\"{colour}\">{}</tspan>",
            escaped(name)
        );
    }
    out += "</text>\n";
    for line in 0..=LINES {
        let value = high * f64::from(line) / f64::from(LINES);
        let y = down(value);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {y:.1}h{WIDTH}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for ((_, values), colour) in panel.lines.iter().zip(COLOURS.iter().cycle()) {
        let mut path = String::new();
        let mut pen = 'M';
        x = LEFT;
        for value in values {
            match value {
                Some(value) => {
                    let _ = write!(path, "{pen}{x:.1} {:.1}", down(*value));
                    pen = 'L';
                }
                None => pen = 'M',
            }
            x += across;
        }
        let _ = writeln!(
            out,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>"
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{y:.1}\">0 s</text><text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{} s</text>",
        LEFT + WIDTH,
        seconds.unwrap_or_default(),
        y = top + HEIGHT + 16.0
    );
    *text += &out;
}

/// The next 1, 2, 4 or 8 times a power of ten, so that a quarter of it is a round number.
fn ceiling(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let digits = [1.0, 2.0, 4.0, 8.0, 10.0];
    let digit = digits.into_iter().find(|digit| value <= digit * power);
    digit.unwrap_or(10.0) * power
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_breaks_where_there_is_no_value_and_fits_its_panel() {
        let panel = Panel {
            title: "a < b",
            unit: "ms",
            lines: vec![("p50", vec![Some(0.0), Some(300.0), None, Some(150.0)])],
        };
        let drawn = svg("ten & more", &[panel]);
        // From zero at the bottom, 3/4 up because the scale ends at 400, and a new stroke after the
        // gap.
        assert!(
            drawn.contains("d=\"M70.0 248.0L370.0 113.0M970.0 180.5\""),
            "{drawn}"
        );
        assert!(drawn.contains("a &lt; b") && drawn.contains("ten &amp; more"));
        assert_eq!(
            drawn.matches("<text").count(),
            drawn.matches("</text>").count()
        );
    }

    #[test]
    fn scales_end_at_round_numbers() {
        let ends = [0.0, 0.3, 1.0, 7.0, 9.5, 1_234.0].map(ceiling);
        assert_eq!(ends, [1.0, 0.4, 1.0, 8.0, 10.0, 2_000.0]);
    }

    #[test]
    fn an_empty_panel_is_drawn() {
        let panel = Panel {
            title: "none",
            unit: "",
            lines: vec![("x", Vec::new())],
        };
        assert!(!svg("empty", &[panel]).contains("NaN"));
    }
}
