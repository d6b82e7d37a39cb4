//! FAST TCP (Wei et al., 2006): a window after the queueing delay, once per round trip.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory};

use super::{INITIAL_WINDOW_BYTES, PACKETS_MIN};

/// Packets that a flow tries to keep in the queue.
const ALPHA_PACKETS: f64 = 10.0;
/// How far the window moves towards its goal in one round trip.
const GAMMA: f64 = 0.5;

#[derive(Debug, Default)]
pub(crate) struct FastConfig;

impl ControllerFactory for FastConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Fast {
            window: INITIAL_WINDOW_BYTES,
            mtu: u64::from(current_mtu.max(1)),
            updated: now,
            recovery_from: now,
            starting: true,
        })
    }
}

#[derive(Debug, Clone)]
struct Fast {
    window: u64,
    mtu: u64,
    /// When the window was last moved.
    updated: Instant,
    recovery_from: Instant,
    /// Slow start lasts until the queue holds what the flow wants there, or a packet is lost.
    starting: bool,
}

impl Fast {
    fn goal(&self, base: Duration, rtt: Duration) -> u64 {
        let alpha = ALPHA_PACKETS * self.mtu as f64;
        let ratio = base.as_secs_f64() / rtt.as_secs_f64().max(1e-6);
        let window = self.window as f64;
        let goal = (1.0 - GAMMA) * window + GAMMA * (ratio.min(1.0) * window + alpha);
        goal.min(2.0 * window) as u64
    }
}

impl Controller for Fast {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if app_limited || sent <= self.recovery_from {
            return;
        }
        let queued = rtt.get().saturating_sub(rtt.min()).as_secs_f64();
        let queued_bytes = queued / rtt.get().as_secs_f64().max(1e-6) * self.window as f64;
        if self.starting && queued_bytes < ALPHA_PACKETS * self.mtu as f64 {
            self.window += bytes;
            return;
        }
        self.starting = false;
        if now.saturating_duration_since(self.updated) >= rtt.get() {
            self.updated = now;
            self.window = self.goal(rtt.min(), rtt.get()).max(PACKETS_MIN * self.mtu);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        _is_ecn: bool,
        _lost_bytes: u64,
        _largest_lost_pn: u64,
    ) {
        if sent <= self.recovery_from {
            return;
        }
        self.starting = false;
        self.recovery_from = now;
        let least = PACKETS_MIN * self.mtu;
        self.window = if is_persistent_congestion {
            least
        } else {
            (self.window / 2).max(least)
        };
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu.max(1));
        self.window = self.window.max(PACKETS_MIN * self.mtu);
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In balance a flow holds its packets in the queue: the window no longer moves.
    #[test]
    fn the_window_rests_where_the_queue_holds_its_packets() {
        let now = Instant::now();
        let fast = Fast {
            window: 50_000,
            mtu: 1_000,
            updated: now,
            recovery_from: now,
            starting: false,
        };
        // 10 of 50 packets in the queue: a fifth of the round trip is queueing.
        let rtt = Duration::from_millis(50);
        assert_eq!(fast.goal(Duration::from_millis(40), rtt), 50_000);
        assert!(fast.goal(rtt, rtt) > 50_000);
        assert!(fast.goal(Duration::from_millis(10), rtt) < 50_000);
    }
}
