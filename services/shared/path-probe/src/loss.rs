//! Loss from counters (4.2 and appendix III).

/// Loss of one direction: the packets sent here against the packets that the other end received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneWayLoss {
    sent_last: u32,
    received_last: u32,
}

impl OneWayLoss {
    /// For a path whose counters have started before.
    pub fn starting_at(sent: u32, received: u32) -> OneWayLoss {
        OneWayLoss {
            sent_last: sent,
            received_last: received,
        }
    }

    /// Must be called with the first probe after each T_L. `None`: nothing was sent, or the probe
    /// is older than the last. A missed call does no harm: the next call covers its interval.
    pub fn update(&mut self, sent: u32, peer_received: u32) -> Option<f64> {
        let sent_since = sent.wrapping_sub(self.sent_last);
        let received_since = peer_received.wrapping_sub(self.received_last);
        // A difference of more than half the range: the counter went backwards, because a probe was
        // overtaken.
        if sent_since == 0 || sent_since > u32::MAX / 2 || received_since > u32::MAX / 2 {
            return None;
        }
        self.sent_last = sent;
        self.received_last = peer_received;
        // Reordered packets of the last interval arrive in this interval. More packets received
        // than sent is no loss.
        Some((1.0 - f64::from(received_since) / f64::from(sent_since)).max(0.0))
    }
}

/// Loss of requests or responses, with the correction of the received counter (appendix III).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTripLoss {
    sent_last: u32,
    received_last: u32,
}

impl RoundTripLoss {
    /// Must be called with the first response after each T_L.
    pub fn update(&mut self, sent: u32, received: u32) -> Option<f64> {
        let sent_since = sent.wrapping_sub(self.sent_last);
        let received_since = received.wrapping_sub(self.received_last);
        if sent_since == 0 || sent_since > u32::MAX / 2 || received_since > u32::MAX / 2 {
            return None;
        }
        // Surplus responses belong to requests of earlier intervals; they count in the next
        // interval.
        let excess = received_since.saturating_sub(sent_since);
        self.sent_last = sent;
        self.received_last = received.wrapping_sub(excess);
        Some((1.0 - f64::from(received_since) / f64::from(sent_since)).max(0.0))
    }
}

/// Round-trip loss of two independent directions.
pub fn round_trip_loss(up: f64, down: f64) -> f64 {
    up + down - up * down
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overtaken_probes_and_idle_intervals_are_skipped() {
        let mut loss = OneWayLoss::default();
        assert_eq!(loss.update(100, 90), Some(1.0 - 90.0 / 100.0));
        assert_eq!(loss.update(50, 45), None);
        assert_eq!(loss.update(100, 90), None);
        assert_eq!(loss.update(200, 195), Some(0.0));
    }

    #[test]
    fn late_responses_count_in_the_next_interval() {
        let mut loss = RoundTripLoss::default();
        // Each interval has ten requests. A long round trip delays three responses, then it
        // shrinks.
        assert!((loss.update(10, 7).unwrap_or_default() - 0.3).abs() < 1e-12);
        assert_eq!(loss.update(20, 20), Some(0.0));
        // The three surplus responses make up for three losses: ten requests, seven responses.
        assert_eq!(loss.update(30, 27), Some(0.0));
        assert!((loss.update(40, 32).unwrap_or_default() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn directions_combine() {
        assert!((round_trip_loss(0.05, 0.05) - 0.0975).abs() < 1e-12);
        assert_eq!(round_trip_loss(1.0, 0.5), 1.0);
    }
}
