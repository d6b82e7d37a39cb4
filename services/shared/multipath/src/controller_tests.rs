//! The controller over a link in closed form: a rate, a delay, an unbounded queue, every packet
//! acknowledged.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use noq_proto::congestion::Controller;
use noq_proto::{PathId, PathStatus};

use crate::controller::{ControllerConfig, PathController};
use crate::coupling::Coupling;
use crate::path_scheduler::{Admission, PathModel, PathScheduler};
use crate::path_upkeep::{Command, Event, InterfaceId, PathUpkeep, Side, UpkeepConfig};

const PACKET: u64 = 1_200;

struct Link {
    now: Instant,
    free_at: Instant,
    rate_bytes_per_s: f64,
    delay: Duration,
    /// Sent, acknowledged at, number; every `lose_every`th packet is lost behind the bottleneck.
    under_way: VecDeque<(Instant, Instant, u64)>,
    next_pn: u64,
    /// A packet holds so many bytes, and is sent if there is room for a full one.
    packet: u64,
    lose_every: u64,
    delivered: u64,
    queue_max: Duration,
}

impl Link {
    fn new(now: Instant, rate_bytes_per_s: f64, delay_ms: u64, lose_every: u64) -> Self {
        Self {
            now,
            free_at: now,
            rate_bytes_per_s,
            delay: Duration::from_millis(delay_ms),
            under_way: VecDeque::new(),
            next_pn: 0,
            packet: PACKET,
            lose_every,
            delivered: 0,
            queue_max: Duration::ZERO,
        }
    }

    /// The sender always has data, and the pacer has the resolution of a step.
    fn run(&mut self, controller: &mut PathController, length: Duration) {
        let end = self.now + length;
        let step = Duration::from_micros(500);
        let mut credit = 0.0_f64;
        while self.now < end {
            self.now += step;
            while self
                .under_way
                .front()
                .is_some_and(|packet| packet.1 <= self.now)
            {
                let Some((sent, _, pn)) = self.under_way.pop_front() else {
                    break;
                };
                if self.lose_every > 0 && pn.is_multiple_of(self.lose_every) {
                    controller.on_packet_lost(self.packet as u16, pn, self.now);
                } else {
                    self.delivered += self.packet;
                    controller.acked(self.now, sent, self.packet, pn);
                }
                let in_flight = self.under_way.len() as u64 * self.packet;
                controller.on_end_acks(self.now, in_flight, false, Some(pn));
            }
            let paced = controller.metrics().pacing_rate.unwrap_or(1_000_000) as f64;
            credit = (credit + paced * step.as_secs_f64()).min(10.0 * PACKET as f64);
            while credit >= PACKET as f64
                && self.under_way.len() as u64 * self.packet + PACKET <= controller.window()
            {
                credit -= self.packet as f64;
                controller.on_packet_sent(self.now, self.packet as u16, self.next_pn);
                let serving = Duration::from_secs_f64(self.packet as f64 / self.rate_bytes_per_s);
                self.queue_max = self
                    .queue_max
                    .max(self.free_at.saturating_duration_since(self.now));
                self.free_at = self.free_at.max(self.now) + serving;
                let acked_at = self.free_at + self.delay * 2;
                self.under_way.push_back((self.now, acked_at, self.next_pn));
                self.next_pn += 1;
            }
        }
    }
}

fn controller(now: Instant) -> PathController {
    PathController::new(
        PathScheduler::new(),
        ControllerConfig::default(),
        now,
        PACKET as u16,
    )
}

/// Share of the link's rate that is delivered over `seconds` after `settling_s`, and the longest
/// queue.
fn filled(
    rate_bytes_per_s: f64,
    delay_ms: u64,
    lose_every: u64,
    (settling_s, seconds): (u64, u64),
) -> (f64, Duration) {
    let start = Instant::now();
    let mut controller = controller(start);
    let mut link = Link::new(start, rate_bytes_per_s, delay_ms, lose_every);
    link.run(&mut controller, Duration::from_secs(settling_s));
    let before = link.delivered;
    link.queue_max = Duration::ZERO;
    link.run(&mut controller, Duration::from_secs(seconds));
    let delivered = (link.delivered - before) as f64;
    (
        delivered / (rate_bytes_per_s * seconds as f64),
        link.queue_max,
    )
}

#[test]
fn a_path_is_filled_with_a_short_queue_whatever_is_lost() {
    for (lose_every, possible) in [(0, 1.0), (20, 0.95)] {
        let (share, queue_max) = filled(1_000_000.0, 25, lose_every, (3, 20));
        assert!(share > 0.98 * possible, "delivered {share} of the rate");
        assert!(
            queue_max <= Duration::from_millis(50),
            "queue {queue_max:?}"
        );
    }
}

#[test]
fn a_tenfold_rise_is_found() {
    let start = Instant::now();
    let mut controller = controller(start);
    let mut link = Link::new(start, 200_000.0, 20, 0);
    link.run(&mut controller, Duration::from_secs(5));
    link.rate_bytes_per_s = 2_000_000.0;
    link.run(&mut controller, Duration::from_secs(2));
    let before = link.delivered;
    link.run(&mut controller, Duration::from_secs(2));
    assert!((link.delivered - before) as f64 > 0.9 * 4e6);
}

/// As when a queue of the other direction has ended the start-up of a sender of acknowledgements.
#[test]
fn a_rate_that_was_measured_far_too_low_is_corrected() {
    let start = Instant::now();
    let mut controller = controller(start);
    let mut link = Link::new(start, 90_000.0, 20, 0);
    link.packet = 800;
    link.run(&mut controller, Duration::from_secs(3));
    // The round trip of the fast link seems a little longer, by late acknowledgements.
    link.delay = Duration::from_millis(22);
    link.rate_bytes_per_s = 6_000_000.0;
    link.run(&mut controller, Duration::from_secs(3));
    let before = link.delivered;
    link.run(&mut controller, Duration::from_secs(1));
    let delivered = link.delivered - before;
    assert!(delivered > 5_000_000, "{delivered}");
}

#[test]
fn a_permit_passes_a_full_window_once() {
    let start = Instant::now();
    let scheduler = PathScheduler::new();
    let config = ControllerConfig::default();
    let mut controller = PathController::new(scheduler.clone(), config, start, PACKET as u16);
    let window = controller.window();
    scheduler.permit(controller.slot());
    assert!(controller.window() > window);
    controller.on_packet_sent(start, PACKET as u16, 0);
    assert_eq!(controller.window(), window);
}

/// A link without loss and with an unbounded queue holds the sender's own queue after a tenfold
/// drop.
#[test]
fn a_tenfold_drop_drains_its_queue_although_nothing_is_lost() {
    let start = Instant::now();
    let mut controller = controller(start);
    let mut link = Link::new(start, 2_500_000.0, 20, 0);
    link.run(&mut controller, Duration::from_secs(5));
    link.rate_bytes_per_s = 250_000.0;
    // Three times the time that the packets in flight need to leave.
    let in_flight = link.under_way.len() as f64 * PACKET as f64;
    link.run(
        &mut controller,
        Duration::from_secs_f64(3.0 * in_flight / 250_000.0),
    );
    link.queue_max = Duration::ZERO;
    let before = link.delivered;
    link.run(&mut controller, Duration::from_secs(10));
    assert!(
        link.queue_max <= Duration::from_millis(50),
        "queue {:?}",
        link.queue_max
    );
    assert!((link.delivered - before) as f64 > 0.95 * 2.5e6);
}

/// A longer route looks like cross-traffic until a deep probe shows an unchanged round trip.
#[test]
fn a_longer_path_is_not_cross_traffic() {
    let start = Instant::now();
    let mut controller = controller(start);
    let mut link = Link::new(start, 1_000_000.0, 20, 0);
    link.run(&mut controller, Duration::from_secs(5));
    link.delay = Duration::from_millis(40);
    // Detected as cross-traffic, seen again five seconds later, and confirmed.
    link.run(&mut controller, Duration::from_secs(20));
    link.queue_max = Duration::ZERO;
    let before = link.delivered;
    link.run(&mut controller, Duration::from_secs(10));
    assert!(
        link.queue_max <= Duration::from_millis(60),
        "queue {:?}",
        link.queue_max
    );
    assert!((link.delivered - before) as f64 > 0.97 * 10e6);
}

/// Window of a new path after its first acknowledgement, beside a path that delivers this rate.
fn window_beside(others_bytes_per_s: f64) -> u64 {
    let start = Instant::now();
    let scheduler = PathScheduler::new();
    let other = PathModel {
        rate_bytes_per_s: others_bytes_per_s,
        promised_bytes_per_s: others_bytes_per_s,
        rtt_min: Duration::from_millis(20),
        busy: true,
        ..model_of(&scheduler)
    };
    let config = ControllerConfig::default();
    let mut new = PathController::new(scheduler.clone(), config, start, PACKET as u16);
    let acked = start + Duration::from_millis(100);
    scheduler.report(acked, other, false, Coupling::Off);
    new.on_packet_sent(start, PACKET as u16, 0);
    new.acked(acked, start, PACKET, 0);
    new.on_end_acks(acked, 0, false, Some(0));
    new.on_packet_sent(acked, PACKET as u16, 1);
    new.window()
}

/// The model of a slot that was just taken.
fn model_of(scheduler: &PathScheduler) -> PathModel {
    let slot = scheduler.enter();
    let models = scheduler.models();
    *models.iter().find(|model| model.slot == slot).unwrap()
}

/// A new path expects its initial window a round trip, here 0.77 MB/s. Far faster paths limit it to
/// few packets.
#[test]
fn a_new_path_is_tried_with_little_among_far_faster_ones() {
    assert!(window_beside(10e6) <= 8 * PACKET);
    assert!(window_beside(1e6) >= 64 * PACKET);
}

/// All later data waits for a loss, so a path that is 20 times slower sends nothing until the
/// retransmission.
#[test]
fn a_far_slower_path_does_not_send_anew_what_was_lost() {
    let now = Instant::now();
    let scheduler = PathScheduler::new();
    let config = ControllerConfig::default();
    let mut fast = PathController::new(scheduler.clone(), config, now, PACKET as u16);
    let of_fast = PathModel {
        rate_bytes_per_s: 2e6,
        promised_bytes_per_s: 2e6,
        rtt_min: Duration::from_millis(20),
        busy: true,
        ..scheduler.models()[0]
    };
    let of_slow = PathModel {
        rate_bytes_per_s: 1e5,
        promised_bytes_per_s: 1e5,
        rtt_min: Duration::from_millis(100),
        in_flight_bytes: 3 * PACKET,
        ..model_of(&scheduler)
    };
    for model in [of_fast, of_slow] {
        scheduler.report(now, model, false, Coupling::Off);
    }
    fast.on_packet_sent(now, PACKET as u16, 0);
    assert_eq!(scheduler.admission(of_slow.slot, true), Admission::ByWindow);
    fast.on_packet_lost(PACKET as u16, 0, now);
    assert_eq!(scheduler.admission(of_slow.slot, true), Admission::Deferred);
    assert_eq!(scheduler.admission(of_fast.slot, true), Admission::ByWindow);
    fast.on_packet_sent(now, PACKET as u16, 1);
    assert_eq!(scheduler.admission(of_slow.slot, true), Admission::ByWindow);
}

/// The last round trip of the first path includes 25 ms of delayed acknowledgement, so its packets
/// seem to stall the other path. An application-limited connection uses only the first path, so the
/// scheduler must not defer it.
#[test]
fn the_only_path_of_an_application_limited_connection_is_not_deferred() {
    let now = Instant::now();
    let scheduler = PathScheduler::new();
    let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
    let [first, second] = [InterfaceId(0), InterfaceId(1)];
    for interface in [first, second] {
        steering.on_event(now, Event::LinkUp { interface });
    }
    let interface = Some(first);
    let of_first = model_of(&scheduler);
    steering.on_event(now, Event::Connected { interface });
    let (path, interface) = (PathId::from(1u8), second);
    let of_second = model_of(&scheduler);
    steering.on_event(now, Event::Opened { interface, path });
    steering.on_event(now, Event::Established { path });
    for (path, rtt_us) in [(PathId::ZERO, 300), (path, 1_200)] {
        let (datagrams, rtt) = (1, Duration::from_micros(rtt_us));
        let received = Event::Received {
            path,
            datagrams,
            rtt,
        };
        steering.on_event(now, received);
    }
    let [late, fast] =
        [(of_first, 26, 50), (of_second, 25, 25_000)].map(|(model, ms, us)| PathModel {
            rate_bytes_per_s: 290e6,
            promised_bytes_per_s: 290e6,
            rtt_min: Duration::from_micros(us),
            rtt_latest: Duration::from_millis(ms),
            ..model
        });
    for model in [late, fast] {
        scheduler.report(now, model, false, Coupling::Off);
    }
    let mut settle = |bytes: u64| {
        steering.on_event(now, Event::Backlog { bytes });
        let commands = std::iter::from_fn(|| steering.poll(now));
        let statuses = commands.filter_map(|command| match command {
            Command::SetStatus { path, status } => Some((path, status)),
            _ => None,
        });
        statuses.collect::<Vec<_>>()
    };
    assert_eq!(settle(0), [(path, PathStatus::Backup)]);
    assert_eq!(scheduler.admission(late.slot, true), Admission::ByWindow);
    assert_eq!(settle(1_000_000), [(path, PathStatus::Available)]);
    assert_eq!(scheduler.admission(late.slot, true), Admission::Deferred);
}

#[test]
fn a_slow_link_has_a_queue_of_few_packets() {
    for (lose_every, possible) in [(0, 1.0), (30, 29.0 / 30.0)] {
        let (share, queue_max) = filled(15_000.0, 90, lose_every, (30, 30));
        assert!(share > 0.97 * possible, "delivered {share} of the rate");
        assert!(
            queue_max <= Duration::from_millis(160),
            "queue {queue_max:?}"
        );
    }
}

#[test]
fn packets_beyond_a_full_window_leave_a_low_rate_queue_time_to_drain() {
    let scheduler = PathScheduler::new();
    let slot = scheduler.enter();
    let start = Instant::now();
    let turn_after = |rate_bytes_per_s, quiet_ms| {
        let model = PathModel {
            rate_bytes_per_s,
            rtt_smoothed: Duration::from_secs(2),
            ..scheduler.models()[0]
        };
        scheduler.report(start, model, false, Coupling::Off);
        scheduler.tick(start);
        scheduler.sent(slot, PACKET, 30 * PACKET);
        scheduler.tick(start + Duration::from_millis(quiet_ms));
        scheduler.admission(slot, false)
    };
    assert_eq!(turn_after(150_000.0, 99), Admission::ByWindow);
    assert_eq!(turn_after(150_000.0, 100), Admission::Unconditional);
    // One packet takes 100 ms.
    assert_eq!(turn_after(15_000.0, 199), Admission::ByWindow);
    assert_eq!(turn_after(15_000.0, 200), Admission::Unconditional);
}

/// Packets sent during a probe stand in the sender's own queue when the rate drops meanwhile. Taken
/// for cross-traffic, the queue would grow to 20 s.
#[test]
fn a_rate_drop_during_an_rtt_probe_is_not_cross_traffic() {
    for after_ms in (9_600..10_200).step_by(50) {
        let start = Instant::now();
        let mut controller = controller(start);
        let mut link = Link::new(start, 625_000.0, 20, 0);
        link.run(&mut controller, Duration::from_millis(after_ms));
        link.rate_bytes_per_s = 87_500.0;
        link.run(&mut controller, Duration::from_secs(2));
        link.queue_max = Duration::ZERO;
        link.run(&mut controller, Duration::from_secs(15));
        assert!(
            link.queue_max <= Duration::from_millis(50),
            "{after_ms}: queue {:?}",
            link.queue_max
        );
    }
}
