//! The gate: what the congestion controllers of one connection know of each other.
//!
//! The library asks the paths in order of their ids and takes the first with room. The gate turns that into a
//! schedule: a controller whose path should not take the next packet answers with a window of zero.
//!
//! What was lost is sent anew before anything else, by whichever path has room. All that was delivered since waits for it, so a far slower
//! path leaves it to the others.
//!
//! Invariants: at least one path is always admitted; a held path lets a packet through whenever a ping is due on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::compete::Compete;
use crate::coupling::{Bottlenecks, Coupling, SLOTS_MAX};
use crate::liveness::Rhythm;

/// What the faster paths may deliver while a packet of a far slower one is under way; a fifth of a stream's receive window.
const HEAD_START_BYTES: f64 = 512_000.0;
/// Whatever its round trip: what the others deliver ahead of it fills seven tenths of the window, and loss needs the rest.
const STALL_BYTES: f64 = 1_620_000.0;
/// A path filled once, and its short queue, take this many of its own round trips.
const OWN_ROUND_TRIPS: f64 = 2.5;
/// A path is only held if the others together are this much faster.
const SLOWER_BY: f64 = 4.0;
/// A new path among others that measure so many times what its initial window promises starts from less.
const UNTRIED_SLOWER_BY: f64 = 2.0;
/// A path acknowledged within this time counts among the others.
const OTHERS_ALIVE: Duration = Duration::from_millis(300);
const PACKET_BYTES: u64 = 1_500;
/// Pings are less than this in flight.
const TAIL_BYTES: u64 = 600;
/// How recent another path's acknowledgement must be when a path is judged stalled.
const OTHERS_RECENT: Duration = Duration::from_millis(40);

/// What one path's controller last told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathModel {
    /// Number of the controller in its connection, in the order of creation.
    pub slot: usize,
    /// Estimated delivery rate; zero until measured.
    pub rate_bytes_per_s: f64,
    /// What the gate counts the path for: the same, but in start-up, when the estimate only says how little was tried.
    pub promised_bytes_per_s: f64,
    pub rtt_min: Duration,
    pub rtt_smoothed: Duration,
    pub rtt_latest: Duration,
    pub in_flight_bytes: u64,
    pub window_bytes: u64,
    /// The path was blocked by its window or pacing when it last had an acknowledgement: there was more to send.
    pub busy: bool,
    pub lost_share: f64,
    /// When the youngest acknowledged packet was sent.
    pub acked_sent_at: Option<Instant>,
    /// The window follows Cubic because somebody else fills the bottleneck's queue.
    pub competing: bool,
    /// It is a part of one window that paths through the same bottleneck have together.
    pub coupled: bool,
}

impl PathModel {
    /// How long the packet that was acknowledged last was under way to the peer, whatever made it late.
    fn trip_latest(&self) -> Duration {
        self.rtt_latest.saturating_sub(self.rtt_min / 2)
    }

    /// What the link takes for one packet, at most a second; zero until the rate is measured.
    fn packet_time(&self) -> Duration {
        if self.rate_bytes_per_s <= 0.0 {
            return Duration::ZERO;
        }
        let packet = PACKET_BYTES as f64;
        Duration::from_secs_f64(packet / self.rate_bytes_per_s.max(packet))
    }
}

#[derive(Debug)]
struct Slot {
    owners: usize,
    model: PathModel,
    /// The next packet passes whatever is in flight.
    permit: bool,
    /// When anything was last sent, to the precision of `State::now`.
    sent_at: Option<Instant>,
    acked_at: Option<Instant>,
    acks: Rhythm,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    newest: Option<usize>,
    /// Counts changes of the route of acknowledgements; controllers start their RTT minimum anew.
    rebase_epoch: u64,
    acked_at: Option<Instant>,
    busy_at: Option<Instant>,
    bottlenecks: Bottlenecks,
    now: Option<Instant>,
    /// Lost and not sent anew yet: what is sent is that first.
    to_resend_bytes: u64,
    /// The steering leaves all data to one path.
    is_thin: bool,
}

impl State {
    /// The living paths but this one.
    fn living_others(&self, slot: usize, now: Instant) -> impl Iterator<Item = &PathModel> {
        let others = self.slots.iter().enumerate();
        let living = others.filter(move |(index, other)| {
            let lives = other.acked_at.is_some_and(|at| now < at + OTHERS_ALIVE);
            *index != slot && other.owners > 0 && lives
        });
        living.map(|(_, other)| &other.model)
    }

    /// What the busy ones of them deliver together, and the shortest way of theirs.
    fn others(&self, slot: usize, now: Instant) -> (f64, Duration) {
        let busy = self.living_others(slot, now).filter(|other| other.busy);
        together(busy, |other| other.rtt_min / 2)
    }

    /// Whether a packet, were it as late as the path's last one, would come after the others have filled the receive window and stand still. All that
    /// live count: those that stand still are not busy.
    fn stalls_others(&self, own: &Slot, now: Instant) -> bool {
        let is_measured = !own.model.rtt_latest.is_zero();
        let others = self.living_others(own.model.slot, now);
        let (rate, trip) = together(others, PathModel::trip_latest);
        is_measured
            && rate > 0.0
            && own.model.trip_latest() > trip + Duration::from_secs_f64(STALL_BYTES / rate)
    }

    /// Also where nothing was sent for a while: a full window holds pings back, and the peer would take the silence for death.
    fn is_permitted(&self, slot: &Slot) -> bool {
        slot.permit || self.is_quiet(slot, QUIET_MAX)
    }

    /// The same, sooner, for a path that the gate does not hold: what is in flight for so long is acknowledged or lost, and
    /// the acknowledgement of one more packet tells which.
    fn is_stuck(&self, slot: &Slot) -> bool {
        let limit = (slot.model.rtt_smoothed * 2).clamp(QUIET_MIN, QUIET_MAX);
        self.is_quiet(slot, limit)
    }

    fn is_quiet(&self, slot: &Slot, limit: Duration) -> bool {
        let model = &slot.model;
        let mut packets_time = model.packet_time() * QUIET_PACKETS;
        // In start-up the measured rate only says how little was tried.
        if model.promised_bytes_per_s > model.rate_bytes_per_s {
            packets_time = packets_time.min(QUIET_UNTRIED_MAX);
        }
        let limit = limit.max(packets_time);
        let sent = self.now.zip(slot.sent_at);
        sent.is_some_and(|(now, sent)| now >= sent + limit)
    }

    /// Whether the path may take the next packet.
    ///
    /// What a far slower path takes is waited for by all that comes after it in the stream. So such a path is held when the
    /// packet would arrive later than `HEAD_START_BYTES` that the other paths deliver meanwhile: the receive window is
    /// then never filled by waiting for it, and the end of a transfer waits no longer than that. Where even one packet would fill it, none is sent but
    /// what pings take along. What is thin has one path, and nothing comes before it over another.
    fn admits(&self, own: &Slot) -> bool {
        let Some(now) = self.now.filter(|_| !self.is_thin) else {
            return true;
        };
        if self.stalls_others(own, now) {
            return false;
        }
        let model = &own.model;
        let (rate, trip) = self.others(model.slot, now);
        let promised = model.promised_bytes_per_s;
        if promised <= 0.0 || rate < promised * SLOWER_BY {
            return true;
        }
        // One packet may always be under way: it is how a recovered path is noticed.
        let is_empty = model.in_flight_bytes < PACKET_BYTES;
        if self.to_resend_bytes > 0 {
            return is_empty;
        }
        // Where the others are so fast that this is less than the path's own round trips, it may still be filled once.
        let ahead = (trip + Duration::from_secs_f64(HEAD_START_BYTES / rate))
            .max(model.rtt_min.mul_f64(OWN_ROUND_TRIPS))
            .min(trip + Duration::from_secs_f64(STALL_BYTES / rate));
        let queued = (model.in_flight_bytes + PACKET_BYTES) as f64 / promised;
        let silent = match own.acked_at {
            Some(at) if model.in_flight_bytes > 0 => now.saturating_duration_since(at),
            _ => Duration::ZERO,
        };
        let arrival = model.rtt_min / 2 + Duration::from_secs_f64(queued.min(60.0));
        arrival.max(silent) <= ahead || is_empty
    }
}

/// What these paths deliver together, and the shortest of their ways.
fn together<'a>(
    paths: impl Iterator<Item = &'a PathModel>,
    way: impl Fn(&PathModel) -> Duration,
) -> (f64, Duration) {
    paths.fold((0.0, Duration::MAX), |(rate, trip), path| {
        (rate + path.rate_bytes_per_s, trip.min(way(path)))
    })
}

/// What the gate says of a path's next packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It passes whatever is in flight.
    Passes,
    /// The path leaves it to the others.
    Held,
    /// The path's own window decides.
    Open,
}

/// A path with more than its window in flight, lost and not yet known to be, may still send a packet this often.
const QUIET_MAX: Duration = Duration::from_millis(100);
/// And a path that the gate does not hold after two round trips, but no more often than this.
const QUIET_MIN: Duration = Duration::from_millis(20);
/// Nor more often than one in the time of so many packets: as many as the link carries would keep the queue full for ever.
const QUIET_PACKETS: u32 = 2;
/// But in start-up no more seldom than the other end bears: a path that was dense and says nothing for 0.2 s is dead there.
const QUIET_UNTRIED_MAX: Duration = Duration::from_millis(150);

/// Shared by all controllers of one connection and its [`Steering`](crate::Steering).
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
}

/// A place in the gate, given up with its last owner.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) gate: Arc<Gate>,
    pub(crate) slot: usize,
}

impl Membership {
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        let slot = gate.enter();
        Self { gate, slot }
    }
}

impl Clone for Membership {
    fn clone(&self) -> Self {
        self.gate.share(self.slot);
        Self {
            gate: self.gate.clone(),
            slot: self.slot,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.gate.leave(self.slot);
    }
}

impl Gate {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The route of acknowledgements may have changed: round-trip minima are measured anew.
    pub fn rebase(&self) {
        self.state.lock().rebase_epoch += 1;
    }

    /// Let time pass where no acknowledgement does it.
    pub fn tick(&self, now: Instant) {
        self.state.lock().now = Some(now);
    }

    /// Whether the steering leaves all data to one path: the library takes no other while that one lives, however much it has to wait.
    pub(crate) fn set_thin(&self, is_thin: bool) {
        self.state.lock().is_thin = is_thin;
    }

    /// The models of the living controllers.
    pub fn models(&self) -> Vec<PathModel> {
        let state = self.state.lock();
        let living = state.slots.iter().filter(|slot| slot.owners > 0);
        living.map(|slot| slot.model).collect()
    }

    /// When a path was last seen with more to send than it could, if ever.
    pub fn busy_at(&self) -> Option<Instant> {
        self.state.lock().busy_at
    }

    pub(crate) fn rebase_epoch(&self) -> u64 {
        self.state.lock().rebase_epoch
    }

    /// A new controller takes a slot.
    pub(crate) fn enter(&self) -> usize {
        let mut state = self.state.lock();
        let fresh = |slot| Slot {
            owners: 1,
            model: PathModel {
                slot,
                rate_bytes_per_s: 0.0,
                promised_bytes_per_s: 0.0,
                rtt_min: Duration::ZERO,
                rtt_smoothed: Duration::ZERO,
                rtt_latest: Duration::ZERO,
                in_flight_bytes: 0,
                window_bytes: 0,
                busy: false,
                lost_share: 0.0,
                acked_sent_at: None,
                competing: false,
                coupled: false,
            },
            permit: false,
            sent_at: None,
            acked_at: None,
            acks: Rhythm::default(),
        };
        if let Some(free) = state.slots.iter().position(|slot| slot.owners == 0) {
            state.bottlenecks.forget(free);
            state.slots[free] = fresh(free);
            state.newest = Some(free);
            return free;
        }
        let slot = state.slots.len();
        if slot < SLOTS_MAX {
            state.slots.push(fresh(slot));
        }
        state.newest = (slot < SLOTS_MAX).then_some(slot);
        slot
    }

    fn share(&self, slot: usize) {
        if let Some(slot) = self.state.lock().slots.get_mut(slot) {
            slot.owners += 1;
        }
    }

    fn leave(&self, slot: usize) {
        let mut state = self.state.lock();
        let Some(entry) = state.slots.get_mut(slot) else {
            return;
        };
        entry.owners = entry.owners.saturating_sub(1);
        if entry.owners == 0 {
            state.bottlenecks.forget(slot);
        }
    }

    /// `met`: the path competes, and found the stranger itself.
    pub(crate) fn report(&self, now: Instant, mut model: PathModel, met: bool, coupling: Coupling) {
        let mut state = self.state.lock();
        let (slot, rtt) = (model.slot, model.rtt_latest);
        state.bottlenecks.observe(now, slot, rtt, met, coupling);
        model.coupled = model.competing && state.bottlenecks.is_coupled(slot);
        state.acked_at = Some(now);
        state.now = state.now.max(Some(now));
        if model.busy {
            state.busy_at = Some(now);
        }
        if let Some(slot) = state.slots.get_mut(model.slot) {
            slot.model = model;
            if let Some(before) = slot.acked_at.replace(now) {
                slot.acks.beat(now.saturating_duration_since(before));
            }
        }
    }

    /// A competing path's acknowledgement or loss, which concerns all paths of its bottleneck.
    pub(crate) fn compete_acked(&self, now: Instant, slot: usize, rtt_s: f64, own: &mut Compete) {
        self.state.lock().bottlenecks.on_ack(now, slot, rtt_s, own);
    }

    pub(crate) fn compete_lost(&self, now: Instant, slot: usize, sent: Instant, own: &mut Compete) {
        self.state.lock().bottlenecks.on_loss(now, slot, sent, own);
    }

    /// The path's drained round begins; those that share its bottleneck are to follow.
    pub(crate) fn drain(&self, slot: usize, deep: bool) {
        self.state.lock().bottlenecks.drain(slot, deep);
    }

    /// Counts the drained rounds that the path is to join, and whether the last is a deep one.
    pub(crate) fn drains(&self, slot: usize) -> (u64, bool) {
        self.state.lock().bottlenecks.drains(slot)
    }

    /// Whether a path through the same bottleneck has met a stranger there.
    pub(crate) fn others_met(&self, slot: usize) -> bool {
        self.state.lock().bottlenecks.others_met(slot)
    }

    pub(crate) fn lost(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.to_resend_bytes = state.to_resend_bytes.saturating_add(bytes);
    }

    /// A packet of so many bytes, and what is in flight with it.
    pub(crate) fn sent(&self, slot: usize, bytes: u64, in_flight_bytes: u64) {
        let mut state = self.state.lock();
        state.to_resend_bytes = state.to_resend_bytes.saturating_sub(bytes);
        let now = state.now;
        if let Some(slot) = state.slots.get_mut(slot) {
            slot.sent_at = now;
            slot.model.in_flight_bytes = in_flight_bytes;
            slot.permit = false;
        }
    }

    /// The slot of the controller built last.
    pub(crate) fn newest(&self) -> Option<usize> {
        self.state.lock().newest
    }

    /// Let the slot's next packet pass a full window: a ping must go out to be answered.
    pub(crate) fn permit(&self, slot: usize) {
        if let Some(slot) = self.state.lock().slots.get_mut(slot) {
            slot.permit = true;
        }
    }

    /// Asked for each packet, so all that there is to say is said at once. `gated`: far slower paths wait for their turn.
    pub(crate) fn turn(&self, slot: usize, gated: bool) -> Turn {
        let state = self.state.lock();
        let Some(slot) = state.slots.get(slot) else {
            return Turn::Open;
        };
        if state.is_permitted(slot) {
            Turn::Passes
        } else if gated && !state.admits(slot) {
            Turn::Held
        } else if state.is_stuck(slot) {
            Turn::Passes
        } else {
            Turn::Open
        }
    }

    pub(crate) fn in_flight(&self, slot: usize) -> u64 {
        self.state
            .lock()
            .slots
            .get(slot)
            .map_or(0, |slot| slot.model.in_flight_bytes)
    }

    /// When anything sent on the path was last acknowledged.
    pub(crate) fn acked_at(&self, slot: usize) -> Option<Instant> {
        self.state.lock().slots.get(slot)?.acked_at
    }

    /// When the youngest acknowledged packet of the path was sent.
    pub(crate) fn acked_sent_at(&self, slot: usize) -> Option<Instant> {
        self.state.lock().slots.get(slot)?.model.acked_sent_at
    }

    /// There is nothing more to send, and data is under way that may have been lost.
    pub(crate) fn is_tail(&self) -> bool {
        let state = self.state.lock();
        let alive = || state.slots.iter().filter(|slot| slot.owners > 0);
        let in_flight: u64 = alive().map(|slot| slot.model.in_flight_bytes).sum();
        in_flight > TAIL_BYTES && alive().all(|slot| !slot.model.busy)
    }

    /// When the acknowledgements of a path with data in flight fall out of their rhythm, while those of another path
    /// go on (if nothing is acknowledged at all, it is the acknowledgements' route that is broken).
    pub(crate) fn stalls_at(&self, slot: usize) -> Option<Instant> {
        let state = self.state.lock();
        let own = state.slots.get(slot)?;
        let acked_at = own.acked_at?;
        if own.model.in_flight_bytes == 0 {
            return None;
        }
        let overdue = acked_at.checked_add(own.acks.silence_max(own.model.rtt_smoothed / 2))?;
        let others_go_on = state.slots.iter().enumerate().any(|(index, other)| {
            index != slot
                && other.owners > 0
                && other
                    .acked_at
                    .is_some_and(|at| at + OTHERS_RECENT >= overdue)
        });
        others_go_on.then_some(overdue)
    }

    /// Whether a path that promises this much, untried, is to be tried with little first. What stands in its queue, should it be far slower than
    /// that, is waited for by all that the others deliver.
    pub(crate) fn outruns(&self, slot: usize, promised_bytes_per_s: f64) -> bool {
        let state = self.state.lock();
        let others = state.now.map(|now| state.others(slot, now).0);
        others.is_some_and(|rate| rate >= promised_bytes_per_s * UNTRIED_SLOWER_BY)
    }
}
