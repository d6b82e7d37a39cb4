//! The recovery of a journal at a start.
//!
//! Each segment is read up to its first damage, or to the beginning of the next. Damage at the very
//! end, without an entry after it, is an unfinished batch that was never acknowledged, and is
//! skipped. Damage elsewhere is decay of the medium. The counters in the next segment's header give
//! the missing sequences, which are reported as gaps once. An unreadable sector is such damage as
//! well: it loses the rest of its segment, and no other segment. A segment of another key is no
//! damage: nothing is thrown away, and the journal does not open.

use std::{
    hash::{BuildHasher, RandomState},
    io,
};

use contracts::vitals::Gap;
use prost::Message;

use crate::sealing::{Keys, Unopened};

use super::{
    disk::Disk,
    format::{
        Dropped, Entry, FRAME_OVERHEAD_BYTES, Kind, Snapshot, UNFINISHED, end_behind_damage,
        open_header, parse_segment_name, segment_name,
    },
    gaps::Gaps,
    medium,
    numbered::Numbered,
    reader::{Index, Segment},
    streams::Streams,
};

/// Bytes up to which the end of an unreadable segment is searched; a batch may exceed the
/// configured size.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
#[error("the journal cannot be opened: {0}")]
pub struct OpenError(#[from] pub(crate) io::Error);

/// For the log line of a start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub segments: usize,
    /// Entries without delivery.
    pub waiting: u64,
    /// Segments with damage other than a torn last batch.
    pub damaged_segments: usize,
}

pub(super) struct Recovered {
    pub index: Index,
    pub streams: Streams,
    /// Random number of the journal. A journal of an older version gets one.
    pub journal: u64,
    pub numbered: Numbered,
    pub next: u64,
    pub lost: Gaps,
    /// Gap entries without delivery.
    pub pending_gaps: Vec<(u64, Vec<Gap>)>,
    /// Files whose header cannot be read.
    pub unreadable: Vec<String>,
    pub summary: Summary,
}

struct Scan {
    snapshot: Snapshot,
    segment: Segment,
    streams: Streams,
    acknowledged: u64,
    dropped_before: u64,
    gaps_from: u64,
}

/// The content of the segments, oldest first.
#[derive(Default)]
struct Readings {
    scans: Vec<Scan>,
    /// Files whose header cannot be read.
    unreadable: Vec<String>,
    /// The possible end of the newest segment, if it is not readable to its end.
    unreadable_end: u64,
    pending_gaps: Vec<(u64, Vec<Gap>)>,
    numbered: Numbered,
}

/// Entries of a journal that is not open without delivery. Blocks on the disk.
pub(crate) fn waiting<D: Disk>(disk: &D) -> io::Result<u64> {
    Ok(recover(disk)?.summary.waiting)
}

pub(super) fn recover<D: Disk>(disk: &D) -> io::Result<Recovered> {
    let names = disk.list()?;
    if names.iter().any(|name| name == UNFINISHED) {
        disk.remove(UNFINISHED)?;
    }
    let mut firsts: Vec<u64> = names
        .iter()
        .filter_map(|name| parse_segment_name(name))
        .collect();
    firsts.sort_unstable();
    if let Some(last) = firsts.last() {
        // Data read below counts as durable, so it must be synced.
        match disk.sync_file(&segment_name(*last)) {
            // Readable data is delivered all the same; the next header, which is synced, has the
            // sequences.
            Err(error) if medium::is_of_medium(&error) => {
                tracing::error!(%error, segment = last, "the newest segment cannot be synced");
            }
            synced => synced?,
        }
    }

    let Readings {
        scans,
        unreadable,
        unreadable_end,
        mut pending_gaps,
        numbered,
    } = read_segments(disk, &firsts)?;
    let newest = |of: fn(&Scan) -> u64| scans.iter().map(of).max().unwrap_or(0);
    let acknowledged = newest(|scan| scan.acknowledged);
    let dropped_before = newest(|scan| scan.dropped_before);
    let gaps_from = newest(|scan| scan.gaps_from);
    let journals = scans.iter().map(|scan| scan.snapshot.journal);
    let journal = journals.rev().find(|it| *it != 0).unwrap_or_else(random);
    let mut index = Index {
        acknowledged,
        dropped_before,
        gaps_from,
        ..Index::default()
    };
    let mut lost = Gaps::default();
    let mut streams = Streams::default();
    let mut next = 0;
    let mut damaged_segments = unreadable.len();
    for (n, scan) in scans.into_iter().enumerate() {
        let first = scan.segment.first;
        if n > 0 && next < first && first > index.head() {
            let mut hole = Gaps::default();
            hole.add_between(&streams, &scan.snapshot.streams, first - next);
            let gaps = hole.into_entries().into_iter().flatten();
            let untold: Vec<Gap> = gaps.filter(|gap| !is_told(gap, &pending_gaps)).collect();
            damaged_segments += usize::from(!untold.is_empty());
            untold.into_iter().for_each(|gap| lost.add_gap(gap));
        }
        next = scan.segment.end;
        streams = scan.streams;
        index.segments.push_back(scan.segment);
    }
    if let Some(first) = index.segments.front().map(|segment| segment.first)
        && first > index.head()
    {
        index.acknowledged = first;
    }
    if unreadable_end > next {
        damaged_segments += usize::from(unreadable.is_empty());
        // The newest segment is unreadable: its sequences are unknown, so as many as possible are
        // skipped.
        let mut rows = streams.to_rows();
        for row in &mut rows {
            row.next_sequence += unreadable_end - next;
        }
        lost.add_between(&streams, &rows, unreadable_end - next);
        streams = Streams::from_rows(&rows);
        next = unreadable_end;
    }
    pending_gaps.retain(|(position, _)| *position >= index.acknowledged.max(gaps_from));
    let summary = Summary {
        segments: index.segments.len(),
        waiting: next.saturating_sub(index.head()),
        damaged_segments,
    };
    Ok(Recovered {
        index,
        streams,
        journal,
        numbered,
        next,
        lost,
        pending_gaps,
        unreadable,
        summary,
    })
}

/// A number that no other journal has.
fn random() -> u64 {
    RandomState::new().hash_one(0_u64).max(1)
}

/// Reads every segment as far as the medium permits.
fn read_segments<D: Disk>(disk: &D, firsts: &[u64]) -> io::Result<Readings> {
    let mut readings = Readings::default();
    for (n, first) in firsts.iter().enumerate() {
        let limit = firsts.get(n + 1).copied().unwrap_or(u64::MAX);
        let name = segment_name(*first);
        let (bytes, is_bad) = medium::read_prefix(disk, &name, 0, usize::MAX)?;
        if is_bad {
            tracing::error!(
                segment = first,
                readable_bytes = bytes.len(),
                "the medium cannot read a segment"
            );
        }
        let is_last = n + 1 == firsts.len();
        let note_gaps = |position, entry| match entry {
            Entry::Gaps(gaps) => readings.pending_gaps.push((position, gaps)),
            Entry::Sample(sample) => readings.numbered.note(&sample),
            Entry::Alert(_) => {}
        };
        match scan(disk.keys(), *first, limit, &bytes, note_gaps)? {
            Some(mut scan) => {
                scan.segment.is_damaged = is_bad;
                let read = scan.segment.bytes as usize;
                if is_bad && is_last {
                    readings.unreadable_end = scan.segment.end + lost_max(disk, &name, bytes.len());
                } else if is_last
                    && let Some(end) = end_behind_damage(&bytes[read..], scan.segment.end)
                {
                    // Not a torn batch, which is always at the very end.
                    readings.unreadable_end = end;
                }
                readings.scans.push(scan);
            }
            None => {
                if is_last {
                    readings.unreadable_end = first + lost_max(disk, &name, 0);
                }
                readings.unreadable.push(name);
            }
        }
    }
    Ok(readings)
}

/// Upper bound of the number of entries after `readable` bytes.
fn lost_max<D: Disk>(disk: &D, name: &str, readable: usize) -> u64 {
    let readable = readable as u64;
    let bytes = medium::length(disk, name, readable, SEGMENT_BYTES_MAX) - readable;
    bytes / FRAME_OVERHEAD_BYTES as u64
}

/// Whether an earlier recovery has reported the gap. Gaps are delivered after their hole, so they
/// wait until that is passed.
fn is_told(gap: &Gap, pending: &[(u64, Vec<Gap>)]) -> bool {
    let mut known = pending.iter().flat_map(|(_, gaps)| gaps);
    known.any(|known| {
        (&known.device, &known.stream) == (&gap.device, &gap.stream)
            && known.first_sequence <= gap.first_sequence
            && gap.last_sequence <= known.last_sequence
    })
}

/// Adds the samples of `segment` from `acknowledged` on to the gaps, as far as it is readable. The
/// counters of the next segment give the rest. If the header is unreadable, everything since the
/// end of the segment `before` counts. Returns the first position of the loss.
pub(super) fn collect_lost<D: Disk>(
    disk: &D,
    before: Option<u64>,
    segment: &Segment,
    acknowledged: u64,
    gaps: &mut Gaps,
) -> u64 {
    let readable = |first| {
        let read = medium::read_prefix(disk, &segment_name(first), 0, usize::MAX);
        read.unwrap_or_default().0
    };
    let keys = disk.keys();
    let read = scan(
        keys,
        segment.first,
        segment.end,
        &readable(segment.first),
        |position, entry| {
            if position >= acknowledged
                && let Entry::Sample(sample) = entry
            {
                gaps.add_sample(sample);
            }
        },
    );
    let read = read.unwrap_or_default();
    let end = read.as_ref().map_or(segment.first, |it| it.segment.end);
    if end == segment.end {
        return end;
    }
    tracing::error!(segment = segment.first, "a segment is damaged");
    let known = read.or_else(|| {
        let first = before?;
        scan(keys, first, segment.first, &readable(first), |_, _| {}).unwrap_or_default()
    });
    let known = known.map_or_else(Streams::default, |scan| scan.streams);
    let next = scan(
        keys,
        segment.end,
        u64::MAX,
        &readable(segment.end),
        |_, _| {},
    );
    if let Ok(Some(header)) = next {
        let lost = segment.end.saturating_sub(end);
        gaps.add_between(&known, &header.snapshot.streams, lost);
    }
    end
}

/// `None` if the header is damaged. An error: the segment has another key.
fn scan(
    keys: &Keys,
    first: u64,
    limit: u64,
    bytes: &[u8],
    mut visit: impl FnMut(u64, Entry),
) -> io::Result<Option<Scan>> {
    let (snapshot, key, mut frames) = match open_header(keys, first, bytes) {
        Ok(opened) => opened,
        Err(Unopened::Damaged) => return Ok(None),
        Err(Unopened::Key(error)) => {
            let name = segment_name(first);
            let text = format!("segment {name}: {error}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
    };
    let mut segment = Segment::new(first, frames.offset() as u64, key);
    let mut streams = Streams::from_rows(&snapshot.streams);
    let mut acknowledged = snapshot.acknowledged;
    let mut dropped_before = snapshot.dropped_before;
    let mut gaps_from = 0;
    loop {
        let offset = frames.offset() as u64;
        let Some(frame) = frames.next() else {
            break;
        };
        match frame.kind {
            Kind::Header | Kind::SealedHeader => break,
            Kind::Acknowledged => acknowledged = acknowledged.max(frame.position),
            Kind::Sample | Kind::Alert | Kind::Gaps => {
                if frame.position != segment.end || frame.position >= limit {
                    break;
                }
                let Some(entry) = frame.entry() else {
                    break;
                };
                match &entry {
                    Entry::Sample(sample) => streams.replay(
                        &sample.device,
                        &sample.stream,
                        sample.sequence,
                        sample.device_time_us,
                        sample.sensor_sequence,
                    ),
                    Entry::Alert(alert) => {
                        streams.replay("", "alerts", alert.sequence, alert.time_us, None);
                    }
                    Entry::Gaps(_) => {
                        let Ok(dropped) = Dropped::decode(&*frame.body) else {
                            return Ok(None);
                        };
                        dropped_before = dropped_before.max(dropped.dropped_before);
                        gaps_from = gaps_from.max(dropped.complete_from);
                    }
                }
                segment.note_entry(offset);
                visit(frame.position, entry);
            }
        }
        segment.bytes = frames.offset() as u64;
    }
    Ok(Some(Scan {
        snapshot,
        segment,
        streams,
        acknowledged,
        dropped_before,
        gaps_from,
    }))
}
