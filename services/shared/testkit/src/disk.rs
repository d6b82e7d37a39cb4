//! A directory of append-only files in memory that can crash between any two steps, and in the
//! middle of a step.
//!
//! Each call that changes something is a boundary. A test asks for a crash at boundary n. The call
//! there is executed not at all, in part, or wholly without an answer; then every call fails until
//! `restart`. The remains follow POSIX and nothing kinder. Without `sync` any part of the appended
//! bytes may be missing or torn. Without `sync_directory` any of the later creations, renames and
//! removals may be missing.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The kind of a crash: it decides what remains of unsynced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// `kill -9`: the kernel keeps the written data, but has not yet written it to the medium.
    Process,
    /// Loss of power: any unsynced data may be lost.
    Power,
}

type Inode = u64;

#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    synced: usize,
}

#[derive(Clone, Debug)]
enum DirectoryStep {
    Link(String, Inode),
    /// From, to, and the file itself: a name that was used twice must not mean its earlier file.
    Rename(String, String, Inode),
    Unlink(String),
}

#[derive(Debug)]
struct State {
    rng: ChaCha8Rng,
    contents: HashMap<Inode, Content>,
    names: BTreeMap<String, Inode>,
    /// The directory as of the last `sync_directory`, and the changes since.
    durable_names: BTreeMap<String, Inode>,
    steps: Vec<DirectoryStep>,
    inodes: Inode,
    boundaries: u64,
    crash_at: Option<u64>,
    dead: bool,
    /// Handles from before a crash cannot write.
    life: u64,
    /// Calls that fail without a crash, as on a full disk.
    failing: u64,
    /// Bytes of all files that fit.
    room: usize,
}

/// Clones share the disk.
#[derive(Clone, Debug)]
pub struct FakeDisk {
    state: Arc<Mutex<State>>,
}

/// An open file; useless after a crash.
#[derive(Debug)]
pub struct FakeFile {
    disk: FakeDisk,
    inode: Inode,
    life: u64,
}

/// The fate of a call at a boundary.
enum Step {
    Whole,
    /// The crash happens: this part of the call is done, then it fails.
    Crash(Extent),
    /// No crash, but the call fails after this part.
    Fail(Extent),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Nothing,
    Part,
    All,
}

impl FakeDisk {
    pub fn new(seed: u64) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                rng: ChaCha8Rng::seed_from_u64(seed),
                contents: HashMap::new(),
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                steps: Vec::new(),
                inodes: 0,
                boundaries: 0,
                crash_at: None,
                dead: false,
                life: 0,
                failing: 0,
                room: usize::MAX,
            })),
        }
    }

    /// Boundaries passed so far.
    pub fn boundaries(&self) -> u64 {
        self.lock().boundaries
    }

    /// Crashes when boundary `boundary` (counted from the disk's first) is reached.
    pub fn crash_at(&self, boundary: u64) {
        self.lock().crash_at = Some(boundary);
    }

    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Lets the next `calls` calls fail as on a full disk.
    pub fn fail_next(&self, calls: u64) {
        self.lock().failing = calls;
    }

    /// Leaves room for this many bytes more, over restarts too. Others have taken the rest.
    pub fn leave_room(&self, bytes: usize) {
        let mut state = self.lock();
        state.room = state.used().saturating_add(bytes);
    }

    pub fn free_bytes(&self) -> u64 {
        let state = self.lock();
        state.room.saturating_sub(state.used()) as u64
    }

    /// Ends a life of the disk and begins the next with the remains of the crash.
    pub fn restart(&self, crash: Crash) {
        let mut state = self.lock();
        state.life += 1;
        state.dead = false;
        state.crash_at = None;
        state.failing = 0;
        if crash == Crash::Power {
            state.lose_power();
        }
    }

    /// Flips one bit of a file, like a decaying medium.
    pub fn flip_bit(&self, name: &str, bit: usize) {
        let mut state = self.lock();
        if let Some(inode) = state.names.get(name).copied()
            && let Some(content) = state.contents.get_mut(&inode)
            && let Some(byte) = content.bytes.get_mut(bit / 8)
        {
            *byte ^= 1 << (bit % 8);
        }
    }

    pub fn file_bytes(&self, name: &str) -> Option<usize> {
        let state = self.lock();
        let inode = state.names.get(name)?;
        Some(state.contents.get(inode)?.bytes.len())
    }

    pub fn list(&self) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.living()?;
        Ok(state.names.keys().cloned().collect())
    }

    pub fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let state = self.lock();
        state.living()?;
        let inode = state.inode(name)?;
        let bytes = state
            .contents
            .get(&inode)
            .map_or(&[][..], |content| &content.bytes);
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let end = start.saturating_add(length).min(bytes.len());
        Ok(bytes[start..end].to_vec())
    }

    pub fn create(&self, name: &str) -> io::Result<FakeFile> {
        let mut state = self.lock();
        let inode = state.inodes;
        state.inodes += 1;
        let life = state.life;
        state.change(|state| {
            state.contents.insert(inode, Content::default());
            state.step(DirectoryStep::Link(name.to_owned(), inode));
        })?;
        drop(state);
        Ok(FakeFile {
            disk: self.clone(),
            inode,
            life,
        })
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.living()?;
        let inode = state.inode(from)?;
        state.change(|state| {
            state.step(DirectoryStep::Rename(from.to_owned(), to.to_owned(), inode));
        })
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.living()?;
        state.inode(name)?;
        state.change(|state| state.step(DirectoryStep::Unlink(name.to_owned())))
    }

    pub fn sync_file(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.living()?;
        let inode = state.inode(name)?;
        state.change(|state| state.sync(inode))
    }

    pub fn sync_directory(&self) -> io::Result<()> {
        self.lock().change(|state| {
            state.durable_names = state.names.clone();
            state.steps.clear();
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl FakeFile {
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        if state.life != self.life {
            return Err(dead());
        }
        let (extent, result) = match state.boundary()? {
            Step::Whole => (Extent::All, Ok(())),
            Step::Crash(extent) => (extent, Err(dead())),
            Step::Fail(extent) => (extent, Err(full())),
        };
        let length = match extent {
            Extent::Nothing => 0,
            Extent::Part => state.rng.random_range(0..=bytes.len()),
            Extent::All => bytes.len(),
        };
        let room = state.room.saturating_sub(state.used());
        let (length, result) = if length > room {
            (room, Err(full()))
        } else {
            (length, result)
        };
        if let Some(content) = state.contents.get_mut(&self.inode) {
            content.bytes.extend_from_slice(&bytes[..length]);
        }
        result
    }

    pub fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.lock();
        if state.life != self.life {
            return Err(dead());
        }
        let inode = self.inode;
        state.change(|state| state.sync(inode))
    }
}

impl State {
    /// Bytes of the files that have a name.
    fn used(&self) -> usize {
        let named = self.names.values();
        let sizes = named.filter_map(|inode| Some(self.contents.get(inode)?.bytes.len()));
        sizes.sum()
    }

    fn living(&self) -> io::Result<()> {
        if self.dead { Err(dead()) } else { Ok(()) }
    }

    fn inode(&self, name: &str) -> io::Result<Inode> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }

    fn boundary(&mut self) -> io::Result<Step> {
        self.living()?;
        let here = self.boundaries;
        self.boundaries += 1;
        let extent = match self.rng.random_range(0..3) {
            0 => Extent::Nothing,
            1 => Extent::Part,
            _ => Extent::All,
        };
        if self.crash_at == Some(here) {
            self.dead = true;
            return Ok(Step::Crash(extent));
        }
        if self.failing > 0 {
            self.failing -= 1;
            return Ok(Step::Fail(extent));
        }
        Ok(Step::Whole)
    }

    /// An indivisible change: it happens or it does not, and the caller cannot see which.
    fn change(&mut self, apply: impl FnOnce(&mut Self)) -> io::Result<()> {
        match self.boundary()? {
            Step::Whole => {
                apply(self);
                Ok(())
            }
            Step::Crash(extent) => {
                if extent == Extent::All {
                    apply(self);
                }
                Err(dead())
            }
            Step::Fail(extent) => {
                if extent == Extent::All {
                    apply(self);
                }
                Err(full())
            }
        }
    }

    fn step(&mut self, step: DirectoryStep) {
        apply(&mut self.names, &step);
        self.steps.push(step);
    }

    fn sync(&mut self, inode: Inode) {
        if let Some(content) = self.contents.get_mut(&inode) {
            content.synced = content.bytes.len();
        }
    }

    fn lose_power(&mut self) {
        let mut names = self.durable_names.clone();
        for step in std::mem::take(&mut self.steps) {
            if self.rng.random_bool(0.5) {
                apply(&mut names, &step);
            }
        }
        self.names = names.clone();
        self.durable_names = names;
        let mut inodes: Vec<_> = self.contents.keys().copied().collect();
        inodes.sort_unstable();
        for inode in inodes {
            let Some(content) = self.contents.get_mut(&inode) else {
                continue;
            };
            let kept = self.rng.random_range(content.synced..=content.bytes.len());
            content.bytes.truncate(kept);
            // The medium may have the file's length before it has its bytes.
            if kept > content.synced && self.rng.random_bool(0.5) {
                let torn = self.rng.random_range(content.synced..kept);
                content.bytes[torn..].fill(0);
            }
            content.synced = content.bytes.len();
        }
    }
}

fn apply(names: &mut BTreeMap<String, Inode>, step: &DirectoryStep) {
    match step {
        DirectoryStep::Link(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        DirectoryStep::Rename(from, to, inode) => {
            if names.get(from) == Some(inode) {
                names.remove(from);
            }
            names.insert(to.clone(), *inode);
        }
        DirectoryStep::Unlink(name) => {
            names.remove(name);
        }
    }
}

fn dead() -> io::Error {
    io::Error::other("the machine has crashed")
}

fn full() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "no space left on the fake disk")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn synced_data_survives_and_other_data_may_be_lost() {
        let mut kept = 0;
        let mut lost = 0;
        for seed in 0..50 {
            let disk = FakeDisk::new(seed);
            let mut file = disk.create("a").unwrap();
            file.append(b"synced").unwrap();
            file.sync().unwrap();
            disk.sync_directory().unwrap();
            file.append(b"not synced").unwrap();
            disk.create("b").unwrap();
            disk.restart(Crash::Power);
            let bytes = disk.read_at("a", 0, 100).unwrap();
            assert!(bytes.starts_with(b"synced"));
            if bytes.len() > 6 {
                kept += 1
            } else {
                lost += 1
            }
            assert!(file.append(b"late").is_err());
        }
        assert!(kept > 0 && lost > 0);
    }

    #[test]
    fn a_killed_process_leaves_its_written_data() {
        let disk = FakeDisk::new(1);
        let mut file = disk.create("a").unwrap();
        file.append(b"written").unwrap();
        disk.crash_at(disk.boundaries());
        assert!(file.sync().is_err());
        assert!(disk.list().is_err());
        disk.restart(Crash::Process);
        assert_eq!(disk.read_at("a", 0, 100).unwrap(), b"written");
        disk.restart(Crash::Power);
    }
}
