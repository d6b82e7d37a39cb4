//! The index of entries, and reading them.
//!
//! The writer publishes into the index only entries that `fsync` has confirmed. So a reader never
//! returns an entry whose sequence another sample could get after a crash.

use std::{collections::VecDeque, io, sync::Arc};

use parking_lot::Mutex;

use super::{
    disk::Disk,
    format::{End, Entry, FRAME_BYTES_MAX, Frame, Frames, sealed_by, segment_name},
    medium,
    recent::Recent,
};
use crate::sealing::FileKey;

/// Entries between two remembered offsets, which a read may have to skip.
const MARK_INTERVAL: u64 = 16;
/// Bytes of one read; a larger frame is read as a whole.
const READ_BYTES: usize = 256 << 10;

#[derive(Clone, Debug)]
pub struct Segment {
    pub first: u64,
    /// Position after the last durable entry.
    pub end: u64,
    pub header_bytes: u64,
    /// Durable bytes.
    pub bytes: u64,
    /// Its file is kept for inspection when it is finished.
    pub is_damaged: bool,
    /// `None`: a segment in clear.
    pub key: Option<FileKey>,
    /// Offset of every MARK_INTERVAL-th entry, beginning with the first.
    marks: Vec<u64>,
}

impl Segment {
    pub fn new(first: u64, header_bytes: u64, key: Option<FileKey>) -> Self {
        Self {
            first,
            end: first,
            header_bytes,
            bytes: header_bytes,
            is_damaged: false,
            key,
            marks: Vec::new(),
        }
    }

    /// Must be called in order, before `bytes` exceeds the entry.
    pub fn note_entry(&mut self, offset: u64) {
        if (self.end - self.first).is_multiple_of(MARK_INTERVAL) {
            self.marks.push(offset);
        }
        self.end += 1;
    }

    fn offset_at_or_before(&self, position: u64) -> Option<u64> {
        let mark = (position - self.first) / MARK_INTERVAL;
        self.marks.get(usize::try_from(mark).ok()?).copied()
    }
}

#[derive(Debug, Default)]
pub struct Index {
    /// Oldest first; the last one is being written.
    pub segments: VecDeque<Segment>,
    pub acknowledged: u64,
    pub dropped_before: u64,
    /// Later gap entries repeat those before this position.
    pub gaps_from: u64,
    pub(super) recent: Recent,
}

impl Index {
    /// The oldest entry without delivery.
    pub fn head(&self) -> u64 {
        self.acknowledged.max(self.dropped_before)
    }

    /// The oldest entry that was not dropped and whose segment is there, acknowledged or not.
    fn kept(&self) -> u64 {
        let first = self.segments.front().map_or(0, |segment| segment.first);
        first.max(self.dropped_before)
    }

    /// Position after the newest durable entry.
    pub fn durable(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.end)
    }

    /// The first position of the segment before the one that begins at `first`.
    pub(super) fn before(&self, first: u64) -> Option<u64> {
        let earlier = self.segments.iter().take_while(|it| it.first < first);
        earlier.last().map(|segment| segment.first)
    }

    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Where the next batch begins in the segment that is being written, and the segment's key.
    pub(super) fn end_of_active(&self) -> (u64, Option<FileKey>) {
        let active = self.segments.back();
        active.map_or((0, None), |it| (it.bytes, it.key.clone()))
    }

    /// Bytes that each entry of the next batch has more on disk.
    pub(super) fn sealed_by(&self) -> usize {
        sealed_by(self.segments.back().and_then(|it| it.key.as_ref()))
    }

    /// The segment with the entry at `position`, or the next one after a hole. A segment that is
    /// damaged right after its header has no readable entry.
    pub(super) fn holding(&self, position: u64) -> Option<&Segment> {
        let at = self
            .segments
            .partition_point(|segment| segment.end <= position);
        self.segments
            .range(at..)
            .find(|segment| segment.end > segment.first)
    }
}

/// A run of entries and the position to continue from.
#[derive(Debug, Default)]
pub struct Chunk {
    pub entries: Vec<(u64, Entry)>,
    pub next: u64,
}

impl Chunk {
    /// Takes the frame's entry unless it lies before `next`; returns the number of bytes taken.
    /// `None`: the frame is damaged.
    fn take(&mut self, frame: &Frame<'_>, gaps_from: impl FnOnce() -> u64) -> Option<usize> {
        if !frame.kind.is_entry() || frame.position < self.next {
            return Some(0);
        }
        let mut entry = frame.entry()?;
        if let Entry::Gaps(gaps) = &mut entry
            && frame.position < gaps_from()
        {
            gaps.clear();
        }
        self.entries.push((frame.position, entry));
        self.next = frame.position + 1;
        Some(frame.body.len())
    }
}

#[derive(Clone, Debug)]
pub struct Reader<D> {
    disk: D,
    index: Arc<Mutex<Index>>,
}

impl<D: Disk> Reader<D> {
    pub(super) fn new(disk: D, index: Arc<Mutex<Index>>) -> Self {
        Self { disk, index }
    }

    pub fn head(&self) -> u64 {
        self.index.lock().head()
    }

    pub fn durable(&self) -> u64 {
        self.index.lock().durable()
    }

    pub fn bytes(&self) -> u64 {
        self.index.lock().bytes()
    }

    /// Whether a segment on the disk is sealed.
    pub fn has_sealed(&self) -> bool {
        let index = self.index.lock();
        index.segments.iter().any(|segment| segment.key.is_some())
    }

    /// Durable entries from `from` on, or from the oldest one if that is later. At most
    /// `entries_max` entries, and no more once `bytes_max` are read. Gap entries that a later one
    /// repeats come without gaps. `InvalidData`: the entry at `from` is damaged; see
    /// [`super::Journal::give_up`].
    pub fn read(&self, from: u64, entries_max: usize, bytes_max: usize) -> io::Result<Chunk> {
        self.read_above(Index::head, from, entries_max, bytes_max)
    }

    /// The same, of entries that the core has acknowledged as well, as far as their segment is
    /// there.
    pub fn read_kept(&self, from: u64, entries_max: usize, bytes_max: usize) -> io::Result<Chunk> {
        self.read_above(Index::kept, from, entries_max, bytes_max)
    }

    fn read_above(
        &self,
        lowest: fn(&Index) -> u64,
        from: u64,
        entries_max: usize,
        bytes_max: usize,
    ) -> io::Result<Chunk> {
        let mut chunk = Chunk {
            entries: Vec::new(),
            next: from,
        };
        let mut bytes = 0;
        while chunk.entries.len() < entries_max && bytes < bytes_max {
            let Some((segment, offset)) = self.plan(lowest, &mut chunk.next) else {
                break;
            };
            match self.read_segment(&segment, offset, entries_max, bytes_max, &mut chunk) {
                Ok(read) => bytes += read,
                // The writer dropped the segment between the plan and the read.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && lowest(&self.index.lock()) > chunk.next => {}
                // Entries before the damage are returned first.
                Err(_) if !chunk.entries.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(chunk)
    }

    /// The same from memory alone, possibly fewer entries. `None` if `from` is not in memory.
    pub fn recent(&self, from: u64, entries_max: usize, bytes_max: usize) -> Option<Chunk> {
        let mut chunk = Chunk {
            entries: Vec::new(),
            next: from,
        };
        let mut bytes = 0;
        loop {
            let (batch, gaps_from) = {
                let index = self.index.lock();
                chunk.next = chunk.next.max(index.head());
                (index.recent.holding(chunk.next), index.gaps_from)
            };
            let Some(batch) = batch else {
                break;
            };
            // Each turn ends after the batch that it took.
            for frame in Frames::new(&batch, None, 0) {
                bytes += chunk.take(&frame, || gaps_from)?;
                if chunk.entries.len() >= entries_max || bytes >= bytes_max {
                    return Some(chunk);
                }
            }
        }
        (!chunk.entries.is_empty()).then_some(chunk)
    }

    /// Entries from `from` on that memory holds. Earlier ones may be on the disk alone. All of the
    /// memory fits into one chunk.
    pub fn remembered(&self, from: u64, entries_max: usize) -> Chunk {
        let (batches, gaps_from) = {
            let index = self.index.lock();
            (index.recent.since(from), index.gaps_from)
        };
        let mut chunk = Chunk {
            entries: Vec::new(),
            next: from,
        };
        let frames = batches.iter().flat_map(|batch| Frames::new(batch, None, 0));
        for frame in frames {
            let taken = chunk.take(&frame, || gaps_from);
            if taken.is_none() || chunk.entries.len() >= entries_max {
                break;
            }
        }
        chunk
    }

    fn plan(&self, lowest: fn(&Index) -> u64, next: &mut u64) -> Option<(Segment, u64)> {
        let index = self.index.lock();
        *next = (*next).max(lowest(&index));
        let segment = index.holding(*next)?;
        // A hole that recovery reported as a gap.
        *next = (*next).max(segment.first);
        let offset = segment.offset_at_or_before(*next)?;
        Some((segment.clone(), offset))
    }

    fn read_segment(
        &self,
        segment: &Segment,
        mut offset: u64,
        entries_max: usize,
        bytes_max: usize,
        chunk: &mut Chunk,
    ) -> io::Result<usize> {
        let name = segment_name(segment.first);
        if let Some(key) = &segment.key {
            // A destroyed key is no damage.
            key.check()?;
        }
        let mut length = READ_BYTES;
        let mut taken = 0;
        while chunk.next < segment.end && chunk.entries.len() < entries_max && taken < bytes_max {
            let left = usize::try_from(segment.bytes - offset).unwrap_or(usize::MAX);
            let (bytes, is_bad) = medium::read_prefix(&self.disk, &name, offset, length.min(left))?;
            let mut frames = Frames::new(&bytes, segment.key.clone(), offset);
            for frame in frames.by_ref() {
                let gaps_from = || self.index.lock().gaps_from;
                taken += chunk
                    .take(&frame, gaps_from)
                    .ok_or_else(|| damaged(&name, offset))?;
                if chunk.entries.len() >= entries_max || taken >= bytes_max {
                    return Ok(taken);
                }
            }
            match frames.end() {
                End::Clean | End::Short { .. } if frames.offset() > 0 => {
                    offset += frames.offset() as u64;
                    length = READ_BYTES;
                }
                End::Short { frame_bytes }
                    if !is_bad && frame_bytes > length && frame_bytes <= FRAME_BYTES_MAX * 2 =>
                {
                    length = frame_bytes;
                }
                End::Clean | End::Short { .. } | End::Damaged => {
                    return Err(damaged(&name, offset + frames.offset() as u64));
                }
            }
        }
        Ok(taken)
    }
}

fn damaged(name: &str, offset: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("segment {name} is damaged at byte {offset}"),
    )
}
