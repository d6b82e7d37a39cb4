//! Whether a flow goes by two paths at once, or stands still, as its rule says now.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tunnel::StreamSwitch;

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
    stream: Option<StreamSwitch>,
}

impl CopiedFlow {
    pub(super) fn set(&mut self, copied: bool) {
        let before = self.now.0.swap(copied, Ordering::Relaxed);
        if let Some(stream) = self.stream.as_ref().filter(|_| before != copied) {
            stream.copy(copied);
        }
    }

    /// Nothing more is received for it while it is held.
    pub(super) fn hold(&self, held: bool) {
        if let Some(stream) = &self.stream {
            stream.hold(held);
        }
    }

    pub(super) fn carried_by(&mut self, stream: StreamSwitch) {
        stream.copy(self.now.get());
        self.stream = Some(stream);
    }
}
