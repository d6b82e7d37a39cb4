//! The gateway's journal: what was accepted is on disk before anybody is told so, and stays until the core has it.
//!
//! There are two, one per class of data, with the same format and different behaviour at their bound: `vitals` drops its oldest
//! segment and records which sequences went, `alerts` refuses. `log` tells the protocol with the disk, `recovery` what a
//! restart makes of it, `format` the bytes, `writer` the fsync policy (group commit).

pub mod disk;
pub mod format;
mod gaps;
pub mod log;
mod medium;
pub mod reader;
mod recent;
pub mod recovery;
mod streams;
pub mod writer;

pub use disk::{Directory, Disk, DiskFile};
pub use format::Entry;
pub use log::{Limits, Log, Overflow, StageError, Staged};
pub use reader::{Chunk, Reader};
pub use writer::{AppendError, Condition, Journal, Options, Outcome};
