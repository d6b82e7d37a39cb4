//! Space on the disk for alerts and the states of their rules, for the time when others have filled
//! the disk.
//!
//! A file of [`RESERVE_BYTES`] lies beside the rule states. When the disk refuses an alert or a
//! state for want of room, the file is removed, and the write is tried again at once. From then on
//! readings are refused after the rules have judged them, since they would use up the space within
//! seconds. So a gateway that is killed on a full disk still knows the alerts that it has raised,
//! and raises none of them twice. The space is taken again when the disk has room.

use std::{io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use service_kit::{CheckHandle, Shutdown};
use tokio::{sync::watch, time::sleep};

use crate::journal::{Disk, DiskFile, recovery::OpenError};

/// Alerts have 500 bytes each and the state of a subject a few kilobytes. The states of some
/// hundred patients fit three times, as a rewritten log needs it. With more patients a restart on a
/// full disk may find older states.
const RESERVE_BYTES: usize = 2 << 20;
/// The space is taken again when this is free, so that it does not come and go with each reading.
const ROOM_BYTES: u64 = 3 << 20;
/// Bytes written at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Interval of the looks for room while the space is in use.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
pub const RESERVE: &str = "reserve";
const FILE_NEW: &str = "reserve.new";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Held,
    /// The disk has no more than this space.
    InUse,
    /// The disk refuses the file for another reason than want of room, so none is kept.
    Absent,
}

/// Clones are the same.
#[derive(Clone)]
pub struct Reserve<D: Disk> {
    disk: D,
    /// One change at a time.
    changing: Arc<Mutex<()>>,
    space: Arc<watch::Sender<Space>>,
}

impl<D: Disk> Reserve<D> {
    /// Takes the space unless the disk is full. Blocks on the disk.
    pub fn open(disk: D) -> Reserve<D> {
        let reserve = Reserve {
            disk,
            changing: Arc::default(),
            space: Arc::new(watch::Sender::new(Space::Absent)),
        };
        reserve.refill();
        reserve
    }

    /// Whether only alerts and states may be written.
    pub fn is_in_use(&self) -> bool {
        *self.space.borrow() == Space::InUse
    }

    /// Frees the space after a write failed for want of room. True: the write may succeed now.
    /// Blocks on the disk.
    pub fn release(&self) -> bool {
        let _alone = self.changing.lock();
        match *self.space.borrow() {
            Space::Held => {}
            // Another write has just freed it.
            Space::InUse => return true,
            Space::Absent => return false,
        }
        // Readings are refused before the space is there, so that none takes it.
        self.space.send_replace(Space::InUse);
        let removed = self.disk.remove(RESERVE);
        match removed.and_then(|()| self.disk.sync_directory()) {
            Ok(()) => {
                tracing::error!("the disk is full; its reserve takes alerts and rule states");
                true
            }
            Err(error) => {
                tracing::error!(%error, "the reserve on the full disk cannot be freed");
                false
            }
        }
    }

    /// Opens a journal, within the space if the disk has no other. Blocks on the disk.
    pub fn opening<T>(&self, open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
        match open() {
            Err(OpenError(error)) if is_for_want_of_room(&error) && self.release() => open(),
            opened => opened,
        }
    }

    /// Takes the space again if there is room. Blocks on the disk.
    pub fn refill(&self) {
        let _alone = self.changing.lock();
        if *self.space.borrow() == Space::Held {
            return;
        }
        let space = match self.take() {
            Ok(true) => Space::Held,
            Ok(false) => Space::InUse,
            Err(error) => {
                // A part of it would help nobody.
                let _ = self.disk.remove(FILE_NEW);
                if is_for_want_of_room(&error) {
                    Space::InUse
                } else {
                    tracing::warn!(%error, "no space is kept for alerts on a full disk");
                    Space::Absent
                }
            }
        };
        self.space.send_replace(space);
    }

    /// False: there is no room.
    fn take(&self) -> io::Result<bool> {
        if self.disk.list()?.iter().any(|name| name == RESERVE) {
            // An earlier life made it; it has its name since it is whole.
            return Ok(true);
        }
        if self.disk.free_bytes()? < ROOM_BYTES {
            return Ok(false);
        }
        let mut file = self.disk.create(FILE_NEW)?;
        // Not all zeros, which some file systems would not store.
        let chunk = [0xa5; CHUNK_BYTES];
        for _ in 0..RESERVE_BYTES / CHUNK_BYTES {
            file.append(&chunk)?;
        }
        file.sync()?;
        self.disk.rename(FILE_NEW, RESERVE)?;
        self.disk.sync_directory()?;
        Ok(true)
    }

    /// Takes the space again when there is room, until shutdown, and reports a full disk.
    pub async fn keep(self, check: CheckHandle, shutdown: Shutdown) {
        let mut space = self.space.subscribe();
        loop {
            let is_in_use = *space.borrow_and_update() == Space::InUse;
            if is_in_use {
                check.failing(
                    "the disk of --data-dir is full: readings are refused, since its last space \
                     is kept for alerts; make room",
                );
            } else {
                check.ok();
            }
            tokio::select! {
                () = shutdown.requested() => return,
                changed = space.changed() => if changed.is_err() {
                    return;
                },
                () = sleep(LOOKED_EVERY), if is_in_use => {
                    let reserve = self.clone();
                    // A task that panics leaves the space as it is.
                    let _ = tokio::task::spawn_blocking(move || reserve.refill()).await;
                }
            }
        }
    }
}

/// Whether a write failed because the disk or the share of its user is full.
pub fn is_for_want_of_room(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

#[cfg(test)]
mod tests;
