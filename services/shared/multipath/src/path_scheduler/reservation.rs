//! Reservations: the next packet of data takes the path of its copy.
//!
//! The library puts the data of any stream into the packet of any path. A stream whose packets use
//! two paths stands still when either path is cut. So the copies of a message go by streams with
//! different numbers. Each write of such a stream reserves the next packet for one path, and no
//! other copy is written before that packet was sent.
//!
//! Invariant: a reservation holds back the other paths only while its own path has room, and for
//! at most `RESERVED_MAX`.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::ranks::TURN_BYTES_MIN;
use super::{PathScheduler, State};
use crate::steering_rules::Rank;

/// Longest time for which the next packet is reserved. Its write may have been refused, or the path
/// may be paced.
pub const RESERVED_MAX: Duration = Duration::from_millis(5);

/// Writes that wait for their turn. Further ones go without a reservation.
const WAITING_WRITES_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    slot: usize,
    until: Instant,
    /// A packet of this size or more ends it.
    bytes: u64,
}

impl State {
    /// The path of the copy with this number. Each number keeps its path as long as the paths live.
    /// Numbers beyond the paths begin again with the quickest one. With one path alone, copies
    /// still travel in packets of their own.
    fn path_of_copy(&self, copy: u8) -> Option<usize> {
        if !self.alternates {
            return None;
        }
        let slots = self.slots.iter().enumerate();
        let mut active: Vec<_> = slots
            .filter(|(_, slot)| {
                let schedule = slot.ranked.schedule();
                let takes_turns = schedule.weight.is_none() && schedule.rank == Some(Rank::Active);
                slot.owners > 0 && slot.ranked.is_alive() && takes_turns && self.has_room(slot)
            })
            .collect();
        active.sort_by_key(|(index, slot)| (slot.ranked.schedule().place, *index));
        let number = usize::from(copy);
        if number >= active.len() {
            active.sort_by_key(|(_, slot)| slot.round_trip());
        }
        let own = number.checked_rem(active.len())?;
        active.get(own).map(|(index, _)| *index)
    }

    /// The path that the next packet is reserved for.
    pub(super) fn reserved(&self) -> Option<usize> {
        let reserved = self.reserved?;
        let slot = self.slots.get(reserved.slot)?;
        let holds = self.now.is_none_or(|now| now < reserved.until);
        let takes = slot.owners > 0 && slot.ranked.is_alive() && self.has_room(slot);
        (holds && takes).then_some(reserved.slot)
    }

    fn end_reservation(&mut self) {
        self.reserved = None;
        for waiting in self.awaits_reservation.drain(..) {
            waiting.wake();
        }
    }

    /// A packet of this size was sent.
    pub(super) fn ends_reservation(&mut self, bytes: u64) {
        if self.reserved.is_some_and(|held| bytes >= held.bytes) {
            self.end_reservation();
        }
    }
}

impl PathScheduler {
    /// Reserves the next packet for a write of this copy. Pending while another copy has the
    /// reservation; the caller is woken when it ends, and asks again after `RESERVED_MAX`. Ready
    /// without a reservation where packets keep to one path.
    pub fn poll_reserve(
        &self,
        cx: &mut Context<'_>,
        now: Instant,
        copy: u8,
        bytes: usize,
    ) -> Poll<()> {
        let mut state = self.state.lock();
        state.now = state.now.max(Some(now));
        let Some(slot) = state.path_of_copy(copy) else {
            return Poll::Ready(());
        };
        if state.reserved.is_some_and(|held| now < held.until) {
            if state.awaits_reservation.len() >= WAITING_WRITES_MAX {
                return Poll::Ready(());
            }
            state.awaits_reservation.push(cx.waker().clone());
            return Poll::Pending;
        }
        state.reserved = Some(Reservation {
            slot,
            until: now + RESERVED_MAX,
            bytes: TURN_BYTES_MIN.min(bytes as u64),
        });
        Poll::Ready(())
    }

    /// Nothing was written after all.
    pub fn cancel_reservation(&self) {
        self.state.lock().end_reservation();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::task::Waker;

    use super::*;
    use crate::coupling::Coupling;
    use crate::path_scheduler::Admission;
    use crate::path_scheduler::ranks::tests::{WINDOW, at, scheduler};

    fn reserve(scheduler: &PathScheduler, now: Instant, copy: u8) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let reserved = scheduler.poll_reserve(&mut cx, now, copy, 500);
        reserved.is_ready()
    }

    fn admitted(scheduler: &PathScheduler) -> Vec<usize> {
        let admits = |slot: &usize| scheduler.admission(*slot, true) != Admission::Deferred;
        (0..2).filter(admits).collect()
    }

    /// Sends a packet by the path that is admitted.
    fn send(scheduler: &PathScheduler, bytes: u64) -> usize {
        let admitted = admitted(scheduler);
        assert_eq!(admitted.len(), 1, "{admitted:?}");
        scheduler.sent(admitted[0], bytes, 0);
        admitted[0]
    }

    #[test]
    fn each_copy_keeps_its_path_whatever_else_is_sent() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_alternates(true);
        let start = Instant::now();
        let mut sent: [Vec<usize>; 2] = Default::default();
        for message in 0..40u32 {
            let now = start + Duration::from_millis(50) * message;
            for _ in 0..message % 3 {
                scheduler.tick(now);
                let other = admitted(&scheduler)[0];
                scheduler.sent(other, 700, 0);
            }
            for copy in [0, 1] {
                assert!(reserve(&scheduler, now, copy));
                sent[usize::from(copy)].push(send(&scheduler, 500));
            }
        }
        assert_eq!(sent, [vec![0; 40], vec![1; 40]]);
    }

    #[test]
    fn a_write_waits_until_the_packet_before_was_sent() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_alternates(true);
        let now = Instant::now();
        assert!(reserve(&scheduler, now, 0));
        assert!(!reserve(&scheduler, now, 1));
        scheduler.sent(1, 50, 0);
        assert!(
            !reserve(&scheduler, now, 1),
            "an acknowledgement ends nothing"
        );
        assert_eq!(send(&scheduler, 500), 0);
        assert!(reserve(&scheduler, now, 1));
        scheduler.cancel_reservation();
        assert!(reserve(&scheduler, now, 0));
        assert!(reserve(&scheduler, now + RESERVED_MAX, 1), "it is over");
    }

    #[test]
    fn a_reservation_yields_where_its_path_is_full_dead_or_late() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_alternates(true);
        let now = Instant::now();
        assert!(reserve(&scheduler, now, 0));
        assert_eq!(admitted(&scheduler), [0]);
        scheduler.sent(0, 50, WINDOW);
        assert_eq!(admitted(&scheduler), [0, 1], "full: the window decides");
        scheduler.sent(0, 50, 0);
        assert_eq!(admitted(&scheduler), [0]);
        scheduler.set_rank(0, at(0, Rank::Active), false);
        assert!(admitted(&scheduler).contains(&1), "dead");
        scheduler.set_rank(0, at(0, Rank::Active), true);
        scheduler.tick(now + RESERVED_MAX);
        assert!(admitted(&scheduler).contains(&1), "late");
    }

    #[test]
    fn on_one_path_copies_have_packets_of_their_own_and_without_alternation_no_reservation() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(1, Rank::Standby)]);
        let now = Instant::now();
        assert!(reserve(&scheduler, now, 1) && reserve(&scheduler, now, 0));
        scheduler.set_alternates(true);
        assert!(reserve(&scheduler, now, 1) && !reserve(&scheduler, now, 0));
        assert_eq!(send(&scheduler, 500), 0);
        assert!(reserve(&scheduler, now, 0));
    }

    #[test]
    fn the_third_and_fourth_copy_take_the_quickest_path_and_the_other_one() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        let mut slow: crate::PathModel = scheduler.models()[0];
        slow.rtt_smoothed = Duration::from_millis(70);
        scheduler.report(Instant::now(), slow, false, Coupling::Off);
        scheduler.set_alternates(true);
        let now = Instant::now();
        for (copy, path) in [(0, 0), (1, 1), (2, 1), (3, 0)] {
            assert!(reserve(&scheduler, now, copy));
            assert_eq!(send(&scheduler, 500), path, "copy {copy}");
        }
    }
}
