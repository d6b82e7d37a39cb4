//! An acknowledgement that its person takes back within seconds, because the wrong row was hit.
//! Sans-IO: the alert's history and time go in, the next transition comes out.

use contracts::alerts::{Alert, AlertState};
use contracts::vitals::Priority;

/// The page offers ten seconds; the rest is for a slow network. Later the acknowledgement stands,
/// because others have relied on it.
const WITHIN_US: i64 = 15_000_000;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WithdrawError {
    #[error("nobody has acknowledged the alert")]
    NotAcknowledged,
    #[error("another person has acknowledged the alert")]
    OfAnother,
    #[error("an acknowledgement can be taken back for ten seconds only")]
    TooLate,
    /// An ended alert that is not of high priority waits for nobody.
    #[error("the alert is over")]
    Over,
}

/// The next revision of an alert whose history, oldest first, is not empty.
pub(crate) fn withdrawn(history: &[Alert], by: &str, now_us: i64) -> Result<Alert, WithdrawError> {
    let Some(newest) = history.last().filter(|it| !it.acknowledged_by.is_empty()) else {
        return Err(WithdrawError::NotAcknowledged);
    };
    if newest.acknowledged_by != by.trim() {
        return Err(WithdrawError::OfAnother);
    }
    // The rules may have written revisions since.
    let given = history
        .iter()
        .rev()
        .take_while(|it| !it.acknowledged_by.is_empty())
        .last()
        .unwrap_or(newest);
    if now_us.saturating_sub(given.recorded_us) > WITHIN_US {
        return Err(WithdrawError::TooLate);
    }
    let state = match newest.state() {
        AlertState::Acknowledged => AlertState::Active,
        AlertState::Resolved if newest.priority() == Priority::High => AlertState::Latched,
        _ => return Err(WithdrawError::Over),
    };
    Ok(Alert {
        state: state.into(),
        acknowledged_by: String::new(),
        note: String::new(),
        changed_us: now_us.max(newest.changed_us),
        recorded_us: now_us,
        revision: newest.revision.saturating_add(1),
        ..newest.clone()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NOW: i64 = 1_000_000_000;

    fn row(revision: u32, state: AlertState, by: &str, recorded_us: i64) -> Alert {
        Alert {
            id: "a".into(),
            priority: Priority::High.into(),
            state: state.into(),
            acknowledged_by: by.into(),
            note: if by.is_empty() { "" } else { "seen" }.into(),
            recorded_us,
            revision,
            ..Alert::default()
        }
    }

    #[test]
    fn an_acknowledgement_is_taken_back_as_if_it_had_not_been_given() {
        let active = row(1, AlertState::Active, "", NOW - 60_000_000);
        let seen = row(2, AlertState::Acknowledged, "ada", NOW - 9_000_000);
        let next = withdrawn(&[active.clone(), seen.clone()], "ada", NOW).unwrap();
        assert_eq!((next.state(), next.revision), (AlertState::Active, 3));
        assert_eq!(
            (next.acknowledged_by.as_str(), next.note.as_str()),
            ("", "")
        );
        // It was over when it was acknowledged, or ended since: it waits for a person again.
        let latched = row(2, AlertState::Latched, "", NOW - 60_000_000);
        let over = row(3, AlertState::Resolved, "ada", NOW);
        let next = withdrawn(&[active.clone(), latched, over.clone()], "ada", NOW).unwrap();
        assert_eq!(next.state(), AlertState::Latched);
        let next = withdrawn(&[active, seen, over], "ada", NOW).unwrap();
        assert_eq!((next.state(), next.revision), (AlertState::Latched, 4));
    }

    #[test]
    fn only_the_same_person_takes_it_back_and_not_later() {
        let active = row(1, AlertState::Active, "", NOW - 60_000_000);
        let seen = row(2, AlertState::Acknowledged, "ada", NOW - 16_000_000);
        let history = [active.clone(), seen];
        let refused = |history: &[Alert], by| withdrawn(history, by, NOW).unwrap_err();
        assert_eq!(refused(&history, "ada"), WithdrawError::TooLate);
        assert_eq!(refused(&history, "ben"), WithdrawError::OfAnother);
        assert_eq!(refused(&[active], "ada"), WithdrawError::NotAcknowledged);
        assert_eq!(refused(&[], "ada"), WithdrawError::NotAcknowledged);
        let low = Alert {
            priority: Priority::Low.into(),
            ..row(2, AlertState::Resolved, "ada", NOW)
        };
        assert_eq!(refused(&[low], "ada"), WithdrawError::Over);
    }
}
