//! The report of a path by its controller.

use std::time::{Duration, Instant};

use super::PACKET_BYTES;

/// The last report of a path's controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathModel {
    /// Number of the controller in its connection, in the order of creation.
    pub slot: usize,
    /// Estimated delivery rate; zero until measured.
    pub rate_bytes_per_s: f64,
    /// Rate that the scheduler expects of the path. In start-up it exceeds the estimate, which then
    /// only shows how little was sent.
    pub promised_bytes_per_s: f64,
    pub rtt_min: Duration,
    pub rtt_smoothed: Duration,
    pub rtt_latest: Duration,
    pub in_flight_bytes: u64,
    pub window_bytes: u64,
    /// The window or the pacer limited the path at its last acknowledgement.
    pub busy: bool,
    pub lost_share: f64,
    /// When the youngest acknowledged packet was sent.
    pub acked_sent_at: Option<Instant>,
    /// The window follows Cubic because of cross-traffic.
    pub competing: bool,
    /// The path shares one window with other paths of the same bottleneck.
    pub coupled: bool,
}

impl PathModel {
    /// One-way delay of the last acknowledged packet, with all its causes.
    pub(super) fn trip_latest(&self) -> Duration {
        self.rtt_latest.saturating_sub(self.rtt_min / 2)
    }

    /// Time of one packet on the link, at most a second; zero until the rate is measured.
    pub(super) fn packet_time(&self) -> Duration {
        if self.rate_bytes_per_s <= 0.0 {
            return Duration::ZERO;
        }
        let packet = PACKET_BYTES as f64;
        Duration::from_secs_f64(packet / self.rate_bytes_per_s.max(packet))
    }
}
