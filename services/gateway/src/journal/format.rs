//! Bytes of a segment.
//!
//! A segment is a run of frames: `length u32 | crc32 u32 | kind u8 | position u64 | body`,
//! little-endian. The length and the checksum cover kind, position and body. The first frame is the
//! header. It contains the sequence counters of all streams and the acknowledged position. So any
//! suffix of the segments is a complete journal, and removing the oldest segment loses no counter.
//!
//! Samples, alerts and gaps are entries: each takes the next position. An acknowledgement takes
//! none; its position field holds the acknowledged position.
//!
//! A sealed segment has the same frames. Its header has another kind, and its body begins with the
//! segment's wrapped key. The bodies are sealed, each bound to the segment, to the offset of its
//! frame, and to its kind and position. Those two stay readable, and the checksum covers the sealed
//! body. So damage is found, and told from another key, without the key.

use std::borrow::Cow;

use contracts::vitals::{EdgeAlert, Gap, Sample};
use prost::Message;

use crate::sealing::{FileKey, HEAD_BYTES, KeyError, Keys, TAG_BYTES, Unopened};

/// Bytes of a frame; a longer frame counts as damage. Headers are the largest frames: STREAMS_MAX
/// rows of up to 1.6 KiB.
pub const FRAME_BYTES_MAX: usize = 8 << 20;
const PREFIX_BYTES: usize = 8;
const FIXED_BYTES: usize = 9;
/// Bytes of a frame beside its body.
pub const FRAME_OVERHEAD_BYTES: usize = PREFIX_BYTES + FIXED_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Header = 1,
    Sample = 2,
    Alert = 3,
    Gaps = 4,
    Acknowledged = 5,
    SealedHeader = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Header),
            2 => Some(Self::Sample),
            3 => Some(Self::Alert),
            4 => Some(Self::Gaps),
            5 => Some(Self::Acknowledged),
            6 => Some(Self::SealedHeader),
            _ => None,
        }
    }

    pub fn is_entry(self) -> bool {
        matches!(self, Self::Sample | Self::Alert | Self::Gaps)
    }
}

/// An entry of the journal for readers.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    Sample(Sample),
    Alert(EdgeAlert),
    Gaps(Vec<Gap>),
}

#[derive(Clone, PartialEq, Message)]
pub struct Snapshot {
    #[prost(uint64, tag = "1")]
    pub acknowledged: u64,
    #[prost(uint64, tag = "2")]
    pub dropped_before: u64,
    /// For older versions, which look for damage only after this position.
    #[prost(uint64, tag = "3")]
    pub repaired_before: u64,
    #[prost(message, repeated, tag = "4")]
    pub streams: Vec<StreamRow>,
    /// Random number of the journal. Zero: an older version wrote the header.
    #[prost(fixed64, tag = "5")]
    pub journal: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct StreamRow {
    #[prost(string, tag = "1")]
    pub device: String,
    #[prost(string, tag = "2")]
    pub stream: String,
    #[prost(uint64, tag = "3")]
    pub next_sequence: u64,
    #[prost(int64, tag = "4")]
    pub last_time_us: i64,
    #[prost(uint64, tag = "5")]
    pub sensor_highest: u64,
    /// Bit n: the number `sensor_highest - n` was taken. Zero for a sensor without numbers.
    #[prost(uint64, tag = "6")]
    pub sensor_seen: u64,
    #[prost(int64, tag = "7")]
    pub sensor_time_us: i64,
    /// First and last number of each missing range, lowest first.
    #[prost(uint64, repeated, tag = "8")]
    pub sensor_holes: Vec<u64>,
    /// Where the stream's sequences began. Zero: unknown, an older version began them.
    #[prost(uint64, tag = "9")]
    pub first_sequence: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Dropped {
    /// Entries before this position are gone, whether or not their files exist.
    #[prost(uint64, tag = "1")]
    pub dropped_before: u64,
    #[prost(message, repeated, tag = "2")]
    pub gaps: Vec<Gap>,
    /// Gap entries from this position on repeat all earlier ones, which need no delivery.
    #[prost(uint64, tag = "3")]
    pub complete_from: u64,
}

/// Appends one frame; `body` writes straight into the buffer.
pub fn put_frame(buffer: &mut Vec<u8>, kind: Kind, position: u64, body: &impl Message) {
    let start = begin_frame(buffer, kind, position);
    body.encode_raw(buffer);
    end_frame(buffer, start);
}

fn begin_frame(buffer: &mut Vec<u8>, kind: Kind, position: u64) -> usize {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; PREFIX_BYTES]);
    buffer.push(kind as u8);
    buffer.extend_from_slice(&position.to_le_bytes());
    start
}

fn end_frame(buffer: &mut [u8], start: usize) {
    let (length, checksum) = {
        let covered = &buffer[start + PREFIX_BYTES..];
        (covered.len() as u32, crc32fast::hash(covered))
    };
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// A sealed body is bound to these bytes, beside its segment and offset.
fn bound_to(kind: Kind, position: u64) -> [u8; FIXED_BYTES] {
    let mut bound = [kind as u8; FIXED_BYTES];
    bound[1..].copy_from_slice(&position.to_le_bytes());
    bound
}

/// The header of a new segment, and the key of the segment if it is sealed.
pub fn header(
    keys: &Keys,
    first: u64,
    snapshot: &Snapshot,
) -> Result<(Vec<u8>, Option<FileKey>), KeyError> {
    let mut bytes = Vec::new();
    let Some((key, head)) = keys.new_file(&segment_name(first))? else {
        put_frame(&mut bytes, Kind::Header, first, snapshot);
        return Ok((bytes, None));
    };
    let kind = Kind::SealedHeader;
    begin_frame(&mut bytes, kind, first);
    bytes.extend_from_slice(&head);
    let start = bytes.len();
    snapshot.encode_raw(&mut bytes);
    key.seal(0, &bound_to(kind, first), &mut bytes, start)?;
    end_frame(&mut bytes, 0);
    Ok((bytes, Some(key)))
}

/// The header at the beginning of `bytes`, the key of the segment if it is sealed, and the frames
/// behind it. `Damaged`: there is no such header.
pub fn open_header<'a>(
    keys: &Keys,
    first: u64,
    bytes: &'a [u8],
) -> Result<(Snapshot, Option<FileKey>, Frames<'a>), Unopened> {
    let mut frames = Frames::new(bytes, None, 0);
    let frame = frames.next().filter(|it| it.position == first);
    let frame = frame.ok_or(Unopened::Damaged)?;
    let decode = |body: &[u8]| Snapshot::decode(body).map_err(|_| Unopened::Damaged);
    match frame.kind {
        Kind::Header => Ok((decode(&frame.body)?, None, frames)),
        Kind::SealedHeader => {
            let split = frame.body.split_at_checked(HEAD_BYTES);
            let (head, sealed) = split.ok_or(Unopened::Damaged)?;
            let key = keys.open_file(&segment_name(first), head)?;
            let snapshot = key.open(0, &bound_to(frame.kind, first), sealed);
            let snapshot = decode(&snapshot.ok_or(Unopened::Damaged)?)?;
            frames.key = Some(key.clone());
            Ok((snapshot, Some(key), frames))
        }
        _ => Err(Unopened::Damaged),
    }
}

/// Bytes that each frame behind the header has more in a segment with this key.
pub fn sealed_by(key: Option<&FileKey>) -> usize {
    key.map_or(0, |_| TAG_BYTES)
}

/// The form on disk of frames in clear, for an offset in the segment of this key.
pub fn to_stored<'a>(
    frames: &'a [u8],
    key: Option<&FileKey>,
    offset: u64,
) -> Result<Cow<'a, [u8]>, KeyError> {
    let Some(key) = key else {
        return Ok(Cow::Borrowed(frames));
    };
    let mut stored = Vec::with_capacity(frames.len() * 2);
    let mut rest = frames;
    // Frames from memory need no check.
    while let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX_BYTES>() {
        let length = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize;
        let (covered, next) = behind.split_at(length.min(behind.len()));
        let start = stored.len();
        stored.extend_from_slice(prefix);
        stored.extend_from_slice(covered);
        let (at, body) = (offset + start as u64, start + FRAME_OVERHEAD_BYTES);
        let bound = &covered[..FIXED_BYTES.min(length)];
        key.seal(at, bound, &mut stored, body)?;
        end_frame(&mut stored, start);
        rest = next;
    }
    Ok(Cow::Owned(stored))
}

#[derive(Clone, Debug)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub position: u64,
    pub body: Cow<'a, [u8]>,
}

impl Frame<'_> {
    pub fn entry(&self) -> Option<Entry> {
        match self.kind {
            Kind::Sample => Sample::decode(&*self.body).ok().map(Entry::Sample),
            Kind::Alert => EdgeAlert::decode(&*self.body).ok().map(Entry::Alert),
            Kind::Gaps => Dropped::decode(&*self.body)
                .ok()
                .map(|dropped| Entry::Gaps(dropped.gaps)),
            Kind::Header | Kind::SealedHeader | Kind::Acknowledged => None,
        }
    }
}

/// Why a run of frames ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No frame follows.
    Clean,
    /// The bytes end within a frame of this total size.
    Short { frame_bytes: usize },
    /// The following bytes are no frame.
    Damaged,
}

/// Iterates over frames up to the end or the first damage.
pub struct Frames<'a> {
    bytes: &'a [u8],
    /// `None`: the frames are in clear.
    key: Option<FileKey>,
    /// Offset of `bytes` in the segment.
    base: u64,
    offset: usize,
    end: End,
}

impl<'a> Frames<'a> {
    /// `base`: offset of the bytes in the segment with this key.
    pub fn new(bytes: &'a [u8], key: Option<FileKey>, base: u64) -> Self {
        Self {
            bytes,
            key,
            base,
            offset: 0,
            end: End::Clean,
        }
    }

    /// Offset after the last returned frame.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Meaningful once `next` has returned `None`.
    pub fn end(&self) -> End {
        self.end
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        let rest = &self.bytes[self.offset..];
        if rest.is_empty() {
            self.end = End::Clean;
            return None;
        }
        let Some((prefix, covered)) = rest.split_at_checked(PREFIX_BYTES) else {
            self.end = End::Short {
                frame_bytes: FRAME_OVERHEAD_BYTES,
            };
            return None;
        };
        let length = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]) as usize;
        let checksum = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]);
        if !(FIXED_BYTES..=FRAME_BYTES_MAX).contains(&length) {
            self.end = End::Damaged;
            return None;
        }
        let Some(covered) = covered.get(..length) else {
            self.end = End::Short {
                frame_bytes: PREFIX_BYTES + length,
            };
            return None;
        };
        let frame = (crc32fast::hash(covered) == checksum)
            .then(|| {
                let (fixed, body) = covered.split_at_checked(FIXED_BYTES)?;
                let (kind, position) = fixed.split_first()?;
                let kind = Kind::from_byte(*kind)?;
                let position = u64::from_le_bytes(position.try_into().ok()?);
                let at = self.base + self.offset as u64;
                let body = match &self.key {
                    Some(key) => Cow::Owned(key.open(at, &bound_to(kind, position), body)?),
                    None => Cow::Borrowed(body),
                };
                Some(Frame {
                    kind,
                    position,
                    body,
                })
            })
            .flatten();
        match frame {
            Some(frame) => {
                self.offset += PREFIX_BYTES + length;
                Some(frame)
            }
            None => {
                self.end = End::Damaged;
                None
            }
        }
    }
}

/// The position after the last readable entry beyond the damage at the beginning of `bytes`, for
/// positions from `next` on.
pub fn end_behind_damage(bytes: &[u8], next: u64) -> Option<u64> {
    let positions = next..=next + (bytes.len() / FRAME_OVERHEAD_BYTES) as u64;
    let mut end = None;
    let mut at = 0;
    while let Some(prefix) = bytes.get(at..at + FRAME_OVERHEAD_BYTES) {
        // A cheap test first; only its matches are checked by their checksum.
        let (fixed, position) = prefix.split_at(PREFIX_BYTES + 1);
        let kind = fixed.last().and_then(|byte| Kind::from_byte(*byte));
        let position = position.try_into().map(u64::from_le_bytes);
        let may_be = kind.is_some_and(Kind::is_entry)
            && position.is_ok_and(|position| positions.contains(&position));
        let mut frames = Frames::new(&bytes[at..], None, 0);
        match may_be.then(|| frames.next()).flatten() {
            Some(frame) => {
                end = Some(frame.position + 1);
                at += frames.offset();
            }
            None => at += 1,
        }
    }
    end
}

pub fn segment_name(first: u64) -> String {
    format!("{first:020}.segment")
}

pub fn parse_segment_name(name: &str) -> Option<u64> {
    name.strip_suffix(".segment")
        .filter(|digits| digits.len() == 20)?
        .parse()
        .ok()
}

/// Name of a segment that is not complete yet.
pub const UNFINISHED: &str = "unfinished";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{
        super::streams::{HOLES_MAX, STREAMS_MAX},
        *,
    };

    fn sample(sequence: u64) -> Sample {
        Sample {
            device: "d".into(),
            sequence,
            ..Sample::default()
        }
    }

    #[test]
    fn frames_come_back_as_they_went_in() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, Kind::Sample, 7, &sample(1));
        put_frame(&mut bytes, Kind::Sample, 8, &sample(2));
        let mut frames = Frames::new(&bytes, None, 0);
        let first = frames.next().unwrap();
        assert_eq!((first.kind, first.position), (Kind::Sample, 7));
        assert_eq!(first.entry(), Some(Entry::Sample(sample(1))));
        assert_eq!(
            frames.next().unwrap().entry(),
            Some(Entry::Sample(sample(2)))
        );
        assert!(frames.next().is_none());
        assert_eq!((frames.end(), frames.offset()), (End::Clean, bytes.len()));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_detected() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, Kind::Sample, 7, &sample(1));
        for cut in 1..bytes.len() {
            let mut frames = Frames::new(&bytes[..cut], None, 0);
            assert!(frames.next().is_none());
            assert!(matches!(frames.end(), End::Short { .. }));
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut frames = Frames::new(&flipped, None, 0);
            assert!(frames.next().is_none(), "bit {bit}");
            assert_ne!(frames.end(), End::Clean);
        }
        let zeros = [0; 64];
        let mut frames = Frames::new(&zeros, None, 0);
        assert!(frames.next().is_none());
        assert_eq!(frames.end(), End::Damaged);
    }

    #[test]
    fn a_header_of_the_largest_rows_is_a_frame() {
        let row = StreamRow {
            device: "d".repeat(vitals::IDENTIFIER_BYTES_MAX),
            stream: "s".repeat(vitals::IDENTIFIER_BYTES_MAX),
            next_sequence: u64::MAX,
            last_time_us: -1,
            sensor_highest: u64::MAX,
            sensor_seen: u64::MAX,
            sensor_time_us: -1,
            sensor_holes: vec![u64::MAX; 2 * HOLES_MAX],
            first_sequence: u64::MAX,
        };
        let snapshot = Snapshot {
            acknowledged: u64::MAX,
            dropped_before: u64::MAX,
            repaired_before: u64::MAX,
            streams: vec![row; STREAMS_MAX],
            journal: u64::MAX,
        };
        for keys in [Keys::none(), Keys::new(&[1; 32], b"", true)] {
            let (bytes, key) = header(&keys, u64::MAX, &snapshot).unwrap();
            assert_eq!(key.is_some(), keys.seals());
            let (opened, _, _) = open_header(&keys, u64::MAX, &bytes).unwrap();
            assert!(opened == snapshot);
        }
    }

    #[test]
    fn segment_names_sort_like_positions() {
        assert!(segment_name(9) < segment_name(10));
        assert_eq!(parse_segment_name(&segment_name(42)), Some(42));
        assert_eq!(parse_segment_name("42.segment"), None);
        assert_eq!(parse_segment_name(UNFINISHED), None);
    }
}
