//! One direction of one link and its record: the same in virtual and in kernel time.

use std::time::Duration;

use emulated_link::link::{Link, Rate, Verdict};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bounds::SECONDS_MAX;
use crate::oracle::{AHEAD, AHEAD_SLOW, PACKETS_MIN};
use crate::packet::LINK_MTU_BYTES;
use crate::report::{BIN, LinkReport, RunReport, Timeline, percentile, sorted};
use crate::scenario::{Direction, Half, Interface, Scenario, ScenarioError};
use crate::seed::derive_seed;

/// Time after a change of a link within which gaps are counted.
pub(crate) const GAP_WINDOW: Duration = Duration::from_secs(10);
/// Bins of the longest run.
const BINS_MAX: usize = SECONDS_MAX as usize * 10;
/// One queueing sample per this many packets of a link.
const QUEUE_SAMPLE_EVERY: u64 = 8;

/// The error of a run that went well as far as its limit.
pub(crate) const NOT_COMPLETED: &str = "not completed within the limit";

/// A packet that arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    pub(crate) at: Duration,
    /// It arrives a second time.
    pub(crate) twice: bool,
}

pub(crate) struct Wire {
    link: Link,
    bins: Vec<u64>,
    /// Seconds and milliseconds.
    queueing: Vec<(f64, f64)>,
    packets: u64,
    duplicate: f64,
    corrupt: f64,
    random: ChaCha8Rng,
    /// Seconds and what is added to the link's delay from then on.
    delay_steps: Vec<(Duration, Duration)>,
    /// Seconds and share of packets lost from then on.
    loss_steps: Vec<(Duration, f64)>,
    /// Packets of a link whose delay falls keep their order.
    last_at: Duration,
}

impl Wire {
    /// The link of the client's interface number `index`: to the server, to the client.
    pub(crate) fn pair(
        interface: &Interface,
        seed: u64,
        index: usize,
    ) -> Result<[Self; 2], ScenarioError> {
        let index = index as u64 * 2;
        Ok([
            Self::new(&interface.to_server, seed, index)?,
            Self::new(&interface.to_client, seed, index + 1)?,
        ])
    }

    fn new(half: &Half, seed: u64, number: u64) -> Result<Self, ScenarioError> {
        Ok(Self {
            link: Link::new(half.to_link()?, derive_seed(seed, 16 + number)),
            bins: Vec::new(),
            queueing: Vec::new(),
            packets: 0,
            duplicate: half.duplicate,
            corrupt: half.corrupt,
            random: ChaCha8Rng::seed_from_u64(derive_seed(seed, 64 + number)),
            delay_steps: delay_steps(half),
            loss_steps: (half.loss_steps.iter())
                .map(|&(at_s, share)| (Duration::from_secs_f64(at_s), share))
                .collect(),
            last_at: Duration::ZERO,
        })
    }

    pub(crate) fn delay(&self) -> Duration {
        self.link.config().delay
    }

    pub(crate) fn is_up(&self, now: Duration) -> bool {
        self.link.is_up(now)
    }

    /// Bytes that a sender who knows the link adds to its queue at `now`. None of them would wait
    /// for long, or be lost with the link.
    pub(crate) fn room_bytes(&mut self, now: Duration) -> u64 {
        let queued = self.link.queued_bytes(now);
        let config = self.link.config();
        let arrival = now + AHEAD + config.delay;
        if !self.link.is_up(now) || !self.link.is_up(arrival) {
            return 0;
        }
        let packets = PACKETS_MIN * LINK_MTU_BYTES;
        let soon = config.rate.capacity_bytes(now, now + AHEAD) as u64;
        let slow = config.rate.capacity_bytes(now, now + AHEAD_SLOW) as u64;
        let target = soon.max(packets.min(slow)).min(config.queue_bytes);
        target.saturating_sub(queued)
    }

    /// Passes a packet of other traffic, which nobody waits for.
    pub(crate) fn pass_other(&mut self, now: Duration, bytes: u64) {
        let _ = self.link.offer(now, bytes);
    }

    /// The highest rate of the link in Mbit/s.
    pub(crate) fn mbit(&self) -> f64 {
        match &self.link.config().rate {
            Rate::Constant(rate) => rate / 1e6,
            Rate::Piecewise(steps) => steps.iter().map(|step| step.1).fold(0.0, f64::max) / 1e6,
            Rate::Trace(trace) => {
                let period = trace.period();
                let bytes = trace.capacity_bytes(Duration::ZERO, period);
                bytes as f64 * 8e-6 / period.as_secs_f64()
            }
        }
    }

    /// Passes a packet, whose headers beside `payload` have `header_bytes`, into the link; none
    /// when it is lost.
    pub(crate) fn pass(
        &mut self,
        now: Duration,
        header_bytes: u64,
        payload: &mut [u8],
    ) -> Option<Passed> {
        let bytes = payload.len() as u64 + header_bytes;
        let Verdict::DeliverAt(at) = self.link.offer(now, bytes) else {
            return None;
        };
        let share = step_at(&self.loss_steps, now).unwrap_or(0.0);
        if share > 0.0 && self.random.random_bool(share) {
            return None;
        }
        let at = match step_at(&self.delay_steps, now) {
            Some(more) => (at + more).max(self.last_at),
            None => at,
        };
        self.last_at = at;
        let bin = (at.as_nanos() / BIN.as_nanos()) as usize;
        // No run lasts longer; what arrives later is in no bin.
        if bin < BINS_MAX {
            if self.bins.len() <= bin {
                self.bins.resize(bin + 1, 0);
            }
            self.bins[bin] += bytes;
        }
        self.packets += 1;
        if self.packets.is_multiple_of(QUEUE_SAMPLE_EVERY) {
            let queueing = at
                .saturating_sub(now)
                .saturating_sub(self.link.config().delay);
            self.queueing
                .push((now.as_secs_f64(), queueing.as_secs_f64() * 1e3));
        }
        if self.corrupt > 0.0 && self.random.random_bool(self.corrupt) && !payload.is_empty() {
            let at = self.random.random_range(0..payload.len());
            payload[at] ^= 1 << self.random.random_range(0..8);
        }
        let twice = self.duplicate > 0.0 && self.random.random_bool(self.duplicate);
        Some(Passed { at, twice })
    }

    pub(crate) fn report(&mut self, name: &str) -> LinkReport {
        let counters = self.link.counters();
        let samples = std::mem::take(&mut self.queueing);
        let queueing = sorted(samples.iter().map(|sample| sample.1));
        LinkReport {
            name: name.to_owned(),
            offered_bytes: counters.offered_bytes,
            delivered_bytes: counters.delivered_bytes,
            served_bytes: counters.served_bytes,
            lost_random: counters.lost_random,
            lost_queue: counters.lost_queue,
            lost_down: counters.lost_down,
            queue_bytes_max: counters.queue_bytes_max,
            queueing_ms_p50: percentile(&queueing, 0.5).unwrap_or(0.0),
            queueing_ms_p95: percentile(&queueing, 0.95).unwrap_or(0.0),
            bins: std::mem::take(&mut self.bins),
            queueing: samples,
        }
    }
}

/// The value of the last step that has begun.
fn step_at<T: Copy>(steps: &[(Duration, T)], now: Duration) -> Option<T> {
    let begun = steps.partition_point(|step| step.0 <= now);
    steps.get(begun.checked_sub(1)?).map(|step| step.1)
}

/// Time that is added to the least delay, which the link itself has.
fn delay_steps(half: &Half) -> Vec<(Duration, Duration)> {
    if half.delay_steps.is_empty() {
        return Vec::new();
    }
    let least = half.delay_ms_min();
    let first = std::iter::once((0.0, half.delay_ms));
    let steps = first.chain(half.delay_steps.iter().copied());
    let more = |ms: f64| Duration::from_secs_f64((ms - least).max(0.0) / 1e3);
    steps
        .map(|(at_s, ms)| (Duration::from_secs_f64(at_s), more(ms)))
        .collect()
}

/// Outcome of a bulk transfer.
pub(crate) struct Bulk {
    pub(crate) completed: bool,
    pub(crate) error: Option<String>,
    /// When the streams were opened, and when the last byte arrived or the run was ended.
    pub(crate) opened: Duration,
    pub(crate) end: Duration,
    pub(crate) timeline: Timeline,
}

pub(crate) struct BulkReport {
    pub(crate) report: RunReport,
    /// The first time at which a link went down during the transfer.
    pub(crate) first_cut: Option<Duration>,
}

impl Bulk {
    /// The part of the report that transfer and links give; vitals, competitors and the hosts' own
    /// counters are added later.
    pub(crate) fn report(self, scenario: &Scenario, wires: &mut [[Wire; 2]]) -> BulkReport {
        let side = match scenario.direction {
            Direction::Upload => 0,
            Direction::Download => 1,
        };
        let Self {
            completed,
            error,
            opened,
            end,
            timeline,
        } = self;
        let delivered: u64 = timeline.bins.iter().sum();
        // Capacity of all links together, and of the best one.
        let capacity = |from, to| {
            let own = wires
                .iter()
                .zip(&scenario.interfaces)
                .filter(|(_, interface)| interface.shares.is_none());
            let each = own.map(|(wires, _)| {
                let config = wires[side].link.config();
                capacity_while_up(&config.rate, &config.schedule, from, to)
            });
            each.fold((0.0, 0.0), |(sum, best): (f64, f64), bytes| {
                (sum + bytes, best.max(bytes))
            })
        };
        let (sum, best) = capacity(Duration::ZERO, end);
        let (sum_stream, _) = capacity(opened, end);
        let share = |capacity: f64| {
            if capacity > 0.0 {
                100.0 * delivered as f64 / capacity
            } else {
                0.0
            }
        };
        let changes = scenario
            .interfaces
            .iter()
            .flat_map(|interface| &interface.half(scenario.direction).changes);
        let first_cut = changes
            .filter(|change| !change.1 && change.0 < end.as_secs_f64())
            .map(|change| change.0)
            .reduce(f64::min);
        let first_cut = first_cut.map(Duration::from_secs_f64);
        let counters = wires.iter().map(|wires| wires[side].link.counters());
        let (served, passed) = counters.fold((0, 0), |(served, passed), link| {
            (served + link.served_bytes, passed + link.delivered_bytes)
        });
        let report = RunReport {
            name: scenario.name.clone(),
            seed: scenario.seed,
            controller: scenario.controller.name(),
            completed,
            connection_lost: false,
            error: error.or_else(|| (!completed).then(|| NOT_COMPLETED.to_owned())),
            bytes: scenario.bytes,
            delivered_bytes: delivered,
            from_connect_s: end.as_secs_f64(),
            from_stream_s: end.saturating_sub(opened).as_secs_f64(),
            efficiency_connect: share(sum),
            efficiency_stream: share(sum_stream),
            efficiency_best_single: share(best),
            utilisation: 100.0 * served as f64 / sum.max(1.0),
            payload_share: 100.0 * delivered as f64 / (passed as f64).max(1.0),
            bulk_gap_ms: first_cut
                .map(|cut| timeline.gap_within(cut, cut + GAP_WINDOW).as_secs_f64() * 1e3),
            vitals_gap_ms: None,
            vitals_ms_p50: None,
            vitals_ms_p99: None,
            vitals_lost: 0,
            links: wires
                .iter_mut()
                .zip(&scenario.interfaces)
                .map(|(wires, interface)| wires[side].report(&interface.name))
                .collect(),
            competitors: Vec::new(),
            paths_opened: 0,
            paths_closed: 0,
            packets: 0,
            coupled_share: 0.0,
            lost_packets: 0,
            lost_bytes: 0,
            sent_packets: 0,
            carried_bytes: Vec::new(),
            both_ways_bytes: Vec::new(),
            messages_ms: Vec::new(),
            messages_ms_p50: None,
            messages_ms_p99: None,
            messages_ms_max: None,
            page_s: None,
            under_way_max: 0,
            timeline,
        };
        BulkReport { report, first_cut }
    }
}

/// Bytes that a rate carries in `from..to` while the schedule says up.
pub fn capacity_while_up(
    rate: &Rate,
    schedule: &[(Duration, bool)],
    from: Duration,
    to: Duration,
) -> f64 {
    let mut bytes = 0.0;
    let mut at = from;
    let mut up = schedule
        .iter()
        .take_while(|change| change.0 <= from)
        .last()
        .is_none_or(|change| change.1);
    for &(time, next) in schedule
        .iter()
        .filter(|change| change.0 > from && change.0 < to)
    {
        if up {
            bytes += rate.capacity_bytes(at, time);
        }
        at = time;
        up = next;
    }
    if up {
        bytes + rate.capacity_bytes(at, to)
    } else {
        bytes
    }
}
