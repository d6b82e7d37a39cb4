//! The gateway's journal: an accepted entry is on disk before it is acknowledged, and stays until
//! the core has it.
//!
//! There are two journals, one per class of data, with the same format. At its bound `vitals` drops
//! its oldest segment and records the lost sequences, and `alerts` refuses. `log` is the protocol
//! with the disk, `recovery` the restart, `format` the bytes, and `writer` the fsync policy (group
//! commit). The disk has the keys that seal the segments.

mod claim;
mod disk;
mod format;
mod gaps;
mod log;
mod medium;
mod numbered;
mod reader;
mod recent;
pub mod recovery;
mod streams;
mod writer;

pub use disk::{Directory, Disk, DiskFile, LOCK};
pub use format::Entry;
pub use log::{Limits, Overflow, StageError, Staged};
pub use reader::{Chunk, Reader};
pub use writer::{AppendError, Condition, Journal, Options, Outcome, STALLED_AFTER};

#[cfg(test)]
pub mod test_disk;
#[cfg(test)]
mod tests;
