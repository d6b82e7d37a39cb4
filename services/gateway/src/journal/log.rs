//! The writing half of a journal: one thread, no clock, storage behind a trait.
//!
//! Entries are staged into a batch and become durable together: one append, one `fsync`, then they
//! are published to readers. Invariants:
//! 1. Published entries were synced. Sequences and positions of a failed batch are given back.
//! 2. A segment appears by rename after its header was synced. Files are removed oldest first, and
//!    each removal is synced before the next. So the files on disk are always a suffix of all
//!    files, without holes.
//! 3. A drop is one entry with the gaps and the position before which everything is gone. Files are
//!    removed after it is durable. A crash in between leaves files that recovery ignores and
//!    removes. The entry repeats all undelivered gaps, merged. So a journal that stays full for a
//!    week holds one range per stream and not one per drop.
//! 4. After a failed write or sync the tail of the active segment is unknown, and the segment is
//!    given up. The next batch starts a new segment, whose first position shows recovery where the
//!    old one ends.

use std::{io, net::IpAddr, sync::Arc};

use contracts::vitals::{EdgeAlert, Gap, GapCause, LedgerStream, Sample};
use parking_lot::Mutex;
use prost::Message;

use super::{
    disk::{Disk, DiskFile},
    format::{
        Dropped, FRAME_OVERHEAD_BYTES, Kind, Snapshot, UNFINISHED, header, put_frame, sealed_by,
        segment_name, to_stored,
    },
    gaps::Gaps,
    medium,
    numbered::Numbered,
    reader::{Index, Reader, Segment},
    recovery,
    streams::{Next, Streams},
};
use crate::clock::Moment;

/// Bytes of a sample or alert; a larger one is refused. A waveform of a minute at 500 Hz has half
/// as many.
pub const ENTRY_BYTES_MAX: usize = 256 << 10;
/// Bytes that a sequence, set by the journal, may add to an entry.
const SEQUENCE_BYTES_MAX: usize = 11;
/// The stream of the gateway's own alerts.
const ALERTS_STREAM: (&str, &str) = ("", "alerts");

/// Behaviour when `bytes_max` is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The oldest segment is removed, and a gap entry lists its content.
    DropOldest,
    /// No segment is removed: new entries are refused until older ones are acknowledged.
    Refuse,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all segments together; exceeded by at most two headers and the gaps of one drop.
    pub bytes_max: u64,
    /// A segment of this size is closed, unless more than half of it is header, and the next one
    /// begins.
    pub segment_bytes: u64,
    pub overflow: Overflow,
}

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("the journal is full: {bytes} of {bytes_max} bytes wait for delivery")]
    Full { bytes: u64, bytes_max: u64 },
    #[error(
        "the journal has at most {} streams, and each was used within a day",
        super::streams::STREAMS_MAX
    )]
    TooManyStreams,
    #[error("one address may begin three quarters of the free streams, and this address has")]
    TooManyOfAddress,
    #[error("{number} was taken with the reading {known}, and a number has one reading")]
    Contradicts { number: u64, known: String },
    #[error("the entry has {bytes} bytes, at most {ENTRY_BYTES_MAX} are taken")]
    TooLarge { bytes: usize },
    #[error("the journal cannot write: {0}")]
    Storage(#[from] io::Error),
}

/// The result for a staged entry, valid once `commit` has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    New {
        sequence: u64,
    },
    /// The sensor repeated it; the journal has it already.
    Retry,
}

/// Frames in clear.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Offset of each entry in `bytes`.
    entries: Vec<u64>,
}

impl Batch {
    /// Bytes on disk, if each entry takes so many more there.
    fn stored_bytes(&self, sealed_by: usize) -> u64 {
        (self.bytes.len() + self.entries.len() * sealed_by) as u64
    }
}

pub struct Log<D: Disk> {
    disk: D,
    limits: Limits,
    /// `None` after a failed write, until a new segment is begun.
    active: Option<D::File>,
    index: Arc<Mutex<Index>>,
    streams: Streams,
    /// Random number of the journal.
    journal: u64,
    numbered: Numbered,
    batch: Batch,
    repaired_before: u64,
    acknowledged_durable: u64,
    dropped_entries: u64,
    /// Durable gap entries without delivery, with their positions.
    pending_gaps: Vec<(u64, Vec<Gap>)>,
}

/// The segments that a batch gives up to make room.
#[derive(Default)]
struct Drop {
    /// Zero if none is given up.
    before: u64,
    entries: u64,
    gaps: Vec<(u64, Vec<Gap>)>,
}

impl<D: Disk> Log<D> {
    /// Recovers the content of the disk and begins a new segment after it.
    pub fn open(disk: D, limits: Limits) -> Result<(Self, recovery::Summary), recovery::OpenError> {
        let recovered = recovery::recover(&disk)?;
        let mut log = Self {
            disk,
            limits,
            active: None,
            index: Arc::new(Mutex::new(recovered.index)),
            streams: recovered.streams,
            journal: recovered.journal,
            numbered: recovered.numbered,
            batch: Batch::default(),
            repaired_before: recovered.next,
            acknowledged_durable: 0,
            dropped_entries: 0,
            pending_gaps: recovered.pending_gaps,
        };
        log.begin_segment(recovered.next, recovered.lost)?;
        for name in recovered.unreadable {
            // Never a segment that has just been made.
            if name != segment_name(recovered.next) {
                medium::set_aside(&log.disk, &name)?;
                log.disk.sync_directory()?;
            }
        }
        log.remove_finished()?;
        Ok((log, recovered.summary))
    }

    pub fn reader(&self) -> Reader<D> {
        Reader::new(self.disk.clone(), Arc::clone(&self.index))
    }

    /// Entries dropped by a full journal since it was opened.
    pub fn dropped_entries(&self) -> u64 {
        self.dropped_entries
    }

    /// The journal's number, and the sequences that its streams were given. Needs an empty batch.
    pub fn ledger(&self) -> (u64, Vec<LedgerStream>) {
        (self.journal, self.streams.ledger())
    }

    pub fn batch_bytes(&self) -> usize {
        self.batch.bytes.len()
    }

    /// Gives the sample its sequence and puts it into the batch. `from` is the sender's address, if
    /// it is known.
    pub fn stage_sample(
        &mut self,
        sample: &mut Sample,
        from: Option<IpAddr>,
    ) -> Result<Staged, StageError> {
        self.prepare(sample.encoded_len())?;
        match self.streams.next(
            &sample.device,
            &sample.stream,
            Moment::of_sample(sample),
            sample.device_time_us,
            sample.sensor_sequence,
            from,
        ) {
            Next::Retry => match self.numbered.contradicted(sample) {
                None => Ok(Staged::Retry),
                Some(known) => Err(StageError::Contradicts {
                    number: sample.sensor_sequence.unwrap_or_default(),
                    known,
                }),
            },
            Next::TooManyStreams => Err(StageError::TooManyStreams),
            Next::TooManyOfAddress => Err(StageError::TooManyOfAddress),
            Next::Sequence(sequence) => {
                sample.sequence = sequence;
                self.numbered.note(sample);
                self.put_entry(Kind::Sample, sample);
                Ok(Staged::New { sequence })
            }
        }
    }

    pub fn stage_alert(&mut self, alert: &mut EdgeAlert) -> Result<Staged, StageError> {
        self.prepare(alert.encoded_len())?;
        let (device, stream) = ALERTS_STREAM;
        let at = Moment::of_alert(alert);
        match self
            .streams
            .next(device, stream, at, alert.time_us, None, None)
        {
            Next::Retry => Ok(Staged::Retry),
            Next::TooManyStreams | Next::TooManyOfAddress => Err(StageError::TooManyStreams),
            Next::Sequence(sequence) => {
                alert.sequence = sequence;
                self.put_entry(Kind::Alert, alert);
                Ok(Staged::New { sequence })
            }
        }
    }

    /// Makes the batch durable. After an error none of it was stored, and everything may be staged
    /// again.
    pub fn commit(&mut self) -> io::Result<()> {
        let acknowledged = self.index.lock().acknowledged;
        if self.batch.bytes.is_empty() && acknowledged == self.acknowledged_durable {
            if self.active.is_none() {
                // A disk that has refused is not published as working before a write succeeds.
                let next = self.index.lock().durable();
                self.begin_segment(next, Gaps::default())?;
            }
            self.streams.commit();
            return Ok(());
        }
        let written = self.write(acknowledged);
        if written.is_err() {
            self.active = None;
            self.streams.revert();
        }
        self.batch.bytes.clear();
        self.batch.entries.clear();
        let dropped = written?;
        self.acknowledged_durable = self.acknowledged_durable.max(acknowledged);
        self.streams.commit();
        self.after_commit(dropped);
        Ok(())
    }

    /// Everything before `position` was delivered. Durable with the next commit; finished segments
    /// are removed at once.
    pub fn acknowledge(&mut self, position: u64) -> io::Result<()> {
        {
            let mut index = self.index.lock();
            let position = position.min(index.durable());
            index.acknowledged = index.acknowledged.max(position);
            self.pending_gaps
                .retain(|(position, _)| *position >= index.acknowledged);
        }
        self.remove_finished()
    }

    /// Reports the unreadable entries at `position`, and the rest of their segment, as gaps, so
    /// that later entries can be delivered. Needs an empty batch.
    pub fn give_up(&mut self, position: u64) -> io::Result<()> {
        let (segment, before, is_last) = {
            let index = self.index.lock();
            let Some(segment) = index.holding(position) else {
                return Ok(());
            };
            let before = index.before(segment.first);
            (segment.clone(), before, segment.end == index.durable())
        };
        if is_last {
            // The next header has the counters after the lost entries.
            self.begin_segment(segment.end, Gaps::default())?;
        }
        let mut lost = Gaps::of(GapCause::Medium);
        let end = recovery::collect_lost(&self.disk, before, &segment, u64::MAX, &mut lost);
        let end = end.max(position);
        let pending = self.pending_gaps.len();
        for gaps in lost.into_entries() {
            let at = self.index.lock().durable() + self.batch.entries.len() as u64;
            let body = Dropped {
                gaps: gaps.clone(),
                ..Dropped::default()
            };
            self.put_entry(Kind::Gaps, &body);
            self.pending_gaps.push((at, gaps));
        }
        if let Err(error) = self.commit() {
            self.pending_gaps.truncate(pending);
            return Err(error);
        }
        let mut index = self.index.lock();
        // Some of it may be among the lost entries, and reported as such.
        index.recent.clear();
        let mut segments = index.segments.iter_mut();
        if let Some(damaged) = segments.find(|it| it.first == segment.first) {
            damaged.end = damaged.end.min(end);
            damaged.is_damaged = true;
        }
        Ok(())
    }

    fn prepare(&mut self, encoded_bytes: usize) -> Result<(), StageError> {
        let bytes = encoded_bytes + SEQUENCE_BYTES_MAX;
        if bytes > ENTRY_BYTES_MAX {
            return Err(StageError::TooLarge { bytes });
        }
        if self.active.is_none() && self.batch.bytes.is_empty() {
            let next = self.index.lock().durable();
            self.begin_segment(next, Gaps::default())?;
        }
        if self.limits.overflow == Overflow::Refuse {
            let index = self.index.lock();
            let sealed_by = index.sealed_by();
            let held = index.bytes() + self.batch.stored_bytes(sealed_by);
            let more = (bytes + FRAME_OVERHEAD_BYTES + sealed_by) as u64;
            if held + more > self.limits.bytes_max {
                return Err(StageError::Full {
                    bytes: held,
                    bytes_max: self.limits.bytes_max,
                });
            }
        }
        Ok(())
    }

    fn put_entry(&mut self, kind: Kind, body: &impl Message) {
        let position = self.index.lock().durable() + self.batch.entries.len() as u64;
        self.batch.entries.push(self.batch.bytes.len() as u64);
        put_frame(&mut self.batch.bytes, kind, position, body);
    }

    /// Appends and syncs the batch; returns the dropped segments.
    fn write(&mut self, acknowledged: u64) -> io::Result<Drop> {
        if self.active.is_none() {
            // Only with an empty batch: an acknowledgement after a failed write. The new header
            // records it.
            let next = self.index.lock().durable();
            self.begin_segment(next, Gaps::default())?;
        }
        let dropped = match self.limits.overflow {
            Overflow::DropOldest => self.stage_drop(acknowledged),
            Overflow::Refuse => Drop::default(),
        };
        if acknowledged > self.acknowledged_durable {
            put_frame(&mut self.batch.bytes, Kind::Acknowledged, acknowledged, &());
        }
        let Some(active) = self.active.as_mut() else {
            return Err(io::Error::other("no segment to write to"));
        };
        let (start, key) = self.index.lock().end_of_active();
        let stored = to_stored(&self.batch.bytes, key.as_ref(), start)?;
        active.append(&stored)?;
        active.sync()?;
        let index = &mut *self.index.lock();
        let first = index.durable();
        if let Some(segment) = index.segments.back_mut() {
            for (n, offset) in self.batch.entries.iter().enumerate() {
                // Every frame of the batch before it is an entry.
                let sealed = (n * sealed_by(key.as_ref())) as u64;
                segment.note_entry(start + offset + sealed);
            }
            segment.bytes = start + stored.len() as u64;
            index
                .recent
                .note(first, self.batch.entries.len(), &self.batch.bytes);
        }
        Ok(dropped)
    }

    /// Stages gaps for as many of the oldest segments as the batch needs room.
    fn stage_drop(&mut self, acknowledged: u64) -> Drop {
        let (victims, next) = {
            let index = self.index.lock();
            let mut held = index.bytes() + self.batch.stored_bytes(index.sealed_by());
            let mut victims = Vec::new();
            // The last segment is being written and stays; with at least four segments it never has
            // to be dropped.
            let closed = index.segments.len().saturating_sub(1);
            for segment in index.segments.iter().take(closed) {
                if held <= self.limits.bytes_max {
                    break;
                }
                held -= segment.bytes;
                victims.push(segment.clone());
            }
            (victims, index.durable())
        };
        let Some(last) = victims.last() else {
            return Drop::default();
        };
        let mut drop = Drop {
            before: last.end,
            ..Drop::default()
        };
        let mut gaps = Gaps::of(GapCause::JournalFull);
        for gap in self.pending_gaps.iter().flat_map(|(_, gaps)| gaps) {
            gaps.add_gap(gap.clone());
        }
        for segment in &victims {
            drop.entries += segment.end.saturating_sub(segment.first.max(acknowledged));
            let before = self.index.lock().before(segment.first);
            recovery::collect_lost(&self.disk, before, segment, acknowledged, &mut gaps);
        }
        let mut runs = gaps.into_entries();
        if runs.is_empty() {
            runs.push(Vec::new());
        }
        let count = runs.len();
        let complete_from = next + self.batch.entries.len() as u64;
        for (n, gaps) in runs.into_iter().enumerate() {
            // Only the last entry drops segments: if the tail is torn before it, none was dropped.
            let is_last = n + 1 == count;
            drop.gaps.push((complete_from + n as u64, gaps.clone()));
            let body = Dropped {
                dropped_before: if is_last { drop.before } else { 0 },
                complete_from: if is_last { complete_from } else { 0 },
                gaps,
            };
            self.put_entry(Kind::Gaps, &body);
        }
        drop
    }

    /// The commit is final here: a failed step is repeated by a later commit.
    fn after_commit(&mut self, dropped: Drop) {
        let (next, is_grown) = {
            let mut index = self.index.lock();
            if let Some((complete_from, _)) = dropped.gaps.first() {
                index.dropped_before = dropped.before;
                index.gaps_from = *complete_from;
                self.dropped_entries += dropped.entries;
                self.pending_gaps = dropped.gaps;
            }
            let segment_bytes = self.limits.segment_bytes;
            let is_grown = index
                .segments
                .back()
                .is_some_and(|it| it.bytes >= segment_bytes.max(2 * it.header_bytes));
            (index.durable(), is_grown)
        };
        if let Err(error) = self.remove_finished() {
            tracing::warn!(%error, "cannot remove a finished segment; will try again");
        }
        if is_grown && let Err(error) = self.begin_segment(next, Gaps::default()) {
            tracing::warn!(%error, "cannot begin a segment; will try again");
            self.active = None;
        }
    }

    /// Needs an empty batch: the snapshot must hold committed counters only.
    fn begin_segment(&mut self, first: u64, lost: Gaps) -> io::Result<()> {
        let (acknowledged, dropped_before) = {
            let index = self.index.lock();
            (index.acknowledged, index.dropped_before)
        };
        let snapshot = Snapshot {
            acknowledged,
            dropped_before,
            repaired_before: self.repaired_before,
            streams: self.streams.to_rows(),
            journal: self.journal,
        };
        let (mut bytes, key) = header(self.disk.keys(), first, &snapshot)?;
        let mut segment = Segment::new(first, bytes.len() as u64, key);
        for gaps in lost.into_entries() {
            let at = bytes.len() as u64;
            segment.note_entry(at);
            let position = segment.end - 1;
            self.pending_gaps.push((position, gaps.clone()));
            let body = Dropped {
                gaps,
                ..Dropped::default()
            };
            let mut frame = Vec::new();
            put_frame(&mut frame, Kind::Gaps, position, &body);
            bytes.extend_from_slice(&to_stored(&frame, segment.key.as_ref(), at)?);
        }
        segment.bytes = bytes.len() as u64;

        let mut file = self.disk.create(UNFINISHED)?;
        file.append(&bytes)?;
        file.sync()?;
        self.disk.rename(UNFINISHED, &segment_name(first))?;
        self.disk.sync_directory()?;

        let mut index = self.index.lock();
        if index
            .segments
            .back()
            .is_some_and(|last| last.first == first)
        {
            index.segments.pop_back();
        }
        index.segments.push_back(segment);
        self.active = Some(file);
        self.acknowledged_durable = acknowledged;
        Ok(())
    }

    /// Removes closed segments before the head, oldest first.
    fn remove_finished(&mut self) -> io::Result<()> {
        loop {
            let (name, is_damaged) = {
                let index = self.index.lock();
                let head = index.head();
                match index.segments.front() {
                    Some(segment) if index.segments.len() > 1 && segment.end <= head => {
                        (segment_name(segment.first), segment.is_damaged)
                    }
                    _ => return Ok(()),
                }
            };
            let removed = if is_damaged {
                medium::set_aside(&self.disk, &name)
            } else {
                self.disk.remove(&name)
            };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            self.disk.sync_directory()?;
            self.index.lock().segments.pop_front();
        }
    }
}
