//! Counters of every stream: the next sequence, and which of the sensor's own numbers have been taken.
//!
//! Changes made while a batch is staged are undone when the batch does not reach the disk, so the table always equals what a
//! recovery would read.
//!
//! A sensor's retry is told from a new sample by its `sensor_sequence`: taken when it was seen among the last 64 numbers below
//! the highest one. A sensor that lost its counter starts again with low numbers but newer device times; that is a
//! new run, not a retry.

use std::collections::HashMap;

use super::format::StreamRow;

/// Streams of one journal. Beyond it a sample of a new stream is refused: a counter can never be forgotten, because reusing a
/// sequence makes ingest discard the sample as a duplicate.
pub const STREAMS_MAX: usize = 4096;

const WINDOW: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    pub next_sequence: u64,
    pub last_time_us: i64,
    /// Zero while the sensor has given no number.
    sensor_highest: u64,
    /// Bit n: the number `sensor_highest - n` was taken.
    sensor_seen: u64,
    sensor_time_us: i64,
}

impl Counters {
    const NEW: Self = Self {
        next_sequence: 1,
        last_time_us: 0,
        sensor_highest: 0,
        sensor_seen: 0,
        sensor_time_us: 0,
    };

    fn from_row(row: &StreamRow) -> Self {
        Self {
            next_sequence: row.next_sequence,
            last_time_us: row.last_time_us,
            sensor_highest: row.sensor_highest,
            sensor_seen: row.sensor_seen,
            sensor_time_us: row.sensor_time_us,
        }
    }

    fn is_retry(&self, number: u64, time_us: i64) -> bool {
        if self.sensor_seen == 0 || number > self.sensor_highest || time_us > self.sensor_time_us {
            return false;
        }
        let back = self.sensor_highest - number;
        back >= WINDOW || self.sensor_seen & (1 << back) != 0
    }

    fn take(&mut self, number: u64, time_us: i64) {
        if self.sensor_seen != 0 && number <= self.sensor_highest && time_us <= self.sensor_time_us
        {
            let back = self.sensor_highest - number;
            if back < WINDOW {
                self.sensor_seen |= 1 << back;
            }
            return;
        }
        let ahead = number.wrapping_sub(self.sensor_highest);
        self.sensor_seen = if number > self.sensor_highest && ahead < WINDOW {
            self.sensor_seen << ahead | 1
        } else {
            1
        };
        self.sensor_highest = number;
        self.sensor_time_us = time_us;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Sequence(u64),
    /// The sensor sent this number before.
    Retry,
    /// STREAMS_MAX is reached.
    TooManyStreams,
}

#[derive(Clone, Debug)]
struct Row {
    device: String,
    stream: String,
    counters: Counters,
}

#[derive(Clone, Debug, Default)]
pub struct Streams {
    ids: HashMap<String, HashMap<String, usize>>,
    rows: Vec<Row>,
    undo: Vec<(usize, Counters)>,
    committed_rows: usize,
}

impl Streams {
    pub fn from_rows(rows: &[StreamRow]) -> Self {
        let mut streams = Self::default();
        for row in rows {
            let id = streams.insert(&row.device, &row.stream);
            streams.rows[id].counters = Counters::from_row(row);
        }
        streams.commit();
        streams
    }

    pub fn to_rows(&self) -> Vec<StreamRow> {
        self.rows
            .iter()
            .map(|row| StreamRow {
                device: row.device.clone(),
                stream: row.stream.clone(),
                next_sequence: row.counters.next_sequence,
                last_time_us: row.counters.last_time_us,
                sensor_highest: row.counters.sensor_highest,
                sensor_seen: row.counters.sensor_seen,
                sensor_time_us: row.counters.sensor_time_us,
            })
            .collect()
    }

    /// The next sequence of a stream; taken for good at `commit`, given back by `revert`. A stream that is new to this journal begins
    /// at the clock's microsecond, not at 1: no stream has a million samples a second, so a gateway whose disk was wiped goes on
    /// above every number it gave before, and ingest does not take its new samples for duplicates.
    pub fn next(
        &mut self,
        device: &str,
        stream: &str,
        clock_us: i64,
        time_us: i64,
        sensor_sequence: Option<u64>,
    ) -> Next {
        let id = match self.find(device, stream) {
            Some(id) => id,
            None if self.rows.len() >= STREAMS_MAX => return Next::TooManyStreams,
            None => {
                let id = self.insert(device, stream);
                self.rows[id].counters.next_sequence = u64::try_from(clock_us).unwrap_or(1).max(1);
                id
            }
        };
        let counters = &mut self.rows[id].counters;
        if sensor_sequence.is_some_and(|number| counters.is_retry(number, time_us)) {
            return Next::Retry;
        }
        self.undo.push((id, *counters));
        let sequence = counters.next_sequence;
        counters.next_sequence += 1;
        counters.last_time_us = time_us;
        if let Some(number) = sensor_sequence {
            counters.take(number, time_us);
        }
        Next::Sequence(sequence)
    }

    /// Repeats what `next` did for an entry that recovery reads back.
    pub fn replay(
        &mut self,
        device: &str,
        stream: &str,
        sequence: u64,
        time_us: i64,
        sensor_sequence: Option<u64>,
    ) {
        let id = match self.find(device, stream) {
            Some(id) => id,
            None => self.insert(device, stream),
        };
        let counters = &mut self.rows[id].counters;
        counters.next_sequence = sequence + 1;
        counters.last_time_us = time_us;
        if let Some(number) = sensor_sequence {
            counters.take(number, time_us);
        }
        self.commit();
    }

    pub fn commit(&mut self) {
        self.undo.clear();
        self.committed_rows = self.rows.len();
    }

    pub fn revert(&mut self) {
        while let Some((id, counters)) = self.undo.pop() {
            self.rows[id].counters = counters;
        }
        for row in self.rows.drain(self.committed_rows..) {
            if let Some(streams) = self.ids.get_mut(&row.device) {
                streams.remove(&row.stream);
                if streams.is_empty() {
                    self.ids.remove(&row.device);
                }
            }
        }
    }

    pub fn counters(&self, device: &str, stream: &str) -> Option<Counters> {
        self.find(device, stream).map(|id| self.rows[id].counters)
    }

    fn find(&self, device: &str, stream: &str) -> Option<usize> {
        self.ids.get(device)?.get(stream).copied()
    }

    fn insert(&mut self, device: &str, stream: &str) -> usize {
        let id = self.rows.len();
        self.rows.push(Row {
            device: device.to_owned(),
            stream: stream.to_owned(),
            counters: Counters::NEW,
        });
        self.ids
            .entry(device.to_owned())
            .or_default()
            .insert(stream.to_owned(), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_start_at_one_and_come_back_after_a_revert() {
        let mut streams = Streams::default();
        assert_eq!(streams.next("d", "hr", 0, 1, None), Next::Sequence(1));
        streams.commit();
        assert_eq!(streams.next("d", "hr", 0, 2, None), Next::Sequence(2));
        assert_eq!(streams.next("d", "spo2", 0, 2, None), Next::Sequence(1));
        streams.revert();
        assert_eq!(streams.counters("d", "spo2"), None);
        assert_eq!(streams.next("d", "hr", 0, 2, None), Next::Sequence(2));
    }

    #[test]
    fn a_gateway_whose_disk_was_wiped_repeats_no_sequence() {
        let clock_us = 1_790_000_000_000_000;
        let mut streams = Streams::default();
        let given: Vec<Next> = (0..1_000)
            .map(|n| streams.next("d", "hr", clock_us + n * 10_000, n, None))
            .collect();
        assert_eq!(given[0], Next::Sequence(1_790_000_000_000_000));
        assert_eq!(given[999], Next::Sequence(1_790_000_000_000_999));

        let mut wiped = Streams::default();
        let after = wiped.next("d", "hr", clock_us + 10_000_000, 0, None);
        assert!(!given.contains(&after));
        assert_eq!(after, Next::Sequence(1_790_000_010_000_000));
    }

    #[test]
    fn a_retry_is_known_also_out_of_order_and_after_a_restart() {
        let mut streams = Streams::default();
        for number in [1, 2, 4] {
            assert!(matches!(
                streams.next("d", "hr", 0, number, Some(number as u64)),
                Next::Sequence(_)
            ));
        }
        streams.commit();
        let mut streams = Streams::from_rows(&streams.to_rows());
        assert_eq!(streams.next("d", "hr", 0, 2, Some(2)), Next::Retry);
        assert_eq!(streams.next("d", "hr", 0, 4, Some(4)), Next::Retry);
        assert_eq!(streams.next("d", "hr", 0, 3, Some(3)), Next::Sequence(4));
        assert_eq!(streams.next("d", "hr", 0, 3, Some(3)), Next::Retry);
    }

    #[test]
    fn a_sensor_that_lost_its_counter_is_no_retry() {
        let mut streams = Streams::default();
        streams.next("d", "hr", 0, 1_000, Some(500));
        assert_eq!(
            streams.next("d", "hr", 0, 1_001, Some(1)),
            Next::Sequence(2)
        );
        assert_eq!(streams.next("d", "hr", 0, 1_001, Some(1)), Next::Retry);
        assert_eq!(
            streams.next("d", "hr", 0, 1_002, Some(2)),
            Next::Sequence(3)
        );
    }

    #[test]
    fn the_table_is_bounded() {
        let mut streams = Streams::default();
        for device in 0..STREAMS_MAX {
            assert_eq!(
                streams.next(&device.to_string(), "hr", 0, 1, None),
                Next::Sequence(1)
            );
        }
        assert_eq!(
            streams.next("one more", "hr", 0, 1, None),
            Next::TooManyStreams
        );
        assert_eq!(streams.next("0", "hr", 0, 1, None), Next::Sequence(2));
    }
}
