//! Ranks: what the schedule of a session lets each path send ([`PathSchedule`]).
//!
//! Invariant: of the paths that are alive and not forbidden, the first of the order is always
//! admitted. Beside copies the quickest of the active ones is. So is the weighted path that sent
//! the least for its weight.

use std::time::Duration;

use super::{PACKET_BYTES, PathScheduler, Slot, State};
use crate::steering_rules::{PathSchedule, Rank};

/// Bytes that a weighted path may send ahead of the others, times its part.
const LEAD_BYTES: f64 = 45_000.0;
/// A window before the first acknowledgement.
const UNKNOWN_WINDOW_BYTES: u64 = 64 * 1_200;
/// After this pause the next packet is the first of a message, and goes by the quickest path.
const TURN_ENDS_AFTER: Duration = Duration::from_millis(20);
/// Delay of an acknowledgement beyond its round trip, with the peer's and our pauses.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_millis(35);
/// Beside copies, a path is late if its round trip is longer than this multiple of another one's
/// and a late acknowledgement.
const LATE_FACTOR: u32 = 2;
/// Packets below are pings and acknowledgements, which take no turn.
const TURN_BYTES_MIN: u64 = 200;

/// The schedule of a slot, and what was sent by it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ranked {
    schedule: PathSchedule,
    alive: bool,
    /// Bytes sent, by weight.
    served: f64,
    /// The library may put data of any stream into its packets.
    open: bool,
}

impl Default for Ranked {
    fn default() -> Self {
        Self {
            schedule: PathSchedule::FREE,
            // Until steering reports it: a path that is not validated yet has room, and carries
            // none.
            alive: false,
            served: 0.0,
            open: false,
        }
    }
}

impl Ranked {
    pub(super) fn sent(&mut self, bytes: u64) {
        if let Some(weight) = self.schedule.weight {
            self.served += bytes as f64 / f64::from(weight.max(1));
        }
    }

    pub(super) fn is_forbidden(&self) -> bool {
        self.schedule.rank.is_none()
    }

    pub(super) fn schedule(&self) -> PathSchedule {
        self.schedule
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns whether it was not open before.
    pub(super) fn set_open(&mut self, open: bool) -> bool {
        !std::mem::replace(&mut self.open, open) && open
    }

    fn is_active(&self) -> bool {
        self.schedule.rank == Some(Rank::Active)
    }

    /// Whether its packets take turns with those of other paths, where packets change their path.
    pub(super) fn takes_turns(&self) -> bool {
        self.is_active() && self.schedule.weight.is_none()
    }
}

impl Slot {
    fn window_bytes(&self) -> u64 {
        match self.model.window_bytes {
            0 => UNKNOWN_WINDOW_BYTES,
            window => window,
        }
    }

    fn is_full(&self) -> bool {
        self.model.in_flight_bytes + PACKET_BYTES > self.window_bytes()
    }

    /// A path without a measured round trip is the slowest.
    fn round_trip(&self) -> Duration {
        match self.model.rtt_smoothed {
            Duration::ZERO => Duration::MAX,
            rtt => rtt,
        }
    }
}

impl State {
    /// The paths that are alive and may carry data, without this one.
    fn ranked_others(&self, own: usize) -> impl Iterator<Item = &Slot> {
        let others = self.slots.iter().enumerate();
        let alive = others.filter(move |(index, other)| {
            let ranked = &other.ranked;
            *index != own && other.owners > 0 && ranked.alive && !ranked.is_forbidden()
        });
        alive.map(|(_, other)| other)
    }

    /// Those of them that are active and have room.
    fn active_others(&self, own: usize) -> impl Iterator<Item = &Slot> {
        let others = self.ranked_others(own);
        others.filter(|other| other.ranked.is_active() && self.has_room(other))
    }

    /// Whether a packet would stay with this path if it were asked.
    pub(super) fn has_room(&self, slot: &Slot) -> bool {
        !slot.is_full() && self.admits(slot)
    }

    /// The same for the packet of a copy. A path that carries little else measures no rate.
    pub(super) fn has_room_for_copy(&self, slot: &Slot) -> bool {
        let held = slot.ranked.schedule.is_held_for_copies();
        !slot.is_full() && (held || self.admits(slot))
    }

    /// Whether the schedule lets the path send the next packet.
    pub(super) fn ranks_admit(&self, own: usize) -> bool {
        let Some(slot) = self.slots.get(own) else {
            return true;
        };
        let schedule = slot.ranked.schedule;
        let before = || {
            let others = self.ranked_others(own);
            others.filter(|other| other.ranked.schedule.place < schedule.place)
        };
        match schedule.rank {
            None => false,
            Some(Rank::Active) => self.is_within_weight(own, slot) && self.is_in_turn(own, slot),
            Some(Rank::Spill) => !before().any(|other| self.has_room(other)),
            Some(Rank::Standby) => before().next().is_none(),
        }
    }

    fn is_within_weight(&self, own: usize, slot: &Slot) -> bool {
        let Some(weight) = slot.ranked.schedule.weight else {
            return true;
        };
        let others = self.ranked_others(own).filter(|other| {
            let schedule = other.ranked.schedule;
            schedule.weight.is_some() && schedule.rank == Some(Rank::Active)
        });
        let (least, total) = others.fold((f64::MAX, weight), |(least, total), other| {
            let weight = other.ranked.schedule.weight.unwrap_or(0);
            (least.min(other.ranked.served), total.saturating_add(weight))
        });
        slot.ranked.served <= least + LEAD_BYTES / f64::from(total.max(1))
    }

    /// Packets change their path, so that each active one carries a part. A path with a full window
    /// gives up its turn, and one with a weight follows that. After a pause the quickest path
    /// begins: an odd number of copies would otherwise give every other message to the slow path
    /// first. A late path gets its copies by reservation, and nothing else.
    fn is_in_turn(&self, own: usize, slot: &Slot) -> bool {
        let takes_turns = self.alternates && slot.ranked.takes_turns();
        if !takes_turns {
            return true;
        }
        if self.is_late_for_copied(own, slot) {
            return false;
        }
        let others = self.active_others(own);
        let mut others = others.filter(|other| !(self.copies && self.is_later(other, slot)));
        let ends_at = self.turn_at.and_then(|at| at.checked_add(TURN_ENDS_AFTER));
        let goes_on = ends_at.zip(self.now).is_some_and(|(ends, now)| now < ends);
        match goes_on {
            true => self.sent_last != Some(own) || others.next().is_none(),
            false => !others.any(|other| other.round_trip() < slot.round_trip()),
        }
    }

    /// While packets change their path, lost data takes no path that is late or whose
    /// acknowledgements are overdue, if there is a better one.
    pub(super) fn resends_elsewhere(&self, own: usize, slot: &Slot) -> bool {
        let is_worse = || {
            let mut others = self.active_others(own);
            let is_overdue = self.is_overdue(slot) && others.any(|other| !self.is_overdue(other));
            is_overdue || self.is_late_for_copied(own, slot)
        };
        self.alternates
            && self.to_resend_bytes > 0
            && slot.ranked.schedule.weight.is_none()
            && is_worse()
    }

    /// Whether data with copies would arrive far earlier by another path. That one has room, or the
    /// data has not waited for it as long as this path is late. A reader waits for the first hole
    /// of each copy: a late packet of the first copy costs as much as the late second one.
    fn is_late_for_copied(&self, own: usize, slot: &Slot) -> bool {
        let waited = self.backlog.waited(self.now);
        let waits = |other: &Slot| waited < slot.round_trip().saturating_sub(other.round_trip());
        let mut quicker = self.quicker_others(own, slot);
        self.copies && quicker.any(|other| self.has_room(other) || waits(other))
    }

    /// Whether a packet would arrive far earlier by another path that lives.
    pub(super) fn is_late(&self, own: usize) -> bool {
        let slot = self.slots.get(own);
        slot.is_some_and(|slot| self.quicker_others(own, slot).next().is_some())
    }

    /// The active paths for which this one is late.
    fn quicker_others(&self, own: usize, slot: &Slot) -> impl Iterator<Item = &Slot> {
        let others = self.ranked_others(own);
        others.filter(move |other| other.ranked.is_active() && self.is_later(slot, other))
    }

    /// A path is not late before its round trip is measured, or it would never be validated.
    fn is_later(&self, slot: &Slot, other: &Slot) -> bool {
        let late = other.round_trip().saturating_mul(LATE_FACTOR);
        late.saturating_add(ACKNOWLEDGED_AFTER) < slot.model.rtt_smoothed && !self.is_overdue(other)
    }

    fn is_overdue(&self, slot: &Slot) -> bool {
        let after = slot.model.rtt_smoothed + ACKNOWLEDGED_AFTER;
        let at = slot.waits_since.and_then(|since| since.checked_add(after));
        at.zip(self.now).is_some_and(|(at, now)| now >= at)
    }

    /// Notes whose turn it was.
    pub(super) fn took_turn(&mut self, slot: usize, bytes: u64) {
        if bytes >= TURN_BYTES_MIN {
            self.sent_last = Some(slot);
            self.turn_at = self.now;
        }
    }
}

impl PathScheduler {
    /// The schedule of the session for the path of this slot, and whether steering judges
    /// it as alive.
    pub(crate) fn set_rank(&self, slot: usize, schedule: PathSchedule, alive: bool) {
        let mut state = self.state.lock();
        let others = state.ranked_others(slot);
        let weighted = others.filter(|other| other.ranked.schedule.weight.is_some());
        let least = weighted.map(|other| other.ranked.served).reduce(f64::min);
        let Some(entry) = state.slots.get_mut(slot) else {
            return;
        };
        let before = entry.ranked;
        // A path that joins owes nothing for the time before.
        let joins = alive && !before.alive || schedule.weight != before.schedule.weight;
        entry.ranked = Ranked {
            schedule,
            alive,
            served: if joins {
                least.unwrap_or(0.0)
            } else {
                before.served
            },
            open: before.open,
        };
    }

    /// Whether packets change their path while another one has room, and whether messages have
    /// copies.
    pub(crate) fn set_spread(&self, alternates: bool, copies: bool) {
        let mut state = self.state.lock();
        state.alternates = alternates;
        state.copies = copies;
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::coupling::Coupling;
    use crate::path_scheduler::{Admission, PathModel};

    pub(crate) const WINDOW: u64 = 60_000;

    /// Each path with a window of 60 kB and this schedule.
    pub(crate) fn scheduler(schedules: &[PathSchedule]) -> Arc<PathScheduler> {
        let scheduler = PathScheduler::new();
        let now = Instant::now();
        for schedule in schedules {
            let slot = scheduler.enter();
            let mut model: PathModel = scheduler.models()[slot];
            model.window_bytes = WINDOW;
            model.rate_bytes_per_s = 1e6;
            model.promised_bytes_per_s = 1e6;
            model.rtt_smoothed = Duration::from_millis(20);
            scheduler.report(now, model, false, Coupling::Off);
            scheduler.set_rank(slot, *schedule, true);
        }
        scheduler.tick(now);
        scheduler
    }

    pub(crate) fn at(place: u8, rank: Rank) -> PathSchedule {
        PathSchedule {
            place,
            rank: Some(rank),
            weight: None,
            carries_copies: false,
        }
    }

    fn admits(scheduler: &PathScheduler, slot: usize) -> bool {
        scheduler.admission(slot, true) != Admission::Deferred
    }

    #[test]
    fn a_spill_path_waits_until_those_before_it_are_full() {
        let scheduler = scheduler(&[at(1, Rank::Spill), at(0, Rank::Active)]);
        assert!(!admits(&scheduler, 0) && admits(&scheduler, 1));
        scheduler.sent(1, 1_200, WINDOW - 1_000);
        assert!(admits(&scheduler, 0));
        scheduler.sent(1, 1_200, 1_200);
        assert!(!admits(&scheduler, 0));
        scheduler.set_rank(1, at(0, Rank::Active), false);
        assert!(admits(&scheduler, 0), "the one before it is dead");
    }

    #[test]
    fn a_standby_path_waits_for_the_death_of_those_before_it() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(1, Rank::Standby)]);
        scheduler.sent(0, 1_200, WINDOW);
        assert!(!admits(&scheduler, 1));
        scheduler.set_rank(0, at(0, Rank::Active), false);
        assert!(admits(&scheduler, 1));
    }

    #[test]
    fn a_forbidden_path_sends_only_what_is_permitted() {
        let scheduler = scheduler(&[PathSchedule::FORBIDDEN, at(0, Rank::Active)]);
        scheduler.set_rank(1, at(0, Rank::Active), false);
        assert!(!admits(&scheduler, 0));
        scheduler.permit(0);
        assert!(admits(&scheduler, 0));
        scheduler.sent(0, 50, 50);
        scheduler.tick(Instant::now() + Duration::from_secs(5));
        assert!(!admits(&scheduler, 0), "not after a pause either");
    }

    #[test]
    fn weights_are_kept_within_a_few_packets() {
        let of = |weight| PathSchedule {
            weight: Some(weight),
            ..at(0, Rank::Active)
        };
        let scheduler = scheduler(&[of(70), of(30)]);
        let mut sent = [0u64; 2];
        for _ in 0..1_000 {
            let slot = (0..2).find(|slot| admits(&scheduler, *slot)).unwrap();
            scheduler.sent(slot, 1_200, 1_200);
            sent[slot] += 1_200;
        }
        let share = sent[0] as f64 / 1_200_000.0;
        assert!((share - 0.7).abs() < 0.03, "{share}");
        scheduler.set_rank(1, of(30), false);
        for _ in 0..100 {
            assert!(admits(&scheduler, 0), "alone it takes all");
            scheduler.sent(0, 1_200, 1_200);
        }
        scheduler.set_rank(1, of(30), true);
        scheduler.sent(1, 1_200, 1_200);
        assert!(admits(&scheduler, 0), "nothing is owed for the time before");
    }

    #[test]
    fn packets_change_their_path_while_copies_are_sent() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(1, Rank::Active)]);
        scheduler.set_spread(true, true);
        let next = || (0..2).find(|slot| admits(&scheduler, *slot)).unwrap();
        let mut turns = Vec::new();
        for _ in 0..4 {
            let slot = next();
            turns.push(slot);
            scheduler.sent(slot, 600, 600);
            scheduler.sent(slot, 50, 650);
        }
        assert_eq!(turns, [0, 1, 0, 1]);
        scheduler.sent(1, 1_200, WINDOW);
        scheduler.sent(0, 1_200, 1_200);
        assert!(admits(&scheduler, 0), "the other one is full");
    }

    #[test]
    fn lost_data_avoids_a_path_whose_acknowledgements_are_overdue() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(0, Rank::Active)]);
        scheduler.set_spread(true, true);
        let start = Instant::now();
        scheduler.tick(start);
        scheduler.sent(0, 500, 500);
        scheduler.sent(1, 500, 500);
        let later = start + Duration::from_millis(60);
        let answered = PathModel {
            in_flight_bytes: 0,
            ..scheduler.models()[1]
        };
        scheduler.report(later, answered, false, Coupling::Off);
        assert!(admits(&scheduler, 0), "its turn");
        scheduler.lost(500);
        assert!(!admits(&scheduler, 0) && admits(&scheduler, 1));
        // The other one is no better.
        scheduler.sent(1, 500, 500);
        scheduler.lost(500);
        scheduler.tick(later + Duration::from_millis(60));
        assert!(admits(&scheduler, 0) && admits(&scheduler, 1));
    }

    #[test]
    fn after_a_pause_the_quickest_path_begins() {
        let scheduler = scheduler(&[at(0, Rank::Active), at(1, Rank::Active)]);
        scheduler.set_spread(true, true);
        let start = Instant::now();
        let mut slow: PathModel = scheduler.models()[0];
        slow.rtt_smoothed = Duration::from_millis(70);
        scheduler.report(start, slow, false, Coupling::Off);
        for message in 1..4u32 {
            scheduler.tick(start + TURN_ENDS_AFTER * 2 * message);
            let mut turns = Vec::new();
            for _ in 0..3 {
                let slot = (0..2).find(|slot| admits(&scheduler, *slot)).unwrap();
                turns.push(slot);
                scheduler.sent(slot, 600, 600);
            }
            assert_eq!(turns, [1, 0, 1]);
        }
    }

    /// The second path has ten times the round trip.
    fn late_scheduler() -> Arc<PathScheduler> {
        let scheduler = scheduler(&[at(0, Rank::Active), at(1, Rank::Active)]);
        let slow = PathModel {
            rtt_smoothed: Duration::from_millis(200),
            ..scheduler.models()[1]
        };
        scheduler.report(Instant::now(), slow, false, Coupling::Off);
        scheduler.set_spread(true, true);
        scheduler
    }

    /// Turns would halve the quick path's rate, or stop it while the late path is paced.
    #[test]
    fn a_late_path_takes_no_turns_beside_copies() {
        let scheduler = late_scheduler();
        for _ in 0..10 {
            assert!(admits(&scheduler, 0) && !admits(&scheduler, 1));
            scheduler.sent(0, 1_200, 1_200);
        }
        scheduler.set_spread(true, false);
        assert!(!admits(&scheduler, 0) && admits(&scheduler, 1), "no copies");
        scheduler.set_spread(true, true);
        scheduler.set_rank(0, at(0, Rank::Active), false);
        assert!(admits(&scheduler, 1), "the quick path is dead");
    }

    #[test]
    fn a_late_path_takes_data_that_has_waited_as_long_as_it_is_late() {
        let scheduler = late_scheduler();
        let start = Instant::now();
        scheduler.tick(start);
        scheduler.sent(0, 1_200, WINDOW);
        // The quick path is acknowledged all the time, and full again.
        let admitted_at = (0..40).find(|tick| {
            let now = start + Duration::from_millis(10) * *tick;
            let full = PathModel {
                in_flight_bytes: WINDOW,
                ..scheduler.models()[0]
            };
            scheduler.report(now, full, false, Coupling::Off);
            admits(&scheduler, 1)
        });
        assert_eq!(admitted_at, Some(18));
    }

    #[test]
    fn a_path_that_is_not_measured_is_not_late() {
        let scheduler = late_scheduler();
        let new = PathModel {
            rtt_smoothed: Duration::ZERO,
            ..scheduler.models()[1]
        };
        scheduler.report(Instant::now(), new, false, Coupling::Off);
        scheduler.sent(0, 1_200, 1_200);
        assert!(admits(&scheduler, 1), "it would never be validated");
    }
}
