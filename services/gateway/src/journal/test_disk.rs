//! The test kit's disk with the journal's interface, and small journals on any disk.
#![allow(clippy::unwrap_used)]

use std::{
    io,
    sync::{Arc, LazyLock},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use testkit::disk::{FakeDisk, FakeFile};

use super::{Disk, DiskFile, Entry, Journal, Limits, Options, Overflow};
use crate::sealing::Keys;

/// The tests write sealed segments.
pub static TEST_KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::new(&[7; 32], b"", true));

#[derive(Clone)]
pub struct TestDisk(pub FakeDisk);

pub struct TestFile(FakeFile);

impl Disk for TestDisk {
    type File = TestFile;

    fn keys(&self) -> &Keys {
        &TEST_KEYS
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }
    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.0.read_at(name, offset, length)
    }
    fn create(&self, name: &str) -> io::Result<TestFile> {
        self.0.create(name).map(TestFile)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn sync_file(&self, name: &str) -> io::Result<()> {
        self.0.sync_file(name)
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.0.sync_directory()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.0.free_bytes())
    }
}

impl DiskFile for TestFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A directory of a disk that others share.
#[derive(Clone)]
pub struct Folder {
    pub disk: TestDisk,
    pub name: &'static str,
}

impl Folder {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }
}

impl Disk for Folder {
    type File = TestFile;

    fn keys(&self) -> &Keys {
        self.disk.keys()
    }
    fn list(&self) -> io::Result<Vec<String>> {
        let names = self.disk.list()?.into_iter();
        let inside = |it: String| Some(it.strip_prefix(&self.path(""))?.to_owned());
        Ok(names.filter_map(inside).collect())
    }
    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.disk.read_at(&self.path(name), offset, length)
    }
    fn create(&self, name: &str) -> io::Result<TestFile> {
        self.disk.create(&self.path(name))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(&self.path(from), &self.path(to))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(&self.path(name))
    }
    fn sync_file(&self, name: &str) -> io::Result<()> {
        self.disk.sync_file(&self.path(name))
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
}

/// A fault in front of the test kit's disk. All other operations pass.
pub trait Faulty: Clone + Send + Sync + 'static {
    type File: DiskFile;

    fn disk(&self) -> &TestDisk;
    /// As `Disk::keys`.
    fn sealed_by(&self) -> &Keys {
        self.disk().keys()
    }
    /// As `Disk::create`.
    fn new_file(&self, name: &str) -> io::Result<Self::File>;
    /// As `Disk::read_at`.
    fn read(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.disk().read_at(name, offset, length)
    }
}

impl<T: Faulty> Disk for T {
    type File = T::File;

    fn keys(&self) -> &Keys {
        self.sealed_by()
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk().list()
    }
    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.read(name, offset, length)
    }
    fn create(&self, name: &str) -> io::Result<T::File> {
        self.new_file(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk().rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk().remove(name)
    }
    fn sync_file(&self, name: &str) -> io::Result<()> {
        self.disk().sync_file(name)
    }
    fn sync_directory(&self) -> io::Result<()> {
        self.disk().sync_directory()
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk().free_bytes()
    }
}

/// A disk with keys of its own.
#[derive(Clone)]
pub struct Keyed(pub TestDisk, pub Keys);

impl Faulty for Keyed {
    type File = TestFile;

    fn disk(&self) -> &TestDisk {
        &self.0
    }
    fn sealed_by(&self) -> &Keys {
        &self.1
    }
    fn new_file(&self, name: &str) -> io::Result<TestFile> {
        self.0.create(name)
    }
}

/// A disk whose syncs wait while it is stopped.
#[derive(Clone)]
pub struct Stopping {
    disk: TestDisk,
    stop: Arc<Stop>,
}

#[derive(Default)]
struct Stop {
    state: Mutex<Stopped>,
    changed: Condvar,
}

#[derive(Default)]
struct Stopped {
    is_stopped: bool,
    /// Syncs that wait.
    waiting: usize,
}

pub struct StoppingFile(TestFile, Arc<Stop>);

impl Stopping {
    pub fn new(seed: u64) -> Self {
        Self {
            disk: TestDisk(FakeDisk::new(seed)),
            stop: Arc::default(),
        }
    }

    pub fn stop(&self, is_stopped: bool) {
        self.stop.state.lock().is_stopped = is_stopped;
        self.stop.changed.notify_all();
    }

    /// Whether a sync waits.
    pub fn holds_a_sync(&self) -> bool {
        self.stop.state.lock().waiting > 0
    }
}

impl Faulty for Stopping {
    type File = StoppingFile;

    fn disk(&self) -> &TestDisk {
        &self.disk
    }
    fn new_file(&self, name: &str) -> io::Result<StoppingFile> {
        let file = self.disk.create(name)?;
        Ok(StoppingFile(file, Arc::clone(&self.stop)))
    }
}

impl DiskFile for StoppingFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.1.state.lock();
        state.waiting += 1;
        self.1.changed.wait_while(&mut state, |it| it.is_stopped);
        state.waiting -= 1;
        drop(state);
        self.0.sync()
    }
}

/// A journal of 1 MiB.
pub fn small_options(class: &'static str, overflow: Overflow) -> Options {
    Options {
        class,
        limits: Limits {
            bytes_max: 1 << 20,
            segment_bytes: 1 << 16,
            overflow,
        },
        gather: Duration::ZERO,
    }
}

/// Opens a journal of 1 MiB.
pub fn small<D: Disk>(disk: D, class: &'static str, overflow: Overflow) -> Journal<D> {
    Journal::open(disk, small_options(class, overflow))
        .unwrap()
        .0
}

/// All entries of a small journal.
pub fn entries<D: Disk>(journal: &Journal<D>) -> Vec<Entry> {
    let chunk = journal.reader().read(0, 10_000, 1 << 20).unwrap();
    chunk.entries.into_iter().map(|(_, entry)| entry).collect()
}
