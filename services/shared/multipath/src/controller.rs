//! Congestion control by a model of the path: its delivery rate and its minimum round trip.
//!
//! The sender keeps `CRUISE_WINDOW` bandwidth-delay products in flight and paces slightly above the
//! measured rate. The bottleneck therefore always has a short queue. Its output equals the rate of
//! the link, whatever is lost behind the bottleneck. A rise of the rate shows in the
//! acknowledgements within one round trip. The window bounds the queue.
//!
//! - Rate: for each acknowledgement, the bytes delivered between sending and acknowledgement, over
//!   the longer of the sending and the acknowledging interval. The model takes the largest sample
//!   of the last rounds. Application-limited samples can only raise the rate.
//! - Loss ([`Losses`]): a smoothed share. Pacing is faster by this share, because packets lost
//!   behind the bottleneck have passed the bottleneck.
//! - Round trip: the smallest sample. An RTT probe confirms the minimum at least every
//!   `RTT_PROBE_INTERVAL`. The window stays just under one BDP for a round, which empties the queue
//!   without idling the link. When the route of acknowledgements changes, the minimum is shifted
//!   like the whole distribution, and confirmed.
//! - Bursts ([`Burstiness`]): on a link that serves in bursts the window grows by the burstiness
//!   and by half of the losses of the last round. Rate samples are kept longer, and the rate
//!   follows acknowledgements ([`AckedRate`]). Cross-traffic is not assumed there, because a queue
//!   that runs empty has no other sender.
//! - Cross-traffic ([`BaseRtt`]): an RTT probe that still sees a queue has detected another sender.
//!   The window then follows [`CubicWindow`]. A falling rate ([`RateDrop`]) requests a probe.
//! - Windows of a few packets ([`SmallWindow`]) are enlarged from time to time, since they measure
//!   no more than they hold.
//! - Jitter ([`Stretched`]): where round trips jump, a larger window is tried. If the rate grows
//!   with it, the round trip under load is the base.
//! - Start-up ([`Startup`]): doubles every round from the initial window, until the rate stops
//!   growing or a queue shows. It sends no less than two initial windows a round trip. A queue
//!   that pings saw is of other senders, and does not end it.

mod acked_rate;
mod base_rtt;
mod losses;
mod probing;
mod rate_drop;
mod rtt_probe;
mod small_window;
mod startup;
mod stretched;
mod trials;
mod window;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use crate::burstiness::Burstiness;
use crate::coupling::Coupling;
use crate::cubic::CubicWindow;
use crate::filter::{MaxFilter, MinRtt};
use crate::path_scheduler::{Admission, Membership, PathModel, PathScheduler};
use crate::sampler::Sampler;
use acked_rate::AckedRate;
use base_rtt::{BaseRtt, ProbeVerdict, UNQUEUED_SLACK};
use losses::{LOSS_COMPENSATED_MAX, Losses, RoundLosses};
use rate_drop::RateDrop;
use rtt_probe::RttProbe;
use small_window::SmallWindow;
use startup::Startup;
use stretched::{LimitedRound, Stretched};

/// Round trips after an RTT probe until the queue is as before.
const REFILL_ROUND_TRIPS: u32 = 3;
/// Minimum pause between two probes that a queue requested.
const RTT_PROBE_PAUSE: Duration = Duration::from_secs(2);
/// Cross-traffic has ended when the queue was empty for this long. A BBR flow drains the queue for
/// less.
const UNQUEUED_LONG: Duration = Duration::from_secs(1);
/// Units of the rate filter: samples expire after `RATE_WINDOW_PARTS`, and a round counts as
/// `ROUND_PARTS`. A sample thus stays for four rounds.
const RATE_WINDOW_PARTS: u64 = 36;
const ROUND_PARTS: u64 = 9;
/// Units that a round counts for on a bursty link while its queue is empty or loses packets.
/// Samples stay longer there, and the queue bounds the excess. A standing queue without losses has
/// no such bound, so samples expire as fast as on a steady link.
const BOUNDED_ROUND_PARTS: u64 = 4;
/// The queue overflows while this share of a round is lost; the share decays by the factor below
/// every round.
const QUEUE_LOSES: f64 = 0.05;
const QUEUE_LOSES_FADING: f64 = 0.7;
/// The window never falls below this number of packets: the peer acknowledges every second packet.
const WINDOW_PACKETS_MIN: u64 = 4;
/// A bottleneck that needs longer than this for a packet (below 0.5 Mbit/s) is a low-rate link. Its
/// window is at most the BDPs, and a probe keeps few packets in flight, because every queued packet
/// delays urgent data.
const LOW_RATE_PACKET_TIME: Duration = Duration::from_millis(25);
const LOW_RATE_PROBE_PACKETS_MIN: u64 = 2;
/// A BDP below this number of packets gets no spare packets and no pressing gain while the loss is
/// below the maximum. One packet is a fifth of a round trip of queue. With more loss such a window
/// is too small to measure its own rate, and would shrink.
const SMALL_BDP_PACKETS: f64 = 8.0;
/// Share of lost packets below which a small BDP counts as such.
const SMALL_BDP_LOSS_MAX: f64 = 0.002;
/// Packets sent in the first round trip, paced over it once it is known. The trials are in
/// `docs/lab/path-model.md`.
const INITIAL_WINDOW_PACKETS: u64 = 64;

/// Settings of the controllers of one connection.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerConfig {
    pub initial_window_packets: u64,
    /// Pace at no less than two initial windows a round trip until the rate is known.
    pub startup_floor: bool,
    /// Whether the [`PathScheduler`] defers far slower paths.
    pub scheduled: bool,
    pub coupling: Coupling,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            initial_window_packets: INITIAL_WINDOW_PACKETS,
            startup_floor: true,
            scheduled: true,
            coupling: Coupling::Detected,
        }
    }
}

/// Builds one [`PathController`] per path of one connection.
#[derive(Debug)]
pub struct Controllers {
    scheduler: Arc<PathScheduler>,
    config: ControllerConfig,
}

impl Controllers {
    pub fn new(scheduler: Arc<PathScheduler>, config: ControllerConfig) -> Arc<Self> {
        Arc::new(Self { scheduler, config })
    }
}

impl ControllerFactory for Controllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(PathController::new(
            self.scheduler.clone(),
            self.config.clone(),
            now,
            current_mtu,
        ))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Startup,
    Cruise,
    RttProbe(RttProbe),
}

/// Window and pacing rate of the model. The library reads both several times for each packet. They
/// change only with acknowledgements, losses and the packet size.
#[derive(Debug, Clone, Copy)]
struct Published {
    window: u64,
    pacing_rate: Option<u64>,
}

/// The congestion controller of one path.
#[derive(Debug, Clone)]
pub struct PathController {
    member: Membership,
    config: ControllerConfig,
    mtu: u64,
    phase: Phase,
    sampler: Sampler,
    in_flight: u64,
    /// When the youngest acknowledged packet was sent.
    acked_sent_at: Option<Instant>,
    losses: Losses,
    /// Losses of the last two rounds.
    round_losses: RoundLosses,
    round: u64,
    round_ends_at: u64,
    round_rtt_min: Option<Duration>,
    rtt_latest: Duration,
    base_rtt: BaseRtt,
    cubic: Option<CubicWindow>,
    /// Another path of the same bottleneck detected the cross-traffic.
    reported_by_another: bool,
    /// When the start-up ended.
    cruising_since: Option<Instant>,
    probed_at: Instant,
    small_window: SmallWindow,
    stretched: Stretched,
    /// The last round saw no queue: the path can carry more than is sent.
    unqueued: bool,
    burstiness: Burstiness,
    is_steady: bool,
    /// End of the last round that saw a queue.
    queued_at: Instant,
    rate: MaxFilter,
    acked_rate: AckedRate,
    rate_drop: RateDrop,
    /// Number and begin of the current round of the rate filter, and the round of the controller in
    /// which it began.
    rate_round: u64,
    rate_round_at: Instant,
    rate_round_of: u64,
    /// Bytes in flight at the begin of the last RTT probe.
    in_flight_before_probe: u64,
    rtt_min: MinRtt,
    rtt_smoothed: Duration,
    rebase_epoch: u64,
    /// Number of probes of the bottleneck group that this path has joined.
    group_probes_joined: u64,
    /// An RTT probe is due at the end of the start-up.
    probe_wanted: bool,
    startup: Startup,
    published: Published,
}

impl PathController {
    pub(crate) fn new(
        scheduler: Arc<PathScheduler>,
        config: ControllerConfig,
        now: Instant,
        mtu: u16,
    ) -> Self {
        let rebase_epoch = scheduler.rebase_epoch();
        let mtu = u64::from(mtu);
        Self {
            member: Membership::new(scheduler),
            mtu,
            phase: Phase::Startup,
            sampler: Sampler::new(now),
            in_flight: 0,
            acked_sent_at: None,
            losses: Losses::default(),
            round_losses: RoundLosses::default(),
            round: 0,
            round_ends_at: 0,
            round_rtt_min: None,
            rtt_latest: Duration::ZERO,
            base_rtt: BaseRtt::new(),
            cubic: None,
            reported_by_another: false,
            cruising_since: None,
            probed_at: now,
            small_window: SmallWindow::new(),
            stretched: Stretched::new(),
            unqueued: false,
            burstiness: Burstiness::new(),
            is_steady: true,
            queued_at: now,
            rate: MaxFilter::new(RATE_WINDOW_PARTS),
            acked_rate: AckedRate::default(),
            rate_drop: RateDrop::default(),
            rate_round: 0,
            rate_round_at: now,
            rate_round_of: 0,
            in_flight_before_probe: 0,
            rtt_min: MinRtt::new(now),
            rtt_smoothed: Duration::ZERO,
            rebase_epoch,
            group_probes_joined: 0,
            probe_wanted: false,
            startup: Startup::new(config.initial_window_packets * mtu),
            published: Published {
                window: config.initial_window_packets * mtu,
                pacing_rate: None,
            },
            config,
        }
    }

    /// The number of this controller in the [`PathScheduler`] of its connection.
    pub fn slot(&self) -> usize {
        self.member.slot
    }

    /// Must be called after every change of the model.
    fn publish(&mut self) {
        self.published = Published {
            window: self.model_window(),
            pacing_rate: self.pacing_rate(),
        };
    }

    fn on_round(&mut self, now: Instant, app_limited: bool) {
        self.round += 1;
        self.round_losses.on_round(QUEUE_LOSES_FADING);
        let delivered = self.sampler.delivered();
        self.look_for_stretch(now, app_limited, delivered - self.round_ends_at);
        self.round_ends_at = delivered;
        if self.phase == Phase::Startup
            && !app_limited
            && self.startup.is_over_after_round(self.rate.get())
        {
            self.end_startup(now);
        }
        // On a low-rate link the packets of a trial would delay urgent data.
        let is_small = self.bdp().is_some_and(|bdp| self.is_small_bdp(bdp)) && !self.is_low_rate();
        if is_small && !app_limited && self.phase == Phase::Cruise && self.cubic.is_none() {
            self.small_window.on_limited_round(self.rate.get());
        } else {
            self.small_window.on_other_round();
        }
        if let (Some(seen), Some(min)) = (self.round_rtt_min.take(), self.rtt_min.get()) {
            self.unqueued = !app_limited && seen <= min + min / 16 + UNQUEUED_SLACK;
            // An RTT probe itself makes the round trips vary.
            let is_refilled = now > self.probed_at + self.rtt_smoothed * REFILL_ROUND_TRIPS;
            let is_empty = self.unqueued && self.phase == Phase::Cruise && is_refilled;
            if self.burstiness.on_round(now, seen, min, is_empty) {
                self.losses.excuse();
            }
            self.is_steady = self.burstiness.is_steady(now);
            // A queue that runs empty has no other sender.
            if !self.is_steady {
                self.cubic = None;
            }
            if !self.unqueued {
                self.queued_at = now;
            } else if !self.base_rtt.wants_deep_probe() && now >= self.queued_at + UNQUEUED_LONG {
                self.cubic = None;
            }
            let cruising_for = self.cruising_for(now);
            self.rate_drop
                .on_round(self.rate.get(), self.rtt_smoothed, cruising_for);
            let rate_dropped = self.rate_drop.is_significant() && self.is_steady && !self.unqueued;
            // A queue longer than the sender itself can cause.
            let queue_seen = self
                .base_rtt
                .own_queue_rtt_max(self.slack())
                .is_some_and(|max| seen > max);
            let deep_wanted = self.base_rtt.wants_deep_probe();
            if (deep_wanted || (queue_seen || rate_dropped) && self.cubic.is_none())
                && self.phase == Phase::Cruise
                && now > self.probed_at + RTT_PROBE_PAUSE
            {
                if deep_wanted {
                    self.base_rtt.deepen();
                }
                self.start_shared_probe();
            }
        }
    }

    /// The filter round of a rate sample. A round longer than a short queue explains counts as
    /// several rounds. After a drop of the link's rate the old rate therefore expires sooner than
    /// its queue drains.
    fn rate_round(&mut self, now: Instant) -> u64 {
        let longest = self.base_rtt.own_queue_rtt_max(self.slack());
        let lasted = now.saturating_duration_since(self.rate_round_at);
        let is_long = longest.is_some_and(|longest| lasted > longest);
        if self.round != self.rate_round_of || is_long {
            let is_bounded = self.queue_loses() || self.unqueued && !is_long;
            self.rate_round += if is_bounded && !self.is_steady {
                BOUNDED_ROUND_PARTS
            } else {
                ROUND_PARTS
            };
            self.rate_round_at = now;
            self.rate_round_of = self.round;
        }
        self.rate_round
    }

    fn queue_loses(&self) -> bool {
        self.round_losses.share() > QUEUE_LOSES
    }

    /// On a link that stays bursty with a bounded queue, the rate follows the acknowledged bytes.
    fn follow_burst(&mut self, now: Instant) {
        let Some(bare) = self.rtt_min.get().filter(|_| !self.is_steady) else {
            return;
        };
        let delivered = self.sampler.delivered();
        let acked = self.acked_rate.on_ack(now, delivered, bare);
        if !self.burstiness.keeps_on() || self.phase == Phase::Startup {
            return;
        }
        // Rounds also pass with acknowledgements that carry no rate sample.
        let round = self.rate_round(now);
        let is_bounded = self.unqueued || self.queue_loses();
        if let Some(rate) = acked.filter(|rate| is_bounded && *rate > self.rate.get()) {
            self.rate.update(round, rate);
        }
    }

    /// Delay above the base RTT that packets of this sender and jitter explain.
    fn slack(&self) -> Duration {
        UNQUEUED_SLACK * 2 + self.packets_time(3.0)
    }

    /// Time that the bottleneck needs for this number of packets.
    fn packets_time(&self, packets: f64) -> Duration {
        let packet_time = self.mtu as f64 / self.rate.get().max(self.mtu as f64);
        Duration::from_secs_f64(packets * packet_time)
    }

    fn is_low_rate(&self) -> bool {
        self.packets_time(1.0) > LOW_RATE_PACKET_TIME
    }

    fn is_small_bdp(&self, bdp: f64) -> bool {
        self.is_steady
            && bdp < SMALL_BDP_PACKETS * self.mtu as f64
            && self.losses.share() < SMALL_BDP_LOSS_MAX
    }

    fn on_rtt_sample(&mut self, now: Instant, rtt: Duration, own_bytes: u64) {
        self.rtt_smoothed = if self.rtt_smoothed.is_zero() {
            rtt
        } else {
            (self.rtt_smoothed * 7 + rtt) / 8
        };
        let epoch = self.member.scheduler.rebase_epoch();
        if epoch != self.rebase_epoch {
            self.rebase_epoch = epoch;
            self.base_rtt.on_route_change();
            self.stretched.forget();
            self.start_rtt_probe();
        }
        let (group_probes, deep) = self.member.scheduler.group_probes(self.member.slot);
        if group_probes != self.group_probes_joined {
            self.group_probes_joined = group_probes;
            if deep {
                self.base_rtt.deepen();
            }
            self.start_rtt_probe();
        }
        self.follow_others(now);
        self.judge_loss(now);
        self.round_rtt_min = Some(self.round_rtt_min.map_or(rtt, |min| min.min(rtt)));
        self.burstiness.on_sample(rtt);
        self.rtt_latest = rtt;
        self.stretched.on_round_trip(rtt);
        if !self.stretched.is_known() {
            self.base_rtt.on_round_trip(rtt);
            self.rtt_min.update(now, rtt);
        }
        if self.phase == Phase::Startup
            && let Some(min) = self.rtt_min.get()
        {
            let rate = self.rate.get();
            let startup = &mut self.startup;
            if startup.is_over_after_round_trip(rtt, own_bytes, min, rate, self.mtu) {
                self.end_startup(now);
            }
        }
    }

    pub(crate) fn acked(&mut self, now: Instant, sent: Instant, bytes: u64, pn: u64) {
        self.sampler.on_ack(now, sent, bytes, pn);
        self.acked_sent_at = self.acked_sent_at.max(Some(sent));
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.losses.acked(pn, bytes, self.mtu);
        self.round_losses.acked(bytes);
        if self.phase == Phase::Startup {
            self.startup.acked(bytes);
        }
        let rtt_s = self.rtt_smoothed.as_secs_f64();
        if let Some(cubic) = self.cubic.as_mut().filter(|_| self.phase == Phase::Cruise) {
            let Membership { scheduler, slot } = &self.member;
            scheduler.cubic_acked(now, *slot, rtt_s, cubic);
        }
    }

    /// In start-up at least one window a round trip: a new path sends few packets because its rate
    /// is unknown.
    fn promised_rate(&self) -> f64 {
        let rate = self.rate.get();
        if self.phase != Phase::Startup || self.rtt_smoothed.is_zero() {
            return rate;
        }
        rate.max(self.startup.window() as f64 / self.rtt_smoothed.as_secs_f64())
    }

    fn report(&self, now: Instant, app_limited: bool) {
        self.member.scheduler.report(
            now,
            PathModel {
                slot: self.member.slot,
                rate_bytes_per_s: self.rate.get(),
                promised_bytes_per_s: self.promised_rate(),
                rtt_min: self.rtt_min.get().unwrap_or_default(),
                rtt_smoothed: self.rtt_smoothed,
                rtt_latest: self.rtt_latest,
                in_flight_bytes: self.in_flight,
                window_bytes: self.published.window,
                // Acknowledgements that the pacer delays look like a backlog as well, but leave
                // little in flight.
                busy: !app_limited && self.in_flight * 3 >= self.published.window,
                lost_share: self.losses.share(),
                acked_sent_at: self.acked_sent_at,
                competing: self.cubic.is_some(),
                coupled: false,
            },
            self.cubic.is_some() && !self.reported_by_another,
            self.config.coupling,
        );
    }
}

impl Controller for PathController {
    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        let horizon = self.rtt_smoothed * 4 + Duration::from_secs(1);
        self.sampler.on_sent(now, pn, self.in_flight == 0, horizon);
        self.losses.sent(pn);
        let bytes = u64::from(bytes);
        self.in_flight += bytes;
        let Membership { scheduler, slot } = &self.member;
        scheduler.tick(now);
        scheduler.sent(*slot, bytes, self.in_flight);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.acked(now, sent, bytes, pn);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest: Option<u64>,
    ) {
        self.in_flight = in_flight;
        let mut newest = false;
        if let Some(sample) = self.sampler.on_end_acks(now, in_flight, app_limited) {
            newest = true;
            self.on_rtt_sample(now, sample.rtt, sample.delivered_since);
            let interval_min = self.rtt_min.get().unwrap_or_default() / 2;
            let rate = sample.rate_bytes_per_s;
            if !sample.interval.is_zero()
                && sample.interval >= interval_min
                && (!sample.app_limited || rate > self.rate.get())
            {
                let round = self.rate_round(now);
                self.rate.update(round, rate);
            }
            self.follow_burst(now);
            if sample.delivered_before >= self.round_ends_at {
                self.on_round(now, sample.app_limited);
            }
        }
        match self.phase {
            Phase::RttProbe(round) if newest && round.is_queue_empty() => {
                self.on_probe_sample(now, round);
            }
            Phase::RttProbe(round)
                if !round.is_queue_empty() && self.in_flight <= self.model_window() =>
            {
                self.round_rtt_min = None;
                self.phase = Phase::RttProbe(RttProbe::with_empty_queue(now));
            }
            Phase::Cruise
                if now > self.rtt_min.confirmed().max(self.probed_at) + self.probe_interval() =>
            {
                self.start_shared_probe();
            }
            _ => {}
        }
        self.publish();
        self.report(now, app_limited);
    }

    fn on_cwnd_limited(&mut self) {
        self.sampler.on_limited();
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, _now: Instant) {
        let bytes = u64::from(lost_bytes);
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.member.scheduler.lost(bytes);
        self.losses.lost(pn, bytes, self.mtu);
        self.round_losses.lost_more(bytes);
        self.publish();
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        _is_persistent_congestion: bool,
        _is_ecn: bool,
        _lost_bytes: u64,
        _largest_lost_pn: u64,
    ) {
        if let Some(cubic) = &mut self.cubic {
            let Membership { scheduler, slot } = &self.member;
            scheduler.cubic_lost(now, *slot, sent, cubic);
        }
        self.publish();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.publish();
    }

    fn window(&self) -> u64 {
        match self
            .member
            .scheduler
            .admission(self.member.slot, self.config.scheduled)
        {
            Admission::Unconditional => u64::MAX / 2,
            Admission::Deferred => 0,
            Admission::ByWindow => self.published.window.min(self.new_path_window()),
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        // The pacer divides by the window, so the deferred window of zero must not show here.
        metrics.congestion_window = self.published.window.max(1);
        metrics.pacing_rate = self.published.pacing_rate;
        let rate = self.rate.get();
        metrics.bandwidth_estimate = (rate > 0.0).then_some((rate * 8.0) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.config.initial_window_packets * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
