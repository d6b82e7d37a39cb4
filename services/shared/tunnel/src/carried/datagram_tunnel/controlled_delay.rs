//! Controlled delay (RFC 8289) of a queue. A burst passes. A queue that stands loses a datagram now
//! and then, and senders with a congestion control answer to that. Sans-IO.

use std::time::{Duration, Instant};

/// Wait that a queue may keep for longer than `INTERVAL`. Datagrams leave one at a time when a path
/// has room, so the RFC's 5 ms would count ordinary gaps between acknowledgements.
const TARGET: Duration = Duration::from_millis(20);

/// Time in which a sender answers to a loss: a long round trip (RFC 8289, 4.2).
const INTERVAL: Duration = Duration::from_millis(100);

/// Intervals after which the rate of an earlier stretch of drops is forgotten.
const REMEMBERED: u32 = 16;

/// The state of one queue.
#[derive(Debug, Default)]
pub(super) struct ControlledDelay {
    /// When the wait will have been above the target for an interval.
    late_from: Option<Instant>,
    /// The stretch of drops that is under way, or the last one.
    drops: Option<Drops>,
}

#[derive(Debug, Clone, Copy)]
struct Drops {
    under_way: bool,
    count: u32,
    /// `count` at the start of the stretch.
    count_at_start: u32,
    next: Instant,
}

impl ControlledDelay {
    /// Whether a datagram that leaves the queue after this wait is dropped. `is_last`: it leaves an
    /// empty queue behind.
    pub(super) fn drops(&mut self, now: Instant, waited: Duration, is_last: bool) -> bool {
        if waited < TARGET || is_last {
            self.late_from = None;
            if let Some(drops) = &mut self.drops {
                drops.under_way = false;
            }
            return false;
        }
        let late_from = *self.late_from.get_or_insert(now + INTERVAL);
        if now < late_from {
            return false;
        }
        match &mut self.drops {
            Some(drops) if drops.under_way => {
                if now < drops.next {
                    return false;
                }
                drops.count += 1;
                drops.next += gap(drops.count);
            }
            earlier => {
                let count = earlier.map_or(1, |earlier| earlier.resumed_at(now));
                *earlier = Some(Drops {
                    under_way: true,
                    count,
                    count_at_start: count,
                    next: now + gap(count),
                });
            }
        }
        true
    }
}

impl Drops {
    /// The count with which a new stretch begins: soon after this one, near the rate that it found.
    fn resumed_at(self, now: Instant) -> u32 {
        let found = self.count - self.count_at_start;
        match now.saturating_duration_since(self.next) < INTERVAL * REMEMBERED {
            true => found.max(1),
            false => 1,
        }
    }
}

/// Time until the next drop: the rate of drops grows until the senders answer.
fn gap(count: u32) -> Duration {
    INTERVAL.div_f64(f64::from(count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Drops in each 100 ms of a queue from which one datagram leaves each millisecond.
    fn drops(codel: &mut ControlledDelay, start: Instant, ms: u32, waited: Duration) -> Vec<usize> {
        let mut counts = vec![0; ms.div_ceil(100) as usize];
        for at in 0..ms {
            if codel.drops(start + MS * at, waited, false) {
                counts[at as usize / 100] += 1;
            }
        }
        counts
    }

    #[test]
    fn a_burst_passes_and_a_standing_queue_loses_more_and_more() {
        let (mut codel, start) = (ControlledDelay::default(), Instant::now());
        assert_eq!(drops(&mut codel, start, 99, MS * 300), [0]);
        // The queue was empty once.
        assert!(!codel.drops(start + MS * 99, MS * 300, true));
        let counts = drops(&mut codel, start + MS * 100, 2_000, MS * 30);
        assert_eq!(counts[..2], [0, 1]);
        assert!(counts.is_sorted_by(|earlier, later| later + 1 >= *earlier));
        assert!(counts[19] > 2 * counts[2], "{counts:?}");
        // Never all of them: what is not answered to is bounded by the queue's length.
        assert!(counts.iter().all(|count| *count < 20), "{counts:?}");
    }

    #[test]
    fn a_short_wait_ends_the_drops_and_the_next_stretch_begins_near_their_rate() {
        let (mut codel, start) = (ControlledDelay::default(), Instant::now());
        drops(&mut codel, start, 2_000, MS * 30);
        assert!(!codel.drops(start + MS * 2_000, MS * 19, false));
        let soon = drops(&mut codel, start + MS * 2_001, 300, MS * 30);
        assert!(soon[0] == 0 && soon[1] >= 3, "{soon:?}");
        assert!(!codel.drops(start + MS * 2_400, MS * 19, false));
        let late = drops(&mut codel, start + MS * 9_000, 300, MS * 30);
        assert_eq!(late[..2], [0, 1]);
    }

    #[test]
    fn the_only_datagram_of_a_slow_link_is_never_dropped() {
        let (mut codel, start) = (ControlledDelay::default(), Instant::now());
        let dropped = (0..100).filter(|at| codel.drops(start + MS * 200 * *at, MS * 190, true));
        assert_eq!(dropped.count(), 0);
    }
}
