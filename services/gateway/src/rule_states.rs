//! The states of the rule engines on disk. A restart of the gateway continues every stretch and
//! every episode where it was, with the same id and the same beginning.
//!
//! A log of records: each replaces the state of one subject. A request is answered when the states
//! that it changed are synced, and one sync serves all requests that wait. The log is rewritten
//! when it has grown. After damage the records before the damage count; without any, rules begin
//! with no state.

use std::{collections::BTreeMap, io};

use crate::{
    clock::Moment,
    journal::{Disk, DiskFile},
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
const HEAD_BYTES: usize = 8;

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
    file: Option<D::File>,
    rewritten_bytes: u64,
    appended_bytes: u64,
    is_spared: bool,
}

impl<D: Disk> StateLog<D> {
    /// The log and what it has. Blocks on the disk.
    pub fn open(disk: D) -> io::Result<(StateLog<D>, States)> {
        let states = if disk.list()?.iter().any(|name| name == FILE) {
            // A killed gateway may have left what only the kernel has: it counts from now on.
            disk.sync_file(FILE)?;
            disk.sync_directory()?;
            read(&disk)?
        } else {
            States::default()
        };
        let log = StateLog {
            disk,
            // Records behind a torn record would be lost, so nothing is appended to an old log.
            file: None,
            rewritten_bytes: 0,
            appended_bytes: 0,
            is_spared: false,
        };
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
        let Some(mut file) = self.file.take() else {
            return Ok(());
        };
        let bytes = encode(states);
        file.append(&bytes)?;
        file.sync()?;
        self.appended_bytes += bytes.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn rewrite(&mut self, all: &States) -> io::Result<()> {
        self.file = None;
        let bytes = encode(all);
        let mut file = self.disk.create(FILE_NEW)?;
        file.append(&bytes)?;
        file.sync()?;
        self.disk.rename(FILE_NEW, FILE)?;
        self.disk.sync_directory()?;
        self.rewritten_bytes = bytes.len() as u64;
        self.appended_bytes = 0;
        self.file = Some(file);
        Ok(())
    }
}

/// The records of the gateway's clock have no subject and come first, so that a state is never
/// newer than the clock beside it. The record of the uptime is ignored by versions without it.
fn encode(states: &States) -> Vec<u8> {
    let mut bytes = Vec::new();
    let newest = states.newest;
    let clock = [newest.wall_us.to_le_bytes(), states.clock.to_le_bytes()];
    record(&mut bytes, "", clock.as_flattened());
    let mut uptime = newest.uptime_us.to_le_bytes().to_vec();
    uptime.extend(newest.boot.to_le_bytes());
    record(&mut bytes, "", &uptime);
    for (subject, state) in &states.engines {
        record(&mut bytes, subject, state);
    }
    bytes
}

fn record(bytes: &mut Vec<u8>, subject: &str, state: &[u8]) {
    let mut body = Vec::with_capacity(2 + subject.len() + state.len());
    // Identifiers have 128 bytes at most.
    let length = u16::try_from(subject.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(subject.as_bytes());
    body.extend_from_slice(state);
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
}

fn read<D: Disk>(disk: &D) -> io::Result<States> {
    let mut states = States::default();
    let mut bytes = Vec::new();
    let (mut offset, mut is_end) = (0, false);
    let mut used = 0;
    loop {
        match decode(&bytes[used..]) {
            Decoded::Record {
                subject,
                state,
                length,
            } => {
                states.take(subject, state);
                used += length;
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
                let bytes = bytes.len() - used;
                if bytes > 0 {
                    tracing::warn!(
                        bytes,
                        "the end of the kept rule states cannot be read; the states before it count"
                    );
                }
                return Ok(states);
            }
        }
    }
}

enum Decoded<'a> {
    Record {
        subject: &'a str,
        state: &'a [u8],
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
    let fields = || {
        let (length, rest) = body.split_first_chunk()?;
        let (subject, state) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        Some((std::str::from_utf8(subject).ok()?, state))
    };
    match fields() {
        Some((subject, state)) => Decoded::Record {
            subject,
            state,
            length: HEAD_BYTES + length,
        },
        None => Decoded::Damaged,
    }
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
