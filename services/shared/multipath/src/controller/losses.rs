//! What is lost, and whose doing it is: a lossy link loses a share that stays, a queue that is shorter than the own window makes it loses more.

use std::time::{Duration, Instant};

/// Share of loss that pacing makes good; beyond it the loss is taken for congestion.
pub(super) const LOSS_COMPENSATED_MAX: f64 = 0.08;
/// More loss than that, in so much time and so many packets, is the own doing.
const LOSSY_LONG: Duration = Duration::from_secs(1);
const LOSSY_ROUND_TRIPS: u32 = 4;
const LOSSY_PACKETS: u64 = 100;
/// Packets that the smoothed share remembers.
const REMEMBERED_PACKETS: u64 = 256;
/// The most that one acknowledgement or loss weighs in it.
const WEIGHT_MAX: f64 = 0.5;

#[derive(Debug, Clone, Default)]
pub(super) struct Losses {
    share: f64,
    /// Number of the packet sent last.
    newest: u64,
    suspicion: Option<Suspicion>,
}

/// What was told to be lost in the round under way and the one before.
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

    /// A round ends; of the share that was lost before this part is left.
    pub(super) fn on_round(&mut self, fading: f64) {
        let all = (self.acked + self.lost).max(1);
        self.share = (self.lost as f64 / all as f64).max(self.share * fading);
        *self = Self {
            lost_before: self.lost,
            share: self.share,
            ..Self::default()
        };
    }

    /// In the worse one of the two rounds.
    pub(super) fn lost(&self) -> u64 {
        self.lost.max(self.lost_before)
    }

    /// The largest of the last rounds, fading.
    pub(super) fn share(&self) -> f64 {
        self.share
    }
}

/// What was acknowledged and lost of what was sent since more than a lossy link's share was lost.
#[derive(Debug, Clone, Copy)]
struct Suspicion {
    since: Instant,
    /// The newest packet then.
    after: u64,
    acked: u64,
    lost: u64,
}

impl Losses {
    /// Of what was sent lately.
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

    /// There is another reason for them.
    pub(super) fn excuse(&mut self) {
        self.suspicion = None;
    }

    /// More than a lossy link loses, for long: the queue is shorter than the own window makes it, and others starve in it.
    ///
    /// The smoothed share remembers 256 packets, on a slow link many seconds, so it only raises the suspicion; what is lost of what is sent from
    /// then on decides, for a rate that falls once loses up to a window, which was sent before. Before, the losses of a start-up turned 0.2 Mbit/s into a
    /// flow that filled its queue of 1.2 s alone, and vitals waited in it.
    pub(super) fn are_own_doing(&mut self, now: Instant, rtt: Duration, mtu: u64) -> bool {
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

    /// Whether a second and a half of packets, one a millisecond, of which every `lose_every`th is lost, are the own doing after a start-up that lost half.
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
            is_own_doing |= losses.are_own_doing(start + MS * packet as u32, 20 * MS, MTU);
        }
        (is_own_doing, losses.share())
    }

    #[test]
    fn a_tenth_for_a_second_is_the_own_doing_and_a_start_up_that_lost_half_is_not() {
        assert!(blamed(8).0);
        let (is_own_doing, share) = blamed(25);
        assert!(!is_own_doing);
        assert!((0.02..0.07).contains(&share), "{share}");
    }

    #[test]
    fn a_window_that_overran_the_queue_of_a_rate_that_fell_is_no_own_doing() {
        let start = Instant::now();
        let mut losses = Losses::default();
        losses.sent(299);
        for packet in 0..2_000 {
            losses.sent(300 + packet);
            // Half of what was in flight then, told little by little.
            if packet < 300 && packet % 2 == 0 {
                losses.lost(packet, MTU, MTU);
            } else {
                losses.acked(packet, MTU, MTU);
            }
            let now = start + 10 * MS * packet as u32;
            assert!(!losses.are_own_doing(now, 20 * MS, MTU), "{packet}");
        }
    }
}
