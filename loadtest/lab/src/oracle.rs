//! A sender that knows its links, for the lab alone: an upper bound for every target.
//!
//! Its congestion control asks the simulated links themselves. A path may send while its link's
//! queue holds less than the link will serve within [`AHEAD`]. So the link never idles while there
//! is data to send, no queue drops anything, and nothing is sent into an outage. Path scheduler,
//! steering and library are those of our own controller, whose estimates the scheduler uses. The
//! gap to a full link is then the handshake, headers, random loss, waiting in order, and the price
//! of scheduler and steering.
//!
//! The world passes the room of each link before each turn of a host and wakes the host every
//! [`WAKE_EVERY`]. Packets sent within a turn are counted here.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use parking_lot::Mutex;

use crate::address::INTERFACES_MAX;
use crate::packet::{IP_UDP_HEADER_BYTES, LINK_MTU_BYTES};

/// A link's queue is filled with what the link serves in this time.
pub(crate) const AHEAD: Duration = Duration::from_millis(10);
/// On a slow link with so many packets, if it serves them within the longer time.
pub(crate) const PACKETS_MIN: u64 = 2;
pub(crate) const AHEAD_SLOW: Duration = Duration::from_millis(250);
/// A rise of a link's rate is used no later than this.
pub(crate) const WAKE_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct State {
    /// Bytes that the queue of each interface's link may take.
    rooms: [u64; INTERFACES_MAX],
    /// Interface of the path whose controller is built next.
    building: Option<usize>,
    /// Interface of the handshake's first answer, which carries the first path.
    first: Option<usize>,
}

/// Knowledge of one end about the links that it sends into.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    state: Mutex<State>,
}

impl Oracle {
    /// The room of an interface's link at the time of the turn that follows.
    pub(crate) fn set_room(&self, interface: usize, room_bytes: u64) {
        if let Some(room) = self.state.lock().rooms.get_mut(interface) {
            *room = room_bytes;
        }
    }

    /// The path that is opened next belongs to this interface.
    pub(crate) fn builds_for(&self, interface: usize) {
        self.state.lock().building = Some(interface);
    }

    pub(crate) fn answered_by(&self, interface: usize) {
        self.state.lock().first.get_or_insert(interface);
    }

    /// Whether a whole packet fits. Before the first answer the first path has no interface yet,
    /// and the handshake needs no leave.
    fn has_room(&self, interface: Option<usize>) -> bool {
        let state = self.state.lock();
        let room = interface
            .or(state.first)
            .and_then(|interface| state.rooms.get(interface));
        room.is_none_or(|&room| room >= LINK_MTU_BYTES)
    }

    fn take(&self, interface: Option<usize>, bytes: u64) {
        let mut state = self.state.lock();
        let interface = interface.or(state.first);
        if let Some(room) = interface.and_then(|interface| state.rooms.get_mut(interface)) {
            *room = room.saturating_sub(bytes);
        }
    }
}

/// Builds our own controllers, and lets the oracle decide in the place of their windows.
#[derive(Debug)]
pub(crate) struct Oracles<F> {
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) models: Arc<F>,
}

impl<F: ControllerFactory> ControllerFactory for Oracles<F> {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(OracleController {
            interface: self.oracle.state.lock().building.take(),
            oracle: self.oracle.clone(),
            model: self.models.clone().build(now, current_mtu),
        })
    }
}

#[derive(Debug)]
struct OracleController {
    oracle: Arc<Oracle>,
    /// None: that of the first answer.
    interface: Option<usize>,
    model: Box<dyn Controller>,
}

impl Controller for OracleController {
    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        self.oracle
            .take(self.interface, u64::from(bytes) + IP_UDP_HEADER_BYTES);
        self.model.on_packet_sent(now, bytes, pn);
    }

    fn on_cwnd_limited(&mut self) {
        self.model.on_cwnd_limited();
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.model.on_ack(now, sent, bytes, pn, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        self.model.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        lost_bytes: u64,
        largest_lost_pn: u64,
    ) {
        self.model.on_congestion_event(
            now,
            sent,
            is_persistent_congestion,
            is_ecn,
            lost_bytes,
            largest_lost_pn,
        );
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, now: Instant) {
        self.model.on_packet_lost(lost_bytes, pn, now);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.model.on_mtu_update(new_mtu);
    }

    /// All or nothing: the room is counted in the queue, not in flight.
    fn window(&self) -> u64 {
        let modelled = self.model.window();
        let is_held = modelled == 0;
        let passes = modelled >= u64::MAX / 2;
        if passes || !is_held && self.oracle.has_room(self.interface) {
            u64::MAX / 2
        } else {
            0
        }
    }

    /// No pacing: nothing enters a queue that would not leave it at once.
    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.model.metrics();
        metrics.congestion_window = u64::MAX / 2;
        metrics.pacing_rate = None;
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            oracle: self.oracle.clone(),
            interface: self.interface,
            model: self.model.clone_box(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.model.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
