//! Ownership of the samples of a request, by the journal's thread or by a caller that gave up.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Samples in the queue belong to the first that takes them. The thread stages them; their caller
/// reports that they are not stored.
#[derive(Clone, Default)]
pub(super) struct Claim(Arc<AtomicBool>);

impl Claim {
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}
