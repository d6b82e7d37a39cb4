//! Selection of the access on a drive, per application, by the prober's estimates.
//!
//! Three carriers of the LTE drive generator are probed at once. Assumed: a round trip of 40 ms and
//! the time that 50 kB take at the capacity, at most 1.5 s. Loss is 0.1 %, and up to 20 % more
//! below 2 Mbit/s. A capacity of zero is a cut.

use path_probe::{AsymmetricEwma, Check, Estimate, Ewma, Hysteresis, Need, OneWayLoss, Selector};

use super::tunnel::{Seen, Tunnel};
use crate::drive::{Drive, Environment};
use crate::exhibit::Exhibit;
use crate::figures::Figure;
use crate::plot::{Axis, Lines};
use crate::report::mean;
use crate::seed::derive_seed;

const CARRIERS: usize = 3;
const CHECK: Check = Check {
    k: 5,
    t_ka_us: 200_000,
};
const LOSS_PROBES: u64 = 10;
/// Short where it gets worse, long where it gets better.
const RTT_TAU_S: (f64, f64) = (0.4, 4.0);
const LOSS_TAU_S: f64 = 6.0;
const HYSTERESIS: Hysteresis = Hysteresis {
    margin: 0.2,
    hold_s: 3.0,
};
const NONE: Hysteresis = Hysteresis {
    margin: 0.0,
    hold_s: 0.0,
};
const NEEDS: [(Need, &str); 3] = [
    (Need::Conversation, "conversation"),
    (Need::Download, "download"),
    (Need::Upload, "upload"),
];
/// Steps in which accesses are chosen.
const STEP_US: u64 = 200_000;

/// State of an access in a second.
fn truth(capacity_mbit: f64) -> Estimate {
    let rtt_s = 0.04 + (0.05 * 8.0 / capacity_mbit.max(1e-3)).min(1.46);
    let weak = (1.0 - capacity_mbit / 2.0).clamp(0.0, 1.0);
    Estimate {
        up: capacity_mbit > 0.05,
        rtt_s,
        loss_to_server: 0.001 + 0.2 * weak,
        loss_to_client: 0.001 + 0.1 * weak,
    }
}

struct MeasuredTunnel {
    tunnel: Tunnel,
    rtt: AsymmetricEwma,
    to_server: Ewma,
    to_client: Ewma,
    count_up: OneWayLoss,
    count_down: OneWayLoss,
    responses: u64,
}

impl MeasuredTunnel {
    fn new(seed: u64) -> Self {
        Self {
            tunnel: Tunnel::new(seed, CHECK, 60.0),
            rtt: AsymmetricEwma::new(RTT_TAU_S.0, RTT_TAU_S.1),
            to_server: Ewma::new(LOSS_TAU_S),
            to_client: Ewma::new(LOSS_TAU_S),
            count_up: OneWayLoss::default(),
            count_down: OneWayLoss::default(),
            responses: 0,
        }
    }

    /// Follows the access as it really is, from second to second.
    fn set(&mut self, now_us: u64, truth: &Estimate) {
        self.tunnel.set_up(now_us, truth.up);
        self.tunnel.set_rtt(truth.rtt_s * 1e3, 2.0);
        self.tunnel
            .set_loss(truth.loss_to_server, truth.loss_to_client);
    }

    fn run_until(&mut self, end_us: u64) {
        let Self {
            tunnel,
            rtt,
            to_server,
            to_client,
            count_up,
            count_down,
            responses,
        } = self;
        tunnel.run_until(end_us, |now_us, seen| {
            let Seen::AtClient(seen) = seen else {
                return;
            };
            let now_s = now_us as f64 / 1e6;
            if let Some(rtt_us) = seen.rtt_us {
                rtt.update(now_s, f64::from(rtt_us) / 1e6);
            }
            *responses += 1;
            if *responses % LOSS_PROBES == 0 {
                if let Some(lost) = count_up.update(seen.sent, seen.peer_received) {
                    to_server.update(now_s, lost);
                }
                if let Some(lost) = count_down.update(seen.peer_sent, seen.received) {
                    to_client.update(now_s, lost);
                }
            }
        });
    }

    fn estimate(&self) -> Estimate {
        Estimate {
            up: self.tunnel.is_up() && self.rtt.value().is_some(),
            rtt_s: self.rtt.value().unwrap_or(f64::INFINITY),
            loss_to_server: self.to_server.value().unwrap_or(0.0),
            loss_to_client: self.to_client.value().unwrap_or(0.0),
        }
    }
}

/// One way of choosing, and what came of it.
struct Course {
    name: String,
    /// The one access that it may take; all when none.
    only: Option<usize>,
    selector: Selector,
    need: Need,
    /// Seconds, and the number of the access.
    chosen: Vec<(f64, f64)>,
    /// Seconds with a carrier that was really up, and the sum of round trips, or of costs, in them.
    served: u64,
    rtt_s: f64,
    rtt_best_s: f64,
    steps: u64,
}

impl Course {
    fn new(name: &str, need: Need, hysteresis: Hysteresis) -> Self {
        Self {
            name: name.to_owned(),
            only: None,
            selector: Selector::new(need, hysteresis),
            need,
            chosen: Vec::new(),
            served: 0,
            rtt_s: 0.0,
            rtt_best_s: 0.0,
            steps: 0,
        }
    }

    fn step(&mut self, now_s: f64, estimates: &[Estimate], truths: &[Estimate]) {
        let choice = match self.only {
            Some(only) => estimates[only].up.then_some(only),
            None => self.selector.choose(now_s, estimates),
        };
        let number = choice.map_or(0.0, |it| it as f64 + 1.0);
        if self.chosen.last().is_none_or(|last| last.1 != number) {
            self.chosen.push((now_s, number));
        }
        let costs = truths
            .iter()
            .filter(|it| it.up)
            .map(|it| self.need.cost(it));
        let best = costs.fold(f64::INFINITY, f64::min);
        if !best.is_finite() {
            return;
        }
        self.steps += 1;
        if let Some(own) = choice.map(|it| &truths[it]).filter(|it| it.up) {
            self.served += 1;
            self.rtt_s += self.need.cost(own);
            self.rtt_best_s += best;
        }
    }

    fn served_percent(&self) -> f64 {
        100.0 * self.served as f64 / self.steps.max(1) as f64
    }

    /// Mean round trip, divided by that of a choice that knows the accesses.
    fn ratio(&self) -> f64 {
        self.rtt_s / self.rtt_best_s.max(1e-9)
    }
}

pub(super) fn add(exhibit: &mut Exhibit, seed: u64, seconds: usize) {
    let drive = Drive::generate(Environment::Road, seconds, derive_seed(seed, 8000));
    let mut measured: Vec<MeasuredTunnel> = (0..CARRIERS as u64)
        .map(|carrier| MeasuredTunnel::new(derive_seed(seed, 8100 + carrier)))
        .collect();
    let mut courses: Vec<Course> = NEEDS
        .iter()
        .map(|(need, name)| Course::new(name, *need, HYSTERESIS))
        .collect();
    courses.push(Course::new(
        "conversation without hysteresis",
        Need::Conversation,
        NONE,
    ));
    let mut fixed: Vec<Course> = (0..CARRIERS)
        .map(|carrier| Course {
            only: Some(carrier),
            ..Course::new("fixed", Need::Conversation, NONE)
        })
        .collect();
    let mut rtts: Vec<Vec<(f64, f64)>> = vec![Vec::new(); CARRIERS];
    for second in 0..seconds {
        let truths: Vec<Estimate> = (0..CARRIERS)
            .map(|carrier| truth(drive.capacity(second, carrier)))
            .collect();
        let begin_us = second as u64 * 1_000_000;
        for (own, truth) in measured.iter_mut().zip(&truths) {
            own.set(begin_us, truth);
        }
        for step in 1..=1_000_000 / STEP_US {
            let now_us = begin_us + step * STEP_US;
            for own in &mut measured {
                own.run_until(now_us);
            }
            let estimates: Vec<Estimate> = measured.iter().map(MeasuredTunnel::estimate).collect();
            let now_s = now_us as f64 / 1e6;
            for course in &mut courses {
                course.step(now_s, &estimates, &truths);
            }
            for course in &mut fixed {
                course.step(now_s, &estimates, &truths);
            }
            for (curve, estimate) in rtts.iter_mut().zip(&estimates) {
                let value = if estimate.up {
                    estimate.rtt_s * 1e3
                } else {
                    f64::NAN
                };
                curve.push((now_s, value));
            }
        }
    }
    report(exhibit, &courses, &fixed, &rtts, seconds);
}

fn report(
    exhibit: &mut Exhibit,
    courses: &[Course],
    fixed: &[Course],
    rtts: &[Vec<(f64, f64)>],
    seconds: usize,
) {
    let id = |name: &str, what: &str| format!("keepalive.drive.{}.{what}", name.replace(' ', "_"));
    for course in &courses[..NEEDS.len()] {
        let name = &course.name;
        exhibit.figures.extend([
            Figure::at_least(id(name, "served"), "%", None, 97.0, course.served_percent()),
            Figure::shown(id(name, "cost_by_knowing"), "x", None, course.ratio()),
            Figure::shown(
                id(name, "handovers_per_minute"),
                "1/min",
                None,
                course.selector.handovers() as f64 * 60.0 / seconds as f64,
            ),
        ]);
    }
    // The mean of three gateways that stay with one carrier each.
    let ratios: Vec<f64> = fixed.iter().map(Course::ratio).collect();
    let shares: Vec<f64> = fixed.iter().map(Course::served_percent).collect();
    let (cost_of_staying, served) = (mean(&ratios), mean(&shares));
    let (steady, restless) = (&courses[0], &courses[NEEDS.len()]);
    let changes = |course: &Course| course.selector.handovers().max(1) as f64;
    exhibit.figures.extend([
        // A choice that costs as much as staying with any carrier would be none.
        Figure::at_most(
            id("conversation", "cost_by_best"),
            "x",
            None,
            cost_of_staying,
            steady.ratio(),
        ),
        Figure::shown(id("fixed carrier", "served"), "%", None, served),
        Figure::at_least(
            id("conversation", "handovers_saved"),
            "x",
            None,
            2.0,
            changes(restless) / changes(steady),
        ),
    ]);
    let (x, y) = (
        Axis::new("time", "s"),
        Axis::new("RTT estimate", "ms").log(),
    );
    let shown_s = (seconds as f64).min(300.0);
    let mut chart = Lines::new("Round trips of three carriers on a drive", x.clone(), y);
    for (number, curve) in (1..).zip(rtts) {
        let part: Vec<(f64, f64)> = curve
            .iter()
            .copied()
            .filter(|point| point.0 <= shown_s)
            .collect();
        chart = chart.series(&format!("carrier {number}"), &part);
    }
    exhibit.plot("keepalive.drive.rtt", chart);
    let y = Axis::new("carrier in use, 0 is none", "").range(0.0, CARRIERS as f64 + 0.2);
    let mut chart = Lines::new("Selection per application, with hysteresis", x, y);
    for course in courses {
        let mut points: Vec<(f64, f64)> = course
            .chosen
            .iter()
            .copied()
            .filter(|point| point.0 <= shown_s)
            .collect();
        if let Some(last) = points.last().copied() {
            points.push((shown_s, last.1));
        }
        // Lines that lie upon each other would hide each other.
        let shift = 0.05 * exhibit_index(courses, course) as f64;
        let points: Vec<(f64, f64)> = points.iter().map(|it| (it.0, it.1 + shift)).collect();
        chart = chart.steps(&course.name, &points);
    }
    exhibit.plot("keepalive.drive.selection", chart);
}

fn exhibit_index(courses: &[Course], own: &Course) -> usize {
    courses
        .iter()
        .position(|it| it.name == own.name)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_stay_served_on_a_drive_with_few_handovers() {
        let mut exhibit = Exhibit::default();
        add(&mut exhibit, 5, 600);
        let missed: Vec<&Figure> = exhibit.figures.iter().filter(|row| !row.met).collect();
        assert!(missed.is_empty(), "{:#?}", exhibit.figures);
    }
}
