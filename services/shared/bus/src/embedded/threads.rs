//! The threads of the bus, and what its consumers share with it.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicU64, mpsc},
    thread::JoinHandle,
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::{groups, heads::Heads, writer};

/// Shared by the bus and its consumers; the threads end with the last of them.
pub struct Inner {
    pub dir: PathBuf,
    pub heads: Arc<Heads>,
    pub in_flight: Arc<Semaphore>,
    pub next_id: AtomicU64,
    pub threads: Mutex<Threads>,
}

pub struct Threads {
    pub writer: Option<mpsc::Sender<writer::Command>>,
    pub groups: Option<mpsc::Sender<groups::Command>>,
    /// Nothing is sent: dropping it ends the thread.
    pub watcher: Option<mpsc::Sender<()>>,
    pub handles: Vec<JoinHandle<()>>,
}

impl Inner {
    /// False when the bus has ended.
    pub fn write(&self, command: writer::Command) -> bool {
        let threads = self.threads.lock();
        threads
            .writer
            .as_ref()
            .is_some_and(|sender| sender.send(command).is_ok())
    }

    pub fn groups(&self, command: groups::Command) {
        // An ended bus drops the command, and a caller that waits for the answer learns of the end
        // by that.
        if let Some(sender) = &self.threads.lock().groups {
            let _ = sender.send(command);
        }
    }

    pub fn end(&self, tidy: bool) {
        let handles = {
            let mut threads = self.threads.lock();
            if let (Some(writer), false) = (&threads.writer, tidy) {
                let _ = writer.send(writer::Command::Abandon);
            }
            if let Some(groups) = &threads.groups {
                let _ = groups.send(groups::Command::Stop { tidy });
            }
            threads.watcher = None;
            threads.writer = None;
            threads.groups = None;
            std::mem::take(&mut threads.handles)
        };
        for handle in handles {
            let _ = handle.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end(true);
    }
}
