//! Order of packets that travel over several paths. Sans-IO.
//!
//! The sender numbers the packets of each lane; a flow belongs to one lane. The receiver holds a
//! packet back while an earlier one of its lane is missing. The bound of that follows the skew of
//! the paths. So a flow may use all paths, and its packets still leave in order. A packet that
//! comes after the bound is handed on at once, out of order; none is handed on twice.
//!
//! If a repair is agreed, what did not come within the bound is asked for. A lane with many packets
//! then waits for the answer. A lane with few packets, such as a call, does not.
//!
//! Bounds: `HELD_WITHIN_MAX`, `HELD_MAX` packets and `HELD_BYTES_MAX` bytes of a tunnel; at a bound
//! the lane of the packet that arrives waits for nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    kind::Kind,
    repair::{Came, Missing, repaired_within},
    sequence_number::SequenceNumber,
    two_periods::TwoPeriods,
};
use ip_packets::transport;

/// Longest wait for an earlier packet, however far the paths' delays differ.
pub(crate) const HELD_WITHIN_MAX: Duration = Duration::from_millis(150);

/// Time above the measured skew: round trips vary with the queues.
const MARGIN: Duration = Duration::from_millis(12);

/// Packets that wait for earlier ones.
const HELD_MAX: usize = 4_096;

/// Their bytes: 300 ms at 100 Mbit/s.
pub(super) const HELD_BYTES_MAX: usize = 4 << 20;

/// Numbers before the next expected one for which duplicates are recognised. A packet with an
/// earlier number is dropped.
const KNOWN_MAX: u64 = 1_024;
const WORDS: usize = (KNOWN_MAX / 64) as usize;

/// An observed lateness decides the bound for at least this time, and at most twice as long.
const OBSERVED_LASTS: Duration = Duration::from_secs(1);

/// Gaps of a lane that the order has passed, and in which a late packet is recognised. At the bound
/// the oldest is forgotten.
const GAPS_MAX: usize = 64;

/// Time in which an earlier packet comes, if it is not lost. `observed` is how late packets were
/// lately. Before any was, `skew` counts: half the difference of the round trips of the slowest and
/// the fastest path. Without either one path carries all, and keeps the order itself.
pub(crate) fn comes_within(observed: Option<Duration>, skew: Option<Duration>) -> Duration {
    let late = observed.or(skew);
    late.map_or(Duration::ZERO, |late| late + late / 4 + MARGIN)
}

/// Period in which the packets of a lane are counted.
const COUNTED_FOR: Duration = Duration::from_millis(100);

/// Packets of a lane in one period from which on it waits for a repair: 2 Mbit/s. Calls and games
/// have fewer.
const DENSE_PACKETS: u32 = 8;

/// Packets of a lane that waited which leave together, at least.
const PORTION_MIN: usize = 8;

/// How long a packet waits for an earlier one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// See [`comes_within`]. The wait has a bound, but a packet is not asked for before.
    pub(crate) within: Duration,
    /// The round trip of a question and its answer; `None`: no repair is agreed.
    pub(crate) rtt: Option<Duration>,
}

/// The sender's numbers.
#[derive(Debug)]
pub(crate) struct Numbers([u32; 256]);

impl Default for Numbers {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl Numbers {
    /// The sequence number of the packet that is sent next. All datagrams of a UDP tunnel are one
    /// flow.
    pub(crate) fn next(&mut self, kind: Kind, packet: &[u8]) -> SequenceNumber {
        let lane = match kind {
            Kind::Udp => 0,
            Kind::Ip => lane(packet),
        };
        let next = &mut self.0[usize::from(lane)];
        let number = *next;
        *next = number.wrapping_add(1);
        SequenceNumber { lane, number }
    }
}

/// The lane of a packet's flow: addresses, protocol and ports. A fragment has no ports, so it is of
/// the flow of all fragments between its ends.
fn lane(packet: &[u8]) -> u8 {
    let ends = match packet.first().map(|first| first >> 4) {
        Some(4) => packet.get(12..20),
        Some(6) => packet.get(8..40),
        _ => return 0,
    };
    let mut hasher = DefaultHasher::new();
    (ends, transport(packet)).hash(&mut hasher);
    hasher.finish() as u8
}

/// The receiver's lanes.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Bounded by the values of a byte.
    lanes: HashMap<u8, Lane>,
    /// Held packets by the time at which they are handed on in any case.
    due: BTreeSet<(Instant, u8, u64)>,
    held_bytes: usize,
    /// Largest lateness.
    observed: TwoPeriods<Option<Duration>>,
    missing: Missing,
}

#[derive(Debug)]
struct Lane {
    /// The number that is expected, extended beyond 32 bits.
    next: u64,
    held: BTreeMap<u64, Held>,
    /// Numbers that were passed, and when a later one came first.
    gaps: VecDeque<(Range<u64>, Instant)>,
    /// A bit for each of the numbers before `next`, by the remainder of `KNOWN_MAX`.
    known: [u64; WORDS],
    /// The number after the highest that has come.
    top: u64,
    /// Packets.
    density: TwoPeriods<u32>,
}

#[derive(Debug)]
struct Held {
    came: Instant,
    until: Instant,
    packet: Bytes,
}

/// Packets that leave, and those that are dropped.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    /// In the order in which they leave.
    pub(crate) packets: Vec<Bytes>,
    /// Dropped: too old to tell whether it was seen before.
    pub(crate) dropped: usize,
    /// The packet has come before, and goes no further.
    pub(crate) is_copy: bool,
    /// Packets to hand on in one millisecond; of a lane that waited, or zero.
    pub(crate) portion: usize,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            // Room for packets that overtake the first.
            next: KNOWN_MAX,
            held: BTreeMap::new(),
            gaps: VecDeque::new(),
            known: [0; WORDS],
            top: KNOWN_MAX,
            density: TwoPeriods::default(),
        }
    }
}

impl Lane {
    /// Counts a packet; returns whether they are many.
    fn count(&mut self, now: Instant) -> bool {
        self.density.roll(now, COUNTED_FOR);
        self.density.current += 1;
        self.density.largest() >= DENSE_PACKETS
    }

    /// Packets that come in four milliseconds. The socket of a program holds some ninety.
    fn portion(&self) -> usize {
        (self.density.largest() as usize / 25).max(PORTION_MIN)
    }

    fn extended(&self, number: u32) -> u64 {
        let expected = self.next.wrapping_sub(KNOWN_MAX) as u32;
        let ahead = i64::from(number.wrapping_sub(expected).cast_signed());
        self.next.saturating_add_signed(ahead)
    }

    fn bit(number: u64) -> (usize, u64) {
        let bit = number % KNOWN_MAX;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    /// When a later packet came first, if one did.
    fn overtaken_at(&self, number: u64) -> Option<Instant> {
        let held = self.held.range(number..).next();
        let gap = || {
            let mut gaps = self.gaps.iter().rev();
            gaps.find(|(numbers, _)| numbers.contains(&number))
        };
        held.map(|(_, later)| later.came)
            .filter(|_| number >= self.next)
            .or_else(|| gap().map(|(_, at)| *at))
    }

    /// Returns whether the number is new; numbers before `next` only. `None`: too old to tell.
    fn learn_late(&mut self, number: u64) -> Option<bool> {
        if number + KNOWN_MAX < self.next || number < KNOWN_MAX {
            return None;
        }
        let (word, bit) = Self::bit(number);
        let is_new = self.known[word] & bit == 0;
        self.known[word] |= bit;
        Some(is_new)
    }

    /// Goes on to `next`; only `seen`, the number before it, has come of those that are passed.
    fn advance(&mut self, seen: u64) {
        let passed = seen + 1 - self.next;
        if passed >= KNOWN_MAX {
            self.known = [0; WORDS];
        } else {
            for number in self.next..=seen {
                let (word, bit) = Self::bit(number);
                self.known[word] &= !bit;
            }
        }
        let (word, bit) = Self::bit(seen);
        self.known[word] |= bit;
        self.next = seen + 1;
    }
}

impl Order {
    /// A packet has arrived; an earlier one is waited for so long.
    pub(crate) fn arrived(
        &mut self,
        now: Instant,
        patience: Patience,
        sequence: SequenceNumber,
        packet: Bytes,
    ) -> Released {
        let mut released = Released::default();
        let Patience { within, rtt } = patience;
        let bound = within.min(HELD_WITHIN_MAX);
        let is_full = self.due.len() >= HELD_MAX || self.held_bytes >= HELD_BYTES_MAX;
        let lane = self.lanes.entry(sequence.lane).or_default();
        let number = lane.extended(sequence.number);
        let mut overtaken_at = lane.overtaken_at(number);
        let is_dense = lane.count(now);
        let mut held_for = bound;
        if let Some(rtt) = rtt {
            // Beyond that a late packet is not recognised, so the sender has begun anew.
            if number.saturating_sub(lane.top) < KNOWN_MAX {
                for missing in lane.top..number {
                    self.missing.add(now + within, sequence.lane, missing);
                }
            }
            if self.missing.came(now, sequence.lane, number, rtt) == Came::Asked {
                overtaken_at = None;
            }
            // Where paths differ by more than the bound, packets leave out of order in any case.
            if is_dense && within <= HELD_WITHIN_MAX {
                held_for += repaired_within(rtt);
            }
        }
        lane.top = lane.top.max(number + 1);
        if number < lane.next {
            match lane.learn_late(number) {
                Some(true) => {
                    self.note_late(now, overtaken_at);
                    released.packets.push(packet);
                }
                Some(false) => released.is_copy = true,
                None => released.dropped = 1,
            }
            return released;
        }
        if lane.held.contains_key(&number) {
            released.is_copy = true;
            return released;
        }
        if number == lane.next {
            lane.advance(number);
            released.packets.push(packet);
            self.note_late(now, overtaken_at);
            self.release_next(sequence.lane, &mut released);
            return released;
        }
        let until = now + held_for;
        self.held_bytes += packet.len();
        self.due.insert((until, sequence.lane, number));
        let came = now;
        let held = Held {
            came,
            until,
            packet,
        };
        lane.held.insert(number, held);
        self.note_late(now, overtaken_at);
        if is_full || held_for.is_zero() {
            self.release(sequence.lane, number, &mut released);
        }
        released
    }

    fn note_late(&mut self, now: Instant, overtaken_at: Option<Instant>) {
        if let Some(at) = overtaken_at {
            let late = now.saturating_duration_since(at);
            self.observed.roll(now, OBSERVED_LASTS);
            self.observed.current = self.observed.current.max(Some(late));
        }
    }

    /// How late packets were lately; `None` if all came in order.
    pub(crate) fn observed(&mut self, now: Instant) -> Option<Duration> {
        self.observed.roll(now, OBSERVED_LASTS);
        self.observed.largest()
    }

    /// The numbers to ask for now; a question has a bound, so more may follow at once.
    pub(crate) fn question(&mut self, now: Instant, rtt: Duration) -> Vec<SequenceNumber> {
        let question = self.missing.question(now, rtt).into_iter();
        question
            .map(|(lane, number)| SequenceNumber {
                lane,
                number: number.wrapping_sub(KNOWN_MAX) as u32,
            })
            .collect()
    }

    /// Time of the next question.
    pub(crate) fn next_question(&self) -> Option<Instant> {
        self.missing.next_question()
    }

    /// Hands on the packets whose time has come, with everything before them.
    pub(crate) fn expire(&mut self, now: Instant) -> Released {
        let mut released = Released::default();
        while let Some(&(until, lane, number)) = self.due.first() {
            if until > now {
                break;
            }
            self.release(lane, number, &mut released);
        }
        released
    }

    /// Time of the next `expire`.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.due.first().map(|(until, ..)| *until)
    }

    /// Everything that is held up to `number`, and what follows without a gap.
    fn release(&mut self, lane: u8, number: u64, released: &mut Released) {
        while let Some(first) = self.first_held(lane)
            && first <= number
        {
            self.take(lane, first, released);
        }
        self.release_next(lane, released);
    }

    fn release_next(&mut self, lane: u8, released: &mut Released) {
        while let Some(first) = self.first_held(lane)
            && self.lanes.get(&lane).is_some_and(|lane| lane.next == first)
        {
            self.take(lane, first, released);
        }
    }

    fn first_held(&self, lane: u8) -> Option<u64> {
        let (first, _) = self.lanes.get(&lane)?.held.first_key_value()?;
        Some(*first)
    }

    fn take(&mut self, at: u8, number: u64, released: &mut Released) {
        let Some(lane) = self.lanes.get_mut(&at) else {
            return;
        };
        if let Some(held) = lane.held.remove(&number) {
            self.due.remove(&(held.until, at, number));
            self.held_bytes -= held.packet.len();
            if lane.next < number {
                if lane.gaps.len() >= GAPS_MAX {
                    lane.gaps.pop_front();
                }
                lane.gaps.push_back((lane.next..number, held.came));
            }
            lane.advance(number);
            released.packets.push(held.packet);
            released.portion = lane.portion();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{Rng, RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const NONE: [u32; 0] = [];
    const BOUND: Duration = Duration::from_millis(30);
    const RTT: Duration = Duration::from_millis(20);
    const PLAIN: Patience = Patience {
        within: BOUND,
        rtt: None,
    };
    const REPAIRED: Patience = Patience {
        within: BOUND,
        rtt: Some(RTT),
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn packet(number: u32) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes())
    }

    fn numbers(released: &Released) -> Vec<u32> {
        let number = |packet: &Bytes| u32::from_be_bytes(packet[..].try_into().unwrap());
        released.packets.iter().map(number).collect()
    }

    /// Arrives in lane 0.
    fn arrive(order: &mut Order, now: Instant, number: u32) -> Vec<u32> {
        let sequence = SequenceNumber { lane: 0, number };
        numbers(&order.arrived(now, PLAIN, sequence, packet(number)))
    }

    #[test]
    fn packets_that_overtake_wait_for_the_earlier_ones() {
        let (mut order, now) = (Order::default(), Instant::now());
        assert_eq!(arrive(&mut order, now, 1), NONE);
        assert_eq!(arrive(&mut order, now, 2), NONE);
        assert_eq!(arrive(&mut order, now, 0), [0, 1, 2]);
        assert_eq!(arrive(&mut order, now, 3), [3]);
        assert_eq!(order.next_deadline(), None);
    }

    #[test]
    fn a_lost_packet_holds_up_its_own_lane_within_the_bound() {
        let (mut order, now) = (Order::default(), Instant::now());
        assert_eq!(arrive(&mut order, now, 1), NONE);
        assert_eq!(arrive(&mut order, now + ms(5), 3), NONE);
        let other = SequenceNumber { lane: 9, number: 0 };
        assert_eq!(numbers(&order.arrived(now, PLAIN, other, packet(7))), [7]);
        assert_eq!(order.next_deadline(), Some(now + BOUND));
        assert_eq!(order.expire(now + BOUND - ms(1)), Released::default());
        assert_eq!(numbers(&order.expire(now + BOUND)), [1]);
        assert_eq!(numbers(&order.expire(now + BOUND + ms(5))), [3]);
        // Late, but once.
        assert_eq!(arrive(&mut order, now + ms(90), 2), [2]);
        assert_eq!(arrive(&mut order, now + ms(90), 2), NONE);
        assert_eq!(arrive(&mut order, now + ms(90), 4), [4]);
    }

    /// Arrives each millisecond; returns when each number left.
    fn repaired(order: &mut Order, start: Instant, lost: u32, every_ms: u64) -> Vec<(u64, u32)> {
        let (mut left, mut answers) = (Vec::new(), Vec::new());
        for at in 0..1_000 {
            let now = start + ms(at);
            let mut leave = |released: Released| {
                left.extend(numbers(&released).into_iter().map(|number| (at, number)));
            };
            leave(order.expire(now));
            for SequenceNumber { number, .. } in order.question(now, RTT) {
                answers.push((at + RTT.as_millis() as u64, number));
            }
            let own = (at % every_ms == 0).then_some((at / every_ms) as u32);
            let answered = answers.iter().filter(|(due, _)| *due == at).map(|it| it.1);
            for number in own.into_iter().filter(|own| *own != lost).chain(answered) {
                let sequence = SequenceNumber { lane: 0, number };
                leave(order.arrived(now, REPAIRED, sequence, packet(number)));
            }
        }
        left
    }

    #[test]
    fn many_packets_wait_for_a_repair_and_few_do_not() {
        let (mut order, start) = (Order::default(), Instant::now());
        let left = repaired(&mut order, start, 300, 2);
        assert!(left.iter().map(|it| it.1).eq(0..500), "in order");
        let at = |left: &[(u64, u32)], wanted| left.iter().find(|it| it.1 == wanted).unwrap().0;
        let bound = 602 + BOUND.as_millis() as u64;
        assert_eq!(at(&left, 300), bound + RTT.as_millis() as u64);
        assert_eq!(order.observed(start + ms(1_000)), None, "no path was late");
        // A call: 50 packets a second.
        let left = repaired(&mut Order::default(), start, 20, 20);
        assert_eq!(at(&left, 21), 420 + BOUND.as_millis() as u64);
        assert!(at(&left, 20) > at(&left, 21), "it comes, though late");
        assert_eq!(left.len(), 50);
    }

    #[test]
    fn a_far_slower_path_is_waited_for_within_the_bound_and_asked_later() {
        let (mut order, now) = (Order::default(), Instant::now());
        let far = Patience {
            within: ms(400),
            ..REPAIRED
        };
        for number in (0..100).filter(|number| *number != 50) {
            let sequence = SequenceNumber { lane: 0, number };
            order.arrived(now, far, sequence, packet(number));
        }
        assert_eq!(order.next_deadline(), Some(now + HELD_WITHIN_MAX));
        assert_eq!(order.next_question(), Some(now + ms(400)));
    }

    #[test]
    fn a_sender_that_begins_anew_is_asked_for_nothing() {
        let (mut order, now) = (Order::default(), Instant::now());
        for number in [0, 2_000] {
            let sequence = SequenceNumber { lane: 0, number };
            order.arrived(now, REPAIRED, sequence, packet(number));
        }
        assert_eq!(order.next_question(), None);
    }

    #[test]
    fn a_single_path_is_not_waited_for() {
        assert_eq!(comes_within(None, None), Duration::ZERO);
        assert_eq!(comes_within(None, Some(ms(40))), ms(62));
        assert_eq!(comes_within(Some(ms(8)), Some(ms(40))), ms(22));
        let (mut order, now) = (Order::default(), Instant::now());
        let sequence = SequenceNumber { lane: 0, number: 5 };
        let within = Duration::ZERO;
        let released = order.arrived(now, Patience { within, ..PLAIN }, sequence, packet(5));
        assert_eq!(numbers(&released), [5]);
    }

    #[test]
    fn lateness_is_observed_whether_a_packet_was_waited_for_or_not() {
        let (mut order, now) = (Order::default(), Instant::now());
        arrive(&mut order, now, 0);
        assert_eq!(order.observed(now), None);
        arrive(&mut order, now, 2);
        arrive(&mut order, now + ms(1), 3);
        assert_eq!(arrive(&mut order, now + ms(20), 1), [1, 2, 3]);
        assert_eq!(order.observed(now + ms(20)), Some(ms(20)));
        arrive(&mut order, now + ms(30), 5);
        assert_eq!(numbers(&order.expire(now + ms(60))), [5]);
        assert_eq!(arrive(&mut order, now + ms(75), 4), [4]);
        assert_eq!(order.observed(now + ms(75)), Some(ms(45)));
        // A duplicate is not late.
        assert_eq!(arrive(&mut order, now + ms(500), 4), NONE);
        assert_eq!(order.observed(now + ms(1_100)), Some(ms(45)));
        assert_eq!(order.observed(now + ms(2_200)), None);
    }

    #[test]
    fn numbers_go_round() {
        let (mut order, now) = (Order::default(), Instant::now());
        let first = u32::MAX - 2;
        let sequence = SequenceNumber {
            lane: 0,
            number: first,
        };
        // Half the numbers behind: an old packet, as from before this receiver.
        assert_eq!(
            order.arrived(now, PLAIN, sequence, packet(first)).dropped,
            1
        );
        let mut order = Order::default();
        order.lanes.entry(0).or_default().next = u64::from(first) + KNOWN_MAX;
        for number in [first, first + 2, first + 1, 1, 0] {
            arrive(&mut order, now, number);
        }
        assert_eq!(arrive(&mut order, now, 2), [2]);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let (mut order, now) = (Order::default(), Instant::now());
        for number in 1..=HELD_MAX as u32 {
            assert_eq!(arrive(&mut order, now, number), NONE);
        }
        let all: Vec<u32> = (1..=HELD_MAX as u32 + 1).collect();
        assert_eq!(arrive(&mut order, now, HELD_MAX as u32 + 1), all);
        let (mut order, big) = (Order::default(), Bytes::from(vec![0; 1 << 16]));
        let held = (1..=100_u32).take_while(|number| {
            let sequence = SequenceNumber {
                lane: 0,
                number: *number,
            };
            order
                .arrived(now, PLAIN, sequence, big.clone())
                .packets
                .is_empty()
        });
        assert_eq!(held.count(), HELD_BYTES_MAX >> 16);
    }

    #[test]
    fn packets_of_a_flow_share_a_lane_and_fragments_of_all_flows_another() {
        let mut udp = vec![
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        udp.extend([0, 53, 0, 54, 0, 8, 0, 0]);
        let with = |at: usize, byte: u8| {
            let mut other = udp.clone();
            other[at] = byte;
            lane(&other)
        };
        assert_eq!(lane(&udp), with(8, 63));
        // A hash of a byte: most other ports have another lane.
        let same = (0..=255).filter(|port| with(23, *port) == lane(&udp));
        assert!(same.count() < 16);
        let fragment = |port: u8| {
            let mut fragment = udp.clone();
            (fragment[6], fragment[23]) = (0x20, port);
            lane(&fragment)
        };
        assert_eq!(fragment(1), fragment(2));
        for torn in 0..udp.len() {
            lane(&udp[..torn]);
        }
    }

    /// Two paths, losses, duplicates. Nothing leaves twice, is held longer than the bound, or is
    /// lost; and the order holds while the skew is within the bound.
    #[test]
    fn any_arrivals_leave_once_within_the_bound_and_in_order_within_the_skew() {
        for seed in 0..400 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let start = Instant::now();
            let skew = rng.random_range(0..60);
            let loses = rng.random_range(0..3_u32);
            let mut arrivals = Vec::new();
            let mut sent_at = 0;
            for number in 0..400_u32 {
                sent_at += rng.random_range(0..3);
                if rng.random_range(0..100) < loses * 3 {
                    continue;
                }
                let delay = if rng.next_u32() % 2 == 0 { 0 } else { skew };
                arrivals.push((sent_at + delay, number));
                if rng.random_range(0..20) == 0 {
                    arrivals.push((sent_at + delay + rng.random_range(0..90), number));
                }
            }
            arrivals.sort_by_key(|(at, _)| *at);
            let sent: BTreeSet<u32> = arrivals.iter().map(|(_, number)| *number).collect();
            let mut order = Order::default();
            let mut came: HashMap<u32, u64> = HashMap::new();
            let mut left: Vec<u32> = Vec::new();
            let mut clock = 0;
            let mut leave = |at: u64, released: Released, came: &HashMap<u32, u64>| {
                for number in numbers(&released) {
                    assert!(
                        at - came[&number] <= BOUND.as_millis() as u64,
                        "{seed} {number}"
                    );
                    left.push(number);
                }
            };
            for (at, number) in arrivals {
                while clock < at {
                    clock += 1;
                    leave(clock, order.expire(start + ms(clock)), &came);
                }
                came.entry(number).or_insert(at);
                let sequence = SequenceNumber { lane: 0, number };
                let released = order.arrived(start + ms(at), PLAIN, sequence, packet(number));
                leave(at, released, &came);
            }
            for at in clock..=clock + 30 {
                leave(at, order.expire(start + ms(at)), &came);
            }
            let once: BTreeSet<u32> = left.iter().copied().collect();
            assert_eq!(once.len(), left.len(), "{seed}: twice");
            assert_eq!(once, sent, "{seed}: lost");
            if skew < BOUND.as_millis() as u64 {
                assert!(left.is_sorted(), "{seed}: out of order at a skew of {skew}");
            }
            assert_eq!((order.held_bytes, order.next_deadline()), (0, None));
        }
    }
}
