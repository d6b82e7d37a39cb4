//! Alerts on their way to the journal, by the subjects of the rules.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Subjects whose states cannot be kept now, or are being kept. Bounded by the requests under way
/// and the subjects of the rules.
#[derive(Default)]
pub(super) struct Unsettled {
    open: Mutex<Open>,
    /// Changes when alerts have reached the journal, or are held.
    settled: watch::Sender<()>,
}

#[derive(Default)]
struct Open {
    /// By request: the subjects of its alerts on their way.
    requests: BTreeMap<u64, BTreeSet<String>>,
    next: u64,
    /// Subjects whose states are being written.
    written: BTreeSet<String>,
}

/// Alerts of one request on their way to the journal. Dropping this settles them, so they must be
/// durable or held by then.
pub(super) struct OnTheWay<'a> {
    unsettled: &'a Unsettled,
    request: Option<u64>,
}

impl Unsettled {
    /// Must be called before the lock on the rules that have raised the alerts is released.
    pub(super) fn enter(&self, subjects: BTreeSet<String>) -> OnTheWay<'_> {
        let request = (!subjects.is_empty()).then(|| {
            let mut open = self.open.lock();
            open.next += 1;
            let request = open.next;
            open.requests.insert(request, subjects);
            request
        });
        OnTheWay {
            unsettled: self,
            request,
        }
    }

    pub(super) fn has(&self, subject: &str) -> bool {
        let open = self.open.lock();
        open.requests.values().any(|it| it.contains(subject))
    }

    pub(super) fn is_being_written(&self, subject: &str) -> bool {
        self.open.lock().written.contains(subject)
    }

    /// The states of these subjects are being written from now on, and no others.
    pub(super) fn write_next(&self, subjects: BTreeSet<String>) {
        self.open.lock().written = subjects;
    }

    /// Changes when alerts are settled.
    pub(super) fn settlements(&self) -> watch::Receiver<()> {
        self.settled.subscribe()
    }

    /// Returns once the alerts on their way are settled. Later ones are not waited for.
    pub(super) async fn until_settled(&self) {
        let mut settled = self.settled.subscribe();
        let last = self.open.lock().next;
        let is_open = || {
            let open = self.open.lock();
            open.requests.range(..=last).next().is_some()
        };
        while is_open() && settled.changed().await.is_ok() {}
    }
}

impl Drop for OnTheWay<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.unsettled.open.lock().requests.remove(&request);
            self.unsettled.settled.send_replace(());
        }
    }
}
