//! How far the waiting alerts of one line are.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// Since when the bus has not answered, if it was asked.
    asked: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
    moved: Notify,
}

impl Progress {
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    pub(crate) fn enter(&self, count: usize) {
        self.state.lock().waiting += count;
    }

    pub(crate) fn leave(&self, count: usize) {
        self.state.lock().waiting -= count;
        self.moved.notify_waiters();
    }

    /// The bus is asked, or has answered.
    pub(crate) fn ask(&self, is_asked: bool) {
        self.state.lock().asked = is_asked.then(Instant::now);
        self.moved.notify_waiters();
    }

    /// The bus was asked this long ago, and has not answered.
    pub(crate) fn is_stuck_for(&self, time: Duration) -> bool {
        let asked = self.state.lock().asked;
        asked.is_some_and(|since| since.elapsed() >= time)
    }

    /// Ready after the next change.
    pub(crate) async fn moved(&self) {
        self.moved.notified().await;
    }
}
