//! The states of the rule engines on disk. A restart of the gateway continues every stretch and
//! every episode where it was, with the same id and the same beginning.
//!
//! A log of records: each replaces the state of one subject. A request is answered when the states
//! that it changed are synced, and one sync serves all requests that wait. The log is rewritten
//! when it has grown. After damage the records before the damage count; without any, rules begin
//! with no state. A sealed log begins with its wrapped key, and each record's body is sealed.

use std::{collections::BTreeMap, io};

use crate::{
    clock::Moment,
    journal::{Disk, DiskFile},
    sealing::{BEGIN_BYTES, FileKey, KeyError, TAG_BYTES, Unopened},
};

/// A longer record is damage: the state of one subject has a few kilobytes.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// Bytes appended to the log after which it is rewritten, or four times the size of a rewritten
/// log where that is more.
const GROWN_BYTES: u64 = 4 << 20;
const GROWN_TIMES: u64 = 4;
/// The same while room is spared: once the size of a rewritten log.
const SPARED_GROWN_BYTES: u64 = 128 << 10;
/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;
const FILE: &str = "states";
const FILE_NEW: &str = "states.new";
/// Length and checksum of a record.
const PREFIX_BYTES: usize = 8;

/// State of the rules at the edge, kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Time of the newest sample by the gateway's clock.
    pub newest: Moment,
    /// How often that clock was set back.
    pub clock: u64,
    /// By subject; an empty state removes the subject.
    pub engines: BTreeMap<String, Vec<u8>>,
}

/// The log, open for appending.
pub struct StateLog<D: Disk> {
    disk: D,
    /// `None`: the next write rewrites the log.
    file: Option<Open<D::File>>,
    rewritten_bytes: u64,
    appended_bytes: u64,
    is_spared: bool,
}

struct Open<F> {
    file: F,
    key: Option<FileKey>,
    /// Where the next record begins.
    end: u64,
}

impl<D: Disk> StateLog<D> {
    /// The log and what it has. Blocks on the disk.
    pub fn open(disk: D) -> io::Result<(StateLog<D>, States)> {
        let is_kept = disk.list()?.iter().any(|name| name == FILE);
        let states = if is_kept {
            // A killed gateway may have left what only the kernel has: it counts from now on.
            disk.sync_file(FILE)?;
            disk.sync_directory()?;
            read(&disk)?
        } else {
            States::default()
        };
        let begin = match is_kept {
            true => disk.read_at(FILE, 0, BEGIN_BYTES)?,
            false => Vec::new(),
        };
        let is_as_wanted = !is_kept || disk.keys().is_as_wanted(&begin);
        let mut log = StateLog {
            disk,
            // Records behind a torn record would be lost, so nothing is appended to an old log.
            file: None,
            rewritten_bytes: 0,
            appended_bytes: 0,
            is_spared: false,
        };
        // A damaged beginning looks like clear text, and has no states.
        let has_any = states != States::default();
        if !is_as_wanted
            && has_any
            && let Err(error) = log.rewrite(&states)
        {
            tracing::warn!(%error, "the kept rule states keep their former encryption");
        }
        Ok((log, states))
    }

    /// Whether the next write has to have the states of all subjects.
    pub fn wants_all(&self) -> bool {
        let grown = match self.is_spared {
            true => SPARED_GROWN_BYTES.max(self.rewritten_bytes),
            false => GROWN_BYTES.max(GROWN_TIMES * self.rewritten_bytes),
        };
        self.file.is_none() || self.appended_bytes >= grown
    }

    /// Rewrites the log more often while the disk is full.
    pub fn spare_room(&mut self, is_spared: bool) {
        self.is_spared = is_spared;
    }

    /// Durable when it returns. After an error the next write has to have all. Blocks on the disk.
    pub fn write(&mut self, states: &States) -> io::Result<()> {
        if self.wants_all() {
            return self.rewrite(states);
        }
        let Some(mut open) = self.file.take() else {
            return Ok(());
        };
        let bytes = encode(states, open.key.as_ref(), open.end)?;
        open.file.append(&bytes)?;
        open.file.sync()?;
        open.end += bytes.len() as u64;
        self.appended_bytes += bytes.len() as u64;
        self.file = Some(open);
        Ok(())
    }

    fn rewrite(&mut self, all: &States) -> io::Result<()> {
        self.file = None;
        let (key, mut bytes) = self.disk.keys().begin(FILE)?.unzip();
        let bytes = bytes.get_or_insert_default();
        let records = encode(all, key.as_ref(), bytes.len() as u64)?;
        bytes.extend_from_slice(&records);
        let mut file = self.disk.create(FILE_NEW)?;
        file.append(bytes)?;
        file.sync()?;
        self.disk.rename(FILE_NEW, FILE)?;
        self.disk.sync_directory()?;
        let end = bytes.len() as u64;
        self.rewritten_bytes = end;
        self.appended_bytes = 0;
        self.file = Some(Open { file, key, end });
        Ok(())
    }
}

/// The records of the gateway's clock have no subject and come first, so that a state is never
/// newer than the clock beside it. The record of the uptime is ignored by versions without it.
///
/// `at`: the offset of the records in the log with this key.
fn encode(states: &States, key: Option<&FileKey>, at: u64) -> Result<Vec<u8>, KeyError> {
    let mut bytes = Vec::new();
    let mut record = |subject: &str, state: &[u8]| record(&mut bytes, subject, state, (key, at));
    let newest = states.newest;
    let clock = [newest.wall_us.to_le_bytes(), states.clock.to_le_bytes()];
    record("", clock.as_flattened())?;
    let mut uptime = newest.uptime_us.to_le_bytes().to_vec();
    uptime.extend(newest.boot.to_le_bytes());
    record("", &uptime)?;
    for (subject, state) in &states.engines {
        record(subject, state)?;
    }
    Ok(bytes)
}

fn record(
    bytes: &mut Vec<u8>,
    subject: &str,
    state: &[u8],
    (key, at): (Option<&FileKey>, u64),
) -> Result<(), KeyError> {
    let mut body = Vec::with_capacity(2 + subject.len() + state.len() + TAG_BYTES);
    // Identifiers have 128 bytes at most.
    let length = u16::try_from(subject.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(subject.as_bytes());
    body.extend_from_slice(state);
    if let Some(key) = key {
        key.seal(at + bytes.len() as u64, &[], &mut body, 0)?;
    }
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(())
}

fn read<D: Disk>(disk: &D) -> io::Result<States> {
    let mut states = States::default();
    let mut bytes = Vec::new();
    let (key, mut offset) = match read_key(disk)? {
        Err(Unopened::Damaged) => {
            tracing::warn!("the kept rule states cannot be read; rules begin with no state");
            return Ok(states);
        }
        opened => opened?,
    };
    let mut is_end = false;
    let (mut used, mut at) = (0, offset);
    loop {
        let opened;
        match decode(&bytes[used..]) {
            Decoded::Record { body, length } => {
                opened = match &key {
                    Some(key) => key.open(at, &[], body),
                    None => Some(body.to_vec()),
                };
                let Some((subject, state)) = opened.as_deref().and_then(fields) else {
                    say_unread(bytes.len() - used);
                    return Ok(states);
                };
                states.take(subject, state);
                used += length;
                at += length as u64;
            }
            Decoded::Cut if !is_end => {
                bytes.drain(..used);
                used = 0;
                let more = disk.read_at(FILE, offset, READ_BYTES)?;
                offset += more.len() as u64;
                is_end = more.len() < READ_BYTES;
                bytes.extend(more);
            }
            // The rest of a write that a crash cut short, or damage.
            Decoded::Cut | Decoded::Damaged => {
                say_unread(bytes.len() - used);
                return Ok(states);
            }
        }
    }
}

/// The key of the log and the offset of its first record.
fn read_key<D: Disk>(disk: &D) -> io::Result<Result<(Option<FileKey>, u64), Unopened>> {
    let begin = disk.read_at(FILE, 0, BEGIN_BYTES)?;
    let opened = disk.keys().open_begun(FILE, &begin);
    Ok(opened.map(|key| match key {
        Some(key) => (Some(key), BEGIN_BYTES as u64),
        None => (None, 0),
    }))
}

fn say_unread(bytes: usize) {
    if bytes > 0 {
        tracing::warn!(
            bytes,
            "the end of the kept rule states cannot be read; the states before it count"
        );
    }
}

enum Decoded<'a> {
    Record {
        body: &'a [u8],
        length: usize,
    },
    /// The record is longer than the bytes.
    Cut,
    Damaged,
}

fn decode(bytes: &[u8]) -> Decoded<'_> {
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Decoded::Cut;
    };
    let Some((checksum, rest)) = rest.split_first_chunk() else {
        return Decoded::Cut;
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > RECORD_BYTES_MAX {
        return Decoded::Damaged;
    }
    let Some(body) = rest.get(..length) else {
        return Decoded::Cut;
    };
    if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
        return Decoded::Damaged;
    }
    Decoded::Record {
        body,
        length: PREFIX_BYTES + length,
    }
}

/// Subject and state of a record.
fn fields(body: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = body.split_first_chunk()?;
    let (subject, state) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Some((std::str::from_utf8(subject).ok()?, state))
}

impl States {
    fn take(&mut self, subject: &str, state: &[u8]) {
        if !subject.is_empty() {
            if state.is_empty() {
                self.engines.remove(subject);
            } else {
                self.engines.insert(subject.to_owned(), state.to_vec());
            }
            return;
        }
        let Some((first, rest)) = state.split_first_chunk() else {
            return;
        };
        let first = i64::from_le_bytes(*first);
        if let Ok(clock) = rest.try_into() {
            self.newest.wall_us = first;
            self.clock = u64::from_le_bytes(clock);
        } else if let Ok(boot) = rest.try_into() {
            self.newest.uptime_us = first;
            self.newest.boot = u32::from_le_bytes(boot);
        }
    }
}

#[cfg(test)]
mod crash_tests;
