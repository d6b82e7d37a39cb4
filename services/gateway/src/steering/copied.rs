//! Whether a flow goes by two paths at once, as its rule says now.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tunnel::CopySwitch;

/// Read for each datagram of a flow; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Copied(Arc<AtomicBool>);

impl Copied {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The same at the rules' side.
#[derive(Debug, Default)]
pub(super) struct CopiedFlow {
    pub(super) now: Copied,
    /// The stream of the flow, if it is one.
    stream: Option<CopySwitch>,
}

impl CopiedFlow {
    pub(super) fn set(&mut self, copied: bool) {
        let before = self.now.0.swap(copied, Ordering::Relaxed);
        if let Some(stream) = self.stream.as_ref().filter(|_| before != copied) {
            stream.set(copied);
        }
    }

    pub(super) fn carried_by(&mut self, stream: CopySwitch) {
        stream.set(self.now.get());
        self.stream = Some(stream);
    }
}
