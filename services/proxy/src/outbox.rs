//! Path reports that path-telemetry has not acknowledged yet; sans-IO.
//!
//! Path-telemetry acknowledges the number of reports that it has of the current stream. Reports
//! without an acknowledgement are sent again on the next stream; path-telemetry finds duplicates by
//! their sequence number.

use std::collections::VecDeque;

use contracts::paths::PathReport;

/// Reports kept while path-telemetry is away; at the bound the oldest report is dropped. At 300
/// bytes each they take 6 MB.
pub(crate) const REPORTS_MAX: usize = 20_000;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    reports: VecDeque<PathReport>,
    /// Number, within the stream, of the first report kept.
    first: u64,
    /// Reports handed to the stream.
    sent: u64,
}

impl Outbox {
    /// Returns how many reports were dropped to make room.
    pub(crate) fn push(&mut self, reports: Vec<PathReport>) -> usize {
        let mut dropped = 0;
        for report in reports {
            if self.reports.len() == REPORTS_MAX {
                self.reports.pop_front();
                // A dropped report that was sent still counts for the peer.
                if self.sent > self.first {
                    self.first += 1;
                }
                dropped += 1;
            }
            self.reports.push_back(report);
        }
        dropped
    }

    /// The next reports to send, at most `max`; empty when all are sent.
    pub(crate) fn next_batch(&mut self, max: usize) -> Vec<PathReport> {
        let under_way = (self.sent - self.first) as usize;
        let batch: Vec<PathReport> = self
            .reports
            .iter()
            .skip(under_way)
            .take(max)
            .cloned()
            .collect();
        self.sent += batch.len() as u64;
        batch
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.reports.len() as u64 > self.sent - self.first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// The peer has the first `accepted` reports of the stream.
    pub(crate) fn acknowledge(&mut self, accepted: u64) {
        while self.first < accepted.min(self.sent) {
            self.reports.pop_front();
            self.first += 1;
        }
    }

    /// A new stream begins.
    pub(crate) fn restart(&mut self) {
        self.first = 0;
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(sequences: std::ops::Range<u64>) -> Vec<PathReport> {
        sequences
            .map(|sequence| PathReport {
                sequence,
                ..PathReport::default()
            })
            .collect()
    }

    fn sequences(batch: &[PathReport]) -> Vec<u64> {
        batch.iter().map(|report| report.sequence).collect()
    }

    #[test]
    fn unacknowledged_reports_are_sent_again_on_the_next_stream() {
        let mut outbox = Outbox::default();
        outbox.push(reports(0..5));
        assert_eq!(sequences(&outbox.next_batch(3)), [0, 1, 2]);
        outbox.acknowledge(2);
        assert_eq!(sequences(&outbox.next_batch(9)), [3, 4]);
        assert!(!outbox.has_unsent());
        outbox.restart();
        assert_eq!(sequences(&outbox.next_batch(9)), [2, 3, 4]);
        outbox.acknowledge(3);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_full_outbox_drops_the_oldest_and_keeps_count() {
        let mut outbox = Outbox::default();
        let full = REPORTS_MAX as u64;
        assert_eq!(outbox.push(reports(0..full)), 0);
        assert_eq!(outbox.next_batch(10).len(), 10);
        // Four of the ten unacknowledged reports are dropped.
        assert_eq!(outbox.push(reports(full..full + 4)), 4);
        outbox.acknowledge(10);
        assert_eq!(sequences(&outbox.next_batch(1)), [10]);
        // One report is sent and unacknowledged: the peer does not count the dropped reports that
        // were not sent.
        outbox.acknowledge(11);
        let room = REPORTS_MAX - outbox.reports.len();
        assert_eq!(outbox.push(reports(0..room as u64 + 2)), 2);
        assert_eq!(sequences(&outbox.next_batch(1)), [13]);
        outbox.acknowledge(12);
        assert_eq!(sequences(&outbox.next_batch(1)), [14]);
    }

    #[test]
    fn an_acknowledgement_of_more_than_was_sent_is_harmless() {
        let mut outbox = Outbox::default();
        outbox.push(reports(0..3));
        outbox.next_batch(1);
        outbox.acknowledge(100);
        assert_eq!(sequences(&outbox.next_batch(9)), [1, 2]);
    }
}
