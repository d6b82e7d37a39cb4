//! Progress of an escalation: the state of its timer, and how a clock step changes it.

use std::collections::BTreeSet;

use bytes::Bytes;
use clocks::Adoption;
use serde::{Deserialize, Serialize};
use store::{EscalationTimer, TimerChange};

/// Largest expected difference between the clocks of two members.
const CLOCKS_DIFFER_US: i64 = 10_000_000;
/// Two members adopt the same clock step within this time, and with at most this difference in
/// size.
const ADOPTED_WITHIN_US: u64 = 120_000_000;
const STEP_SLACK_US: u64 = 4_000_000;

/// Progress of an escalation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The delays of the steps start here.
    pub(super) opened_us: i64,
    /// When the row was written. 0: written by a version without this field.
    #[serde(default)]
    pub(super) set_us: i64,
    pub(super) steps: u32,
    pub(super) reminders: u32,
    /// The last clock step that moved the row: its new time and its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved: Option<(i64, i64)>,
    /// Contacts notified so far.
    pub(super) told: BTreeSet<String>,
    /// The recipients of alerts that no person of the team can be told of were notified.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) told_everybody: bool,
    /// The time that the escalation itself chose. A row that is due before it was hastened. `None`:
    /// written by a version without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) due_us: Option<i64>,
    /// High priority, everybody was told, and nobody has acknowledged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_unanswered: bool,
    /// A person acknowledged the alert. If the acknowledgement is taken back, the escalation goes
    /// on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_acknowledged: bool,
}

/// Whether a failed notice made the timer due before its time.
pub(crate) fn is_hastened(timer: &EscalationTimer) -> bool {
    let chosen_us = parsed(timer).and_then(|progress| progress.due_us);
    match (timer.due_us, chosen_us) {
        (Some(due_us), Some(chosen_us)) => due_us < chosen_us,
        _ => false,
    }
}

/// Whether the alert stays unacknowledged beyond the steps of its plan, at high priority.
pub(crate) fn is_unanswered(timer: &EscalationTimer) -> bool {
    timer.due_us.is_some() && parsed(timer).is_some_and(|progress| progress.is_unanswered)
}

fn parsed(timer: &EscalationTimer) -> Option<Progress> {
    serde_json::from_slice(&timer.state).ok()
}

/// A timer set by a clock that has been set back since would be due too late. It is reset as if it
/// were set now.
pub(crate) fn set_anew(timer: &EscalationTimer, now_us: i64) -> Option<TimerChange> {
    let mut progress = parsed(timer)?;
    let back_us = progress.set_us.saturating_sub(now_us);
    if back_us <= CLOCKS_DIFFER_US {
        return None;
    }
    progress.set_us = now_us;
    progress.opened_us = progress.opened_us.saturating_sub(back_us);
    progress.due_us = progress.due_us.map(|it| it.saturating_sub(back_us));
    Some(TimerChange::Set(EscalationTimer {
        alert: timer.alert.clone(),
        version: timer.version + 1,
        due_us: timer.due_us.map(|due_us| due_us.saturating_sub(back_us)),
        state: write(&progress),
    }))
}

/// Moves a timer by a clock step that this member has adopted, so that its duration stays the same.
/// `None`: it was set after the step, or another member has moved it. In doubt the timer fires
/// earlier, never later.
pub(crate) fn moved(timer: &EscalationTimer, step: Adoption) -> Option<TimerChange> {
    let mut progress = parsed(timer)?;
    let by_us = step.by_us();
    let is_moved = progress.moved.is_some_and(|(to_us, size_us)| {
        to_us.abs_diff(step.to_us) <= ADOPTED_WITHIN_US && size_us.abs_diff(by_us) <= STEP_SLACK_US
    });
    if is_moved || progress.set_us > step.from_us.saturating_add(CLOCKS_DIFFER_US) {
        return None;
    }
    progress.set_us = progress.set_us.saturating_add(by_us);
    progress.opened_us = progress.opened_us.saturating_add(by_us);
    progress.due_us = progress.due_us.map(|it| it.saturating_add(by_us));
    progress.moved = Some((step.to_us, by_us));
    Some(TimerChange::Set(EscalationTimer {
        alert: timer.alert.clone(),
        version: timer.version + 1,
        due_us: timer.due_us.map(|due_us| due_us.saturating_add(by_us)),
        state: write(&progress),
    }))
}

pub(super) fn write(progress: &Progress) -> Bytes {
    // The fields are strings and numbers, so serialisation cannot fail.
    Bytes::from(serde_json::to_vec(progress).unwrap_or_default())
}

/// An unreadable escalation restarts, because a second notice is better than none.
pub(super) fn read(timer: &EscalationTimer) -> Progress {
    serde_json::from_slice(&timer.state).unwrap_or_else(|error| {
        tracing::error!(alert = timer.alert, %error, "the stored escalation is unreadable; it restarts");
        Progress::default()
    })
}
