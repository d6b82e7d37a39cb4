//! Rate of acknowledged bytes over most of a round trip. A delivery-rate sample is never above the
//! sending rate, so it follows a burst some round trips late. The acknowledgements of the link's
//! queue show the burst at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Part of the minimum round trip over which acknowledgements are counted. The trials of other
/// values are in docs/lab/bursty-links.md.
const SPAN: f64 = 0.75;
/// Marks within the span; older marks are removed.
const MARKS: u32 = 32;
/// Bound on marks. Beyond it the oldest marks go, and no rate is reported until the others are old
/// enough.
const MARKS_MAX: usize = 128;

#[derive(Debug, Clone, Default)]
pub(super) struct AckedRate {
    /// Instants of acknowledgements, and the delivered bytes at each.
    marks: VecDeque<(Instant, u64)>,
}

impl AckedRate {
    /// Bytes a second over the span, once the span has passed. `delivered` counts all bytes; `bare`
    /// is the minimum round trip of the path.
    pub(super) fn on_ack(&mut self, now: Instant, delivered: u64, bare: Duration) -> Option<f64> {
        let span = bare.mul_f64(SPAN);
        match self.marks.back_mut() {
            // A packet train belongs to one side of a mark. Counted at both ends of the span, it
            // would look like a burst.
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

    /// The last reported rate in bytes a millisecond, for `(millisecond, bytes)` acknowledgements.
    fn reported(acked: impl IntoIterator<Item = (u32, u64)>) -> (Option<f64>, usize) {
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
    fn a_rise_is_reported_after_the_span() {
        let steady = (0..100).map(|ms| (ms, 1_000));
        assert_eq!(reported(steady.clone()).0, Some(1_000.0));
        assert_eq!(reported(steady.clone().take(20)).0, None, "not yet");
        let rises = |to| steady.clone().chain((100..to).map(|ms| (ms, 5_000)));
        assert_eq!(reported(rises(115)).0, Some(3_000.0));
        assert_eq!(reported(rises(130)).0, Some(5_000.0));
    }

    #[test]
    fn a_train_at_the_beginning_of_the_span_does_not_count() {
        let trains = (0..8).flat_map(|train| (0..10).map(move |_| (train * 30, 3_000)));
        assert_eq!(reported(trains).0, Some(1_000.0));
    }

    #[test]
    fn a_train_after_a_pause_counts_over_the_pause() {
        let steady = (0..100).map(|ms| (ms, 1_000));
        let train = (0..30).map(|_| (199, 3_000));
        let (rate, marks) = reported(steady.chain(train));
        assert_eq!(rate, Some(900.0));
        assert!(marks <= MARKS as usize, "{marks}");
    }
}
