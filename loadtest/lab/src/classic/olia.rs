//! OLIA, the opportunistic linked increases algorithm (Khalili et al., 2012).

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::Instant;

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory};
use parking_lot::Mutex;

use super::{INITIAL_WINDOW_BYTES, PACKETS_MIN};

/// Knowledge that the paths of one connection share.
#[derive(Debug, Default)]
pub(crate) struct OliaConfig {
    /// A path that closed drops its state.
    paths: Mutex<Vec<Weak<Mutex<Path>>>>,
}

#[derive(Debug, Clone)]
struct Path {
    window: u64,
    threshold: u64,
    mtu: u64,
    rtt_s: f64,
    /// Bytes acknowledged since the last loss, and between the last two losses.
    since_loss: u64,
    before_loss: u64,
    recovery_from: Instant,
    /// Part of a byte that the window is owed.
    owed: f64,
}

impl Path {
    fn packets(&self) -> f64 {
        self.window as f64 / self.mtu as f64
    }

    /// Quality of the path: bytes between losses by squared round trip.
    fn quality(&self) -> f64 {
        self.since_loss.max(self.before_loss) as f64 / (self.rtt_s * self.rtt_s)
    }
}

impl ControllerFactory for OliaConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let path = Arc::new(Mutex::new(Path {
            window: INITIAL_WINDOW_BYTES,
            threshold: u64::MAX,
            mtu: u64::from(current_mtu.max(1)),
            rtt_s: 0.1,
            since_loss: 0,
            before_loss: 0,
            recovery_from: now,
            owed: 0.0,
        }));
        let mut paths = self.paths.lock();
        paths.retain(|path| path.strong_count() > 0);
        paths.push(Arc::downgrade(&path));
        drop(paths);
        Box::new(Olia {
            all: self,
            own: path,
        })
    }
}

#[derive(Debug)]
struct Olia {
    all: Arc<OliaConfig>,
    own: Arc<Mutex<Path>>,
}

impl Olia {
    /// Packets by which the window grows for one acknowledged packet.
    fn increase(&self) -> f64 {
        let own = self.own.lock().clone();
        let paths = self.all.paths.lock();
        let paths: Vec<Path> = paths
            .iter()
            .filter_map(Weak::upgrade)
            .map(|path| path.lock().clone())
            .collect();
        let sum: f64 = paths.iter().map(|path| path.packets() / path.rtt_s).sum();
        let linked = own.packets() / (own.rtt_s * own.rtt_s) / (sum * sum).max(f64::MIN_POSITIVE);
        linked + shift(&own, &paths) / own.packets().max(1.0)
    }
}

/// The term alpha: from paths with the largest windows to better paths with smaller ones.
fn shift(own: &Path, paths: &[Path]) -> f64 {
    let most = paths
        .iter()
        .map(|path| path.window)
        .max()
        .unwrap_or_default();
    let best = paths.iter().map(Path::quality).fold(0.0, f64::max);
    let is_largest = |path: &Path| path.window >= most;
    let is_best = |path: &Path| path.quality() >= best;
    let collected = paths
        .iter()
        .filter(|path| is_best(path) && !is_largest(path))
        .count();
    if collected == 0 {
        return 0.0;
    }
    let share = 1.0 / paths.len() as f64;
    if is_best(own) && !is_largest(own) {
        share / collected as f64
    } else if is_largest(own) {
        -share / paths.iter().filter(|path| is_largest(path)).count() as f64
    } else {
        0.0
    }
}

impl Controller for Olia {
    fn on_ack(
        &mut self,
        _now: Instant,
        sent: Instant,
        bytes: u64,
        _pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let mut own = self.own.lock();
        own.rtt_s = rtt.get().as_secs_f64().max(1e-4);
        own.since_loss += bytes;
        if app_limited || sent <= own.recovery_from {
            return;
        }
        if own.window < own.threshold {
            own.window += bytes;
            return;
        }
        let acknowledged = bytes as f64 / own.mtu as f64;
        let mtu = own.mtu as f64;
        drop(own);
        let grown = self.increase() * acknowledged * mtu;
        let mut own = self.own.lock();
        own.owed += grown;
        let whole = own.owed.trunc();
        own.owed -= whole;
        let window = own.window as f64 + whole;
        own.window = (window as u64).max(PACKETS_MIN * own.mtu);
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
        let mut own = self.own.lock();
        own.before_loss = own.since_loss;
        own.since_loss = 0;
        if sent <= own.recovery_from {
            return;
        }
        own.recovery_from = now;
        let least = PACKETS_MIN * own.mtu;
        own.window = (own.window / 2).max(least);
        own.threshold = own.window;
        if is_persistent_congestion {
            own.window = least;
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        let mut own = self.own.lock();
        own.mtu = u64::from(new_mtu.max(1));
        own.window = own.window.max(PACKETS_MIN * own.mtu);
    }

    fn window(&self) -> u64 {
        self.own.lock().window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            all: self.all.clone(),
            own: self.own.clone(),
        })
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

    fn path(packets: u64, rtt_s: f64, between_losses: u64) -> Path {
        Path {
            window: packets * 1000,
            threshold: 0,
            mtu: 1000,
            rtt_s,
            since_loss: between_losses,
            before_loss: 0,
            recovery_from: Instant::now(),
            owed: 0.0,
        }
    }

    /// The better path with the smaller window gains what the larger one gives up.
    #[test]
    fn windows_shift_to_the_better_path() {
        let small = path(4, 0.05, 1_000_000);
        let large = path(40, 0.05, 10_000);
        let paths = [small.clone(), large.clone()];
        assert!((shift(&small, &paths) - 0.5).abs() < 1e-9);
        assert!((shift(&large, &paths) + 0.5).abs() < 1e-9);
        let even = [large.clone(), large.clone()];
        assert!(shift(&large, &even).abs() < 1e-9);
    }
}
