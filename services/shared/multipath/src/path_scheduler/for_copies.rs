//! Paths that leave all but copies of alerts to others.
//!
//! The library puts data of any stream, and all acknowledgements, into packets of any path with the
//! status Available. So the path of a copy is open for a moment only. The write of a copy asks for
//! it, and waits until steering has set the status. While the path is open it admits what is
//! reserved for copies, and pings.
//!
//! Invariant: a copy waits for its path no longer than `OPENS_WITHIN`, and then goes like other
//! data.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::{PathScheduler, RESERVED_MAX, Slot, State};

/// The path closes so long after the last write of a copy. Longer than a reservation, and than the
/// pauses between the copies of one alert.
const OPEN_FOR: Duration = RESERVED_MAX.saturating_mul(8);
/// Longest wait for the status. Steering may be busy, or the path may be ending.
const OPENS_WITHIN: Duration = RESERVED_MAX.saturating_mul(5);

/// The requests of copies for paths that are held for them.
#[derive(Debug, Default)]
pub(super) struct ForCopies {
    asked_at: Option<Instant>,
    /// Since when copies have waited for a path.
    waits_since: Option<Instant>,
    /// A copy waits that steering does not know of.
    is_news: bool,
    awaits_news: Option<Waker>,
}

impl ForCopies {
    fn until(&self) -> Option<Instant> {
        self.asked_at.map(|at| at + OPEN_FOR)
    }

    /// Returns whether the copy may still wait.
    fn wait(&mut self, now: Instant) -> bool {
        self.is_news = true;
        if let Some(waker) = self.awaits_news.take() {
            waker.wake();
        }
        now < *self.waits_since.get_or_insert(now) + OPENS_WITHIN
    }
}

impl State {
    /// Whether the path is open, where only copies need it. None: it did not open in time.
    pub(super) fn opens_for_copy(&mut self, now: Instant, slot: usize) -> Option<bool> {
        let ranked = self.slots.get(slot)?.ranked;
        if !ranked.schedule().is_held_for_copies() {
            return Some(true);
        }
        let asks = &mut self.for_copies;
        if asks.until().is_none_or(|until| now >= until) {
            asks.waits_since = None;
        }
        asks.asked_at = Some(now);
        if ranked.is_open() {
            return Some(true);
        }
        asks.wait(now).then_some(false)
    }

    /// Whether the path is open, and other data is to keep away.
    pub(super) fn leaves_all_but_copies(&self, number: usize, slot: &Slot) -> bool {
        let ranked = &slot.ranked;
        let held = ranked.schedule().is_held_for_copies() && ranked.is_open();
        held && !self.ranks_admit(number)
    }
}

impl PathScheduler {
    /// Whether the status of the path lets the library put data into its packets.
    pub(crate) fn set_open(&self, slot: usize, open: bool) {
        let mut state = self.state.lock();
        let opened = (state.slots.get_mut(slot)).is_some_and(|slot| slot.ranked.set_open(open));
        if opened {
            state.for_copies.waits_since = None;
            state.wake_writes();
        }
    }

    /// Until when the paths that are held for copies are to be open.
    pub(crate) fn copies_until(&self) -> Option<Instant> {
        self.state.lock().for_copies.until()
    }

    /// Ready when a copy waits for its path, also before this call. Only the last caller is woken.
    pub(crate) fn poll_copy_waits(&self, cx: &mut Context<'_>) -> Poll<()> {
        let asks = &mut self.state.lock().for_copies;
        if std::mem::take(&mut asks.is_news) {
            return Poll::Ready(());
        }
        asks.awaits_news = Some(cx.waker().clone());
        Poll::Pending
    }
}
