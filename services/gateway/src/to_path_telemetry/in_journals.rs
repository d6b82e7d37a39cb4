//! The content of the journals, for the reports.

use std::sync::{Arc, OnceLock};

/// The journals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InJournals {
    /// Entries that ingest has not acknowledged.
    pub waiting: u64,
    /// Share of its bound that the fullest journal holds, in thousandths.
    pub filled_permille: u32,
}

type Count = Box<dyn Fn() -> InJournals + Send + Sync>;

/// A look at the journals. Clones share it. Unknown until the journals are open.
#[derive(Clone, Default)]
pub struct JournalsWaiting(Arc<OnceLock<Count>>);

impl JournalsWaiting {
    pub fn open(&self, count: impl Fn() -> InJournals + Send + Sync + 'static) {
        // A gateway opens its journals once.
        let _ = self.0.set(Box::new(count));
    }

    pub fn look(&self) -> Option<InJournals> {
        self.0.get().map(|count| count())
    }
}
