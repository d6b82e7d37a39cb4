//! The number of a copy among the copies of the same messages.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// The number of the copy that a stream carries. While packets change their path, streams with
/// different numbers keep to different paths, so the loss of a path holds up one copy only. Clones
/// share the number, which may change between two messages.
#[derive(Debug, Clone, Default)]
pub struct CopyNumber(Arc<AtomicU8>);

impl CopyNumber {
    /// The original has 0.
    pub fn set(&self, number: u8) {
        self.0.store(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}
