//! Window and pacing rate of the model, by phase.

use std::time::Duration;

use super::small_window::{TRIAL_PACKETS, TRIAL_WINDOW};
use super::*;

/// Window and pacing in start-up, in BDPs; 2/ln 2 doubles the rate every round.
const STARTUP_GAIN: f64 = 2.89;
/// In flight while cruising, in BDPs: a queue of 0.35 round trips.
const CRUISE_WINDOW: f64 = 1.35;
/// Pacing while cruising, as a factor of the measured rate.
const CRUISE_PACING: f64 = 1.15;
/// Window and pacing after a round without a queue: the bottleneck may carry more than measured.
const PRESSING_WINDOW: f64 = 1.6;
const PRESSING_PACING: f64 = 1.3;
/// Delay that the hosts add to a round trip: timers, wake-ups, and acknowledgements of whole packet
/// trains. The window covers this delay on paths whose round trip is shorter. At 6 ms and more the
/// cruising gain covers it.
const HOST_DELAY: Duration = Duration::from_millis(2);
/// Window during an RTT probe, in BDPs.
const RTT_PROBE_WINDOW: f64 = 0.95;
/// Window of a deep probe, which separates a longer path from cross-traffic. A queue shrinks when
/// less is in flight, the delay of a path does not.
const RTT_PROBE_WINDOW_DEEP: f64 = 0.5;
const RTT_PROBE_WINDOW_CROSS_TRAFFIC: f64 = 0.75;
/// On a bursty link this part of the losses of the last round is sent beyond the window, at most
/// one BDP. Losses stay in flight until they are reported.
const UNREPORTED_LOSSES_PART: f64 = 0.5;
/// Packets beyond the BDPs on other links: acknowledgements arrive for pairs.
const SPARE_PACKETS: u64 = 2;
/// Initial window of a new path beside far faster paths; the gain applies to its measured BDP.
const NEW_PATH_WINDOW_PACKETS: u64 = 8;
const NEW_PATH_GAIN: f64 = 2.0;
/// Minimum pacing in start-up, in initial windows a round trip.
const STARTUP_FLOOR_WINDOWS: f64 = 2.0;

impl PathController {
    pub(super) fn window_min(&self) -> u64 {
        WINDOW_PACKETS_MIN * self.mtu
    }

    pub(super) fn bdp(&self) -> Option<f64> {
        let rtt = self.rtt_min.get()?;
        let rate = self.rate.get();
        (rate > 0.0).then_some(rate * rtt.as_secs_f64())
    }

    /// Bytes that may be in flight; the path scheduler may still defer the path.
    pub(super) fn model_window(&self) -> u64 {
        let Some(bdp) = self.bdp() else {
            return self.startup.window();
        };
        match self.phase {
            Phase::Startup => self.startup.window(),
            Phase::RttProbe(round) if !round.is_restored() => {
                let part = if self.base_rtt.is_deep() {
                    RTT_PROBE_WINDOW_DEEP
                } else if self.cubic.is_some() && !self.base_rtt.was_empty() {
                    RTT_PROBE_WINDOW_CROSS_TRAFFIC
                } else {
                    RTT_PROBE_WINDOW
                };
                let least = if self.is_low_rate() {
                    LOW_RATE_PROBE_PACKETS_MIN * self.mtu
                } else {
                    self.window_min()
                };
                ((bdp * part) as u64).max(least)
            }
            Phase::Cruise | Phase::RttProbe(_) => {
                let is_small_bdp = self.is_small_bdp(bdp);
                let gain = if self.unqueued && !is_small_bdp {
                    PRESSING_WINDOW
                } else {
                    CRUISE_WINDOW
                };
                let spare = if is_small_bdp || self.is_low_rate() {
                    0
                } else {
                    SPARE_PACKETS * self.mtu
                };
                let hosts = self.rate.get() * HOST_DELAY.as_secs_f64();
                let bursts = self.rate.get() * self.burstiness.get().as_secs_f64();
                let unreported = if self.is_steady {
                    0.0
                } else {
                    let lost = self.round_losses.lost() as f64;
                    (lost * UNREPORTED_LOSSES_PART).min(bdp)
                };
                let least = bdp + hosts;
                let modelled = (bdp * gain + bursts).max(least) as u64 + spare + unreported as u64;
                let window = match &self.cubic {
                    Some(cubic) => {
                        let shared = (cubic.window_packets() * self.mtu as f64) as u64;
                        shared.max(bdp as u64 + 2 * self.mtu)
                    }
                    None if self.small_window.is_on_trial() => {
                        let tried = (bdp * TRIAL_WINDOW) as u64 + TRIAL_PACKETS * self.mtu;
                        modelled.max(tried)
                    }
                    None => modelled.max(self.stretched.window()),
                };
                window.max(self.window_min())
            }
        }
    }

    /// Bound on the window of a new path beside far faster paths. It holds until one initial window
    /// was delivered: few packets first, then twice the measured BDP. Data in the queue of a slow
    /// path would block all later data of the stream.
    pub(super) fn new_path_window(&self) -> u64 {
        let initial = self.config.initial_window_packets * self.mtu;
        let delivered = self.startup.window().saturating_sub(initial);
        let is_tried = self.phase != Phase::Startup || delivered >= initial;
        if is_tried || !self.config.scheduled || self.rtt_smoothed.is_zero() {
            return u64::MAX;
        }
        let promised = initial as f64 / self.rtt_smoothed.as_secs_f64();
        if self.member.scheduler.outruns(self.member.slot, promised) {
            let tried = self.bdp().map_or(0, |bdp| (bdp * NEW_PATH_GAIN) as u64);
            tried.max(NEW_PATH_WINDOW_PACKETS * self.mtu)
        } else {
            u64::MAX
        }
    }

    pub(super) fn pacing_rate(&self) -> Option<u64> {
        if self.rtt_smoothed.is_zero() {
            return None;
        }
        let rate = self.rate.get();
        let srtt = self.rtt_smoothed.as_secs_f64();
        let initial = (self.config.initial_window_packets * self.mtu) as f64;
        let floor = match self.phase {
            Phase::Startup if self.config.startup_floor => STARTUP_FLOOR_WINDOWS * initial / srtt,
            // An application-limited rate is no upper bound: acknowledgements and pings are paced
            // too.
            _ => self.model_window() as f64 / srtt,
        };
        let paced = match self.phase {
            Phase::Startup => rate * STARTUP_GAIN,
            Phase::Cruise | Phase::RttProbe(_) => {
                let gain = if self.unqueued {
                    PRESSING_PACING
                } else {
                    CRUISE_PACING
                };
                // With cross-traffic the window limits the flow, and pacing only spreads the
                // packets.
                let spread = self.cubic.map_or(0.0, |_| floor * PRESSING_PACING);
                spread.max(rate * gain) / (1.0 - self.losses.share().min(LOSS_COMPENSATED_MAX))
            }
        };
        Some((paced.max(floor) as u64).max(1))
    }
}
