//! Estimates of each path, and the keepalive policy that follows from them. Sans-IO.
//!
//! Round trip and loss pass through an asymmetric EWMA: a worse value counts at once, a better
//! value only after a while. The optimiser of equations (5) to (8) gives K and T_KA for the worse
//! of the two directions.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use contracts::{
    paths::{End, PathReport, PathState},
    policy::{GetPolicyResponse, PathPolicy},
};
use parking_lot::Mutex;
use path_probe::{AsymmetricEwma, Choice, Target, optimise};

use crate::config::Config;

/// Gateways whose paths are estimated; at the bound the gateway that is silent for longest is
/// forgotten, and its estimates begin anew.
const GATEWAYS_MAX: usize = 50_000;
/// Paths of one gateway; at the bound the path that is silent for longest is forgotten.
const PATHS_MAX: usize = store::PATHS_PER_GATEWAY_MAX;
/// Time constant of a worsening estimate in seconds. 90 % of a step are followed in 2.3 constants.
const WORSE_TAU_S: f64 = 1.0;
/// Time constant of an improving estimate in seconds.
const BETTER_TAU_S: f64 = 10.0;
/// Loss ratio; a lower estimate counts as this, because no access stays that good for long.
const LOSS_MIN: f64 = 0.005;
/// Loss ratio; a higher estimate counts as this, because it comes from an outage.
const LOSS_MAX: f64 = 0.3;
/// Packets of an interval; fewer packets give no loss sample.
const PACKETS_MIN: u64 = 10;
/// Round trip in seconds that is assumed of a path without a sample.
const RTT_S_DEFAULT: f64 = 0.1;

/// Goals of the keepalive, from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goals {
    detection_s: f64,
    false_alarm_interval_s: f64,
    interval_s_min: f64,
}

impl From<&Config> for Goals {
    fn from(config: &Config) -> Goals {
        Goals {
            detection_s: f64::from(config.detection_ms) / 1e3,
            false_alarm_interval_s: f64::from(config.false_alarm_interval_s),
            interval_s_min: f64::from(config.keepalive_interval_ms_min) / 1e3,
        }
    }
}

#[derive(Debug)]
struct PathEstimate {
    rtt_s: AsymmetricEwma,
    loss_up: AsymmetricEwma,
    loss_down: AsymmetricEwma,
    seen_us: i64,
}

impl PathEstimate {
    fn new() -> PathEstimate {
        let ewma = || AsymmetricEwma::new(WORSE_TAU_S, BETTER_TAU_S);
        PathEstimate {
            rtt_s: ewma(),
            loss_up: ewma(),
            loss_down: ewma(),
            seen_us: 0,
        }
    }

    fn observe(&mut self, report: &PathReport) {
        let now_s = report.time_us as f64 / 1e6;
        if report.rtt_ms > 0.0 {
            self.rtt_s.update(now_s, report.rtt_ms / 1e3);
        }
        // Loss on a silent path is an outage: the next keepalive is not tuned to it.
        let is_silent = matches!(report.state(), PathState::Suspect | PathState::Closed);
        if report.sent_packets >= PACKETS_MIN && !is_silent {
            let loss = (report.lost_packets as f64 / report.sent_packets as f64).min(1.0);
            match report.end() {
                End::Gateway => self.loss_up.update(now_s, loss),
                End::Proxy | End::Unspecified => self.loss_down.update(now_s, loss),
            };
        }
        self.seen_us = self.seen_us.max(report.time_us);
    }

    fn loss(&self) -> f64 {
        let of = |direction: &AsymmetricEwma| direction.value().unwrap_or(0.0);
        of(&self.loss_up)
            .max(of(&self.loss_down))
            .clamp(LOSS_MIN, LOSS_MAX)
    }

    fn rtt_s(&self) -> f64 {
        self.rtt_s.value().unwrap_or(RTT_S_DEFAULT)
    }
}

#[derive(Debug, Default)]
struct GatewayEstimate {
    paths: BTreeMap<String, PathEstimate>,
    seen_us: i64,
}

/// Estimates of every gateway's paths.
#[derive(Debug)]
pub(crate) struct Estimates {
    goals: Goals,
    gateways: Mutex<HashMap<String, GatewayEstimate>>,
}

impl Estimates {
    pub(crate) fn new(goals: Goals) -> Arc<Estimates> {
        Arc::new(Estimates {
            goals,
            gateways: Mutex::default(),
        })
    }

    pub(crate) fn observe(&self, report: &PathReport) {
        let mut gateways = self.gateways.lock();
        if gateways.len() >= GATEWAYS_MAX && !gateways.contains_key(&report.gateway) {
            let silent = gateways.iter().min_by_key(|(_, gateway)| gateway.seen_us);
            if let Some(silent) = silent.map(|(id, _)| id.clone()) {
                gateways.remove(&silent);
            }
        }
        let gateway = gateways.entry(report.gateway.clone()).or_default();
        gateway.seen_us = gateway.seen_us.max(report.time_us);
        if gateway.paths.len() >= PATHS_MAX && !gateway.paths.contains_key(&report.path) {
            let silent = gateway.paths.iter().min_by_key(|(_, path)| path.seen_us);
            if let Some(silent) = silent.map(|(name, _)| name.clone()) {
                gateway.paths.remove(&silent);
            }
        }
        gateway
            .paths
            .entry(report.path.clone())
            .or_insert_with(PathEstimate::new)
            .observe(report);
    }

    /// A gateway without estimates gets no paths.
    pub(crate) fn policy(&self, gateway: &str) -> GetPolicyResponse {
        let gateways = self.gateways.lock();
        let known = gateways.get(gateway);
        let paths = known.into_iter().flat_map(|gateway| &gateway.paths);
        let paths = paths.map(|(name, path)| {
            let choice = choose(self.goals, path.rtt_s(), path.loss());
            PathPolicy {
                path: name.clone(),
                keepalive_k: choice.k,
                keepalive_interval_ms: (choice.t_ka_s * 1e3).round() as u32,
            }
        });
        GetPolicyResponse {
            paths: paths.collect(),
            ..GetPolicyResponse::default()
        }
    }
}

/// K and T_KA for a path. If both goals cannot be met, detection takes longer and false alarms stay
/// as rare as configured. Closing a working path costs more than a late switch.
fn choose(goals: Goals, rtt_s: f64, loss: f64) -> Choice {
    let target = Target {
        rtt_avg_s: rtt_s,
        loss,
        responsiveness_s_max: goals.detection_s.max(2.0 * rtt_s),
        false_positive_interval_s_min: goals.false_alarm_interval_s,
    };
    let fallback = Choice {
        k: 7,
        t_ka_s: goals.interval_s_min.max(rtt_s / 2.0),
    };
    let choice = optimise(target).unwrap_or(fallback);
    Choice {
        t_ka_s: choice.t_ka_s.max(goals.interval_s_min),
        ..choice
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GOALS: Goals = Goals {
        detection_s: 0.5,
        false_alarm_interval_s: 1e5,
        interval_s_min: 0.05,
    };

    fn report(path: &str, end: End, at_s: i64, rtt_ms: f64, lost: u64) -> PathReport {
        PathReport {
            gateway: "gateway-1".into(),
            path: path.into(),
            end: end.into(),
            time_us: at_s * 1_000_000,
            interval_ms: 1000,
            sent_packets: 100,
            lost_packets: lost,
            rtt_ms,
            ..PathReport::default()
        }
    }

    /// The example of the paper: a round trip of 100 ms and 5 % loss.
    #[test]
    fn the_policy_follows_the_measurements() {
        let estimates = Estimates::new(GOALS);
        for at_s in 0..120 {
            estimates.observe(&report("lte", End::Gateway, at_s, 100.0, 5));
            estimates.observe(&report("lte", End::Proxy, at_s, 100.0, 1));
        }
        let policy = estimates.policy("gateway-1");
        assert_eq!(
            policy.paths,
            [PathPolicy {
                path: "lte".into(),
                keepalive_k: 7,
                keepalive_interval_ms: 60
            }]
        );
    }

    #[test]
    fn a_worse_estimate_counts_at_once_and_a_better_one_later() {
        let estimates = Estimates::new(GOALS);
        let interval_ms = || estimates.policy("gateway-1").paths[0].keepalive_k;
        for at_s in 0..60 {
            estimates.observe(&report("wifi", End::Gateway, at_s, 20.0, 0));
        }
        let clean = interval_ms();
        for at_s in 60..64 {
            estimates.observe(&report("wifi", End::Gateway, at_s, 20.0, 10));
        }
        let lossy = interval_ms();
        assert!(lossy > clean, "{lossy} {clean}");
        for at_s in 64..68 {
            estimates.observe(&report("wifi", End::Gateway, at_s, 20.0, 0));
        }
        assert!(interval_ms() > clean, "four good seconds are not enough");
        for at_s in 68..160 {
            estimates.observe(&report("wifi", End::Gateway, at_s, 20.0, 0));
        }
        assert_eq!(interval_ms(), clean);
    }

    /// Otherwise every outage would slow down the detection of the next outage.
    #[test]
    fn an_outage_does_not_count_as_loss() {
        let estimates = Estimates::new(GOALS);
        for at_s in 0..60 {
            estimates.observe(&report("wifi", End::Gateway, at_s, 20.0, 0));
        }
        let before = estimates.policy("gateway-1").paths;
        for (at_s, state) in [(60, PathState::Suspect), (61, PathState::Closed)] {
            let mut silent = report("wifi", End::Gateway, at_s, 20.0, 100);
            silent.state = state.into();
            estimates.observe(&silent);
        }
        assert_eq!(estimates.policy("gateway-1").paths, before);
    }

    #[test]
    fn goals_that_cannot_be_met_cost_detection_time_not_false_alarms() {
        // The round trip of a satellite exceeds the detection time of the goals.
        let choice = choose(GOALS, 0.6, 0.02);
        assert!(choice.t_ka_s >= GOALS.interval_s_min);
        assert!(path_probe::false_positive_interval_s(choice, 0.02) > 1e5);
        let lossy = choose(GOALS, 0.1, LOSS_MAX);
        assert!(lossy.t_ka_s >= GOALS.interval_s_min);
        assert!(path_probe::false_positive_interval_s(lossy, LOSS_MAX) > 1e5);
    }

    #[test]
    fn paths_of_a_gateway_are_bounded() {
        let estimates = Estimates::new(GOALS);
        for number in 0..PATHS_MAX + 5 {
            let path = format!("path-{number}");
            estimates.observe(&report(&path, End::Gateway, number as i64, 20.0, 0));
        }
        let paths = estimates.policy("gateway-1").paths;
        assert_eq!(paths.len(), PATHS_MAX);
        let newest = format!("path-{}", PATHS_MAX + 4);
        assert!(paths.iter().any(|path| path.path == newest));
    }
}
