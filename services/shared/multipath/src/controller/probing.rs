//! When RTT probes start, what ends them, and how their verdicts change the model.

use std::time::{Duration, Instant};

use super::*;

/// Without cross-traffic the window is restored after this part of a probe round. The smallest
/// round trip sent before the restoration counts.
const RTT_PROBE_PART: u32 = 4;
const RTT_PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Losses at the end of the start-up are reported within this number of round trips. They are no
/// property of the link.
const STARTUP_LOSS_ROUND_TRIPS: u32 = 2;

impl PathController {
    pub(super) fn probe_interval(&self) -> Duration {
        match self.cubic {
            Some(_) => RTT_PROBE_INTERVAL / 2,
            None => RTT_PROBE_INTERVAL,
        }
    }

    /// A round has ended. Where round trips jump, a larger window is tried.
    pub(super) fn look_for_stretch(&mut self, now: Instant, app_limited: bool, delivered: u64) {
        let says_something = !app_limited && self.phase == Phase::Cruise && self.cubic.is_none();
        let (Some(base), Some(seen), true) =
            (self.rtt_min.get(), self.round_rtt_min, says_something)
        else {
            self.stretched.on_other_round(now);
            return;
        };
        let round = LimitedRound {
            delivered,
            window: self.published.window,
            mtu: self.mtu,
            base,
            mean: self.rtt_smoothed,
            seen,
        };
        if let Some(found) = self.stretched.on_limited_round(now, round) {
            self.rtt_min.replace(now, found);
            self.base_rtt.on_longer_path(found);
        }
    }

    /// A round trip of a probe with an empty queue has ended.
    pub(super) fn on_probe_sample(&mut self, now: Instant, mut round: RttProbe) {
        let rtt = self.rtt_latest;
        let base = self.rtt_min.get().unwrap_or(rtt);
        // With cross-traffic the whole round is a probe: the queues of other senders differ from
        // the queues of the group, which drain together.
        let part = match self.cubic {
            Some(_) => base,
            None => base / RTT_PROBE_PART,
        };
        match round.on_round_trip(now, rtt, part) {
            Some(seen) => self.end_rtt_probe(now, seen),
            None => self.phase = Phase::RttProbe(round),
        }
    }

    /// The probe sent a whole round into an empty queue. Its round trip shows the base RTT or
    /// cross-traffic.
    pub(super) fn end_rtt_probe(&mut self, now: Instant, seen: Duration) {
        self.phase = Phase::Cruise;
        self.probed_at = now;
        self.rate_drop.on_probe_end();
        let (slack, packet_time) = (self.slack(), self.packets_time(1.0));
        let with_cross_traffic = self.cubic.is_some();
        let steady = self.is_steady;
        let verdict =
            self.base_rtt
                .on_probe_end(seen, slack, packet_time, with_cross_traffic, steady);
        match verdict {
            ProbeVerdict::Unclear(meanwhile) => {
                self.rtt_min.replace(now, meanwhile);
                self.start_shared_probe();
            }
            ProbeVerdict::NoCrossTraffic => self.rtt_min.replace(now, seen),
            ProbeVerdict::CrossTrafficEnded => {
                self.cubic = None;
                self.rtt_min.replace(now, seen);
            }
            ProbeVerdict::CrossTraffic(base) => {
                self.rtt_min.replace(now, base);
                self.reported_by_another = false;
                // The bytes on the path and in the queue at the measured rate, at most as many as
                // before the probe.
                let window =
                    (self.rate.get() * seen.as_secs_f64()).min(self.in_flight_before_probe as f64);
                let packets = (window / self.mtu as f64).max(WINDOW_PACKETS_MIN as f64);
                self.cubic.get_or_insert(CubicWindow::new(now, packets));
            }
        }
    }

    /// Another path of the same bottleneck has detected cross-traffic, or its end.
    pub(super) fn follow_others(&mut self, now: Instant) {
        let others = self
            .member
            .scheduler
            .others_report_cross_traffic(self.member.slot);
        if others && self.cubic.is_none() && self.phase == Phase::Cruise {
            let packets = self.in_flight.max(self.window_min()) as f64 / self.mtu as f64;
            self.cubic = Some(CubicWindow::new(now, packets));
            self.reported_by_another = true;
        } else if !others && std::mem::take(&mut self.reported_by_another) {
            self.cubic = None;
        }
    }

    /// Losses that this sender causes are handled like cross-traffic.
    pub(super) fn judge_loss(&mut self, now: Instant) {
        let startup_losses_reported = self.rtt_smoothed * STARTUP_LOSS_ROUND_TRIPS;
        let is_settled = self
            .cruising_for(now)
            .is_some_and(|time| time >= startup_losses_reported);
        if !is_settled {
            self.losses.excuse();
        } else if self
            .losses
            .are_caused_by_sender(now, self.rtt_smoothed, self.mtu)
            && self.cubic.is_none()
            && self.phase == Phase::Cruise
        {
            let packets = self.in_flight.max(self.window_min()) as f64 / self.mtu as f64;
            self.cubic = Some(CubicWindow::new(now, packets));
            self.base_rtt.on_cross_traffic();
        }
    }

    /// Starts a probe on all paths behind the same bottleneck.
    pub(super) fn start_shared_probe(&mut self) {
        self.start_rtt_probe();
        self.member
            .scheduler
            .start_probe(self.member.slot, self.base_rtt.is_deep());
    }

    pub(super) fn start_rtt_probe(&mut self) {
        self.probe_wanted = self.phase == Phase::Startup;
        if self.phase == Phase::Cruise {
            self.in_flight_before_probe = self.in_flight;
            self.base_rtt.on_probe_start(self.rtt_latest);
            self.phase = Phase::RttProbe(RttProbe::BEGUN);
        }
    }

    pub(super) fn end_startup(&mut self, now: Instant) {
        self.phase = Phase::Cruise;
        self.cruising_since = Some(now);
        if self.startup.has_met_others() && self.is_steady && self.cubic.is_none() {
            // The window of the model has no room for the queue of others.
            let carried = self.rate.get() * self.rtt_smoothed.as_secs_f64();
            let window = carried.max(self.in_flight.max(self.window_min()) as f64);
            self.cubic = Some(CubicWindow::new(now, window / self.mtu as f64));
            self.base_rtt.on_cross_traffic();
        }
        if std::mem::take(&mut self.probe_wanted) {
            self.start_rtt_probe();
        }
    }

    /// Time since the end of the start-up.
    pub(super) fn cruising_for(&self, now: Instant) -> Option<Duration> {
        let since = self.cruising_since?;
        Some(now.saturating_duration_since(since))
    }
}
