//! Repair of lost packets. The receiver asks for the numbers that did not come. The sender keeps
//! its packets for a while, and sends those again. Sans-IO.
//!
//! The congestion control of an application takes a loss for a full link. On a path that loses one
//! packet in fifty it keeps a tenth of the rate. Packets that the tunnel drops before they have a
//! number are not repaired, so an application still learns that the paths are full.
//!
//! Bounds: [`MISSING_MAX`] numbers that did not come; [`KEPT_BYTES_MAX`] and [`KEPT_FOR`] of sent
//! packets; [`ASKS_MAX`] times for a packet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::sequence_number::SequenceNumber;

/// Numbers that did not come, of all lanes. Further ones are not asked for.
const MISSING_MAX: usize = 2_048;

/// Times that a packet is asked for, and sent again.
const ASKS_MAX: u8 = 2;

/// Numbers in one question.
pub(super) const QUESTION_MAX: usize = 64;

/// Time above a round trip until an answer counts as lost.
const ANSWER_MARGIN: Duration = Duration::from_millis(15);

/// Longest time that later packets of a dense lane wait for the first answer, beyond the bound of
/// the order.
const FIRST_WITHIN_MAX: Duration = Duration::from_secs(1);

/// Longest time that they wait for the second answer.
const SECOND_WITHIN_MAX: Duration = Duration::from_millis(300);

/// Time for which sent packets are kept: the longest wait of the receiver, and the way back.
const KEPT_FOR: Duration = Duration::from_millis(1_500);

/// Bytes kept of a tunnel: 300 ms at 100 Mbit/s. The oldest leave first.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Time of an answer: a packet that was asked for comes after it.
fn answer_time(rtt: Duration) -> Duration {
    rtt + rtt / 4 + ANSWER_MARGIN
}

/// Time beyond the bound of the order within which an answer comes, or the second one if that is
/// soon.
pub(super) fn repaired_within(rtt: Duration) -> Duration {
    let one = answer_time(rtt).min(FIRST_WITHIN_MAX);
    (one * u32::from(ASKS_MAX)).min(SECOND_WITHIN_MAX).max(one)
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    due: Instant,
    asks: u8,
    asked_at: Option<Instant>,
}

/// The receiver's numbers that did not come, though later ones did.
#[derive(Debug, Default)]
pub(super) struct Missing {
    waits: BTreeMap<(u8, u64), Wait>,
    /// By the time at which each is asked for, or given up.
    due: BTreeSet<(Instant, u8, u64)>,
}

/// How a packet came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    Unasked,
    /// As an answer, so its delay says nothing about the paths.
    Asked,
}

impl Missing {
    /// The number did not come; it is asked for at `due`.
    pub(super) fn add(&mut self, due: Instant, lane: u8, number: u64) {
        if self.waits.len() < MISSING_MAX {
            self.due.insert((due, lane, number));
            let wait = Wait {
                due,
                asks: 0,
                asked_at: None,
            };
            self.waits.insert((lane, number), wait);
        }
    }

    /// The number has come.
    pub(super) fn came(&mut self, now: Instant, lane: u8, number: u64, rtt: Duration) -> Came {
        let Some(wait) = self.waits.remove(&(lane, number)) else {
            return Came::Unasked;
        };
        self.due.remove(&(wait.due, lane, number));
        // An original that was only late overtakes its answer.
        match wait.asked_at {
            Some(at) if now.saturating_duration_since(at) >= rtt / 2 => Came::Asked,
            _ => Came::Unasked,
        }
    }

    /// The lanes and numbers to ask for now, at most [`QUESTION_MAX`].
    pub(super) fn question(&mut self, now: Instant, rtt: Duration) -> Vec<(u8, u64)> {
        let mut question = Vec::new();
        while let Some(&(due, lane, number)) = self.due.first()
            && due <= now
            && question.len() < QUESTION_MAX
        {
            self.due.pop_first();
            let Some(wait) = self.waits.get_mut(&(lane, number)) else {
                continue;
            };
            if wait.asks >= ASKS_MAX {
                self.waits.remove(&(lane, number));
                continue;
            }
            wait.asks += 1;
            wait.asked_at = Some(now);
            wait.due = now + answer_time(rtt);
            self.due.insert((wait.due, lane, number));
            question.push((lane, number));
        }
        question
    }

    /// Time of the next question.
    pub(super) fn next_question(&self) -> Option<Instant> {
        self.due.first().map(|(due, ..)| *due)
    }
}

#[derive(Debug)]
struct Packet {
    number: u32,
    payload: Bytes,
    repeats: u8,
}

/// Packets that the sender has sent lately.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The packets of a lane have consecutive numbers.
    lanes: HashMap<u8, VecDeque<Packet>>,
    sent: VecDeque<(Instant, u8)>,
    bytes: usize,
}

impl Kept {
    /// Returns whether it is the only one.
    pub(super) fn keep(&mut self, now: Instant, sequence: SequenceNumber, payload: Bytes) -> bool {
        let SequenceNumber { lane, number } = sequence;
        self.bytes += payload.len();
        self.sent.push_back((now, lane));
        self.lanes.entry(lane).or_default().push_back(Packet {
            number,
            payload,
            repeats: 0,
        });
        while self.bytes > KEPT_BYTES_MAX && self.forget_oldest() {}
        self.sent.len() == 1
    }

    /// The packet, unless it is too old or was sent again too often.
    pub(super) fn repeat(&mut self, sequence: SequenceNumber) -> Option<Bytes> {
        let lane = self.lanes.get_mut(&sequence.lane)?;
        let first = lane.front()?.number;
        let place = sequence.number.wrapping_sub(first);
        let packet = lane.get_mut(usize::try_from(place).ok()?)?;
        if packet.repeats >= ASKS_MAX {
            return None;
        }
        packet.repeats += 1;
        Some(packet.payload.clone())
    }

    /// Forgets packets that are too old; returns when more will be.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let (sent, _) = self.sent.front()?;
            let until = *sent + KEPT_FOR;
            if until > now {
                return Some(until);
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) -> bool {
        let Some((_, lane)) = self.sent.pop_front() else {
            return false;
        };
        let forgotten = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front);
        self.bytes -= forgotten.map_or(0, |packet| packet.payload.len());
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(lane: u8, number: u32) -> SequenceNumber {
        SequenceNumber { lane, number }
    }

    #[test]
    fn a_missing_packet_is_asked_for_twice_and_then_given_up() {
        let (mut missing, start) = (Missing::default(), Instant::now());
        missing.add(start + ms(10), 3, 1_030);
        missing.add(start + ms(12), 3, 1_031);
        assert_eq!(missing.question(start + ms(9), RTT), []);
        assert_eq!(missing.question(start + ms(12), RTT).len(), 2);
        assert_eq!(missing.came(start + ms(60), 3, 1_031, RTT), Came::Asked);
        assert_eq!(missing.next_question(), Some(start + ms(12 + 65)));
        assert_eq!(missing.question(start + ms(80), RTT).len(), 1);
        assert_eq!(missing.question(start + ms(200), RTT), []);
        assert_eq!(missing.next_question(), None);
        assert!(missing.waits.is_empty());
    }

    #[test]
    fn an_original_that_was_only_late_is_no_answer() {
        let (mut missing, start) = (Missing::default(), Instant::now());
        missing.add(start, 0, 1_024);
        missing.add(start + ms(50), 0, 1_025);
        assert_eq!(missing.question(start, RTT).len(), 1);
        assert_eq!(missing.came(start + ms(5), 0, 1_024, RTT), Came::Unasked);
        assert_eq!(missing.came(start + ms(6), 0, 1_025, RTT), Came::Unasked);
        assert_eq!(missing.came(start + ms(6), 0, 1_026, RTT), Came::Unasked);
        assert_eq!(missing.next_question(), None);
    }

    #[test]
    fn the_missing_numbers_are_bounded_and_a_question_is_short() {
        let (mut missing, now) = (Missing::default(), Instant::now());
        for number in 0..10_000 {
            missing.add(now, 0, 1_024 + number);
        }
        assert_eq!(missing.waits.len(), MISSING_MAX);
        let asked = |missing: &mut Missing| missing.question(now, RTT).len();
        let questions: Vec<usize> = (0..40).map(|_| asked(&mut missing)).collect();
        assert_eq!(questions[..32], [QUESTION_MAX; 32]);
        assert_eq!(questions[32..], [0; 8]);
    }

    #[test]
    fn a_packet_is_sent_again_twice_while_it_is_kept() {
        let (mut kept, start) = (Kept::default(), Instant::now());
        for number in 0..10_u32 {
            let number = number.wrapping_sub(5);
            kept.keep(start, at(7, number), Bytes::from(number.to_string()));
            kept.keep(start, at(8, number), Bytes::from_static(b"other"));
        }
        assert_eq!(kept.repeat(at(7, 2)).unwrap(), "2");
        assert_eq!(kept.repeat(at(7, 2)).unwrap(), "2");
        assert_eq!(kept.repeat(at(7, 2)), None, "often enough");
        assert_eq!(kept.repeat(at(7, u32::MAX)).unwrap(), "4294967295");
        for never in [at(7, 5), at(7, u32::MAX - 5), at(9, 0)] {
            assert_eq!(kept.repeat(never), None);
        }
        assert_eq!(kept.expire(start + ms(10)), Some(start + KEPT_FOR));
        assert_eq!(kept.expire(start + KEPT_FOR), None);
        assert_eq!(kept.repeat(at(7, 3)), None);
        assert_eq!((kept.bytes, kept.sent.len()), (0, 0));
    }

    #[test]
    fn kept_bytes_are_bounded() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        for number in 0..10_000 {
            kept.keep(now, at(0, number), Bytes::from(vec![0; 1_000]));
        }
        assert_eq!(kept.bytes, KEPT_BYTES_MAX / 1_000 * 1_000);
        assert_eq!(kept.repeat(at(0, 100)), None);
        assert!(kept.repeat(at(0, 9_999)).is_some());
    }
}
