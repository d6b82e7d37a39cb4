//! One direction of an access link, sans-IO.
//!
//! A packet offered at `now` meets, in this order:
//! 1. the up/down state,
//! 2. the MTU,
//! 3. a drop-tail queue in bytes,
//! 4. the serialising bottleneck: constant rate, piecewise rate, or a Mahimahi trace,
//! 5. random loss,
//! 6. propagation delay with jitter.
//!
//! Loss comes after the bottleneck, so a lost packet has used its share of the capacity. A perfect
//! sender's goodput is rate x (1 - p). Everything is computed when the packet is offered: the
//! caller passes the time since the link's start and schedules the delivery.
//!
//! Invariants:
//! - Packets depart in the order of offers. They arrive in the same order, unless `reorder` is set.
//! - The same seed, configuration and calls give the same verdicts.
//! - A cut loses the queue and the packets in flight. A scheduled cut is known at offer and gives
//!   `Dropped(Cut)`. After `set_up` the caller asks at delivery with [`Link::was_cut`].
//!
//! Bound: the queue record holds packets of at most `queue_bytes` in total; further packets are
//! dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes that one line of a Mahimahi trace can carry.
const OPPORTUNITY_BYTES: u64 = 1500;
/// Minimum of packets in the default queue, for any bandwidth-delay product.
const QUEUE_PACKETS_MIN: u64 = 20;
/// Runtime cuts remembered for [`Link::was_cut`]; packets of older cuts have been delivered.
const CUTS_REMEMBERED_MAX: usize = 64;
const NANOS_PER_SECOND: f64 = 1e9;

/// Rate of the bottleneck.
#[derive(Debug, Clone)]
pub enum Rate {
    /// Bits per second, without end.
    Constant(f64),
    /// Bits per second from each time on, ascending. The first rate holds before its time as well,
    /// and the last rate holds without end.
    Piecewise(Arc<[(Duration, f64)]>),
    /// Delivery opportunities of a Mahimahi trace, repeated without end.
    Trace(Arc<Trace>),
}

impl Rate {
    /// Bits per second at `at`; of a trace, its mean over the second around `at`.
    pub fn bits_per_second(&self, at: Duration) -> f64 {
        match self {
            Self::Constant(rate) => *rate,
            Self::Piecewise(steps) => steps.get(step_at(steps, at)).map_or(0.0, |step| step.1),
            Self::Trace(trace) => {
                let from = at.saturating_sub(Duration::from_millis(500));
                trace.capacity_bytes(from, from + Duration::from_secs(1)) as f64 * 8.0
            }
        }
    }

    /// Bytes that the bottleneck can serve between two times.
    pub fn capacity_bytes(&self, from: Duration, to: Duration) -> f64 {
        if to <= from {
            return 0.0;
        }
        match self {
            Self::Constant(rate) => rate / 8.0 * (to - from).as_secs_f64(),
            Self::Piecewise(steps) => {
                let mut bytes = 0.0;
                let mut at = from;
                let mut step = step_at(steps, from);
                while at < to {
                    let end = steps.get(step + 1).map_or(to, |next| next.0.min(to));
                    bytes += steps.get(step).map_or(0.0, |step| step.1) / 8.0
                        * end.saturating_sub(at).as_secs_f64();
                    at = end.max(at);
                    step += 1;
                }
                bytes
            }
            Self::Trace(trace) => trace.capacity_bytes(from, to) as f64,
        }
    }
}

fn step_at(steps: &[(Duration, f64)], at: Duration) -> usize {
    steps.partition_point(|step| step.0 <= at).saturating_sub(1)
}

/// A Mahimahi trace: the milliseconds at which one 1500-byte packet may leave.
#[derive(Debug, Clone)]
pub struct Trace {
    opportunities_ms: Vec<u64>,
    period_ms: u64,
}

/// Why a trace cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceError {
    /// The line with this number, counted from one, is not a number of milliseconds.
    NotANumber(usize),
    /// The line with this number goes back in time.
    NotAscending(usize),
    /// No opportunity after time zero: the period would be empty.
    Empty,
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotANumber(line) => write!(f, "line {line} is not a number of milliseconds"),
            Self::NotAscending(line) => write!(f, "line {line} is earlier than the line before it"),
            Self::Empty => write!(f, "the trace holds no opportunity after time zero"),
        }
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Makes a trace from times; the last time is the period.
    pub fn new(opportunities_ms: Vec<u64>) -> Result<Self, TraceError> {
        if let Some(index) = opportunities_ms
            .windows(2)
            .position(|pair| pair[0] > pair[1])
        {
            return Err(TraceError::NotAscending(index + 2));
        }
        match opportunities_ms.last().copied() {
            None | Some(0) => Err(TraceError::Empty),
            Some(period_ms) => Ok(Self {
                opportunities_ms,
                period_ms,
            }),
        }
    }

    /// Parses the text of a Mahimahi file.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut times = Vec::with_capacity(text.len() / 6);
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            times.push(
                line.parse()
                    .map_err(|_| TraceError::NotANumber(index + 1))?,
            );
        }
        Self::new(times)
    }

    /// The same trace, entered `start_ms` (modulo its period) after its beginning.
    pub fn starting_at(&self, start_ms: u64) -> Self {
        let start = start_ms % self.period_ms;
        let split = self.opportunities_ms.partition_point(|&time| time <= start);
        let (before, after) = self.opportunities_ms.split_at(split);
        let opportunities_ms = after
            .iter()
            .map(|time| time - start)
            .chain(before.iter().map(|time| time + self.period_ms - start))
            .collect();
        Self {
            opportunities_ms,
            period_ms: self.period_ms,
        }
    }

    /// Length of one round.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    /// Bytes of all opportunities in `from..to`.
    pub fn capacity_bytes(&self, from: Duration, to: Duration) -> u64 {
        (self.index_at(to) - self.index_at(from)) * OPPORTUNITY_BYTES
    }

    /// Running number of the first opportunity at or after `at`, counted over all rounds.
    fn index_at(&self, at: Duration) -> u64 {
        let at_ms = at.as_nanos().div_ceil(1_000_000) as u64;
        // A round is `(0, period]`, so its last opportunity does not belong to the next round.
        let round = at_ms.saturating_sub(1) / self.period_ms;
        let within = at_ms - round * self.period_ms;
        let index = self.opportunities_ms.partition_point(|&time| time < within) as u64;
        round * self.opportunities_ms.len() as u64 + index
    }

    fn time_of(&self, index: u64) -> Duration {
        let count = self.opportunities_ms.len() as u64;
        Duration::from_millis(
            index / count * self.period_ms + self.opportunities_ms[(index % count) as usize],
        )
    }
}

/// Random loss after the bottleneck.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    None,
    /// Independent loss of each packet with this probability.
    Bernoulli(f64),
    /// Two states, stepped once per packet: losses come in bursts.
    GilbertElliott {
        good_to_bad: f64,
        bad_to_good: f64,
        loss_good: f64,
        loss_bad: f64,
    },
}

impl Loss {
    /// A Gilbert-Elliott chain that loses all packets in its bad state. `mean` is the overall loss,
    /// `burst_packets` (at least 1) the mean length of a burst.
    pub fn bursts(mean: f64, burst_packets: f64) -> Self {
        let bad_to_good = 1.0 / burst_packets.max(1.0);
        let mean = mean.clamp(0.0, 0.999);
        let good_to_bad = (bad_to_good * mean / (1.0 - mean)).min(1.0);
        Self::GilbertElliott {
            good_to_bad,
            bad_to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        }
    }

    /// Share of packets lost in the long run.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Bernoulli(p) => p,
            Self::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_good,
                loss_bad,
            } => {
                let sum = good_to_bad + bad_to_good;
                let bad = if sum > 0.0 { good_to_bad / sum } else { 0.0 };
                bad * loss_bad + (1.0 - bad) * loss_good
            }
        }
    }
}

/// All properties of one direction of a link.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    pub rate: Rate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Jitter that is added to the delay, uniform between zero and this value.
    pub jitter: Duration,
    /// Whether jitter may change the order of packets.
    pub reorder: bool,
    /// Capacity of the drop-tail queue, including the packet in service.
    pub queue_bytes: u64,
    pub loss: Loss,
    /// Largest IP packet that passes.
    pub mtu: u64,
    /// Changes between up (true) and down, ascending; the link is up before the first change.
    pub schedule: Arc<[(Duration, bool)]>,
}

impl LinkConfig {
    /// A link of constant rate without loss or jitter, with a queue of one BDP of `2 * delay`.
    pub fn new(bits_per_second: f64, delay: Duration) -> Self {
        Self {
            rate: Rate::Constant(bits_per_second),
            delay,
            jitter: Duration::ZERO,
            reorder: false,
            queue_bytes: queue_of_one_bdp(bits_per_second, delay * 2, 1500),
            loss: Loss::None,
            mtu: 1500,
            schedule: Arc::new([]),
        }
    }

    pub fn with_loss(mut self, loss: Loss) -> Self {
        self.loss = loss;
        self
    }

    pub fn with_queue_bytes(mut self, queue_bytes: u64) -> Self {
        self.queue_bytes = queue_bytes;
        self
    }

    pub fn with_schedule(mut self, schedule: impl Into<Arc<[(Duration, bool)]>>) -> Self {
        self.schedule = schedule.into();
        self
    }
}

/// One bandwidth-delay product in bytes, at least 20 packets of `mtu`.
pub fn queue_of_one_bdp(bits_per_second: f64, rtt: Duration, mtu: u64) -> u64 {
    ((bits_per_second / 8.0 * rtt.as_secs_f64()) as u64).max(QUEUE_PACKETS_MIN * mtu)
}

/// The fate of an offered packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The packet arrives at this time since the link's start.
    DeliverAt(Duration),
    Dropped(DropReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The link is down at the time of offer.
    Down,
    /// The link is scheduled to go down before the packet arrives.
    Cut,
    QueueFull,
    /// Random loss.
    Loss,
    /// Larger than the MTU.
    TooBig,
    /// The rate stays zero from now on.
    NoRate,
}

/// Packets and bytes since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    pub offered_packets: u64,
    pub offered_bytes: u64,
    pub delivered_packets: u64,
    pub delivered_bytes: u64,
    /// Bytes that passed the bottleneck, including random losses.
    pub served_bytes: u64,
    pub lost_random: u64,
    pub lost_queue: u64,
    pub lost_down: u64,
    pub queue_bytes_max: u64,
}

/// The running state of one direction of a link.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    random: ChaCha8Rng,
    /// Departure time and size of each packet in the queue.
    queue: VecDeque<(Duration, u64)>,
    queued_bytes: u64,
    last_departure: Duration,
    last_delivery: Duration,
    /// Traces only: running number of the current opportunity, and bytes taken from it.
    opportunity: (u64, u64),
    in_burst: bool,
    forced_up: Option<bool>,
    /// Times at which `set_up(false)` was called, newest last.
    cuts: VecDeque<Duration>,
    last_offer: Duration,
    counters: LinkCounters,
}

impl Link {
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        Self {
            config,
            random: ChaCha8Rng::seed_from_u64(seed),
            queue: VecDeque::new(),
            queued_bytes: 0,
            last_departure: Duration::ZERO,
            last_delivery: Duration::ZERO,
            opportunity: (0, 0),
            in_burst: false,
            forced_up: None,
            cuts: VecDeque::new(),
            last_offer: Duration::ZERO,
            counters: LinkCounters::default(),
        }
    }

    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Bytes waiting or in service at `now`.
    pub fn queued_bytes(&mut self, now: Duration) -> u64 {
        self.drain(now);
        self.queued_bytes
    }

    /// Whether packets pass at `now`.
    pub fn is_up(&self, now: Duration) -> bool {
        self.forced_up.unwrap_or_else(|| self.scheduled_up(now))
    }

    /// Overrides the schedule from `now` on. Going down loses the queue and what is in flight.
    pub fn set_up(&mut self, now: Duration, up: bool) {
        if !up && self.is_up(now) {
            if self.cuts.len() == CUTS_REMEMBERED_MAX {
                self.cuts.pop_front();
            }
            self.cuts.push_back(now);
            self.clear_queue(now);
        }
        self.forced_up = Some(up);
    }

    /// Changes the rate for packets that are offered later; queued packets keep their departure
    /// time.
    pub fn set_rate(&mut self, rate: Rate) {
        self.config.rate = rate;
    }

    pub fn set_delay(&mut self, delay: Duration, jitter: Duration) {
        self.config.delay = delay;
        self.config.jitter = jitter;
    }

    pub fn set_loss(&mut self, loss: Loss) {
        self.config.loss = loss;
    }

    pub fn set_queue_bytes(&mut self, queue_bytes: u64) {
        self.config.queue_bytes = queue_bytes;
    }

    /// Whether `set_up(false)` lost a packet that was offered at `offered` and is due at `due`.
    pub fn was_cut(&self, offered: Duration, due: Duration) -> bool {
        self.cuts.iter().any(|&cut| offered <= cut && cut < due)
    }

    /// Passes an IP packet of `bytes` into the link. Calls must not go back in time.
    pub fn offer(&mut self, now: Duration, bytes: u64) -> Verdict {
        let verdict = self.judge(now.max(self.last_offer), bytes);
        self.counters.offered_packets += 1;
        self.counters.offered_bytes += bytes;
        match verdict {
            Verdict::DeliverAt(_) => {
                self.counters.delivered_packets += 1;
                self.counters.delivered_bytes += bytes;
                self.counters.served_bytes += bytes;
            }
            Verdict::Dropped(DropReason::QueueFull) => self.counters.lost_queue += 1,
            Verdict::Dropped(DropReason::Loss) => {
                self.counters.lost_random += 1;
                self.counters.served_bytes += bytes;
            }
            Verdict::Dropped(_) => self.counters.lost_down += 1,
        }
        verdict
    }

    fn judge(&mut self, now: Duration, bytes: u64) -> Verdict {
        if !self.is_up(now) {
            return Verdict::Dropped(DropReason::Down);
        }
        if self.forced_up.is_none() && self.scheduled_cut(self.last_offer, now) {
            self.clear_queue(now);
        }
        self.last_offer = now;
        if bytes > self.config.mtu {
            return Verdict::Dropped(DropReason::TooBig);
        }
        self.drain(now);
        if self.queued_bytes + bytes > self.config.queue_bytes && self.queued_bytes > 0 {
            return Verdict::Dropped(DropReason::QueueFull);
        }
        let Some(departure) = self.depart(now.max(self.last_departure), bytes) else {
            return Verdict::Dropped(DropReason::NoRate);
        };
        self.last_departure = departure;
        self.queue.push_back((departure, bytes));
        self.queued_bytes += bytes;
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(self.queued_bytes);
        if self.loses() {
            return Verdict::Dropped(DropReason::Loss);
        }
        let jitter = if self.config.jitter.is_zero() {
            Duration::ZERO
        } else {
            self.config.jitter.mul_f64(self.random.random::<f64>())
        };
        let mut delivery = departure + self.config.delay + jitter;
        if !self.config.reorder {
            delivery = delivery.max(self.last_delivery);
        }
        if self.forced_up.is_none() && self.scheduled_cut(now, delivery) {
            return Verdict::Dropped(DropReason::Cut);
        }
        self.last_delivery = self.last_delivery.max(delivery);
        Verdict::DeliverAt(delivery)
    }

    /// Time at which the last bit of a packet leaves that enters service at `start`; `None` if the
    /// rate stays zero.
    fn depart(&mut self, start: Duration, bytes: u64) -> Option<Duration> {
        match &self.config.rate {
            Rate::Constant(rate) => (*rate > 0.0).then(|| start + serialising(bytes as f64, *rate)),
            Rate::Piecewise(steps) => {
                let mut left = bytes as f64;
                let mut at = start;
                let mut step = step_at(steps, start);
                loop {
                    let rate = steps.get(step)?.1;
                    let end = steps.get(step + 1).map(|next| next.0);
                    let carried = end.map_or(f64::INFINITY, |end| {
                        rate / 8.0 * end.saturating_sub(at).as_secs_f64()
                    });
                    if rate > 0.0 && carried >= left {
                        return Some(at + serialising(left, rate));
                    }
                    left -= carried.min(left);
                    at = end?;
                    step += 1;
                }
            }
            Rate::Trace(trace) => {
                let first = trace.index_at(start);
                if first > self.opportunity.0 {
                    self.opportunity = (first, 0);
                }
                let mut left = bytes;
                loop {
                    let room = OPPORTUNITY_BYTES - self.opportunity.1;
                    if left <= room {
                        self.opportunity.1 += left;
                        return Some(trace.time_of(self.opportunity.0).max(start));
                    }
                    left -= room;
                    self.opportunity = (self.opportunity.0 + 1, 0);
                }
            }
        }
    }

    fn loses(&mut self) -> bool {
        match self.config.loss {
            Loss::None => false,
            Loss::Bernoulli(p) => self.random.random::<f64>() < p,
            Loss::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_good,
                loss_bad,
            } => {
                let turn = if self.in_burst {
                    bad_to_good
                } else {
                    good_to_bad
                };
                if self.random.random::<f64>() < turn {
                    self.in_burst = !self.in_burst;
                }
                self.random.random::<f64>() < if self.in_burst { loss_bad } else { loss_good }
            }
        }
    }

    fn drain(&mut self, now: Duration) {
        while let Some(&(departure, bytes)) = self.queue.front() {
            if departure > now {
                break;
            }
            self.queue.pop_front();
            self.queued_bytes -= bytes;
        }
    }

    fn clear_queue(&mut self, now: Duration) {
        self.queue.clear();
        self.queued_bytes = 0;
        self.last_departure = now;
        self.last_delivery = now;
        if let Rate::Trace(trace) = &self.config.rate {
            self.opportunity = (trace.index_at(now), 0);
        }
    }

    fn scheduled_up(&self, at: Duration) -> bool {
        let index = self
            .config
            .schedule
            .partition_point(|change| change.0 <= at);
        index == 0 || self.config.schedule[index - 1].1
    }

    /// Whether the schedule goes down in `(from, to]`.
    fn scheduled_cut(&self, from: Duration, to: Duration) -> bool {
        let first = self
            .config
            .schedule
            .partition_point(|change| change.0 <= from);
        self.config.schedule[first..]
            .iter()
            .take_while(|change| change.0 <= to)
            .any(|change| !change.1)
    }
}

fn serialising(bytes: f64, bits_per_second: f64) -> Duration {
    Duration::from_nanos((bytes * 8.0 / bits_per_second * NANOS_PER_SECOND) as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn constant_rate_serialises_then_delays() {
        let mut link = Link::new(LinkConfig::new(12_000_000.0, ms(10)), 1);
        assert_eq!(link.offer(ms(0), 1500), Verdict::DeliverAt(ms(11)));
        assert_eq!(link.offer(ms(0), 1500), Verdict::DeliverAt(ms(12)));
        assert_eq!(link.queued_bytes(ms(1)), 1500);
        assert_eq!(
            link.offer(ms(100), 1501),
            Verdict::Dropped(DropReason::TooBig)
        );
    }

    #[test]
    fn drop_tail_counts_bytes() {
        let mut link = Link::new(
            LinkConfig::new(12_000_000.0, ms(10)).with_queue_bytes(3000),
            1,
        );
        assert!(matches!(link.offer(ms(0), 1500), Verdict::DeliverAt(_)));
        assert!(matches!(link.offer(ms(0), 1500), Verdict::DeliverAt(_)));
        assert_eq!(
            link.offer(ms(0), 1),
            Verdict::Dropped(DropReason::QueueFull)
        );
        assert!(matches!(link.offer(ms(1), 1500), Verdict::DeliverAt(_)));
        assert_eq!(link.counters().queue_bytes_max, 3000);
    }

    #[test]
    fn piecewise_rate_is_integrated_over_steps() {
        let mut config = LinkConfig::new(1.0, ms(0)).with_queue_bytes(1_000_000);
        config.rate = Rate::Piecewise(Arc::new([
            (ms(0), 8_000.0),
            (ms(500), 0.0),
            (ms(1000), 16_000.0),
        ]));
        assert!((config.rate.capacity_bytes(ms(0), ms(2000)) - 2500.0).abs() < 1e-6);
        let mut link = Link::new(config, 1);
        // 500 bytes until 0.5 s, nothing until 1 s, the other 500 by 1.25 s.
        assert_eq!(link.offer(ms(0), 1000), Verdict::DeliverAt(ms(1250)));
    }

    #[test]
    fn trace_wastes_missed_opportunities_and_repeats() {
        let trace = Trace::parse("5\n5\n10\n").unwrap();
        assert_eq!(trace.capacity_bytes(ms(0), ms(11)), 4500);
        let mut config = LinkConfig::new(1.0, ms(1)).with_queue_bytes(1_000_000);
        config.rate = Rate::Trace(Arc::new(trace));
        let mut link = Link::new(config, 1);
        assert_eq!(link.offer(ms(6), 700), Verdict::DeliverAt(ms(11)));
        assert_eq!(link.offer(ms(6), 700), Verdict::DeliverAt(ms(11)));
        assert_eq!(link.offer(ms(6), 700), Verdict::DeliverAt(ms(16)));
        assert_eq!(Trace::parse("3\nx").unwrap_err(), TraceError::NotANumber(2));
        assert_eq!(
            Trace::parse("3\n1").unwrap_err(),
            TraceError::NotAscending(2)
        );
        assert_eq!(Trace::parse("0\n").unwrap_err(), TraceError::Empty);
    }

    #[test]
    fn losses_meet_their_mean_and_bursts_their_length() {
        for loss in [Loss::Bernoulli(0.05), Loss::bursts(0.05, 4.0)] {
            let mut link = Link::new(LinkConfig::new(1e9, ms(1)).with_loss(loss), 7);
            let verdicts: Vec<bool> = (0..200_000)
                .map(|i| {
                    matches!(
                        link.offer(Duration::from_micros(i * 20), 1000),
                        Verdict::Dropped(DropReason::Loss)
                    )
                })
                .collect();
            let lost = verdicts.iter().filter(|&&lost| lost).count() as f64;
            let bursts = verdicts
                .windows(2)
                .filter(|pair| !pair[0] && pair[1])
                .count() as f64;
            assert!((lost / 200_000.0 - 0.05).abs() < 0.004, "{loss:?} {lost}");
            let length = lost / bursts;
            let expected = if matches!(loss, Loss::Bernoulli(_)) {
                1.05
            } else {
                4.0
            };
            assert!((length / expected - 1.0).abs() < 0.1, "{loss:?} {length}");
            assert!((loss.mean() - 0.05).abs() < 1e-9);
        }
    }

    #[test]
    fn a_scheduled_cut_loses_queue_and_flight() {
        let schedule = vec![(ms(50), false), (ms(100), true)];
        let mut link = Link::new(
            LinkConfig::new(12_000_000.0, ms(10)).with_schedule(schedule),
            1,
        );
        assert_eq!(link.offer(ms(30), 1500), Verdict::DeliverAt(ms(41)));
        assert_eq!(link.offer(ms(45), 1500), Verdict::Dropped(DropReason::Cut));
        assert_eq!(link.offer(ms(60), 1500), Verdict::Dropped(DropReason::Down));
        assert_eq!(link.offer(ms(100), 1500), Verdict::DeliverAt(ms(111)));
    }

    #[test]
    fn a_cut_by_hand_is_known_at_delivery() {
        let mut link = Link::new(LinkConfig::new(12_000_000.0, ms(10)), 1);
        assert_eq!(link.offer(ms(0), 1500), Verdict::DeliverAt(ms(11)));
        link.set_up(ms(5), false);
        assert!(link.was_cut(ms(0), ms(11)));
        assert_eq!(link.offer(ms(6), 1500), Verdict::Dropped(DropReason::Down));
        link.set_up(ms(20), true);
        assert_eq!(link.offer(ms(20), 1500), Verdict::DeliverAt(ms(31)));
        assert!(!link.was_cut(ms(20), ms(31)));
    }

    #[test]
    fn the_same_seed_gives_the_same_run_and_jitter_keeps_order() {
        let run = |seed| {
            let mut config = LinkConfig::new(5e6, ms(20)).with_loss(Loss::Bernoulli(0.1));
            config.jitter = ms(15);
            let mut link = Link::new(config, seed);
            (0..500)
                .map(|i| link.offer(ms(i * 3), 1200))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
        let times: Vec<Duration> = run(3)
            .into_iter()
            .filter_map(|verdict| match verdict {
                Verdict::DeliverAt(at) => Some(at),
                Verdict::Dropped(_) => None,
            })
            .collect();
        assert!(times.len() > 400 && times.is_sorted());
    }
}
