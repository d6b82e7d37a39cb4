//! Whether the core's changes are followed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Whether the core reports changes at present. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct CoreFollowed(Arc<AtomicBool>);

impl CoreFollowed {
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}
