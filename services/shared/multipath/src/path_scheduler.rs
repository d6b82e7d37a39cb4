//! The path scheduler: the state that the congestion controllers of one connection share.
//!
//! The library asks the paths in order of their ids and takes the first with room. The scheduler
//! turns this order into a schedule: a controller whose path should not send the next packet
//! reports a window of zero.
//!
//! Lost data is retransmitted first, by any path with room. All later data of the stream waits for
//! it, so a far slower path leaves retransmissions to the others.
//!
//! Invariants: at least one path is always admitted; a deferred path still sends a packet whenever
//! a ping is due.
//!
//! Circle: one state behind one lock; `backlog`, `for_copies`, `ranks` and `reservation` add their
//! methods to its types.

mod admission;
mod backlog;
mod for_copies;
mod path_model;
mod ranks;
mod reservation;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::coupling::{Bottlenecks, Coupling, SLOTS_MAX};
use crate::cubic::CubicWindow;
use crate::liveness::Rhythm;
use backlog::Backlog;
use for_copies::ForCopies;
use ranks::Ranked;
use reservation::Reservation;

pub use path_model::PathModel;
pub use reservation::{CopyWrite, RESERVED_MAX};

/// A new path starts with a smaller window if the others measure this multiple of its initial
/// window per round trip.
const NEW_PATH_SLOWER_BY: f64 = 2.0;
const PACKET_BYTES: u64 = 1_500;
/// Pings are fewer bytes in flight than this.
const TAIL_BYTES: u64 = 600;
/// Maximum age of another path's acknowledgement when a path is judged stalled.
const OTHERS_RECENT: Duration = Duration::from_millis(40);
/// Age of the last acknowledgement beyond which a path's rate no longer counts.
const RATE_HOLDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Slot {
    owners: usize,
    model: PathModel,
    /// The next packet passes whatever the window says.
    permit: bool,
    /// When the last packet was sent, to the precision of `State::now`.
    sent_at: Option<Instant>,
    acked_at: Option<Instant>,
    /// Since when what is in flight waits for its first, or for another, acknowledgement.
    waits_since: Option<Instant>,
    acks: Rhythm,
    ranked: Ranked,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Slot>,
    newest: Option<usize>,
    /// Number of changes of the acknowledgements' route; the controllers restart their RTT minimum.
    rebase_epoch: u64,
    acked_at: Option<Instant>,
    busy_at: Option<Instant>,
    bottlenecks: Bottlenecks,
    now: Option<Instant>,
    /// Lost bytes that are not yet retransmitted; sent bytes count against them first.
    to_resend_bytes: u64,
    /// Steering assigns all data to one path.
    single_path: bool,
    /// Packets change their path while another one has room.
    alternates: bool,
    /// Messages have copies on other paths.
    copies: bool,
    /// Slot of the last packet that took a turn, and when, to the precision of `now`.
    sent_last: Option<usize>,
    turn_at: Option<Instant>,
    reserved: Option<Reservation>,
    /// Number of reservations so far.
    reservations: u64,
    /// Writes of other copies. At most `WAITING_WRITES_MAX`.
    awaits_reservation: Vec<Waker>,
    for_copies: ForCopies,
    backlog: Backlog,
    /// A path with nothing in flight has sent since the last [`PathScheduler::poll_first_sent`].
    first_sent: bool,
    awaits_first_sent: Option<Waker>,
    /// Packets of all paths so far.
    sent_packets: u64,
    awaits_sent: Option<Waker>,
}

/// The scheduler's answer for the next packet of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The packet passes whatever the window says.
    Unconditional,
    /// The path leaves the packet to the others.
    Deferred,
    /// The path's own window decides.
    ByWindow,
}

/// Shared by all controllers of one connection and its [`PathUpkeep`](crate::PathUpkeep).
#[derive(Debug, Default)]
pub struct PathScheduler {
    state: Mutex<State>,
}

/// A slot of the scheduler, released by its last owner.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) scheduler: Arc<PathScheduler>,
    pub(crate) slot: usize,
}

impl Membership {
    pub(crate) fn new(scheduler: Arc<PathScheduler>) -> Self {
        let slot = scheduler.enter();
        Self { scheduler, slot }
    }
}

impl Clone for Membership {
    fn clone(&self) -> Self {
        self.scheduler.share(self.slot);
        Self {
            scheduler: self.scheduler.clone(),
            slot: self.slot,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.scheduler.leave(self.slot);
    }
}

impl PathScheduler {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The route of acknowledgements may have changed: round-trip minima are measured again.
    pub fn rebase(&self) {
        self.state.lock().rebase_epoch += 1;
    }

    /// Advances the time without an acknowledgement.
    pub fn tick(&self, now: Instant) {
        self.state.lock().now = Some(now);
    }

    /// Whether steering assigns all data to one path: the library uses no other while that path is
    /// alive.
    pub(crate) fn set_single_path(&self, single_path: bool) {
        self.state.lock().single_path = single_path;
    }

    /// The models of the living controllers.
    pub fn models(&self) -> Vec<PathModel> {
        let state = self.state.lock();
        let living = state.slots.iter().filter(|slot| slot.owners > 0);
        living.map(|slot| slot.model).collect()
    }

    /// The last time at which a path was limited by its window, if ever.
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
            waits_since: None,
            acks: Rhythm::default(),
            ranked: Ranked::default(),
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

    /// `found_cross_traffic`: the path itself detected cross-traffic and follows Cubic.
    pub(crate) fn report(
        &self,
        now: Instant,
        mut model: PathModel,
        found_cross_traffic: bool,
        coupling: Coupling,
    ) {
        let mut state = self.state.lock();
        let (slot, rtt) = (model.slot, model.rtt_latest);
        state
            .bottlenecks
            .observe(now, slot, rtt, found_cross_traffic, coupling);
        model.coupled = model.competing && state.bottlenecks.is_coupled(slot);
        state.acked_at = Some(now);
        state.now = state.now.max(Some(now));
        if model.busy {
            state.busy_at = Some(now);
        }
        if let Some(slot) = state.slots.get_mut(model.slot) {
            slot.model = model;
            slot.waits_since = (model.in_flight_bytes > 0).then_some(now);
            if let Some(before) = slot.acked_at.replace(now) {
                slot.acks.beat(now.saturating_duration_since(before));
            }
        }
    }

    /// An acknowledgement or loss of a path that follows Cubic; it changes all paths of its
    /// bottleneck.
    pub(crate) fn cubic_acked(&self, now: Instant, slot: usize, rtt_s: f64, own: &mut CubicWindow) {
        self.state.lock().bottlenecks.on_ack(now, slot, rtt_s, own);
    }

    pub(crate) fn cubic_lost(
        &self,
        now: Instant,
        slot: usize,
        sent: Instant,
        own: &mut CubicWindow,
    ) {
        self.state.lock().bottlenecks.on_loss(now, slot, sent, own);
    }

    /// The path starts an RTT probe; the paths of the same bottleneck follow.
    pub(crate) fn start_probe(&self, slot: usize, deep: bool) {
        self.state.lock().bottlenecks.start_probe(slot, deep);
    }

    /// Number of probes that the path has to join, and whether the last is a deep one.
    pub(crate) fn group_probes(&self, slot: usize) -> (u64, bool) {
        self.state.lock().bottlenecks.group_probes(slot)
    }

    /// Whether another path of the same bottleneck detected cross-traffic.
    pub(crate) fn others_report_cross_traffic(&self, slot: usize) -> bool {
        self.state
            .lock()
            .bottlenecks
            .others_report_cross_traffic(slot)
    }

    pub(crate) fn lost(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.to_resend_bytes = state.to_resend_bytes.saturating_add(bytes);
        state.backlog.lost(bytes);
    }

    /// A packet of this size was sent; the bytes in flight include it.
    pub(crate) fn sent(&self, slot: usize, bytes: u64, in_flight_bytes: u64) {
        let mut state = self.state.lock();
        state.to_resend_bytes = state.to_resend_bytes.saturating_sub(bytes);
        let now = state.now;
        state.backlog.sent(now, bytes);
        state.took_turn(slot, bytes);
        state.uses_reservation(slot, bytes);
        state.sent_packets += 1;
        if let Some(waker) = state.awaits_sent.take() {
            waker.wake();
        }
        if let Some(slot) = state.slots.get_mut(slot) {
            slot.ranked.sent(bytes);
            slot.sent_at = now;
            let is_first = slot.waits_since.is_none();
            slot.waits_since = slot.waits_since.or(now);
            slot.model.in_flight_bytes = in_flight_bytes;
            slot.permit = false;
            if is_first {
                state.first_sent = true;
                if let Some(waker) = state.awaits_first_sent.take() {
                    waker.wake();
                }
            }
        }
    }

    /// Ready when a path with nothing in flight has sent a packet, also before this call. Only the
    /// last caller is woken.
    pub(crate) fn poll_first_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.first_sent) {
            return Poll::Ready(());
        }
        state.awaits_first_sent = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Number of packets that all paths have sent so far.
    pub fn sent_packets(&self) -> u64 {
        self.state.lock().sent_packets
    }

    /// Ready when a packet has been sent after the first `seen`. Only the last caller is woken.
    pub fn poll_sent(&self, cx: &mut Context<'_>, seen: u64) -> Poll<()> {
        let mut state = self.state.lock();
        if state.sent_packets > seen {
            return Poll::Ready(());
        }
        state.awaits_sent = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Measured rate of all paths together, in bytes a second. A path counts if it may carry data
    /// and was acknowledged in the last `RATE_HOLDS`.
    pub fn rate_bytes_per_s(&self) -> f64 {
        let state = self.state.lock();
        let since = state.now.and_then(|now| now.checked_sub(RATE_HOLDS));
        let carries =
            |slot: &&Slot| slot.owners > 0 && !slot.ranked.is_forbidden() && slot.acked_at >= since;
        let carrying = state.slots.iter().filter(carries);
        carrying.map(|slot| slot.model.rate_bytes_per_s).sum()
    }

    /// The slot of the controller built last.
    pub(crate) fn newest(&self) -> Option<usize> {
        self.state.lock().newest
    }

    /// The next packet of the slot passes a full window: a ping must be sent to be answered.
    pub(crate) fn permit(&self, slot: usize) {
        if let Some(slot) = self.state.lock().slots.get_mut(slot) {
            slot.permit = true;
        }
    }

    /// Asked for each packet, so one call answers everything. `scheduled`: far slower paths are
    /// deferred.
    pub(crate) fn admission(&self, slot: usize, scheduled: bool) -> Admission {
        let mut state = self.state.lock();
        let now = state.now;
        state.backlog.asked(now);
        let number = slot;
        let Some(slot) = state.slots.get(slot) else {
            return Admission::ByWindow;
        };
        let permitted = state.is_permitted(slot);
        let reserved = state.reserved().filter(|_| scheduled);
        let own = reserved == Some(number);
        let held = scheduled && !own && state.leaves_all_but_copies(number, slot);
        if slot.permit {
            Admission::Unconditional
        } else if reserved.is_some() && !own || scheduled && state.resends_elsewhere(number, slot) {
            Admission::Deferred
        } else if permitted && !slot.ranked.is_forbidden() && !held {
            Admission::Unconditional
        } else if scheduled && !own && !(state.ranks_admit(number) && state.admits(slot)) {
            Admission::Deferred
        } else if state.is_stuck(slot) {
            Admission::Unconditional
        } else {
            Admission::ByWindow
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

    /// Since when what is in flight on the path waits for an acknowledgement.
    pub(crate) fn waits_since(&self, slot: usize) -> Option<Instant> {
        let state = self.state.lock();
        let slot = state.slots.get(slot)?;
        slot.waits_since.filter(|_| slot.model.in_flight_bytes > 0)
    }

    /// Nothing more is to be sent, and data in flight may be lost.
    pub(crate) fn is_tail(&self) -> bool {
        let state = self.state.lock();
        let alive = || state.slots.iter().filter(|slot| slot.owners > 0);
        let in_flight: u64 = alive().map(|slot| slot.model.in_flight_bytes).sum();
        in_flight > TAIL_BYTES && alive().all(|slot| !slot.model.busy)
    }

    /// When the acknowledgements of a path with data in flight become overdue while those of
    /// another path continue. If no path is acknowledged, the route of acknowledgements is broken
    /// instead.
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

    /// Whether a new path with this expected rate must start with few packets. If it is far slower
    /// than expected, all later data waits for its queue.
    pub(crate) fn outruns(&self, slot: usize, promised_bytes_per_s: f64) -> bool {
        let state = self.state.lock();
        let others = state.now.map(|now| state.others(slot, now).0);
        others.is_some_and(|rate| rate >= promised_bytes_per_s * NEW_PATH_SLOWER_BY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_packet_after_rest_is_reported_once() {
        let scheduler = PathScheduler::new();
        let slot = scheduler.enter();
        let mut cx = Context::from_waker(Waker::noop());
        let mut reported = || scheduler.poll_first_sent(&mut cx).is_ready();
        assert!(!reported());
        scheduler.tick(Instant::now());
        scheduler.sent(slot, 1_200, 1_200);
        assert!(reported() && !reported());
        scheduler.sent(slot, 1_200, 2_400);
        assert!(!reported(), "more data behind the first");
        let empty = PathModel {
            in_flight_bytes: 0,
            ..scheduler.models()[0]
        };
        scheduler.report(Instant::now(), empty, false, Coupling::Off);
        scheduler.sent(slot, 1_200, 1_200);
        assert!(reported());
    }
}
