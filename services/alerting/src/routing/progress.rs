//! How far an escalation is: the state of its timer, and what a step of the clock makes of it.

use std::collections::BTreeSet;

use bytes::Bytes;
use clocks::Adoption;
use serde::{Deserialize, Serialize};
use store::{Watch, WatchChange};

/// What the clocks of two members may differ by.
const CLOCKS_DIFFER_US: i64 = 10_000_000;
/// Two members adopt the same step of their clocks within this time, and its size differs by this at most.
const ADOPTED_WITHIN_US: u64 = 120_000_000;
const STEP_SLACK_US: u64 = 4_000_000;

/// How far an escalation is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// From here the delays of the steps count.
    pub(super) opened_us: i64,
    /// When the row was written; 0: by a version that did not say.
    #[serde(default)]
    pub(super) set_us: i64,
    pub(super) steps: u32,
    pub(super) reminders: u32,
    /// The last step of the clock with which the row was moved: its new time and its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved: Option<(i64, i64)>,
    /// Contacts told so far.
    pub(super) told: BTreeSet<String>,
}

/// A timer that was set by a clock that has been set back since would be due by so much later; it is as if it were set now.
pub(crate) fn set_anew(watch: &Watch, now_us: i64) -> Option<WatchChange> {
    let mut progress: Progress = serde_json::from_slice(&watch.state).ok()?;
    let back_us = progress.set_us.saturating_sub(now_us);
    if back_us <= CLOCKS_DIFFER_US {
        return None;
    }
    progress.set_us = now_us;
    progress.opened_us = progress.opened_us.saturating_sub(back_us);
    Some(WatchChange::Set(Watch {
        alert: watch.alert.clone(),
        version: watch.version + 1,
        due_us: watch.due_us.map(|due_us| due_us.saturating_sub(back_us)),
        state: write(&progress),
    }))
}

/// Moves a timer with a step of the clock that its member has adopted, so that it runs for as long as it was meant to. `None`: it was
/// set after the step, or another member has moved it. Where that cannot be known it fires earlier, never later.
pub(crate) fn moved(watch: &Watch, step: Adoption) -> Option<WatchChange> {
    let mut progress: Progress = serde_json::from_slice(&watch.state).ok()?;
    let by_us = step.by_us();
    let is_moved = progress.moved.is_some_and(|(to_us, size_us)| {
        to_us.abs_diff(step.to_us) <= ADOPTED_WITHIN_US && size_us.abs_diff(by_us) <= STEP_SLACK_US
    });
    if is_moved || progress.set_us > step.from_us.saturating_add(CLOCKS_DIFFER_US) {
        return None;
    }
    progress.set_us = progress.set_us.saturating_add(by_us);
    progress.opened_us = progress.opened_us.saturating_add(by_us);
    progress.moved = Some((step.to_us, by_us));
    Some(WatchChange::Set(Watch {
        alert: watch.alert.clone(),
        version: watch.version + 1,
        due_us: watch.due_us.map(|due_us| due_us.saturating_add(by_us)),
        state: write(&progress),
    }))
}

pub(super) fn write(progress: &Progress) -> Bytes {
    // Strings and numbers: serialisation has no way to fail.
    Bytes::from(serde_json::to_vec(progress).unwrap_or_default())
}

/// One that cannot be read begins anew: told twice is better than not at all.
pub(super) fn read(watch: &Watch) -> Progress {
    serde_json::from_slice(&watch.state).unwrap_or_else(|error| {
        tracing::error!(alert = watch.alert, %error, "an escalation begins anew");
        Progress::default()
    })
}
