//! The optimiser's curves: figures 7 to 11 of the paper.

use path_probe::{
    Choice, Infeasible, Target, false_positive_interval_s, false_positive_probability, optimise,
    responsiveness_avg_s,
};

use crate::exhibit::Exhibit;
use crate::plot::{Axis, Lines, Marker};
use crate::references::published;

/// Section 4.3: the paper's example.
const PAPER: Target = Target {
    rtt_avg_s: 0.1,
    loss: 0.05,
    responsiveness_s_max: 0.5,
    false_positive_interval_s_min: 1e5,
};

pub(super) fn add(exhibit: &mut Exhibit) {
    if let Ok(choice) = optimise(PAPER) {
        exhibit.figures.extend([
            published("keepalive.example.k", "probes", 0.0, f64::from(choice.k)),
            published("keepalive.example.t_ka", "ms", 0.5, choice.t_ka_s * 1e3),
        ]);
    }
    tradeoff(exhibit);
    range(exhibit);
    let sweep = |name: &str, axis: &Axis, values: Vec<f64>, target: &dyn Fn(f64) -> Target| {
        let optimum: Vec<(f64, Result<Choice, Infeasible>)> = values
            .into_iter()
            .map(|it| (it, optimise(target(it))))
            .collect();
        let points = |of: &dyn Fn(Choice) -> f64| -> Vec<(f64, f64)> {
            let found = optimum
                .iter()
                .filter_map(|(at, choice)| Some((*at, choice.ok()?)));
            found.map(|(at, choice)| (at, of(choice))).collect()
        };
        let draw = |part: &str, y: Axis, points: Vec<(f64, f64)>| {
            let title = format!("Optimal {part} by {}", axis.label);
            let chart = Lines::new(&title, axis.clone(), y.from_zero());
            let chart = chart.with(part, Marker::LineAndDots, &points);
            (format!("keepalive.{name}.{}", part.to_lowercase()), chart)
        };
        [
            draw("K", Axis::new("K*", ""), points(&|it| f64::from(it.k))),
            draw(
                "T_KA",
                Axis::new("T_KA*", "ms"),
                points(&|it| it.t_ka_s * 1e3),
            ),
        ]
    };
    let loss = (1..=16).map(|step| f64::from(step) * 0.5).collect();
    let apart = (0..=16)
        .map(|step| 10f64.powf(2.0 + f64::from(step) / 4.0))
        .collect();
    let within = (0..=32).map(|step| 80.0 + 60.0 * f64::from(step)).collect();
    let charts = [
        sweep("loss", &Axis::new("loss", "%"), loss, &|percent| Target {
            loss: percent / 100.0,
            ..PAPER
        }),
        sweep(
            "false_positives",
            &Axis::new("T_fp min", "s").log(),
            apart,
            &|seconds| Target {
                false_positive_interval_s_min: seconds,
                ..PAPER
            },
        ),
        sweep(
            "responsiveness",
            &Axis::new("T_R max", "ms"),
            within,
            &|millis| Target {
                responsiveness_s_max: millis / 1e3,
                ..PAPER
            },
        ),
    ];
    for (id, chart) in charts.into_iter().flatten() {
        exhibit.plot(&id, chart);
    }
}

/// Figure 7: K from 1 to 10 at T_KA 100 ms.
fn tradeoff(exhibit: &mut Exhibit) {
    let points: Vec<(f64, f64)> = (1..=10)
        .map(|k| Choice { k, t_ka_s: 0.1 })
        .map(|choice| {
            (
                responsiveness_avg_s(choice, PAPER.rtt_avg_s) * 1e3,
                false_positive_interval_s(choice, PAPER.loss),
            )
        })
        .collect();
    let (x, y) = (Axis::new("T_R average", "ms"), Axis::new("T_fp", "s").log());
    let chart = Lines::new("Responsiveness against false alarms, K = 1 to 10", x, y);
    exhibit.plot(
        "keepalive.tradeoff",
        chart.with(
            "T_KA 100 ms, RTT 100 ms, loss 5 %",
            Marker::LineAndDots,
            &points,
        ),
    );
}

/// Figure 8: what (6) and (7) leave for T_KA.
fn range(exhibit: &mut Exhibit) {
    let budget_s = PAPER.responsiveness_s_max - PAPER.rtt_avg_s / 2.0;
    let above = |k: u32| budget_s / (f64::from(k) + 0.5) * 1e3;
    let below = |k: u32| {
        PAPER.false_positive_interval_s_min * false_positive_probability(PAPER.loss, k) * 1e3
    };
    let over = |of: &dyn Fn(u32) -> f64| -> Vec<(f64, f64)> {
        (1..=12).map(|k| (f64::from(k), of(k))).collect()
    };
    let chart = Lines::new(
        "Admissible T_KA: below the first curve, above the second",
        Axis::new("K", ""),
        Axis::new("T_KA", "ms").log(),
    )
    .with("responsiveness (6)", Marker::LineAndDots, &over(&above))
    .with("false alarms (7)", Marker::LineAndDots, &over(&below));
    exhibit.plot("keepalive.range", chart);
}
