//! Which path may send the next packet, judged by the delays and rates of all.

use std::time::{Duration, Instant};

use super::{PACKET_BYTES, PathModel, Slot, State};

/// Bytes that faster paths may deliver while a packet of a far slower path is in flight. A fifth of
/// the receive window of a stream.
const HEAD_START_BYTES: f64 = 512_000.0;
/// Bound for any round trip: seven tenths of the receive window. Retransmissions need the rest.
const STALL_BYTES: f64 = 1_620_000.0;
/// Round trips of its own in which a path fills itself and its short queue.
const OWN_ROUND_TRIPS: f64 = 2.5;
/// A path is deferred only if the others together are faster by this factor.
const SLOWER_BY: f64 = 4.0;
/// A path acknowledged within this time counts as alive.
const OTHERS_ALIVE: Duration = Duration::from_millis(300);
/// A path with a full window may still send one packet in this time: its losses may be unreported.
const QUIET_MAX: Duration = Duration::from_millis(100);
/// The same for a path that is not deferred after two round trips, with this minimum.
const QUIET_MIN: Duration = Duration::from_millis(20);
/// The interval is also at least the time of this number of packets, or the extra packets would
/// keep the queue full.
const QUIET_PACKETS: u32 = 2;
/// In start-up the interval is at most this: the peer judges a busy path dead after 0.2 s of
/// silence.
const QUIET_STARTUP_MAX: Duration = Duration::from_millis(150);

impl State {
    /// The other paths that are alive.
    pub(super) fn living_others(
        &self,
        slot: usize,
        now: Instant,
    ) -> impl Iterator<Item = &PathModel> {
        let others = self.slots.iter().enumerate();
        let living = others.filter(move |(index, other)| {
            let lives = other.acked_at.is_some_and(|at| now < at + OTHERS_ALIVE);
            *index != slot && other.owners > 0 && lives
        });
        living.map(|(_, other)| &other.model)
    }

    /// Total rate of the busy ones of them, and the shortest one-way delay.
    pub(super) fn others(&self, slot: usize, now: Instant) -> (f64, Duration) {
        let busy = self.living_others(slot, now).filter(|other| other.busy);
        together(busy, |other| other.rtt_min / 2)
    }

    /// Whether a packet, as late as the last one of this path, would arrive after the others have
    /// filled the receive window. Stalled paths count as well, although they are not busy.
    pub(super) fn stalls_others(&self, own: &Slot, now: Instant) -> bool {
        let is_measured = !own.model.rtt_latest.is_zero();
        let others = self.living_others(own.model.slot, now);
        let (rate, trip) = together(others, PathModel::trip_latest);
        is_measured
            && rate > 0.0
            && own.model.trip_latest() > trip + Duration::from_secs_f64(STALL_BYTES / rate)
    }

    /// Also true after a pause in sending: a full window would hold pings back, and the peer would
    /// judge the path silent.
    pub(super) fn is_permitted(&self, slot: &Slot) -> bool {
        slot.permit || self.is_quiet(slot, QUIET_MAX)
    }

    /// The same after a shorter pause, for a path that is not deferred. Its data is acknowledged or
    /// lost by then, and one more packet reveals which.
    pub(super) fn is_stuck(&self, slot: &Slot) -> bool {
        let limit = (slot.model.rtt_smoothed * 2).clamp(QUIET_MIN, QUIET_MAX);
        self.is_quiet(slot, limit)
    }

    fn is_quiet(&self, slot: &Slot, limit: Duration) -> bool {
        let model = &slot.model;
        let mut packets_time = model.packet_time() * QUIET_PACKETS;
        // In start-up the measured rate only shows how little was sent.
        if model.promised_bytes_per_s > model.rate_bytes_per_s {
            packets_time = packets_time.min(QUIET_STARTUP_MAX);
        }
        let limit = limit.max(packets_time);
        let sent = self.now.zip(slot.sent_at);
        sent.is_some_and(|(now, sent)| now >= sent + limit)
    }

    /// Whether the path may send the next packet.
    ///
    /// All later data of a stream waits for a packet of a far slower path. Such a path is therefore
    /// deferred when its packet would arrive later than `HEAD_START_BYTES` of the other paths. The
    /// receive window then never fills while it waits, and the end of a transfer waits no longer
    /// than that. A path whose single packet would fill the window sends only pings. An
    /// application-limited connection uses one path, so no data overtakes there.
    pub(super) fn admits(&self, own: &Slot) -> bool {
        let Some(now) = self.now.filter(|_| !self.single_path) else {
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
        // One packet may always be in flight: it detects the recovery of the path.
        let is_empty = model.in_flight_bytes < PACKET_BYTES;
        if self.to_resend_bytes > 0 {
            return is_empty;
        }
        // The path may always be filled once, even if the others are so fast that the head start is
        // shorter than its own round trips.
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

/// Total rate of these paths, and the shortest of their delays.
fn together<'a>(
    paths: impl Iterator<Item = &'a PathModel>,
    way: impl Fn(&PathModel) -> Duration,
) -> (f64, Duration) {
    paths.fold((0.0, Duration::MAX), |(rate, trip), path| {
        (rate + path.rate_bytes_per_s, trip.min(way(path)))
    })
}
