//! Congestion control by a model of the path: its delivery rate and its round trip without queue.
//!
//! The sender keeps `CRUISE_WINDOW` bandwidth-delay products in flight and paces slightly faster than the measured rate,
//! so that the bottleneck always has a short queue: its output is then the link's rate exactly, whatever is lost behind it,
//! and a rise of the rate shows in the acknowledgements within one round trip. What bounds the queue is the window.
//!
//! - Rate: per acknowledgement, bytes delivered between the sending of a packet and its acknowledgement, over the longer of the
//!   sending and the acknowledging interval; the largest of the last rounds. Samples limited by the application only raise it.
//! - Loss ([`Losses`]): a smoothed share, used to pace faster, since what is lost behind the bottleneck has passed it.
//! - Round trip: the smallest seen; confirmed at least every `RTT_PROBE_INTERVAL` by a round with the window at just under one
//!   product, which empties the queue without idling the link. When the route of acknowledgements changes, the minimum is
//!   shifted by what the whole distribution moved, and confirmed.
//! - Bursts: where the link serves in bursts ([`Swing`]) the window holds as much more as round trips swing and a half of what its short queue
//!   loses, rates are remembered for longer and rise with what is acknowledged ([`AckedRate`]), and nobody is company: an empty queue is filled by nobody.
//! - Company ([`Floor`]): a drained round that still sees a queue has met another sender; the window then follows [`Compete`]. A rate that falls
//!   ([`Fall`]) asks for such a round.
//! - Start-up ([`Startup`]): doubles every round from the initial window, at no less than two initial windows a round trip, until the rate stops
//!   growing or a queue shows.

mod acked_rate;
mod drained_round;
mod fall;
mod floor;
mod losses;
mod startup;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

use crate::compete::Compete;
use crate::coupling::Coupling;
use crate::filter::{MaxFilter, MinRtt};
use crate::gate::{Gate, Membership, PathModel, Turn};
use crate::sampler::Sampler;
use crate::swing::Swing;
use acked_rate::AckedRate;
use drained_round::DrainedRound;
use fall::Fall;
use floor::{Floor, Met};
use losses::{LOSS_COMPENSATED_MAX, Losses, RoundLosses};
use startup::Startup;

/// Window in start-up and pacing there, in products; 2/ln 2 doubles the rate every round.
const STARTUP_GAIN: f64 = 2.89;
/// In flight while cruising, in bandwidth-delay products: a queue of 0.35 round trips.
const CRUISE_WINDOW: f64 = 1.35;
/// Pacing while cruising, over the measured rate.
const CRUISE_PACING: f64 = 1.15;
/// Window and pacing after a round without a queue: the rate is not known to be the bottleneck's.
const PRESSING_WINDOW: f64 = 1.6;
const PRESSING_PACING: f64 = 1.3;
/// Jitter that does not count as a queue.
const UNQUEUED_SLACK: Duration = Duration::from_millis(1);
/// What the hosts themselves add to a round trip: timers and wake-ups of a millisecond, and acknowledgements of whole trains of packets.
/// On loopback the round trip is a tenth of that, and a window of products alone let 60 of 200 MB/s through. At a round trip of 6 ms and
/// more the cruising gain covers it.
const HOST_DELAY: Duration = Duration::from_millis(2);
/// So many round trips after a drained round the queue is as before.
const UNDRAINED_ROUND_TRIPS: u32 = 3;
/// Window while the round trip is being confirmed.
const RTT_PROBE_WINDOW: f64 = 0.95;
/// The same where a round trip above the floor is either a longer path or somebody's queue: a queue gives way to less in flight, a path does not.
const RTT_PROBE_WINDOW_DEEP: f64 = 0.5;
const RTT_PROBE_WINDOW_IN_COMPANY: f64 = 0.75;
/// Without company the window opens again after such a part of a drained round; the smallest round trip sent in it counts.
const RTT_PROBE_PART: u32 = 4;
const RTT_PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// A crowded round calls for one, but no sooner than after the pause.
const RTT_PROBE_PAUSE: Duration = Duration::from_secs(2);
/// A stranger is gone when the queue has been empty for this long: a BBR flow measures its round trip in less.
const UNQUEUED_LONG: Duration = Duration::from_secs(1);
/// Parts of a round for which a rate sample stays in the filter, and how many of them a round counts for: a rate is remembered for four rounds.
const RATE_WINDOW_PARTS: u64 = 36;
const ROUND_PARTS: u64 = 9;
/// On a link that serves in bursts a round counts for less while its queue is empty or loses packets, which bounds what stands in it. A queue that
/// stands and loses nothing may be of any length, and a rate that is too high for it is forgotten as soon as elsewhere.
const BOUNDED_ROUND_PARTS: u64 = 4;
/// A queue loses packets while this share of a round, fading by so much each round, was lost.
const QUEUE_LOSES: f64 = 0.05;
const QUEUE_LOSES_FADING: f64 = 0.7;
/// What such a link's queue loses stays in flight until it is told: this part of what the last round lost is sent beyond the window, at most a product.
const UNTOLD_LOSSES_PART: f64 = 0.5;
/// Packets the window never falls below: the peer acknowledges every second packet.
const WINDOW_PACKETS_MIN: u64 = 4;
/// Where the bottleneck takes longer for one packet (below 0.5 Mbit/s), each one too many in its queue is felt by whatever is urgent: the window is no
/// more than its products there, and drained rounds keep few packets in flight.
const SLOW_PACKET: Duration = Duration::from_millis(25);
const SLOW_DRAINED_PACKETS_MIN: u64 = 2;
/// Packets that the window holds beside its products elsewhere: acknowledgements come for pairs.
const SPARE_PACKETS: u64 = 2;
/// Where a product is fewer packets than this and next to nothing is lost, it holds none, nor does it press: each packet more is a fifth of a round
/// trip of queue. With losses such a window is too small to see its own rate, and falls with what it measures.
const THIN_PRODUCT_PACKETS: f64 = 8.0;
const THIN_LOSS_MAX: f64 = 0.002;
/// What a start-up loses at its end is told in so many round trips, and says nothing of the link.
const STARTUP_LOSS_ROUND_TRIPS: u32 = 2;
/// Sent in the first round trip, paced over it once it is known. Against 32: 0.1-0.2 points over 20 MB and 1.5 % of a second's transfer.
const INITIAL_WINDOW_PACKETS: u64 = 64;
/// The same where the others are far faster; then the window in products of what was measured.
const UNTRIED_WINDOW_PACKETS: u64 = 8;
const UNTRIED_GAIN: f64 = 2.0;
/// The start-up floor, in initial windows a round trip.
const STARTUP_FLOOR_WINDOWS: f64 = 2.0;

/// Settings of the controllers of one connection.
#[derive(Debug, Clone, PartialEq)]
pub struct ControllerConfig {
    pub initial_window_packets: u64,
    /// Never pace below two initial windows a round trip before the rate is known.
    pub startup_floor: bool,
    /// Whether far slower paths wait for their turn ([`Gate`]).
    pub gated: bool,
    pub coupling: Coupling,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        Self {
            initial_window_packets: INITIAL_WINDOW_PACKETS,
            startup_floor: true,
            gated: true,
            coupling: Coupling::Detected,
        }
    }
}

/// Builds one [`PathController`] per path of one connection.
#[derive(Debug)]
pub struct Controllers {
    gate: Arc<Gate>,
    config: ControllerConfig,
}

impl Controllers {
    pub fn new(gate: Arc<Gate>, config: ControllerConfig) -> Arc<Self> {
        Arc::new(Self { gate, config })
    }
}

impl ControllerFactory for Controllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(PathController::new(
            self.gate.clone(),
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
    RttProbe(DrainedRound),
}

/// What the model says of window and pacing. The library asks for both with each packet, several times, and they change only with what
/// it tells: acknowledgements, losses and the packets' size.
#[derive(Debug, Clone, Copy)]
struct Told {
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
    /// Of the last two rounds.
    round_losses: RoundLosses,
    round: u64,
    round_ends_at: u64,
    round_rtt_min: Option<Duration>,
    rtt_latest: Duration,
    floor: Floor,
    compete: Option<Compete>,
    /// The stranger was met by another path of the same bottleneck.
    met_by_another: bool,
    /// When the start-up ended.
    cruising_since: Option<Instant>,
    probed_at: Instant,
    /// The last round saw no queue: the path can take more than it gets.
    unqueued: bool,
    swing: Swing,
    is_steady: bool,
    /// When a round last saw a queue.
    queued_at: Instant,
    rate: MaxFilter,
    acked_rate: AckedRate,
    fall: Fall,
    /// Number and beginning of the rate filter's round, and the round in which it began.
    rate_round: u64,
    rate_round_at: Instant,
    rate_round_of: u64,
    /// In flight when the last drained round began.
    undrained: u64,
    rtt_min: MinRtt,
    rtt_smoothed: Duration,
    rebase_epoch: u64,
    /// Drained rounds of others behind the same bottleneck that this path has joined.
    drains_joined: u64,
    /// A round-trip probe is due at the end of the start-up.
    probe_wanted: bool,
    startup: Startup,
    told: Told,
}

impl PathController {
    pub(crate) fn new(gate: Arc<Gate>, config: ControllerConfig, now: Instant, mtu: u16) -> Self {
        let rebase_epoch = gate.rebase_epoch();
        let mtu = u64::from(mtu);
        Self {
            member: Membership::new(gate),
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
            floor: Floor::new(),
            compete: None,
            met_by_another: false,
            cruising_since: None,
            probed_at: now,
            unqueued: false,
            swing: Swing::new(),
            is_steady: true,
            queued_at: now,
            rate: MaxFilter::new(RATE_WINDOW_PARTS),
            acked_rate: AckedRate::default(),
            fall: Fall::default(),
            rate_round: 0,
            rate_round_at: now,
            rate_round_of: 0,
            undrained: 0,
            rtt_min: MinRtt::new(now),
            rtt_smoothed: Duration::ZERO,
            rebase_epoch,
            drains_joined: 0,
            probe_wanted: false,
            startup: Startup::new(config.initial_window_packets * mtu),
            told: Told {
                window: config.initial_window_packets * mtu,
                pacing_rate: None,
            },
            config,
        }
    }

    /// The controller's number in its connection's [`Gate`].
    pub fn slot(&self) -> usize {
        self.member.slot
    }

    /// To be called at the end of whatever changes the model.
    fn tell(&mut self) {
        self.told = Told {
            window: self.model_window(),
            pacing_rate: self.pacing_rate(),
        };
    }

    fn window_min(&self) -> u64 {
        WINDOW_PACKETS_MIN * self.mtu
    }

    fn product(&self) -> Option<f64> {
        let rtt = self.rtt_min.get()?;
        let rate = self.rate.get();
        (rate > 0.0).then_some(rate * rtt.as_secs_f64())
    }

    /// Bytes that may be in flight, the gate aside.
    fn model_window(&self) -> u64 {
        let Some(product) = self.product() else {
            return self.startup.window();
        };
        match self.phase {
            Phase::Startup => self.startup.window(),
            Phase::RttProbe(round) if !round.is_refilled() => {
                let part = if self.floor.is_deep() {
                    RTT_PROBE_WINDOW_DEEP
                } else if self.compete.is_some() && !self.floor.was_empty() {
                    RTT_PROBE_WINDOW_IN_COMPANY
                } else {
                    RTT_PROBE_WINDOW
                };
                let least = if self.is_slow() {
                    SLOW_DRAINED_PACKETS_MIN * self.mtu
                } else {
                    self.window_min()
                };
                ((product * part) as u64).max(least)
            }
            Phase::Cruise | Phase::RttProbe(_) => {
                let is_thin = self.is_thin(product);
                let gain = if self.unqueued && !is_thin {
                    PRESSING_WINDOW
                } else {
                    CRUISE_WINDOW
                };
                let spare = if is_thin || self.is_slow() {
                    0
                } else {
                    SPARE_PACKETS * self.mtu
                };
                let hosts = self.rate.get() * HOST_DELAY.as_secs_f64();
                let bursts = self.rate.get() * self.swing.get().as_secs_f64();
                let untold = if self.is_steady {
                    0.0
                } else {
                    let lost = self.round_losses.lost() as f64;
                    (lost * UNTOLD_LOSSES_PART).min(product)
                };
                let least = product + hosts;
                let modelled = (product * gain + bursts).max(least) as u64 + spare + untold as u64;
                let window = match &self.compete {
                    Some(compete) => {
                        let shared = (compete.window_packets() * self.mtu as f64) as u64;
                        shared.max(product as u64 + 2 * self.mtu)
                    }
                    None => modelled,
                };
                window.max(self.window_min())
            }
        }
    }

    /// Among far faster paths a new one begins with few packets and doubles what was measured, until as much as the initial window was delivered: what
    /// the queue of a slow one holds is waited for by all that the others deliver meanwhile.
    fn untried_window(&self) -> u64 {
        let initial = self.config.initial_window_packets * self.mtu;
        let delivered = self.startup.window().saturating_sub(initial);
        let is_tried = self.phase != Phase::Startup || delivered >= initial;
        if is_tried || !self.config.gated || self.rtt_smoothed.is_zero() {
            return u64::MAX;
        }
        let promised = initial as f64 / self.rtt_smoothed.as_secs_f64();
        if self.member.gate.outruns(self.member.slot, promised) {
            let tried = self
                .product()
                .map_or(0, |product| (product * UNTRIED_GAIN) as u64);
            tried.max(UNTRIED_WINDOW_PACKETS * self.mtu)
        } else {
            u64::MAX
        }
    }

    fn pacing_rate(&self) -> Option<u64> {
        if self.rtt_smoothed.is_zero() {
            return None;
        }
        let rate = self.rate.get();
        let srtt = self.rtt_smoothed.as_secs_f64();
        let initial = (self.config.initial_window_packets * self.mtu) as f64;
        let floor = match self.phase {
            Phase::Startup if self.config.startup_floor => STARTUP_FLOOR_WINDOWS * initial / srtt,
            // A thin sender's measured rate is no bound: acknowledgements and pings are paced too.
            _ => self.model_window() as f64 / srtt,
        };
        let paced = match self.phase {
            Phase::Startup => rate * STARTUP_GAIN,
            Phase::Cruise | Phase::RttProbe(_) => {
                let gain = if self.unqueued {
                    PRESSING_PACING
                } else {
                    CRUISE_PACING
                };
                // Against others the window decides, and pacing only spreads it.
                let spread = self.compete.map_or(0.0, |_| floor * PRESSING_PACING);
                spread.max(rate * gain) / (1.0 - self.losses.share().min(LOSS_COMPENSATED_MAX))
            }
        };
        Some((paced.max(floor) as u64).max(1))
    }

    fn on_round(&mut self, now: Instant, app_limited: bool) {
        self.round += 1;
        self.round_losses.on_round(QUEUE_LOSES_FADING);
        self.round_ends_at = self.sampler.delivered();
        if self.phase == Phase::Startup
            && !app_limited
            && self.startup.is_over_after_round(self.rate.get())
        {
            self.end_startup(now);
        }
        if let (Some(seen), Some(min)) = (self.round_rtt_min.take(), self.rtt_min.get()) {
            self.unqueued = !app_limited && seen <= min + min / 16 + UNQUEUED_SLACK;
            // A drained round makes a swing of its own.
            let undrained = now > self.probed_at + self.rtt_smoothed * UNDRAINED_ROUND_TRIPS;
            let is_empty = self.unqueued && self.phase == Phase::Cruise && undrained;
            if self.swing.on_round(now, seen, min, is_empty) {
                self.losses.excuse();
            }
            self.is_steady = self.swing.is_steady(now);
            // A stranger who fills the queue would not have let it run empty.
            if !self.is_steady {
                self.compete = None;
            }
            if !self.unqueued {
                self.queued_at = now;
            } else if !self.floor.is_doubted() && now >= self.queued_at + UNQUEUED_LONG {
                self.compete = None;
            }
            let cruising_for = self.cruising_for(now);
            self.fall
                .on_round(self.rate.get(), self.rtt_smoothed, cruising_for);
            let fallen = self.fall.is_far() && self.is_steady && !self.unqueued;
            // A queue longer than the own one can make it.
            let crowded = self
                .floor
                .uncrowded_max(self.slack())
                .is_some_and(|max| seen > max);
            let doubted = self.floor.is_doubted();
            if (doubted || (crowded || fallen) && self.compete.is_none())
                && self.phase == Phase::Cruise
                && now > self.probed_at + RTT_PROBE_PAUSE
            {
                if doubted {
                    self.floor.deepen();
                }
                self.drain();
            }
        }
    }

    /// The round that a rate sample belongs to. One that lasts longer than a short queue explains counts as several: when the link has
    /// become slower, its old rate is not kept for as long as the queue takes that came of it.
    fn rate_round(&mut self, now: Instant) -> u64 {
        let longest = self.floor.uncrowded_max(self.slack());
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

    /// Where bursts keep on and the queue is bounded, the rate rises with what is acknowledged.
    fn follow_burst(&mut self, now: Instant) {
        let Some(bare) = self.rtt_min.get().filter(|_| !self.is_steady) else {
            return;
        };
        let delivered = self.sampler.delivered();
        let acked = self.acked_rate.on_ack(now, delivered, bare);
        if !self.swing.keeps_on() || self.phase == Phase::Startup {
            return;
        }
        // Rounds pass with acknowledgements that tell no rate, too.
        let round = self.rate_round(now);
        let is_bounded = self.unqueued || self.queue_loses();
        if let Some(rate) = acked.filter(|rate| is_bounded && *rate > self.rate.get()) {
            self.rate.update(round, rate);
        }
    }

    /// Round trips above the floor that the own packets and jitter explain.
    fn slack(&self) -> Duration {
        UNQUEUED_SLACK * 2 + self.packets_time(3.0)
    }

    /// How long the bottleneck takes to send so many packets.
    fn packets_time(&self, packets: f64) -> Duration {
        let packet_time = self.mtu as f64 / self.rate.get().max(self.mtu as f64);
        Duration::from_secs_f64(packets * packet_time)
    }

    fn is_slow(&self) -> bool {
        self.packets_time(1.0) > SLOW_PACKET
    }

    fn is_thin(&self, product: f64) -> bool {
        self.is_steady
            && product < THIN_PRODUCT_PACKETS * self.mtu as f64
            && self.losses.share() < THIN_LOSS_MAX
    }

    fn probe_interval(&self) -> Duration {
        match self.compete {
            Some(_) => RTT_PROBE_INTERVAL / 2,
            None => RTT_PROBE_INTERVAL,
        }
    }

    /// A round trip that ends after the queue was drained.
    fn on_drained_sample(&mut self, now: Instant, mut round: DrainedRound) {
        let rtt = self.rtt_latest;
        let floor = self.rtt_min.get().unwrap_or(rtt);
        // In company the whole round is drained: others' queues are told from the own paths' ones that drain at the same time.
        let part = match self.compete {
            Some(_) => floor,
            None => floor / RTT_PROBE_PART,
        };
        match round.on_round_trip(now, rtt, part) {
            Some(seen) => self.end_rtt_probe(now, seen),
            None => self.phase = Phase::RttProbe(round),
        }
    }

    /// A whole round was sent into a queue that this end had drained: the end of it saw the bare path, or strangers.
    fn end_rtt_probe(&mut self, now: Instant, seen: Duration) {
        self.phase = Phase::Cruise;
        self.probed_at = now;
        self.fall.on_drained();
        let (slack, packet_time) = (self.slack(), self.packets_time(1.0));
        let in_company = self.compete.is_some();
        let steady = self.is_steady;
        let met = self
            .floor
            .on_drained(seen, slack, packet_time, in_company, steady);
        match met {
            Met::Unclear(meanwhile) => {
                self.rtt_min.replace(now, meanwhile);
                self.drain();
            }
            Met::Nobody => self.rtt_min.replace(now, seen),
            Met::NobodyAnyMore => {
                self.compete = None;
                self.rtt_min.replace(now, seen);
            }
            Met::Strangers(floor) => {
                self.rtt_min.replace(now, floor);
                self.met_by_another = false;
                // What this end has in the path and the queue at its rate, and no more than it had before.
                let window = (self.rate.get() * seen.as_secs_f64()).min(self.undrained as f64);
                let packets = (window / self.mtu as f64).max(WINDOW_PACKETS_MIN as f64);
                self.compete.get_or_insert(Compete::new(now, packets));
            }
        }
    }

    /// Another path of the same bottleneck has met a stranger, or met it no more.
    fn follow_others(&mut self, now: Instant) {
        let others = self.member.gate.others_met(self.member.slot);
        if others && self.compete.is_none() && self.phase == Phase::Cruise {
            let packets = self.in_flight.max(self.window_min()) as f64 / self.mtu as f64;
            self.compete = Some(Compete::new(now, packets));
            self.met_by_another = true;
        } else if !others && std::mem::take(&mut self.met_by_another) {
            self.compete = None;
        }
    }

    /// Losses of the own doing are met as company is.
    fn judge_loss(&mut self, now: Instant) {
        let startup_told = self.rtt_smoothed * STARTUP_LOSS_ROUND_TRIPS;
        let is_settled = self
            .cruising_for(now)
            .is_some_and(|time| time >= startup_told);
        if !is_settled {
            self.losses.excuse();
        } else if self.losses.are_own_doing(now, self.rtt_smoothed, self.mtu)
            && self.compete.is_none()
            && self.phase == Phase::Cruise
        {
            let packets = self.in_flight.max(self.window_min()) as f64 / self.mtu as f64;
            self.compete = Some(Compete::new(now, packets));
            self.floor.company_came();
        }
    }

    /// A drained round, of all paths behind the same bottleneck.
    fn drain(&mut self) {
        self.start_rtt_probe();
        self.member
            .gate
            .drain(self.member.slot, self.floor.is_deep());
    }

    fn start_rtt_probe(&mut self) {
        self.probe_wanted = self.phase == Phase::Startup;
        if self.phase == Phase::Cruise {
            self.undrained = self.in_flight;
            self.floor.on_drain(self.rtt_latest);
            self.phase = Phase::RttProbe(DrainedRound::BEGUN);
        }
    }

    fn end_startup(&mut self, now: Instant) {
        self.phase = Phase::Cruise;
        self.cruising_since = Some(now);
        if std::mem::take(&mut self.probe_wanted) {
            self.start_rtt_probe();
        }
    }

    /// Time since the end of the start-up.
    fn cruising_for(&self, now: Instant) -> Option<Duration> {
        let since = self.cruising_since?;
        Some(now.saturating_duration_since(since))
    }

    fn on_rtt_sample(&mut self, now: Instant, rtt: Duration) {
        self.rtt_smoothed = if self.rtt_smoothed.is_zero() {
            rtt
        } else {
            (self.rtt_smoothed * 7 + rtt) / 8
        };
        let epoch = self.member.gate.rebase_epoch();
        if epoch != self.rebase_epoch {
            self.rebase_epoch = epoch;
            self.floor.on_route_change();
            self.start_rtt_probe();
        }
        let (drains, deep) = self.member.gate.drains(self.member.slot);
        if drains != self.drains_joined {
            self.drains_joined = drains;
            if deep {
                self.floor.deepen();
            }
            self.start_rtt_probe();
        }
        self.follow_others(now);
        self.judge_loss(now);
        self.round_rtt_min = Some(self.round_rtt_min.map_or(rtt, |min| min.min(rtt)));
        self.swing.on_sample(rtt);
        self.rtt_latest = rtt;
        self.floor.on_round_trip(rtt);
        self.rtt_min.update(now, rtt);
        if self.phase == Phase::Startup
            && let Some(min) = self.rtt_min.get()
        {
            let rate = self.rate.get();
            let startup = &mut self.startup;
            if startup.is_over_after_round_trip(rtt, min, rate, self.mtu) {
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
        if let Some(compete) = self
            .compete
            .as_mut()
            .filter(|_| self.phase == Phase::Cruise)
        {
            let Membership { gate, slot } = &self.member;
            gate.compete_acked(now, *slot, rtt_s, compete);
        }
    }

    /// In start-up no less than a window per round trip: a new path's first packets are few because it was not yet trusted.
    fn promised_rate(&self) -> f64 {
        let rate = self.rate.get();
        if self.phase != Phase::Startup || self.rtt_smoothed.is_zero() {
            return rate;
        }
        rate.max(self.startup.window() as f64 / self.rtt_smoothed.as_secs_f64())
    }

    fn report(&self, now: Instant, app_limited: bool) {
        self.member.gate.report(
            now,
            PathModel {
                slot: self.member.slot,
                rate_bytes_per_s: self.rate.get(),
                promised_bytes_per_s: self.promised_rate(),
                rtt_min: self.rtt_min.get().unwrap_or_default(),
                rtt_smoothed: self.rtt_smoothed,
                rtt_latest: self.rtt_latest,
                in_flight_bytes: self.in_flight,
                window_bytes: self.told.window,
                // Acknowledgements held back by the pacer look like a backlog too, but leave little in flight.
                busy: !app_limited && self.in_flight * 3 >= self.told.window,
                lost_share: self.losses.share(),
                acked_sent_at: self.acked_sent_at,
                competing: self.compete.is_some(),
                coupled: false,
            },
            self.compete.is_some() && !self.met_by_another,
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
        let Membership { gate, slot } = &self.member;
        gate.sent(*slot, bytes, self.in_flight);
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
            self.on_rtt_sample(now, sample.rtt);
            let floor = self.rtt_min.get().unwrap_or_default() / 2;
            let rate = sample.rate_bytes_per_s;
            if !sample.interval.is_zero()
                && sample.interval >= floor
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
            Phase::RttProbe(round) if newest && round.is_drained() => {
                self.on_drained_sample(now, round);
            }
            Phase::RttProbe(round)
                if !round.is_drained() && self.in_flight <= self.model_window() =>
            {
                self.round_rtt_min = None;
                self.phase = Phase::RttProbe(DrainedRound::drained(now));
            }
            Phase::Cruise
                if now > self.rtt_min.confirmed().max(self.probed_at) + self.probe_interval() =>
            {
                self.drain();
            }
            _ => {}
        }
        self.tell();
        self.report(now, app_limited);
    }

    fn on_cwnd_limited(&mut self) {
        self.sampler.on_limited();
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, _now: Instant) {
        let bytes = u64::from(lost_bytes);
        self.in_flight = self.in_flight.saturating_sub(bytes);
        self.member.gate.lost(bytes);
        self.losses.lost(pn, bytes, self.mtu);
        self.round_losses.lost_more(bytes);
        self.tell();
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
        if let Some(compete) = &mut self.compete {
            let Membership { gate, slot } = &self.member;
            gate.compete_lost(now, *slot, sent, compete);
        }
        self.tell();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.tell();
    }

    fn window(&self) -> u64 {
        match self.member.gate.turn(self.member.slot, self.config.gated) {
            Turn::Passes => u64::MAX / 2,
            Turn::Held => 0,
            Turn::Open => self.told.window.min(self.untried_window()),
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        // The pacer divides by it, so it is never the gate's zero.
        metrics.congestion_window = self.told.window.max(1);
        metrics.pacing_rate = self.told.pacing_rate;
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
