//! Timers of escalations: which are due, and how failing ones are postponed.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use store::{
    EscalationTimer, NoticesBatch, QueryError, Scope, TimerChange, WriteError, alert_of_timer,
};

use super::{DECIDED_AT_ONCE, DecideError, Decider};
use crate::routing::{is_unanswered, moved, set_anew};

/// Timers of one look.
const TIMERS_MAX: usize = 64;
/// Failures in one look. Then the store itself is likely at fault, and the rest waits for the next
/// look.
const FAILURES_MAX: usize = 8;
/// Interval of the look at timers that are not due. A clock that was set back since may
/// have set a far timer.
const LOOK_AHEAD_EVERY: Duration = Duration::from_secs(10);
/// Timers that a look ahead or a clock step reads, the earliest first.
const AHEAD_MAX: usize = 10_000;
/// Failing timers that are queried beyond the due ones. Past it all are treated as if they had not
/// failed.
const FAILING_MAX: usize = 1_000;
/// A timer that can never succeed is tried again after this time.
const PUT_OFF_US: i64 = 3_600_000_000;

impl Decider {
    /// Acts on due timers. A failing timer blocks no other and is tried again.
    pub(super) async fn on_tick(&mut self) -> Result<(), DecideError> {
        if let Some(restored) = &mut self.restored
            && restored.holds_timers(&*self.store).await
        {
            return Ok(());
        }
        let looked_ahead = match self.looked_ahead {
            Some(at) if at.elapsed() < LOOK_AHEAD_EVERY => Ok(()),
            _ => self.look_ahead().await,
        };
        let limit = TIMERS_MAX + self.failing.len();
        // The time is read first, so that a clock step before it is among the followed steps.
        let now_us = self.clock.now_us();
        let now_us = match self.follow_steps().await? {
            0 => now_us,
            _ => self.clock.now_us(),
        };
        let mut due = self.store.due_timers(now_us, limit).await?;
        due.sort_by_key(|timer| self.failing.contains(&timer.alert));
        let this = &*self;
        let acted = side_by_side(due, |timer| {
            this.turns.beat();
            this.on_timer(timer)
        });
        let mut failures = Vec::new();
        for (alert, acted) in acted.await {
            match acted {
                Ok(()) => {
                    self.failing.remove(&alert);
                }
                Err(error) => {
                    if self.failing.len() >= FAILING_MAX {
                        self.failing.clear();
                    }
                    self.failing.insert(alert);
                    failures.push(error);
                }
            }
        }
        failures.pop().map_or(looked_ahead, Err)
    }

    /// Moves every timer by the clock steps that were adopted. Before that is stored, no timer is
    /// acted on. Returns the number of steps.
    async fn follow_steps(&mut self) -> Result<usize, DecideError> {
        let steps = self.clock.adopted_since(self.followed_step);
        for step in &steps {
            tracing::warn!(
                by_s = step.by_us() / 1_000_000,
                "the clock was set; timers of escalations move with it"
            );
            let pending = self.store.due_timers(i64::MAX, AHEAD_MAX).await?;
            let changes = pending.iter().filter_map(|timer| moved(timer, *step));
            for change in changes {
                self.change_timer(change).await?;
            }
            self.followed_step = step.number;
        }
        Ok(steps.len())
    }

    /// A conflict means that another member made the same change.
    async fn change_timer(&self, change: TimerChange) -> Result<(), WriteError> {
        let batch = NoticesBatch {
            timers: vec![change],
            ..NoticesBatch::default()
        };
        match self.store.write_notices(batch).await {
            Ok(_) | Err(WriteError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn look_ahead(&mut self) -> Result<(), DecideError> {
        let mut unanswered: u32 = 0;
        for timer in self.store.due_timers(i64::MAX, AHEAD_MAX).await? {
            unanswered += u32::from(is_unanswered(&timer));
            let Some(change) = set_anew(&timer, self.clock.now_us()) else {
                continue;
            };
            tracing::warn!(
                alert = timer.alert,
                "the clock was set back; a timer is reset"
            );
            self.change_timer(change).await?;
        }
        metrics::gauge!("braid_alerting_unanswered").set(f64::from(unanswered));
        self.looked_ahead = Some(Instant::now());
        Ok(())
    }

    /// Postpones a timer that can never succeed. Otherwise it would fail at every look, and
    /// alerting would never be ready.
    async fn on_timer(&self, timer: EscalationTimer) -> Result<(), DecideError> {
        let put_off = EscalationTimer {
            version: timer.version + 1,
            due_us: Some(self.clock.now_us() + PUT_OFF_US),
            ..timer.clone()
        };
        let acted = self.act(timer).await;
        let Err(
            DecideError::Write(WriteError::Invalid(reason) | WriteError::Unfit(reason))
            | DecideError::Query(QueryError::Unreadable(reason)),
        ) = acted
        else {
            return acted;
        };
        tracing::error!(
            alert = put_off.alert,
            reason,
            "a timer fails for good; it is postponed"
        );
        self.undecided
            .add(alert_of_timer(&put_off.alert).0, &reason);
        Ok(self.change_timer(TimerChange::Set(put_off)).await?)
    }

    async fn act(&self, timer: EscalationTimer) -> Result<(), DecideError> {
        let (id, _) = alert_of_timer(&timer.alert);
        let Some(alert) = self.store.alert(&Scope::Service, id).await? else {
            // The alert expired with its history.
            let end = vec![TimerChange::End(timer.alert)];
            let batch = NoticesBatch {
                timers: end,
                ..NoticesBatch::default()
            };
            self.store.write_notices(batch).await?;
            return Ok(());
        };
        self.decide(&alert, Some(timer)).await
    }
}

/// Timers run concurrently, because alerts wait for them. After too many failures the rest waits
/// for the next look.
async fn side_by_side<T, E, F>(
    due: Vec<EscalationTimer>,
    act: impl Fn(EscalationTimer) -> F,
) -> Vec<(String, Result<T, E>)>
where
    F: Future<Output = Result<T, E>>,
{
    let acting = stream::iter(due).map(|timer| {
        let alert = timer.alert.clone();
        let acted = act(timer);
        async move { (alert, acted.await) }
    });
    let mut acting = acting.buffer_unordered(DECIDED_AT_ONCE);
    let (mut acted, mut failed) = (Vec::new(), 0);
    while failed < FAILURES_MAX
        && let Some(next) = acting.next().await
    {
        failed += usize::from(next.1.is_err());
        acted.push(next);
    }
    acted
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::sync::Barrier;

    use super::*;

    fn timers(count: usize) -> Vec<EscalationTimer> {
        let timer = |number: usize| EscalationTimer {
            alert: number.to_string(),
            version: 1,
            due_us: Some(1),
            state: bytes::Bytes::new(),
        };
        (0..count).map(timer).collect()
    }

    #[tokio::test]
    async fn no_timer_waits_for_another() {
        // Done once this many timers run.
        let together = Barrier::new(DECIDED_AT_ONCE);
        let act = |_| async {
            together.wait().await;
            Ok::<(), ()>(())
        };
        let acting = side_by_side(timers(2 * DECIDED_AT_ONCE), act);
        let acted = tokio::time::timeout(Duration::from_secs(30), acting).await;
        assert_eq!(acted.unwrap().len(), 2 * DECIDED_AT_ONCE);
        let all_fail = side_by_side(timers(TIMERS_MAX), |_| async { Err::<(), ()>(()) }).await;
        assert_eq!(all_fail.len(), FAILURES_MAX);
    }
}
