//! The convoy on its way, as HTML with a slider over time. It holds its data and asks no network.

use ::fluid::{Capacity, Experiment, Run};
use serde_json::{Value, json};

use super::charts::way;
use crate::plot::COLOURS;

/// Moments that the slider can show, at most.
const MOMENTS_MAX: usize = 1100;
const WAY_POINTS: u32 = 600;
/// Points from the tail to the head.
const BODY_POINTS: u32 = 4;

const STYLE: &str = include_str!("page/convoy.css");
const SCRIPT: &str = include_str!("page/convoy.js");

/// A page of its own.
pub(super) fn html(experiment: &Experiment, run: &Run) -> String {
    let title = escape(&format!("Convoy: {}", experiment.title));
    let body = fragment(experiment, run);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}

/// The same for a page that holds more.
pub(super) fn fragment(experiment: &Experiment, run: &Run) -> String {
    let id: String = experiment
        .name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .collect();
    // A closing tag within the data would end the script.
    let data = data(experiment, run).to_string().replace('<', "\\u003c");
    format!(
        "<div class=\"convoy\" id=\"convoy-{id}\">\n<style>{STYLE}</style>\n\
         <noscript>The slider needs JavaScript; the charts show the same data.</noscript>\n\
         <script>(function (root, data) {{\n{SCRIPT}}})\
         (document.getElementById(\"convoy-{id}\"), {data});</script>\n</div>\n"
    )
}

fn data(experiment: &Experiment, run: &Run) -> Value {
    let every = run.times_s.len().div_ceil(MOMENTS_MAX).max(1);
    let chosen: Vec<usize> = (0..run.times_s.len()).step_by(every).collect();
    let pick = |values: &[f64]| -> Vec<f64> {
        chosen.iter().map(|&at| round(values[at], 100.0)).collect()
    };
    let routes: Vec<Value> = experiment
        .network
        .routes
        .iter()
        .enumerate()
        .map(|(index, route)| {
            let (resource, _, _) = route.resources[0];
            let network = &experiment.network.resources[resource];
            let (node, station) = match network.capacity {
                Capacity::Distance {
                    node, station_m, ..
                } => (Some(node), Some(station_m)),
                Capacity::Constant | Capacity::Steps(_) => (None, None),
            };
            json!({
                "name": format!("{}: {}", route.name, network.name),
                "colour": COLOURS[index % COLOURS.len()],
                "nominal": network.nominal,
                "node": node,
                "station": station,
                "rate": pick(&run.rates[index]),
                "capacity": pick(&run.capacities[resource]),
            })
        })
        .collect();
    let ahead = experiment.nodes.iter().map(|node| node.1);
    let (tail, head) = ahead.fold((0.0, 0.0), |(low, high): (f64, f64), ahead| {
        (low.min(ahead), high.max(ahead))
    });
    let track = experiment.track();
    let place = |at: usize, ahead_m: f64| -> (f64, f64) {
        let Some(track) = &track else {
            return (0.0, 0.0);
        };
        let (x, y) = track.position(run.times_s[at], ahead_m);
        (round(x, 10.0), round(y, 10.0))
    };
    let body = |at: usize| -> Vec<(f64, f64)> {
        (0..=BODY_POINTS)
            .map(|part| {
                let share = f64::from(part) / f64::from(BODY_POINTS);
                place(at, tail + (head - tail) * share)
            })
            .collect()
    };
    let nodes = |at: usize| -> Vec<(f64, f64)> {
        experiment
            .nodes
            .iter()
            .map(|node| place(at, node.1))
            .collect()
    };
    let line = way(experiment, WAY_POINTS);
    json!({
        "times": pick(&run.times_s),
        "routes": routes,
        "way": line.iter().map(|at| (round(at.0, 1.0), round(at.1, 1.0))).collect::<Vec<_>>(),
        "stations": experiment.stations,
        "nodeNames": experiment.nodes.iter().map(|node| &node.0).collect::<Vec<_>>(),
        "nodes": chosen.iter().map(|&at| nodes(at)).collect::<Vec<_>>(),
        "body": chosen.iter().map(|&at| body(at)).collect::<Vec<_>>(),
    })
}

fn round(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
