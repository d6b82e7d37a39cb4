//! What was acknowledged in most of a round trip. A sample of the delivery rate is no faster than its packets were sent, so a link that serves in bursts has
//! risen for some round trips before the samples have; what comes back of its queue tells it at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Part of the bare round trip over which acknowledgements are counted. Recorded drives, two and three links, mean of three runs, counted in any queue and with another
/// route's floor found without a drained round (without either 84.4 and 82.3 %): over 0.35 of it 85.2 and 80.2, for what one link loses the others wait; over 0.5
/// 85.3 and 82.4, over 0.7 85.9 and 83.2, 0.85 86.0 and 83.0, 1.0 85.7 and 83.1.
const SPAN: f64 = 0.75;
/// Marks in such a span; older ones are forgotten.
const MARKS: u32 = 32;
/// When the span grows, more than this are forgotten, too, and no rate is told until the rest is old enough.
const MARKS_MAX: usize = 128;

#[derive(Debug, Clone, Default)]
pub(super) struct AckedRate {
    /// Instants of acknowledgements, and what had been delivered then.
    marks: VecDeque<(Instant, u64)>,
}

impl AckedRate {
    /// Bytes a second over the last part of a round trip, once it is over; `delivered` in all, on a path of `bare`.
    pub(super) fn on_ack(&mut self, now: Instant, delivered: u64, bare: Duration) -> Option<f64> {
        let span = bare.mul_f64(SPAN);
        match self.marks.back_mut() {
            // A whole train is before the mark or behind it: counted at both ends it would be a burst of its own.
            Some(mark) if now < mark.0 + span / MARKS => mark.1 = delivered,
            _ => self.marks.push_back((now, delivered)),
        }
        while self.marks.len() > MARKS_MAX || self.marks.get(1).is_some_and(|m| now >= m.0 + span) {
            self.marks.pop_front();
        }
        let (since, before) = *self.marks.front()?;
        let time = now.saturating_duration_since(since);
        let is_over = !time.is_zero() && time >= span;
        is_over.then(|| delivered.saturating_sub(before) as f64 / time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Duration = Duration::from_millis(40);

    /// The rate in bytes a millisecond that is told at last, when so many are acknowledged at each of these milliseconds.
    fn told(acked: impl IntoIterator<Item = (u32, u64)>) -> (Option<f64>, usize) {
        let start = Instant::now();
        let (mut rate, mut delivered) = (AckedRate::default(), 0);
        let mut last = None;
        for (ms, bytes) in acked {
            delivered += bytes;
            let now = start + Duration::from_millis(1) * ms;
            last = rate.on_ack(now, delivered, BARE);
        }
        (last.map(|rate| (rate / 1e3).round()), rate.marks.len())
    }

    #[test]
    fn a_rise_is_told_when_it_has_lasted_for_the_span() {
        let steady = (0..100).map(|ms| (ms, 1_000));
        assert_eq!(told(steady.clone()).0, Some(1_000.0));
        assert_eq!(told(steady.clone().take(20)).0, None, "not yet");
        let rises = |to| steady.clone().chain((100..to).map(|ms| (ms, 5_000)));
        assert_eq!(told(rises(115)).0, Some(3_000.0));
        assert_eq!(told(rises(130)).0, Some(5_000.0));
    }

    #[test]
    fn a_train_at_the_beginning_of_the_span_does_not_count() {
        let trains = (0..8).flat_map(|train| (0..10).map(move |_| (train * 30, 3_000)));
        assert_eq!(told(trains).0, Some(1_000.0));
    }

    #[test]
    fn a_train_after_a_pause_counts_over_the_pause() {
        let steady = (0..100).map(|ms| (ms, 1_000));
        let train = (0..30).map(|_| (199, 3_000));
        let (rate, marks) = told(steady.chain(train));
        assert_eq!(rate, Some(900.0));
        assert!(marks <= MARKS as usize, "{marks}");
    }
}
