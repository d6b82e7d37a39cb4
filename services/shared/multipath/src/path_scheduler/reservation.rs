//! Reservations: the next packet of data takes the path of its copy.
//!
//! The library puts the data of any stream into the packet of any path. A stream whose packets use
//! two paths stands still when either path is cut. So the copies of a message go by streams with
//! different numbers. Each write of such a stream reserves the next packet for one path, and no
//! other copy is written before that packet was sent.
//!
//! Invariant: a reservation holds back the other paths only while its own path may send, and until
//! the writer expires it after `RESERVED_MAX`.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::{PathScheduler, State};

/// Longest time for which the next packet is reserved. Its write may have been refused, or the path
/// may be paced.
pub const RESERVED_MAX: Duration = Duration::from_millis(5);

/// Writes that wait for their turn. Further ones go without a reservation.
const WAITING_WRITES_MAX: usize = 64;

/// Bytes of a packet that are surely no data: header, seal and the header of a frame.
const OVERHEAD_BYTES_MIN: u64 = 25;

#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    number: u64,
    slot: usize,
    until: Instant,
    /// The part of the write that is not sent.
    bytes: u64,
}

/// A write of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyWrite {
    /// Number of the copy.
    pub copy: u8,
    pub bytes: usize,
    /// It goes before all data that waits.
    pub urgent: bool,
}

impl State {
    /// The path of the copy with this number, if it has room. Each number keeps its path as long as
    /// the paths live. With one path alone, copies still travel in packets of their own.
    fn path_of_copy(&self, copy: u8) -> Option<usize> {
        if !self.alternates {
            return None;
        }
        let slots = self.slots.iter().enumerate();
        let mut active: Vec<_> = slots
            .filter(|(_, slot)| {
                let ranked = &slot.ranked;
                let takes = ranked.takes_turns() || ranked.schedule().carries_copies;
                slot.owners > 0 && ranked.is_alive() && takes
            })
            .collect();
        active.sort_by_key(|(index, slot)| (slot.ranked.schedule().place, *index));
        let own = usize::from(copy).checked_rem(active.len())?;
        let own = active
            .get(own)
            .filter(|(_, slot)| self.has_room_for_copy(slot));
        own.map(|(index, _)| *index)
    }

    /// The path that the next packet is reserved for.
    pub(super) fn reserved(&self) -> Option<usize> {
        let reserved = self.reserved?;
        let slot = self.slots.get(reserved.slot)?;
        let holds = self.now.is_none_or(|now| now < reserved.until);
        let alive = slot.owners > 0 && slot.ranked.is_alive();
        let takes =
            alive && self.has_room_for_copy(slot) && !self.resends_elsewhere(reserved.slot, slot);
        (holds && takes).then_some(reserved.slot)
    }

    fn end_reservation(&mut self) {
        self.reserved = None;
        self.wake_writes();
    }

    pub(super) fn wake_writes(&mut self) {
        for waiting in self.awaits_reservation.drain(..) {
            waiting.wake();
        }
    }

    /// A packet of this size was sent on the slot.
    pub(super) fn uses_reservation(&mut self, slot: usize, bytes: u64) {
        if let Some(reserved) = self.reserved.as_mut().filter(|held| held.slot == slot) {
            let data = bytes.saturating_sub(OVERHEAD_BYTES_MIN);
            reserved.bytes = reserved.bytes.saturating_sub(data);
            if reserved.bytes == 0 {
                self.end_reservation();
            }
        }
    }
}

impl PathScheduler {
    /// Reserves the next packets for a write of this copy, and returns the number of the
    /// reservation. Pending while another copy has one, or while the path opens for copies. The
    /// caller is woken when that ends, and asks again after `RESERVED_MAX`. Ready without a
    /// reservation where packets keep to one path.
    pub fn poll_reserve(
        &self,
        cx: &mut Context<'_>,
        now: Instant,
        write: CopyWrite,
    ) -> Poll<Option<u64>> {
        let mut state = self.state.lock();
        state.now = state.now.max(Some(now));
        let Some(slot) = state.path_of_copy(write.copy) else {
            // The path is full, so this write waits before any path is asked.
            if state.alternates {
                state.backlog.asked(Some(now));
            }
            return Poll::Ready(None);
        };
        // The library would fill the packet with data that waits, and that would be late.
        let is_mixed = !write.urgent && state.reserved.is_none() && state.backlog.waits();
        if is_mixed && state.is_late(slot) {
            return Poll::Ready(None);
        }
        let Some(opened) = state.opens_for_copy(now, slot) else {
            return Poll::Ready(None);
        };
        if !opened || state.reserved.is_some_and(|held| now < held.until) {
            if state.awaits_reservation.len() >= WAITING_WRITES_MAX {
                return Poll::Ready(None);
            }
            state.awaits_reservation.push(cx.waker().clone());
            return Poll::Pending;
        }
        state.end_reservation();
        state.reservations += 1;
        let number = state.reservations;
        state.reserved = Some(Reservation {
            number,
            slot,
            until: now + RESERVED_MAX,
            bytes: write.bytes as u64,
        });
        Poll::Ready(Some(number))
    }

    /// Ends the reservation with this number. Returns whether it was still there, so that other
    /// paths may now send.
    pub fn end_reservation(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let held = state.reserved.is_some_and(|held| held.number == number);
        if held {
            state.end_reservation();
        }
        held
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::task::Waker;

    use super::*;
    use crate::path_scheduler::Admission;
    use crate::path_scheduler::ranks::tests::{WINDOW, at, scheduler};
    use crate::steering_rules::{PathSchedule, Rank};

    fn ask(scheduler: &PathScheduler, now: Instant, write: CopyWrite) -> Poll<Option<u64>> {
        scheduler.poll_reserve(&mut Context::from_waker(Waker::noop()), now, write)
    }

    fn reserve_bytes(scheduler: &PathScheduler, now: Instant, copy: u8, bytes: usize) -> bool {
        let urgent = true;
        let write = CopyWrite {
            copy,
            bytes,
            urgent,
        };
        ask(scheduler, now, write).is_ready()
    }

    fn reserve(scheduler: &PathScheduler, now: Instant, copy: u8) -> bool {
        reserve_bytes(scheduler, now, copy, 450)
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
        scheduler.set_spread(true, true);
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
        scheduler.set_spread(true, true);
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
        assert!(!scheduler.end_reservation(1), "of an earlier write");
        assert!(!reserve(&scheduler, now, 0));
        assert!(scheduler.end_reservation(2) && !scheduler.end_reservation(2));
        assert!(reserve(&scheduler, now, 0));
        assert!(reserve(&scheduler, now + RESERVED_MAX, 1), "it is over");
    }

    #[test]
    fn a_write_of_many_packets_takes_one_path() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_spread(true, true);
        let now = Instant::now();
        assert!(reserve_bytes(&scheduler, now, 1, 10_000));
        for _ in 0..9 {
            // Another path's ping or acknowledgement ends nothing.
            scheduler.sent(0, 1_300, 0);
            assert_eq!(send(&scheduler, 1_200), 1);
        }
        assert!(reserve(&scheduler, now, 0));
    }

    /// In a cut, the first copy reserves the silent path while lost data must avoid it.
    #[test]
    fn lost_data_needs_no_reserved_path() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_spread(true, true);
        let start = Instant::now();
        scheduler.tick(start);
        scheduler.sent(0, 500, 500);
        let later = start + Duration::from_millis(60);
        assert!(reserve(&scheduler, later, 0));
        assert_eq!(admitted(&scheduler), [0]);
        scheduler.lost(500);
        assert_eq!(admitted(&scheduler), [1]);
        scheduler.sent(1, 500, 500);
        assert_eq!(admitted(&scheduler), [0]);
    }

    #[test]
    fn a_reservation_yields_where_its_path_is_full_dead_or_late() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_spread(true, true);
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
        scheduler.set_spread(true, true);
        assert!(reserve(&scheduler, now, 1) && !reserve(&scheduler, now, 0));
        assert_eq!(send(&scheduler, 500), 0);
        assert!(reserve(&scheduler, now, 0));
    }

    #[test]
    fn the_third_and_fourth_copy_begin_again_with_the_first_path() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_spread(true, true);
        let now = Instant::now();
        for (copy, path) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
            assert!(reserve(&scheduler, now, copy));
            assert_eq!(send(&scheduler, 500), path, "copy {copy}");
        }
    }

    #[test]
    fn a_copy_goes_by_a_weighted_path_of_its_own() {
        let of = |weight| PathSchedule {
            weight: Some(weight),
            carries_copies: true,
            ..at(0, Rank::Active)
        };
        let scheduler = scheduler(&[of(90), of(10)]);
        scheduler.set_spread(true, true);
        let now = Instant::now();
        for _ in 0..100 {
            for copy in [0, 1] {
                assert!(reserve(&scheduler, now, copy));
                assert_eq!(send(&scheduler, 500), usize::from(copy));
            }
        }
    }

    #[test]
    fn a_copy_waits_for_its_path_only_for_a_while() {
        let held = PathSchedule {
            carries_copies: true,
            ..at(1, Rank::Standby)
        };
        let scheduler = scheduler(&[at(0, Rank::Active), held]);
        scheduler.set_spread(true, true);
        let start = Instant::now();
        let mut went = Vec::new();
        for step in 0..12 {
            let now = start + RESERVED_MAX * step;
            if reserve(&scheduler, now, 1) {
                went.push((step, admitted(&scheduler)));
            }
        }
        assert_eq!(went, Vec::from_iter((5..12).map(|step| (step, vec![0]))));
        scheduler.set_open(1, true);
        assert!(reserve(&scheduler, start + RESERVED_MAX * 12, 1));
        assert_eq!(send(&scheduler, 500), 1);
        scheduler.tick(start + RESERVED_MAX * 60);
        assert_eq!(admitted(&scheduler), [0], "it is open for nothing else");
    }

    /// The library fills the packet of a copy with data that waits, and sends lost data first.
    #[test]
    fn a_late_path_gets_copies_alone() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_spread(true, true);
        let now = Instant::now();
        let may_reserve = |copy, urgent| {
            let bytes = 450;
            let write = CopyWrite {
                copy,
                bytes,
                urgent,
            };
            match ask(&scheduler, now, write) {
                Poll::Ready(Some(number)) => scheduler.end_reservation(number),
                Poll::Ready(None) | Poll::Pending => false,
            }
        };
        // An ask without a packet: data waits.
        scheduler.admission(0, true);
        assert!(may_reserve(1, false), "both are alike");
        let slow = crate::PathModel {
            rtt_smoothed: Duration::from_millis(200),
            ..scheduler.models()[1]
        };
        scheduler.report(now, slow, false, crate::Coupling::Off);
        scheduler.admission(0, true);
        assert!(!may_reserve(1, false) && may_reserve(0, false));
        assert!(may_reserve(1, true), "it goes before what waits");
        scheduler.sent(0, 500, 500);
        assert!(may_reserve(1, false), "all is sent");
        assert!(reserve(&scheduler, now, 1));
        assert_eq!(admitted(&scheduler), [1]);
        scheduler.lost(500);
        assert_eq!(
            admitted(&scheduler),
            [0],
            "lost data waits for no late path"
        );
    }
}
