//! Which revisions of an alert are news.

use std::collections::{HashMap, VecDeque};

use contracts::alerts::{Alert, AlertState};

/// Episodes whose last published state is remembered. A repetition of an older one may notify
/// again.
const PUBLISHED_MAX: usize = 10_000;

/// The last state that people know of each episode. A revision that only adds a second observer is
/// no news.
#[derive(Default)]
pub(super) struct Published {
    last: HashMap<String, (u32, AlertState, bool)>,
    order: VecDeque<String>,
}

impl Published {
    pub(super) fn is_news(&mut self, alert: &Alert) -> bool {
        let now = (alert.revision, alert.state(), alert.backfill);
        match self.last.insert(alert.id.clone(), now) {
            None => {
                self.order.push_back(alert.id.clone());
                if self.order.len() > PUBLISHED_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.last.remove(&oldest);
                }
                true
            }
            Some((revision, state, backfill)) if revision < alert.revision => {
                state != alert.state() || backfill != alert.backfill
            }
            // Published twice, or an older revision after a newer one.
            Some(before) => {
                self.last.insert(alert.id.clone(), before);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_a_state_that_people_have_not_heard() {
        let mut published = Published::default();
        let mut say = |revision, state: AlertState, backfill| {
            published.is_news(&Alert {
                id: "a".into(),
                revision,
                state: state.into(),
                backfill,
                ..Alert::default()
            })
        };
        assert!(say(1, AlertState::Active, true));
        assert!(!say(1, AlertState::Active, true), "published twice");
        assert!(
            say(2, AlertState::Active, false),
            "confirmed by a live reading"
        );
        assert!(!say(3, AlertState::Active, false), "only a second observer");
        assert!(say(4, AlertState::Resolved, false));
        assert!(!say(3, AlertState::Active, false), "out of order");
        assert!(!say(4, AlertState::Resolved, false));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut published = Published::default();
        for number in 0..PUBLISHED_MAX + 10 {
            published.is_news(&Alert {
                id: number.to_string(),
                ..Alert::default()
            });
        }
        assert_eq!(published.last.len(), PUBLISHED_MAX);
        assert_eq!(published.order.len(), PUBLISHED_MAX);
    }
}
