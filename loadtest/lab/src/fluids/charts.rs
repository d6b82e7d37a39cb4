//! Charts of one experiment, as its file asks for them.

use ::fluid::{Capacity, Decay, Experiment, Panel, Run, Show};

use crate::exhibit::Exhibit;
use crate::plot::{Axis, Field, Lines, Map, Plot, Stack};

/// Distance in time between the labels t1, t2 and so on of the paper.
const EPOCH_S: f64 = 30.0;
/// Points of a way that are drawn.
const WAY_POINTS: u32 = 1200;
const FIELD_CELLS: usize = 72;
/// Moments of a course that are drawn.
const MOMENTS_MAX: usize = 1100;

pub(super) fn draw(experiment: &Experiment, run: &Run, exhibit: &mut Exhibit) {
    for panel in &experiment.figures {
        let id = format!("fluid.{}.{}", experiment.name, panel.file);
        exhibit.plot(&id, chart(experiment, run, panel));
    }
    if experiment.figures.is_empty() {
        for (file, show) in [("rates", Show::Rates), ("capacities", Show::Capacities)] {
            let routes = experiment.network.routes.iter().enumerate();
            let panel = Panel {
                file: file.to_owned(),
                title: format!("{}: {file}", experiment.title),
                show,
                series: routes.map(|(at, it)| (it.name.clone(), vec![at])).collect(),
            };
            let id = format!("fluid.{}.{file}", experiment.name);
            exhibit.plot(&id, chart(experiment, run, &panel));
        }
    }
}

fn chart(experiment: &Experiment, run: &Run, panel: &Panel) -> Plot {
    match panel.show {
        Show::Rates => lines(run, panel, "rate", |routes| run.sum(routes)),
        Show::Capacities => lines(run, panel, "capacity", |routes| {
            capacities(experiment, run, routes)
        }),
        Show::Stacked => stack(run, panel),
        Show::Map => map(experiment, panel).into(),
        Show::Field => field(experiment, panel).into(),
        Show::Decay => decay_curve(experiment, panel).into(),
    }
}

/// Sum of the capacities of the first resources of some routes, by time.
fn capacities(experiment: &Experiment, run: &Run, routes: &[usize]) -> Vec<f64> {
    let resources: Vec<usize> = routes
        .iter()
        .filter_map(|route| experiment.network.routes[*route].resources.first())
        .map(|used| used.0)
        .collect();
    (0..run.times_s.len())
        .map(|at| {
            resources
                .iter()
                .map(|&index| run.capacities[index][at])
                .sum()
        })
        .collect()
}

fn epochs(run: &Run) -> impl Iterator<Item = (String, f64)> + '_ {
    let end = run.times_s.last().copied().unwrap_or(0.0);
    let count = if end > 2.0 * EPOCH_S {
        (end / EPOCH_S) as u32
    } else {
        0
    };
    (1..=count).map(|number| (format!("t{number}"), f64::from(number) * EPOCH_S))
}

/// Moments that are drawn, and the axis of time.
fn times(run: &Run) -> (Vec<usize>, Axis) {
    let every = run.times_s.len().div_ceil(MOMENTS_MAX).max(1);
    let end = run.times_s.last().copied().unwrap_or(1.0);
    let chosen = (0..run.times_s.len()).step_by(every).collect();
    (chosen, Axis::new("time", "s").range(0.0, end))
}

/// An axis with room above the highest value for the names of moments.
fn below_labels(label: &str, most: f64) -> Axis {
    Axis::new(label, "units").range(0.0, rounded(most * 1.1).max(1e-3))
}

/// No more digits than a reader of the data needs.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn lines(run: &Run, panel: &Panel, label: &str, values: impl Fn(&[usize]) -> Vec<f64>) -> Plot {
    let (chosen, x) = times(run);
    let courses: Vec<Vec<f64>> = panel.series.iter().map(|it| values(&it.1)).collect();
    let most = courses.iter().flatten().copied().fold(0.0, f64::max);
    let mut chart = Lines::new(&panel.title, x, below_labels(label, most));
    for ((name, _), values) in panel.series.iter().zip(&courses) {
        let point = |&at: &usize| (rounded(run.times_s[at]), rounded(values[at]));
        let points: Vec<(f64, f64)> = chosen.iter().map(point).collect();
        chart = chart.series(name, &points);
    }
    chart.moments.extend(epochs(run));
    chart.into()
}

fn stack(run: &Run, panel: &Panel) -> Plot {
    let (chosen, x) = times(run);
    let at: Vec<f64> = chosen.iter().map(|&at| rounded(run.times_s[at])).collect();
    let all: Vec<usize> = panel.series.iter().flat_map(|it| it.1.clone()).collect();
    let most = run.sum(&all).into_iter().fold(0.0, f64::max);
    let mut chart = Stack::new(&panel.title, x, below_labels("rate", most), &at);
    for (name, routes) in &panel.series {
        let sum = run.sum(routes);
        let values: Vec<f64> = chosen.iter().map(|&at| rounded(sum[at])).collect();
        chart = chart.layer(name, &values);
    }
    chart.moments.extend(epochs(run));
    chart.into()
}

/// Positions of the middle over the whole way.
pub(super) fn way(experiment: &Experiment, points: u32) -> Vec<(f64, f64)> {
    let Some(track) = experiment.track() else {
        return Vec::new();
    };
    (0..=points)
        .map(|at| track.position(f64::from(at) * track.seconds() / f64::from(points), 0.0))
        .map(|at| (rounded(at.0), rounded(at.1)))
        .collect()
}

fn map(experiment: &Experiment, panel: &Panel) -> Map {
    let mut map = Map::new(&panel.title, "m");
    let Some(track) = experiment.track() else {
        return map;
    };
    let (begin, end) = (
        track.position(0.0, 0.0),
        track.position(track.seconds(), 0.0),
    );
    let stands = begin == end && experiment.way.len() == 1;
    if stands {
        let line = experiment
            .nodes
            .iter()
            .map(|node| track.position(0.0, node.1));
        map = map.way("convoy, from tail to head", &line.collect::<Vec<_>>());
        for (name, ahead_m) in &experiment.nodes {
            map = map.mark(name, track.position(0.0, *ahead_m), false);
        }
    } else {
        map = map.way("way of the convoy's middle", &way(experiment, WAY_POINTS));
        // The second revolution passes the places of the first at other times.
        for number in 0..=(track.seconds() / EPOCH_S) as u32 {
            let at = track.position(f64::from(number) * EPOCH_S, 0.0);
            map = map.mark(&format!("t{number}"), at, false);
        }
    }
    for (name, at_m) in &experiment.stations {
        map = map.mark(name, *at_m, true);
    }
    map
}

fn decay(experiment: &Experiment) -> Option<Decay> {
    experiment
        .network
        .resources
        .iter()
        .find_map(|it| match it.capacity {
            Capacity::Distance { decay, .. } => Some(decay),
            Capacity::Constant | Capacity::Steps(_) => None,
        })
}

/// The sum of what all stations of one node give, as in the paper's figure 4.
fn field(experiment: &Experiment, panel: &Panel) -> Map {
    let aggregate = |x: f64, y: f64| -> f64 {
        let of_first_node = experiment.network.resources.iter().filter_map(|it| {
            let Capacity::Distance {
                node: 0,
                station_m,
                decay,
            } = it.capacity
            else {
                return None;
            };
            Some(it.nominal * decay.factor((x - station_m.0).hypot(y - station_m.1)))
        });
        of_first_node.sum()
    };
    let (from, to) = ((-1000.0, -1000.0), (1000.0, 1000.0));
    let clover: Vec<(f64, f64)> = way(experiment, WAY_POINTS)
        .into_iter()
        .take_while(|at| at.0 <= 520.0)
        .collect();
    let mut map = Map::new(&panel.title, "m")
        .field(Field::new(from, to, FIELD_CELLS, "capacity", |x, y| {
            rounded(aggregate(x, y))
        }))
        .way("way near the stations", &clover);
    for (name, at_m) in &experiment.stations {
        map = map.mark(name, *at_m, true);
    }
    map
}

fn decay_curve(experiment: &Experiment, panel: &Panel) -> Lines {
    let x = Axis::new("distance", "m");
    let y = Axis::new("capacity factor", "").range(0.0, 1.0);
    let Some(decay) = decay(experiment) else {
        return Lines::new(&panel.title, x, y);
    };
    let points: Vec<(f64, f64)> = (0..=300)
        .map(|at| (f64::from(at) * 5.0, decay.factor(f64::from(at) * 5.0)))
        .collect();
    Lines::new(&panel.title, x, y)
        .series(
            &format!("alpha {}, d0 {} m", decay.alpha_per_m, decay.d0_m),
            &points,
        )
        .moment("d0", decay.d0_m)
}
