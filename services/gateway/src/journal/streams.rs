//! Counters of every stream: the next sequence, and the sensor's own numbers that have been taken.
//!
//! Changes of a staged batch are undone if the batch does not reach the disk, so the table always
//! equals the result of a recovery.
//!
//! In a full table a new stream replaces the stream that was used longest ago, and begins above the
//! sequences of every row. So every sequence of a stream without a row is less than the highest
//! next sequence in the table. A forgotten stream that returns repeats no sequence, whatever the
//! clock shows. Entries and the order of rows in a snapshot alone decide which stream was used
//! longest ago: recovery forgets the same streams as the journal.
//!
//! A `sensor_sequence` distinguishes a sensor's retry from a new sample. The table remembers the
//! ranges of missing numbers. So samples that a sensor stored while it was out of reach may come
//! after later ones, in any order. A sensor that lost its counter starts again with low numbers but
//! newer device times; that is a new run and not a retry.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::Arc,
};

use contracts::vitals::LedgerStream;

use super::format::StreamRow;
use crate::clock::{self, Moment};

/// Streams of one journal; at the bound the stream that was used longest ago is forgotten. A new
/// stream is refused if all were used within FRESH_US.
pub const STREAMS_MAX: usize = 4096;
/// Uptime for which a stream is not forgotten after a sample, nor are its sensor's numbers. So
/// invented names cannot push out streams in use, and block new streams for at most a day. Streams
/// used only before the start are forgotten earlier, so that a gateway that never runs for a day
/// forgets as well.
const FRESH_US: i64 = 24 * 3600 * 1_000_000;
/// Quarters of the free or forgettable streams that one address may begin, so that an address with
/// invented names leaves some to others. Behind a NAT or a forwarder all sensors have one address,
/// so it is most of them. A restart clears the addresses.
const QUARTERS_OF_ONE: usize = 3;

/// Largest first sequence without a clock: less than any clock that was ever set.
const DRAWN_MAX: u64 = 1 << 50;
/// Ranges of missing numbers per stream; at the bound the lowest counts as taken.
pub(super) const HOLES_MAX: usize = 64;
/// Numbers below the highest in `StreamRow::sensor_seen`, the only field that older versions read
/// and write.
const SEEN_BITS: u64 = 64;

/// First and last of a range of missing numbers.
type Hole = (u64, u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Zero: unknown.
    first_sequence: u64,
    pub next_sequence: u64,
    pub last_time_us: i64,
    /// `None` for a sensor without numbers.
    sensor_highest: Option<u64>,
    /// Below the highest, lowest first. Shared with the undo list until it changes.
    sensor_holes: Arc<Vec<Hole>>,
    sensor_time_us: i64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            first_sequence: 0,
            next_sequence: 1,
            last_time_us: 0,
            sensor_highest: None,
            sensor_holes: Arc::default(),
            sensor_time_us: 0,
        }
    }
}

impl Counters {
    fn from_row(row: &StreamRow) -> Self {
        let is_numbered = row.sensor_seen != 0;
        let holes = if row.sensor_holes.is_empty() {
            let back = 1..SEEN_BITS.min(row.sensor_highest.saturating_add(1));
            back.rev()
                .filter(|back| is_numbered && row.sensor_seen & (1 << back) == 0)
                .map(|back| (row.sensor_highest - back, row.sensor_highest - back))
                .collect()
        } else {
            let (ends, _) = row.sensor_holes.as_chunks();
            ends.iter().map(|[first, last]| (*first, *last)).collect()
        };
        Self {
            first_sequence: row.first_sequence,
            next_sequence: row.next_sequence,
            last_time_us: row.last_time_us,
            sensor_highest: is_numbered.then_some(row.sensor_highest),
            sensor_holes: Arc::new(holes),
            sensor_time_us: row.sensor_time_us,
        }
    }

    fn to_row(&self, device: &str, stream: &str) -> StreamRow {
        let seen = self.sensor_highest.map(|highest| {
            (0..SEEN_BITS)
                .filter(|back| highest.checked_sub(*back).is_none_or(|it| !self.lacks(it)))
                .fold(0, |seen, back| seen | 1 << back)
        });
        let holes = self.sensor_holes.iter();
        StreamRow {
            device: device.to_owned(),
            stream: stream.to_owned(),
            next_sequence: self.next_sequence,
            last_time_us: self.last_time_us,
            sensor_highest: self.sensor_highest.unwrap_or_default(),
            sensor_seen: seen.unwrap_or_default(),
            sensor_time_us: self.sensor_time_us,
            sensor_holes: holes.flat_map(|(first, last)| [*first, *last]).collect(),
            first_sequence: self.first_sequence,
        }
    }

    fn lacks(&self, number: u64) -> bool {
        let at = self.sensor_holes.partition_point(|hole| hole.1 < number);
        self.sensor_holes
            .get(at)
            .is_some_and(|hole| hole.0 <= number)
    }

    fn is_retry(&self, number: u64, time_us: i64) -> bool {
        self.sensor_highest.is_some_and(|highest| number <= highest)
            && time_us <= self.sensor_time_us
            && !self.lacks(number)
    }

    fn take(&mut self, number: u64, time_us: i64) {
        match self.sensor_highest {
            Some(highest) if number <= highest && time_us <= self.sensor_time_us => {
                return self.fill(number);
            }
            Some(highest) if number > highest => {
                if number - highest > 1 {
                    Arc::make_mut(&mut self.sensor_holes).push((highest + 1, number - 1));
                }
            }
            // A new run: lower numbers may be stored at the sensor.
            Some(_) | None => {
                let below = number.checked_sub(1).map(|last| (0, last));
                self.sensor_holes = Arc::new(below.into_iter().collect());
            }
        }
        self.bound();
        self.sensor_highest = Some(number);
        self.sensor_time_us = time_us;
    }

    /// Takes a number out of its hole.
    fn fill(&mut self, number: u64) {
        if !self.lacks(number) {
            return;
        }
        let holes = Arc::make_mut(&mut self.sensor_holes);
        let at = holes.partition_point(|hole| hole.1 < number);
        let (first, last) = holes[at];
        let left = (first < number).then(|| (first, number - 1));
        let right = (number < last).then(|| (number + 1, last));
        holes.splice(at..=at, left.into_iter().chain(right));
        self.bound();
    }

    fn bound(&mut self) {
        if self.sensor_holes.len() > HOLES_MAX {
            Arc::make_mut(&mut self.sensor_holes).remove(0);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Sequence(u64),
    /// The sensor repeated this number.
    Retry,
    /// STREAMS_MAX is reached, and all streams were used within FRESH_US.
    TooManyStreams,
    /// The address has begun its largest number of streams.
    TooManyOfAddress,
}

/// The last use of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// Running number of the use.
    number: u64,
    /// `None`: before the start.
    uptime_us: Option<i64>,
}

#[derive(Clone, Debug)]
struct Row {
    device: String,
    stream: String,
    counters: Counters,
    used: Use,
    /// The address that began it, since the start.
    from: Option<IpAddr>,
}

impl Row {
    /// The gateway's own streams: a sensor's device never has an empty name. They are never
    /// forgotten.
    fn is_own(&self) -> bool {
        self.device.is_empty()
    }
}

/// A refused new stream, with its address and uptime.
#[derive(Clone, Copy, Debug)]
struct Refused {
    uptime_us: Option<i64>,
    from: Option<IpAddr>,
    why: Next,
}

#[derive(Clone, Debug)]
enum Undo {
    Used(usize, Counters, Use),
    /// With the row that was forgotten for it.
    Began(usize, Option<Box<Row>>),
}

#[derive(Clone, Debug, Default)]
pub struct Streams {
    ids: HashMap<String, HashMap<String, usize>>,
    rows: Vec<Row>,
    /// Its uptime is the latest of all requests, since requests overtake each other.
    newest: Use,
    /// The last refusal: a search of all rows takes 6 us, and a request may have 10,000 new names.
    /// Until time passes only `revert` makes room.
    refused: Option<Refused>,
    undo: Vec<Undo>,
}

impl Streams {
    pub fn from_rows(rows: &[StreamRow]) -> Self {
        let mut streams = Self::default();
        for row in rows {
            let id = streams.begin(&row.device, &row.stream);
            streams.rows[id].counters = Counters::from_row(row);
            streams.note_use(id);
        }
        streams.commit();
        streams
    }

    /// The stream that was used longest ago comes first.
    pub fn to_rows(&self) -> Vec<StreamRow> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        rows.sort_unstable_by_key(|row| row.used.number);
        rows.into_iter()
            .map(|row| row.counters.to_row(&row.device, &row.stream))
            .collect()
    }

    /// The next sequence of a stream; taken for good at `commit`, returned by `revert`. A stream
    /// that is new to this journal begins at the clock's microsecond and not at 1. No stream has a
    /// million samples a second, so a gateway with a wiped disk continues above all its earlier
    /// numbers. Otherwise ingest would take new samples for duplicates. A clock that was never set
    /// shows similar times after every start: then the beginning is random, below all times of a
    /// set clock.
    pub fn next(
        &mut self,
        device: &str,
        stream: &str,
        at: Moment,
        time_us: i64,
        sensor_sequence: Option<u64>,
        from: Option<IpAddr>,
    ) -> Next {
        self.newest.uptime_us = self.newest.uptime_us.max(Some(at.uptime_us));
        let id = match self.find(device, stream) {
            Some(id) => {
                let row = &self.rows[id];
                if sensor_sequence.is_some_and(|number| row.counters.is_retry(number, time_us)) {
                    return Next::Retry;
                }
                let undo = Undo::Used(id, row.counters.clone(), row.used);
                self.undo.push(undo);
                id
            }
            None => {
                if let Some(refused) = self.refuses_new(from) {
                    return refused;
                }
                let id = self.begin(device, stream);
                let row = &mut self.rows[id];
                row.counters.next_sequence = row.counters.next_sequence.max(beginning(at.wall_us));
                row.counters.first_sequence = row.counters.next_sequence;
                row.from = from;
                id
            }
        };
        self.note_use(id);
        let counters = &mut self.rows[id].counters;
        let sequence = counters.next_sequence;
        counters.next_sequence += 1;
        counters.last_time_us = time_us;
        if let Some(number) = sensor_sequence {
            counters.take(number, time_us);
        }
        Next::Sequence(sequence)
    }

    fn refuses_new(&mut self, from: Option<IpAddr>) -> Option<Next> {
        let uptime_us = self.newest.uptime_us;
        if let Some(last) = self.refused
            && (last.uptime_us, last.from) == (uptime_us, from)
        {
            return Some(last.why);
        }
        let (mut taken, mut own) = (0, 0);
        for row in self.rows.iter().filter(|row| self.is_fresh(row)) {
            taken += 1;
            own += usize::from(row.from == from);
        }
        let free = STREAMS_MAX.saturating_sub(taken);
        let is_most = (own + 1) * 4 > (own + free) * QUARTERS_OF_ONE;
        let why = match from {
            _ if free == 0 => Next::TooManyStreams,
            Some(_) if is_most => Next::TooManyOfAddress,
            Some(_) | None => return None,
        };
        self.refused = Some(Refused {
            uptime_us,
            from,
            why,
        });
        Some(why)
    }

    fn is_fresh(&self, row: &Row) -> bool {
        let long_ago = self.newest.uptime_us.map(|us| us.saturating_sub(FRESH_US));
        row.is_own() || row.used.uptime_us > long_ago
    }

    /// Repeats `next` for an entry that recovery reads back.
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
            None => {
                let id = self.begin(device, stream);
                self.rows[id].counters.first_sequence = sequence;
                id
            }
        };
        self.note_use(id);
        let counters = &mut self.rows[id].counters;
        counters.next_sequence = sequence + 1;
        counters.last_time_us = time_us;
        if let Some(number) = sensor_sequence {
            counters.take(number, time_us);
        }
        self.commit();
    }

    /// The sequences that the sensors' streams were given.
    pub fn ledger(&self) -> Vec<LedgerStream> {
        let of_sensors = self.rows.iter().filter(|row| !row.is_own());
        let stream = |row: &Row| LedgerStream {
            device: row.device.clone(),
            stream: row.stream.clone(),
            first_sequence: row.counters.first_sequence,
            next_sequence: row.counters.next_sequence,
        };
        of_sensors.map(stream).collect()
    }

    pub fn commit(&mut self) {
        self.undo.clear();
    }

    pub fn revert(&mut self) {
        self.refused = None;
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Used(id, counters, used) => {
                    self.rows[id].counters = counters;
                    self.rows[id].used = used;
                }
                Undo::Began(id, forgotten) => {
                    // Otherwise it is the last: the streams that began after it are gone.
                    let row = match forgotten {
                        Some(row) => {
                            self.enter(&row.device, &row.stream, id);
                            std::mem::replace(&mut self.rows[id], *row)
                        }
                        None => self.rows.swap_remove(id),
                    };
                    self.strike(&row);
                }
            }
        }
    }

    pub fn counters(&self, device: &str, stream: &str) -> Option<Counters> {
        self.find(device, stream)
            .map(|id| self.rows[id].counters.clone())
    }

    fn find(&self, device: &str, stream: &str) -> Option<usize> {
        self.ids.get(device)?.get(stream).copied()
    }

    /// Makes the row of a new stream. In a full table it replaces the stream that was used longest
    /// ago, and begins above all.
    fn begin(&mut self, device: &str, stream: &str) -> usize {
        let mut row = Row {
            device: device.to_owned(),
            stream: stream.to_owned(),
            counters: Counters::default(),
            used: Use::default(),
            from: None,
        };
        let (id, forgotten) = match self.gives_way() {
            Some(id) => {
                row.counters.next_sequence = self.highest();
                let forgotten = std::mem::replace(&mut self.rows[id], row);
                self.strike(&forgotten);
                (id, Some(Box::new(forgotten)))
            }
            None => {
                self.rows.push(row);
                (self.rows.len() - 1, None)
            }
        };
        self.enter(device, stream, id);
        self.undo.push(Undo::Began(id, forgotten));
        id
    }

    /// The row that was used longest ago, if no place is free.
    fn gives_way(&self) -> Option<usize> {
        if self.rows.len() < STREAMS_MAX {
            return None;
        }
        let others = self
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| !row.is_own());
        let longest_ago = others.min_by_key(|(_, row)| row.used.number);
        longest_ago.map(|(id, _)| id)
    }

    /// Above every sequence of any stream, including forgotten ones. It stays far below the largest
    /// that a store can hold: it grows by one a sample above the latest time of the clock. Linux
    /// bounds that time at 2262.
    fn highest(&self) -> u64 {
        let next = self.rows.iter().map(|row| row.counters.next_sequence);
        next.max().unwrap_or(1)
    }

    fn note_use(&mut self, id: usize) {
        self.newest.number += 1;
        self.rows[id].used = self.newest;
    }

    fn enter(&mut self, device: &str, stream: &str, id: usize) {
        let streams = self.ids.entry(device.to_owned()).or_default();
        streams.insert(stream.to_owned(), id);
    }

    fn strike(&mut self, row: &Row) {
        if let Some(streams) = self.ids.get_mut(&row.device) {
            streams.remove(&row.stream);
            if streams.is_empty() {
                self.ids.remove(&row.device);
            }
        }
    }
}

fn beginning(clock_us: i64) -> u64 {
    match u64::try_from(clock_us) {
        Ok(1..) if !clock::is_set(clock_us) => RandomState::new().hash_one(0_u64) % DRAWN_MAX + 1,
        Ok(clock_us) => clock_us.max(1),
        Err(_) => 1,
    }
}

#[cfg(test)]
mod forgetting;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(wall_us: i64) -> Moment {
        Moment {
            wall_us,
            ..Moment::default()
        }
    }

    fn take(
        streams: &mut Streams,
        device: &str,
        stream: &str,
        clock_us: i64,
        time_us: i64,
        number: Option<u64>,
    ) -> Next {
        streams.next(device, stream, at(clock_us), time_us, number, None)
    }

    #[test]
    fn sequences_start_at_one_and_come_back_after_a_revert() {
        let mut streams = Streams::default();
        assert_eq!(take(&mut streams, "d", "hr", 0, 1, None), Next::Sequence(1));
        streams.commit();
        assert_eq!(take(&mut streams, "d", "hr", 0, 2, None), Next::Sequence(2));
        assert_eq!(
            take(&mut streams, "d", "spo2", 0, 2, None),
            Next::Sequence(1)
        );
        streams.revert();
        assert_eq!(streams.counters("d", "spo2"), None);
        assert_eq!(take(&mut streams, "d", "hr", 0, 2, None), Next::Sequence(2));
    }

    #[test]
    fn a_gateway_whose_disk_was_wiped_repeats_no_sequence() {
        let clock_us = 1_790_000_000_000_000;
        let mut streams = Streams::default();
        let given: Vec<Next> = (0..1_000)
            .map(|n| take(&mut streams, "d", "hr", clock_us + n * 10_000, n, None))
            .collect();
        assert_eq!(given[0], Next::Sequence(1_790_000_000_000_000));
        assert_eq!(given[999], Next::Sequence(1_790_000_000_000_999));

        let mut wiped = Streams::default();
        let after = take(&mut wiped, "d", "hr", clock_us + 10_000_000, 0, None);
        assert!(!given.contains(&after));
        assert_eq!(after, Next::Sequence(1_790_000_010_000_000));
    }

    /// The probability that two of them are within a million is 10^-9.
    #[test]
    fn a_gateway_whose_clock_restarts_repeats_no_sequence() {
        let begin = || match Streams::default().next("d", "hr", at(30_000_000), 0, None, None) {
            Next::Sequence(first) => first,
            other => panic!("{other:?}"),
        };
        let (first, second) = (begin(), begin());
        assert!(first.abs_diff(second) > 1_000_000, "{first} {second}");
        assert!(first.max(second) < 1_767_225_600_000_000);
    }

    #[test]
    fn a_retry_is_recognised_out_of_order_and_after_a_restart() {
        let mut streams = Streams::default();
        for number in [1, 2, 4] {
            assert!(matches!(
                take(&mut streams, "d", "hr", 0, number, Some(number as u64)),
                Next::Sequence(_)
            ));
        }
        streams.commit();
        let mut streams = Streams::from_rows(&streams.to_rows());
        assert_eq!(take(&mut streams, "d", "hr", 0, 2, Some(2)), Next::Retry);
        assert_eq!(take(&mut streams, "d", "hr", 0, 4, Some(4)), Next::Retry);
        assert_eq!(
            take(&mut streams, "d", "hr", 0, 3, Some(3)),
            Next::Sequence(4)
        );
        assert_eq!(take(&mut streams, "d", "hr", 0, 3, Some(3)), Next::Retry);
    }

    #[test]
    fn stored_samples_may_come_after_new_ones() {
        let number_of = |order: u64, n: u64| match order {
            0 => 2_000 - n,
            // First the live samples, then the stored ones in order of measurement.
            _ if n < 100 => 1_901 + n,
            _ => 901 + n,
        };
        for order in [0, 1] {
            let mut streams = Streams::default();
            for n in 0..1_000 {
                let number = number_of(order, n);
                let next = take(&mut streams, "d", "hr", 0, number as i64, Some(number));
                assert!(matches!(next, Next::Sequence(_)), "{number}: {next:?}");
                streams.commit();
                if n % 300 == 0 {
                    streams = Streams::from_rows(&streams.to_rows());
                }
            }
            for n in 0..1_000 {
                let number = number_of(order, n);
                let next = take(&mut streams, "d", "hr", 0, number as i64, Some(number));
                assert_eq!(next, Next::Retry, "{number}");
            }
        }
    }

    #[test]
    fn missing_numbers_are_bounded_and_the_lowest_count_as_taken() {
        let mut streams = Streams::default();
        let count = 2 * HOLES_MAX as u64 + 10;
        for number in (0..count).map(|n| 10 * n) {
            take(&mut streams, "d", "hr", 0, number as i64, Some(number));
            streams.commit();
        }
        let row = streams.to_rows().remove(0);
        assert_eq!(row.sensor_holes.len(), 2 * HOLES_MAX);
        assert_eq!(take(&mut streams, "d", "hr", 0, 5, Some(5)), Next::Retry);
        let late = 10 * count - 15;
        let next = take(&mut streams, "d", "hr", 0, late as i64, Some(late));
        assert!(matches!(next, Next::Sequence(_)));
        streams.revert();
        assert_eq!(streams.to_rows(), [row]);
    }

    #[test]
    fn the_smallest_and_the_largest_number_are_valid() {
        let mut streams = Streams::default();
        for number in [u64::MAX, 0, u64::MAX - 1, 1] {
            let next = take(&mut streams, "d", "hr", 0, 7, Some(number));
            assert!(matches!(next, Next::Sequence(_)), "{number}");
            assert_eq!(
                take(&mut streams, "d", "hr", 0, 7, Some(number)),
                Next::Retry
            );
        }
    }

    #[test]
    fn rows_of_an_older_version_are_read_and_written() {
        let mut streams = Streams::default();
        for number in [1, 2, 4] {
            take(&mut streams, "d", "hr", 0, number, Some(number as u64));
        }
        let row = streams.to_rows().remove(0);
        // The three numbers, and those below zero, which do not exist.
        assert_eq!(row.sensor_seen, !0b1_0010);
        let old = StreamRow {
            sensor_seen: 0b1101,
            sensor_holes: Vec::new(),
            ..row
        };
        let mut streams = Streams::from_rows(&[old]);
        for (number, is_retry) in [(4, true), (3, false), (2, true), (1, true), (0, false)] {
            let next = take(&mut streams, "d", "hr", 0, number, Some(number as u64));
            assert_eq!(next == Next::Retry, is_retry, "{number}");
        }
    }

    #[test]
    fn a_sensor_that_lost_its_counter_is_no_retry() {
        let mut streams = Streams::default();
        take(&mut streams, "d", "hr", 0, 1_000, Some(500));
        assert_eq!(
            take(&mut streams, "d", "hr", 0, 1_001, Some(1)),
            Next::Sequence(2)
        );
        assert_eq!(
            take(&mut streams, "d", "hr", 0, 1_001, Some(1)),
            Next::Retry
        );
        assert_eq!(
            take(&mut streams, "d", "hr", 0, 1_002, Some(2)),
            Next::Sequence(3)
        );
    }

    #[test]
    fn the_table_is_bounded() {
        let mut streams = Streams::default();
        for device in 0..STREAMS_MAX {
            assert_eq!(
                take(&mut streams, &device.to_string(), "hr", 0, 1, None),
                Next::Sequence(1)
            );
        }
        assert_eq!(
            take(&mut streams, "one more", "hr", 0, 1, None),
            Next::TooManyStreams
        );
        assert_eq!(take(&mut streams, "0", "hr", 0, 1, None), Next::Sequence(2));
    }

    #[test]
    fn no_address_takes_all_free_streams() {
        let mut streams = Streams::default();
        let mut named = 0;
        let mut begins = |streams: &mut Streams, from: u8, count: usize| {
            let from = Some(IpAddr::from([192, 0, 2, from]));
            let begun = (0..count).filter(|_| {
                named += 1;
                let next = streams.next(&named.to_string(), "hr", at(0), 1, None, from);
                assert!(next == Next::Sequence(1) || next == Next::TooManyOfAddress);
                next == Next::Sequence(1)
            });
            begun.count()
        };
        // A lone address has most of them.
        assert_eq!(begins(&mut streams, 1, STREAMS_MAX), STREAMS_MAX / 4 * 3);
        // Samples that the disk refused count for no address.
        streams.revert();
        assert_eq!(begins(&mut streams, 2, 1_000), 1_000);
        streams.commit();
        assert_eq!(begins(&mut streams, 1, STREAMS_MAX), 3_096 / 4 * 3);
        streams.commit();
        assert_eq!(begins(&mut streams, 3, 500), 500);
        assert_eq!(
            begins(&mut streams, 2, 10),
            0,
            "it has more than three quarters"
        );
        // The address goes on with the streams that it began.
        let first = STREAMS_MAX + 1;
        let from = Some(IpAddr::from([192, 0, 2, 2]));
        let goes_on = streams.next(&first.to_string(), "hr", at(0), 1, None, from);
        assert_eq!(goes_on, Next::Sequence(2));
        assert_eq!(begins(&mut streams, 4, 10), 10);
    }
}
