//! The window of Cubic, used while cross-traffic keeps the queue of the bottleneck full.
//!
//! A model of the path that ignores losses would starve loss-based senders. After an RTT probe that
//! saw a queue, the window follows the curve and the cuts of Cubic (RFC 9438), and both senders
//! share alike. Under random loss the caller keeps the window at one BDP or more.

use std::time::Instant;

/// RFC 9438: window growth in packets per cubed second, and the factor of a cut.
const GROWTH: f64 = 0.4;
const LEFT_AFTER_LOSS: f64 = 0.7;
/// Additive increase that matches Reno with that cut.
const RENO_INCREASE: f64 = 3.0 * (1.0 - LEFT_AFTER_LOSS) / (1.0 + LEFT_AFTER_LOSS);

/// The window of Cubic, in packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CubicWindow {
    epoch: Instant,
    plateau: f64,
    start: f64,
    window: f64,
    cut_at: Option<Instant>,
}

impl CubicWindow {
    pub(crate) fn new(now: Instant, window_packets: f64) -> Self {
        Self {
            epoch: now,
            plateau: window_packets,
            start: window_packets,
            window: window_packets,
            cut_at: None,
        }
    }

    pub(crate) fn window_packets(&self) -> f64 {
        self.window
    }

    /// Grows the window along the curve.
    pub(crate) fn on_ack(&mut self, now: Instant, rtt_s: f64) {
        let elapsed = now.saturating_duration_since(self.epoch).as_secs_f64();
        let to_plateau = ((self.plateau - self.start).max(0.0) / GROWTH).cbrt();
        let cubic = self.plateau + GROWTH * (elapsed + rtt_s - to_plateau).powi(3);
        let reno = self.start + RENO_INCREASE * elapsed / rtt_s.max(1e-3);
        // At most by half in one step, however long the pause was.
        self.window = cubic.max(reno).clamp(self.window, self.window * 1.5);
    }

    /// Adopts a window of another curve.
    pub(crate) fn follow(&mut self, now: Instant, window_packets: f64) {
        *self = Self::new(now, window_packets);
    }

    /// One cut a round trip: a packet sent before the last cut carries no news.
    pub(crate) fn on_loss(&mut self, now: Instant, sent: Instant) {
        if self.cut_at.is_some_and(|at| sent <= at) {
            return;
        }
        self.cut_at = Some(now);
        // Fast convergence: a sender that has not reached its old plateau releases more.
        self.plateau = if self.window < self.plateau {
            self.window * (1.0 + LEFT_AFTER_LOSS) / 2.0
        } else {
            self.window
        };
        self.window = (self.window * LEFT_AFTER_LOSS).max(2.0);
        self.start = self.window;
        self.epoch = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_loss_leaves_seven_tenths_and_the_curve_returns_to_the_plateau() {
        let start = Instant::now();
        let mut window = CubicWindow::new(start, 100.0);
        window.on_loss(start, start);
        assert!((window.window_packets() - 70.0).abs() < 1e-9);
        window.on_loss(start + Duration::from_millis(30), start);
        assert!((window.window_packets() - 70.0).abs() < 1e-9);
        let to_plateau = (30.0_f64 / GROWTH).cbrt();
        let mut now = start;
        while now < start + Duration::from_secs_f64(to_plateau) {
            now += Duration::from_millis(50);
            window.on_ack(now, 0.2);
        }
        assert!((window.window_packets() - 100.0).abs() < 2.0);
    }
}
