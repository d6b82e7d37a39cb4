//! Losses and their cause: a lossy link loses a constant share; a queue shorter than the sender's
//! window loses more.

use std::time::{Duration, Instant};

/// Share of loss that pacing compensates; more loss counts as congestion.
pub(super) const LOSS_COMPENSATED_MAX: f64 = 0.08;
/// More than that share over this time, these round trips and these packets is caused by the
/// sender.
const LOSSY_LONG: Duration = Duration::from_secs(1);
const LOSSY_ROUND_TRIPS: u32 = 4;
const LOSSY_PACKETS: u64 = 100;
/// Packets that the smoothed share covers.
const REMEMBERED_PACKETS: u64 = 256;
/// Maximum weight of one acknowledgement or loss in the share.
const WEIGHT_MAX: f64 = 0.5;

#[derive(Debug, Clone, Default)]
pub(super) struct Losses {
    share: f64,
    /// Number of the packet sent last.
    newest: u64,
    suspicion: Option<Suspicion>,
}

/// Losses reported in the current round and the one before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundLosses {
    acked: u64,
    lost: u64,
    lost_before: u64,
    share: f64,
}

impl RoundLosses {
    pub(super) fn acked(&mut self, bytes: u64) {
        self.acked += bytes;
    }

    pub(super) fn lost_more(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// A round ends; `fading` is the factor on the former share.
    pub(super) fn on_round(&mut self, fading: f64) {
        let all = (self.acked + self.lost).max(1);
        self.share = (self.lost as f64 / all as f64).max(self.share * fading);
        *self = Self {
            lost_before: self.lost,
            share: self.share,
            ..Self::default()
        };
    }

    /// Lost bytes of the worse of the two rounds.
    pub(super) fn lost(&self) -> u64 {
        self.lost.max(self.lost_before)
    }

    /// The largest share of the last rounds, with decay.
    pub(super) fn share(&self) -> f64 {
        self.share
    }
}

/// Acknowledged and lost bytes of the packets sent since the loss exceeded the share of a lossy
/// link.
#[derive(Debug, Clone, Copy)]
struct Suspicion {
    since: Instant,
    /// The newest packet at that time.
    after: u64,
    acked: u64,
    lost: u64,
}

impl Losses {
    /// Smoothed share of the packets sent lately.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    pub(super) fn sent(&mut self, pn: u64) {
        self.newest = pn;
    }

    pub(super) fn acked(&mut self, pn: u64, bytes: u64, mtu: u64) {
        if let Some(suspicion) = self.suspicion_of(pn) {
            suspicion.acked += bytes;
        }
        self.share -= self.share * weight(bytes, mtu);
    }

    pub(super) fn lost(&mut self, pn: u64, bytes: u64, mtu: u64) {
        if let Some(suspicion) = self.suspicion_of(pn) {
            suspicion.lost += bytes;
        }
        self.share += (1.0 - self.share) * weight(bytes, mtu);
    }

    fn suspicion_of(&mut self, pn: u64) -> Option<&mut Suspicion> {
        self.suspicion
            .as_mut()
            .filter(|suspicion| pn > suspicion.after)
    }

    /// The losses have another known cause.
    pub(super) fn excuse(&mut self) {
        self.suspicion = None;
    }

    /// Whether this sender causes the losses. They are more than on a lossy link, for long, because
    /// the queue is shorter than the window. Other flows starve in such a queue.
    ///
    /// The smoothed share covers many seconds on a slow link, so it only raises the suspicion. The
    /// losses of packets sent after the suspicion decide. A drop of the rate loses up to a window
    /// of packets that were sent before.
    pub(super) fn are_caused_by_sender(&mut self, now: Instant, rtt: Duration, mtu: u64) -> bool {
        if self.share <= LOSS_COMPENSATED_MAX {
            self.suspicion = None;
            return false;
        }
        let Suspicion {
            since, acked, lost, ..
        } = *self.suspicion.get_or_insert(Suspicion {
            since: now,
            after: self.newest,
            acked: 0,
            lost: 0,
        });
        let is_long = now >= since + LOSSY_LONG.max(rtt * LOSSY_ROUND_TRIPS);
        if !is_long || acked + lost < LOSSY_PACKETS * mtu {
            return false;
        }
        self.suspicion = None;
        let share = lost as f64 / (acked + lost) as f64;
        let is_own_doing = share > LOSS_COMPENSATED_MAX;
        if !is_own_doing {
            self.share = share;
        }
        is_own_doing
    }
}

fn weight(bytes: u64, mtu: u64) -> f64 {
    (bytes as f64 / (REMEMBERED_PACKETS * mtu) as f64).min(WEIGHT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const MTU: u64 = 1_000;

    #[test]
    fn the_losses_of_a_round_count_for_the_next_one_and_their_share_fades() {
        let mut losses = RoundLosses::default();
        losses.acked(90 * MTU);
        losses.lost_more(10 * MTU);
        assert_eq!(losses.lost(), 10 * MTU);
        assert_eq!(losses.share(), 0.0, "not before the round is over");
        losses.on_round(0.5);
        losses.acked(100 * MTU);
        assert_eq!((losses.lost(), losses.share()), (10 * MTU, 0.1));
        losses.on_round(0.5);
        assert_eq!((losses.lost(), losses.share()), (0, 0.05));
    }

    /// Whether losses of every `lose_every`th packet, over a second and a half after a start-up
    /// that lost half, count as caused by the sender.
    fn blamed(lose_every: u64) -> (bool, f64) {
        let start = Instant::now();
        let mut losses = Losses::default();
        for packet in 0..200 {
            losses.sent(packet);
            losses.lost(packet, MTU, MTU);
            losses.acked(packet, MTU, MTU);
        }
        let mut is_own_doing = false;
        for packet in 0..1_500 {
            let pn = 200 + packet;
            losses.sent(pn);
            if packet % lose_every == 0 {
                losses.lost(pn, MTU, MTU);
            } else {
                losses.acked(pn, MTU, MTU);
            }
            is_own_doing |= losses.are_caused_by_sender(start + MS * packet as u32, 20 * MS, MTU);
        }
        (is_own_doing, losses.share())
    }

    #[test]
    fn a_tenth_for_a_second_is_caused_by_the_sender_and_a_start_up_that_lost_half_is_not() {
        assert!(blamed(8).0);
        let (is_own_doing, share) = blamed(25);
        assert!(!is_own_doing);
        assert!((0.02..0.07).contains(&share), "{share}");
    }

    #[test]
    fn a_window_that_overran_the_queue_after_a_rate_drop_is_excused() {
        let start = Instant::now();
        let mut losses = Losses::default();
        losses.sent(299);
        for packet in 0..2_000 {
            losses.sent(300 + packet);
            // Half of the packets in flight at that time, reported little by little.
            if packet < 300 && packet % 2 == 0 {
                losses.lost(packet, MTU, MTU);
            } else {
                losses.acked(packet, MTU, MTU);
            }
            let now = start + 10 * MS * packet as u32;
            assert!(!losses.are_caused_by_sender(now, 20 * MS, MTU), "{packet}");
        }
    }
}
