//! Ranges of lost samples per stream, merged where they touch.

use std::collections::BTreeMap;

use contracts::vitals::{Gap, GapCause, Sample};

use super::{format::StreamRow, streams::Streams};

/// Gaps of one entry, which is one upload message; each gap takes about 100 bytes.
pub const GAPS_PER_ENTRY_MAX: usize = 1024;

#[derive(Debug, Default)]
pub struct Gaps {
    /// Why the samples are lost that are added one by one.
    cause: GapCause,
    streams: BTreeMap<(String, String), Vec<Gap>>,
}

impl Gaps {
    pub fn of(cause: GapCause) -> Self {
        Self {
            cause,
            ..Self::default()
        }
    }

    pub fn add_sample(&mut self, sample: Sample) {
        self.add_gap(Gap {
            device: sample.device,
            stream: sample.stream,
            first_sequence: sample.sequence,
            last_sequence: sample.sequence,
            from_time_us: sample.device_time_us,
            to_time_us: sample.device_time_us,
            cause: self.cause.into(),
            ..Gap::default()
        });
    }

    pub fn add_gap(&mut self, gap: Gap) {
        let ranges = self
            .streams
            .entry((gap.device.clone(), gap.stream.clone()))
            .or_default();
        match ranges.last_mut() {
            Some(last) if touches(last, &gap) => extend(last, &gap),
            _ => ranges.push(gap),
        }
    }

    /// Adds the range between the counters read so far and those of a later snapshot. `entries` is
    /// the largest number of lost entries. So a stream without read entries does not count from 1,
    /// and one that was forgotten and returned does not lose everything in between. A stream that
    /// was forgotten for good gives no gap: it had been silent for a day.
    pub fn add_between(&mut self, read: &Streams, later: &[StreamRow], entries: u64) {
        for row in later {
            let counters = read.counters(&row.device, &row.stream);
            let earliest = row.next_sequence.saturating_sub(entries).max(1);
            let first = counters
                .as_ref()
                .map_or(earliest, |it| it.next_sequence.max(earliest));
            if first < row.next_sequence {
                self.add_gap(Gap {
                    device: row.device.clone(),
                    stream: row.stream.clone(),
                    first_sequence: first,
                    last_sequence: row.next_sequence - 1,
                    from_time_us: counters
                        .map_or(row.last_time_us, |counters| counters.last_time_us),
                    to_time_us: row.last_time_us,
                    cause: GapCause::Medium.into(),
                    ..Gap::default()
                });
            }
        }
    }

    /// Runs of at most GAPS_PER_ENTRY_MAX gaps, with each stream's ranges sorted and merged.
    pub fn into_entries(self) -> Vec<Vec<Gap>> {
        let mut merged: Vec<Gap> = Vec::new();
        for mut ranges in self.streams.into_values() {
            ranges.sort_by_key(|gap| gap.first_sequence);
            let start = merged.len();
            for gap in ranges {
                match merged[start..].last_mut() {
                    Some(last)
                        if gap.first_sequence <= last.last_sequence || touches(last, &gap) =>
                    {
                        extend(last, &gap);
                    }
                    _ => merged.push(gap),
                }
            }
        }
        merged
            .chunks(GAPS_PER_ENTRY_MAX)
            .map(<[Gap]>::to_vec)
            .collect()
    }
}

/// Whether `next` goes on where the gap ends, for the same cause.
fn touches(gap: &Gap, next: &Gap) -> bool {
    gap.last_sequence.checked_add(1) == Some(next.first_sequence) && gap.cause == next.cause
}

fn extend(gap: &mut Gap, next: &Gap) {
    gap.last_sequence = gap.last_sequence.max(next.last_sequence);
    gap.from_time_us = gap.from_time_us.min(next.from_time_us);
    gap.to_time_us = gap.to_time_us.max(next.to_time_us);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(first: u64, last: u64) -> Gap {
        Gap {
            device: "d".into(),
            stream: "s".into(),
            first_sequence: first,
            last_sequence: last,
            from_time_us: first as i64,
            to_time_us: last as i64,
            ..Gap::default()
        }
    }

    #[test]
    fn touching_ranges_merge_in_any_order_and_others_stay_apart() {
        let mut gaps = Gaps::default();
        for (first, last) in [(5, 6), (1, 2), (9, 9), (3, 4), (7, 7)] {
            gaps.add_gap(gap(first, last));
        }
        assert_eq!(gaps.into_entries(), [[gap(1, 7), gap(9, 9)]]);
    }

    #[test]
    fn an_entry_holds_a_bounded_number_of_gaps() {
        let mut gaps = Gaps::default();
        for n in 0..GAPS_PER_ENTRY_MAX as u64 + 1 {
            gaps.add_gap(gap(n * 2 + 1, n * 2 + 1));
        }
        let sizes: Vec<_> = gaps.into_entries().iter().map(Vec::len).collect();
        assert_eq!(sizes, [GAPS_PER_ENTRY_MAX, 1]);
    }
}
