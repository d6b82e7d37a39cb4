//! Estimates from probes: figures 16 to 18 and 21 to 24.

use path_probe::{AsymmetricEwma, Check, Ewma, OneWayLoss, tau_of_alpha, timeliness};

use super::tunnel::{Seen, Tunnel};
use crate::exhibit::Exhibit;
use crate::figures::Figure;
use crate::plot::{Axis, Lines};
use crate::references::published;

const ALPHAS: [(f64, &str); 4] = [
    (0.8, "alpha_08"),
    (0.6, "alpha_06"),
    (0.4, "alpha_04"),
    (0.2, "alpha_02"),
];
/// Packets a second in each direction in the experiment on loss; the paper does not publish it.
const DATA_PER_SECOND: u64 = 50;
/// Probes in one loss interval.
const N: u64 = 10;

/// Seconds and milliseconds.
pub(crate) type Curve = Vec<(f64, f64)>;

/// Round trips that the client measures while the link follows a course.
fn measure(seed: u64, t_ka_ms: u64, course: &[(f64, f64)], end_s: f64) -> Curve {
    let check = Check {
        k: 100,
        t_ka_us: t_ka_ms * 1000,
    };
    let mut tunnel = Tunnel::new(seed, check, course[0].1);
    let mut samples = Vec::new();
    let bounds = course.iter().skip(1).map(|step| step.0).chain([end_s]);
    for ((_, rtt_ms), until_s) in course.iter().zip(bounds) {
        tunnel.set_rtt(*rtt_ms, 0.0);
        tunnel.run_until((until_s * 1e6) as u64, |now_us, seen| {
            if let Seen::AtClient(seen) = seen
                && let Some(rtt_us) = seen.rtt_us
            {
                samples.push((now_us as f64 / 1e6, f64::from(rtt_us) / 1e3));
            }
        });
    }
    samples
}

fn plain(samples: &Curve, tau_s: f64) -> Curve {
    let mut ewma = Ewma::new(tau_s);
    samples
        .iter()
        .map(|(at, value)| (*at, ewma.update(*at, *value)))
        .collect()
}

fn asymmetric(samples: &Curve, worse_s: f64, better_s: f64) -> Curve {
    let mut ewma = AsymmetricEwma::new(worse_s, better_s);
    samples
        .iter()
        .map(|(at, value)| (*at, ewma.update(*at, *value)))
        .collect()
}

fn millis(tau_s: f64) -> String {
    format!("tau {:.0} ms", tau_s * 1e3)
}

pub(super) fn add(exhibit: &mut Exhibit, seed: u64) {
    for (alpha, name) in ALPHAS {
        let id = format!("keepalive.time_constant.{name}");
        exhibit
            .figures
            .push(published(&id, "ms", 1.0, tau_of_alpha(alpha, 0.2) * 1e3));
    }
    for (t_ka_ms, name) in [(200, "step_200ms"), (2000, "step_2s")] {
        let course = step_course(t_ka_ms);
        let samples = measure(seed, t_ka_ms, &course, step_times(t_ka_ms).1);
        step(exhibit, &samples, t_ka_ms, name);
    }
    for (t_ka_ms, name) in [(2000, "2s"), (200, "200ms")] {
        let samples = measure(seed, t_ka_ms, &levels_course(), LEVELS_S);
        levels(exhibit, &samples, t_ka_ms, name);
    }
    loss(exhibit, seed);
}

/// Seconds of the step for probes every so many milliseconds, and of the end.
pub(crate) fn step_times(t_ka_ms: u64) -> (f64, f64) {
    let t_ka_s = t_ka_ms as f64 / 1e3;
    (18.75 * t_ka_s, 50.0 * t_ka_s)
}

/// The round trip of the experiment with a step: from 100 to 200 ms.
pub(crate) fn step_course(t_ka_ms: u64) -> Curve {
    vec![(0.0, 100.0), (step_times(t_ka_ms).0, 200.0)]
}

/// Figures 16 and 21 of measured round trips; the estimate is within 10 % after 2.3 tau.
pub(crate) fn step(exhibit: &mut Exhibit, samples: &Curve, t_ka_ms: u64, name: &str) {
    let (step_s, end_s) = step_times(t_ka_ms);
    let course = step_course(t_ka_ms);
    let (x, y) = (
        Axis::new("time", "s").range(0.0, end_s),
        Axis::new("RTT", "ms").range(80.0, 220.0),
    );
    let title = format!("RTT step, T_KA {t_ka_ms} ms, four time constants");
    let reference: Curve = course.iter().copied().chain([(end_s, 200.0)]).collect();
    let mut chart = Lines::new(&title, x, y).steps("RTT of the link", &reference);
    let t_ka_s = t_ka_ms as f64 / 1e3;
    for (alpha, label) in ALPHAS {
        let tau_s = tau_of_alpha(alpha, t_ka_s);
        let estimate = plain(samples, tau_s);
        let reached = estimate.iter().find(|(_, value)| *value >= 190.0);
        let took_s = reached.map_or(f64::INFINITY, |(at, _)| at - step_s);
        // The first sample after the step is up to an interval and a round trip late.
        let most = timeliness(tau_s) + t_ka_s + 0.2 + t_ka_s;
        let id = format!("keepalive.{name}.timeliness.{label}");
        exhibit
            .figures
            .push(Figure::at_most(id, "s", None, most, took_s));
        chart = chart.steps(&millis(tau_s), &estimate);
    }
    exhibit.plot(&format!("keepalive.{name}"), chart);
}

/// Length of the experiment with three levels.
pub(crate) const LEVELS_S: f64 = 100.0;

/// Its round trip: 200, 300, 200, 100 ms for five seconds each.
pub(crate) fn levels_course() -> Curve {
    let level = |step: u32| [200.0, 300.0, 200.0, 100.0][step as usize % 4];
    (0..20)
        .map(|step| (f64::from(step) * 5.0, level(step)))
        .collect()
}

/// Figures 17, 18, 22 and 23 of measured round trips.
pub(crate) fn levels(exhibit: &mut Exhibit, samples: &Curve, t_ka_ms: u64, name: &str) {
    let course = levels_course();
    let interval_s = t_ka_ms as f64 / 1e3;
    let (short_s, long_s) = (tau_of_alpha(0.8, interval_s), tau_of_alpha(0.2, interval_s));
    let (fast, slow) = (plain(samples, short_s), plain(samples, long_s));
    let careful = asymmetric(samples, short_s, long_s);
    let late = |curve: &Curve| -> Vec<f64> {
        curve
            .iter()
            .filter(|(at, _)| *at > 40.0)
            .map(|(_, value)| *value)
            .collect()
    };
    let least = |curve: &Curve| late(curve).into_iter().fold(f64::INFINITY, f64::min);
    // An estimate that errs towards the worse never promises more than the plain one.
    exhibit.figures.push(Figure::at_least(
        format!("keepalive.asymmetric_{name}.lowest"),
        "ms",
        None,
        least(&slow),
        least(&careful),
    ));
    let reference: Curve = course.iter().copied().chain([(LEVELS_S, 200.0)]).collect();
    let axes = || {
        (
            Axis::new("time", "s"),
            Axis::new("RTT", "ms").range(50.0, 350.0),
        )
    };
    let (x, y) = axes();
    let chart = Lines::new(&format!("RTT of three levels, T_KA {t_ka_ms} ms"), x, y)
        .steps("RTT of the link", &reference)
        .steps(&millis(short_s), &fast)
        .steps(&millis(long_s), &slow);
    exhibit.plot(&format!("keepalive.levels_{name}"), chart);
    let (x, y) = axes();
    let chart = Lines::new(&format!("Asymmetric estimate, T_KA {t_ka_ms} ms"), x, y)
        .steps("RTT of the link", &reference)
        .steps(
            &format!("{} if worse, {} if better", millis(short_s), millis(long_s)),
            &careful,
        );
    exhibit.plot(&format!("keepalive.asymmetric_{name}"), chart);
}

/// Figure 24: 0.1, 10, 20 and 10 % for 15 s each, up; half of that down.
fn loss(exhibit: &mut Exhibit, seed: u64) {
    let check = Check {
        k: 1000,
        t_ka_us: 200_000,
    };
    let mut tunnel = Tunnel::new(seed, check, 60.0).with_data(DATA_PER_SECOND);
    // The paper prints a time constant of 1.24 s for T_L of two seconds.
    let tau_s = tau_of_alpha(0.8, 2.0);
    let (mut up, mut down) = (Ewma::new(tau_s), Ewma::new(tau_s));
    let (mut count_up, mut count_down) = (OneWayLoss::default(), OneWayLoss::default());
    let (mut measured_up, mut measured_down) = (Curve::new(), Curve::new());
    let mut reference = Curve::new();
    let mut responses = 0;
    let mut errors = Vec::new();
    for part in 0..8_u32 {
        let share = [0.001, 0.1, 0.2, 0.1][part as usize % 4];
        tunnel.set_loss(share, share / 2.0);
        let from_s = f64::from(part) * 15.0;
        reference.push((from_s, share * 100.0));
        tunnel.run_until(((from_s + 15.0) * 1e6) as u64, |now_us, seen| {
            let Seen::AtClient(seen) = seen else {
                return;
            };
            responses += 1;
            if responses % N != 0 {
                return;
            }
            let now_s = now_us as f64 / 1e6;
            if let Some(lost) = count_up.update(seen.sent, seen.peer_received) {
                measured_up.push((now_s, up.update(now_s, lost * 100.0)));
            }
            if let Some(lost) = count_down.update(seen.peer_sent, seen.received) {
                measured_down.push((now_s, down.update(now_s, lost * 100.0)));
            }
        });
        // The last interval of a level is free of the one before.
        if let (Some((_, value)), true) = (measured_up.last(), part > 0) {
            errors.push((value - share * 100.0).abs());
        }
    }
    let error = crate::report::mean(&errors);
    exhibit.figures.push(Figure::at_most(
        "keepalive.loss_levels.error",
        "points",
        None,
        3.0,
        error,
    ));
    let end = f64::from(8 * 15);
    reference.push((end, 10.0));
    let half: Curve = reference
        .iter()
        .map(|(at, share)| (*at, share / 2.0))
        .collect();
    let (x, y) = (
        Axis::new("time", "s"),
        Axis::new("one-way loss", "%").range(0.0, 30.0),
    );
    let chart = Lines::new("One-way loss of both directions, T_KA 200 ms, N = 10", x, y)
        .steps("up, of the link", &reference)
        .steps("up, measured", &measured_up)
        .steps("down, of the link", &half)
        .steps("down, measured", &measured_down);
    exhibit.plot("keepalive.loss_levels", chart);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prober_measures_the_round_trip_of_the_link() {
        let samples = measure(1, 200, &[(0.0, 100.0), (4.0, 200.0)], 8.0);
        assert!(samples.len() >= 38, "{}", samples.len());
        for (at, rtt) in samples {
            // A packet of 56 bytes takes 0.045 ms in each direction.
            let expected = [100.1, 200.1].map(|it: f64| (rtt - it).abs() < 0.1);
            assert!(
                expected[usize::from(at > 4.1)] || (4.0..4.3).contains(&at),
                "{at} {rtt}"
            );
        }
    }
}
