//! Decides who is notified of an alert, by which channel and when. Sans-IO: takes an alert, the
//! documents in force and time; returns notices and the alert's timer.
//!
//! - A webhook and MQTT get every transition. A person gets an e-mail when an escalation step names
//!   them. The person gets another when that alert is acknowledged or over.
//! - The timer of an unacknowledged alert runs through the steps. After the last step it reminds
//!   all notified people and everybody on shift by then. It ends with an acknowledgement or with
//!   the episode, and by nothing else.
//! - A step that reaches no person is skipped. So is one whose notices all failed: its timer is
//!   hastened (`TimerChange::Hasten`), and the next step is taken at once.
//! - Where no step reaches a person, `--email-to` is told. An alert that reaches nobody at all is
//!   tried again every [`UNTOLD_US`].
//! - The timer is a row of the store, so it survives its member. It runs on the wall clock, as
//!   people do.
//! - A silenced or inhibited alert is decided as well. Its row records that no person was notified,
//!   and the reason. The first step follows when the silence ends and the alert is still open and
//!   unacknowledged.
//! - About a patient who has departed no person is told anything. A webhook and MQTT get the end.
//! - E-mails about one patient within `group_us` are sent as one, unless a later alert is more
//!   urgent than the first.
//! - An alert of neither a patient nor a gateway is decided once for each tenant that it concerns.
//!
//! The id of a notice follows from its content. A decision that is made twice, by two members or
//! after a crash, is one notice.
//!
//! Circle: one router; `emit` adds its methods that write notices.

mod case;
mod emit;
mod progress;
mod recipients;
mod unmonitored;

use std::collections::{BTreeSet, HashMap};

use contracts::{
    alerts::{AlertState, NoticeResult},
    vitals::Priority,
};
use store::{EscalationTimer, NoticesBatch, TimerChange};

pub(crate) use self::{
    case::{Case, Channels, EMAIL, LastStep, MQTT, WEBHOOK},
    progress::{is_hastened, is_unanswered, moved, set_anew},
    recipients::last_step,
    unmonitored::Unmonitored,
};
use self::{
    emit::{To, What},
    progress::{Progress, read, write},
    recipients::{is_for_nobody, next_step, people_of, remind_after_s, step, told},
};
use crate::unheard::is_report;

/// Interval at which a silenced or inhibited alert is checked again. The silence or inhibition may
/// end early.
const WITHHELD_US: i64 = 10_000_000;
/// Interval at which an alert that reached nobody is tried again. A team or a channel may be put in
/// place meanwhile.
const UNTOLD_US: i64 = 60_000_000;
/// Open alerts that reached nobody and are named in a warning. Further ones are tried again, too.
const UNTOLD_MAX: usize = 1000;
/// Interval at which the result of a notice under way is asked for, when another of the same step
/// has failed.
const UNDER_WAY_US: i64 = 1_000_000;
const SECOND_US: i64 = 1_000_000;

pub(crate) struct Router {
    channels: Channels,
    /// By tenant and patient: end of the window, and priority of the alert that opened it.
    windows: HashMap<(String, String), (i64, i32)>,
    /// Timers of open alerts that reached nobody, at most [`UNTOLD_MAX`].
    untold: BTreeSet<String>,
}

impl Router {
    pub(crate) fn new(channels: Channels) -> Router {
        Router {
            channels,
            windows: HashMap::new(),
            untold: BTreeSet::new(),
        }
    }

    /// Number of open alerts that reached nobody, and the id of one.
    pub(crate) fn untold(&self) -> (usize, Option<&str>) {
        (self.untold.len(), self.untold.first().map(String::as_str))
    }

    pub(crate) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// The alert has a state that people do not know yet.
    pub(crate) fn on_news(&mut self, case: Case<'_>) -> NoticesBatch {
        let alert = case.alert;
        let mut batch = NoticesBatch::default();
        if case.has_departed {
            return self.depart(case);
        }
        if alert.backfill {
            return batch;
        }
        let progress = case.timer.map(read).unwrap_or_default();
        match alert.state() {
            _ if is_report(alert) => self.report(&mut batch, case),
            // A latched alert that nobody was told of still waits for a person.
            AlertState::Active | AlertState::Latched
                if case.timer.is_none() && alert.acknowledged_by.is_empty() =>
            {
                let opened = Progress {
                    opened_us: case.now_us,
                    ..Progress::default()
                };
                if let Some(why) = withheld(case) {
                    let people = next_step(case, 0, &self.channels).people;
                    let to = To::people(&people);
                    self.emit(&mut batch, case, &What::Revision, to, Some(&why));
                    set(&mut batch, case, &opened, Some(why.until_us));
                } else {
                    self.take_step(&mut batch, case, opened, true);
                }
            }
            // The acknowledgement was taken back, so everybody who was told hears of it.
            AlertState::Active | AlertState::Latched
                if progress.is_acknowledged && alert.acknowledged_by.is_empty() =>
            {
                let told = told(case, &progress);
                let to = To {
                    people: &told,
                    everybody: progress.told_everybody,
                };
                let why = withheld(case);
                self.emit(&mut batch, case, &What::Revision, to, why.as_ref());
                let goes_on = Progress {
                    is_acknowledged: false,
                    ..progress
                };
                let due_us = next_due(case, &goes_on);
                set(&mut batch, case, &goes_on, due_us);
            }
            AlertState::Active | AlertState::Latched => {
                self.emit(
                    &mut batch,
                    case,
                    &What::Revision,
                    To::people(&[]),
                    withheld(case).as_ref(),
                );
            }
            AlertState::Acknowledged | AlertState::Resolved => {
                let told = told(case, &progress);
                let to = To {
                    people: &told,
                    everybody: progress.told_everybody,
                };
                self.emit(
                    &mut batch,
                    case,
                    &What::Revision,
                    to,
                    withheld(case).as_ref(),
                );
                self.untold.remove(&case.timer_name());
                // Notified people also get the end. Until then the row keeps their names.
                if alert.state() == AlertState::Resolved {
                    batch.timers.push(TimerChange::End(case.timer_name()));
                } else if case.timer.is_some() {
                    let waits = Progress {
                        is_acknowledged: true,
                        ..progress
                    };
                    set(&mut batch, case, &waits, None);
                }
            }
            AlertState::Unspecified | AlertState::Pending => {}
        }
        batch
    }

    /// The alert's timer is due. `alert` is the stored row.
    pub(crate) fn on_timer(&mut self, case: Case<'_>) -> NoticesBatch {
        let mut batch = NoticesBatch::default();
        let Some(timer) = case.timer else {
            return batch;
        };
        if case.has_departed {
            return self.depart(case);
        }
        let mut progress = read(timer);
        if case.alert.state() == AlertState::Resolved {
            self.untold.remove(&case.timer_name());
            batch.timers.push(TimerChange::End(case.timer_name()));
            return batch;
        }
        if !case.alert.acknowledged_by.is_empty() {
            self.untold.remove(&case.timer_name());
            progress.is_acknowledged = true;
            set(&mut batch, case, &progress, None);
            return batch;
        }
        if let Some(why) = withheld(case) {
            set(&mut batch, case, &progress, Some(why.until_us));
            return batch;
        }
        let is_early = is_hastened(timer);
        if is_early && case.last_step != LastStep::Failed {
            let again_us = (case.last_step == LastStep::UnderWay).then_some(UNDER_WAY_US);
            wait_on(&mut batch, case, &progress, again_us);
            return batch;
        }
        if step(case, progress.steps).is_some() || progress.steps == 0 {
            self.take_step(&mut batch, case, progress, false);
            return batch;
        }
        if is_early {
            // No step is left. The recipients without a team stand in, once.
            if case.team.is_none() || progress.told_everybody || self.channels.email_to.is_empty() {
                wait_on(&mut batch, case, &progress, None);
                return batch;
            }
            progress.steps += 1;
            progress.told_everybody = true;
            let to = To {
                people: &[],
                everybody: true,
            };
            self.emit(&mut batch, case, &What::Step(progress.steps), to, None);
            let due_us = next_due(case, &progress);
            set(&mut batch, case, &progress, due_us);
            return batch;
        }
        self.remind(&mut batch, case, progress);
        batch
    }

    /// The patient has departed. Machines hear of the end of an alert; persons hear nothing.
    fn depart(&mut self, case: Case<'_>) -> NoticesBatch {
        let mut batch = NoticesBatch::default();
        if case.alert.state() == AlertState::Resolved && !case.alert.backfill {
            self.emit(&mut batch, case, &What::Revision, To::people(&[]), None);
        }
        self.untold.remove(&case.timer_name());
        if case.timer.is_some() {
            batch.timers.push(TimerChange::End(case.timer_name()));
        }
        batch
    }

    /// All notified people and everybody on shift by now.
    fn remind(&mut self, batch: &mut NoticesBatch, case: Case<'_>, mut progress: Progress) {
        progress.reminders = progress.reminders.saturating_add(1);
        for index in 0..progress.steps {
            let people = people_of(case, index);
            progress
                .told
                .extend(people.into_iter().map(|it| it.id.clone()));
        }
        let told = told(case, &progress);
        let to = To {
            people: &told,
            everybody: progress.told_everybody,
        };
        let what = What::Reminder(progress.reminders);
        self.emit(batch, case, &what, to, None);
        if case.alert.priority() == Priority::High && !progress.is_unanswered {
            progress.is_unanswered = true;
            tracing::error!(
                alert = case.alert.id,
                patient = case.alert.patient,
                "everybody was told, and nobody has acknowledged the alert"
            );
        }
        self.keep_untold(case, batch.notices.is_empty());
        let due_us = next_due(case, &progress);
        set(batch, case, &progress, due_us);
    }

    /// Notifies the people of the first step that reaches somebody, once.
    fn report(&mut self, batch: &mut NoticesBatch, case: Case<'_>) {
        let first = next_step(case, 0, &self.channels);
        let to = To {
            people: &first.people,
            everybody: !first.is_reached && !is_for_nobody(case),
        };
        self.emit(batch, case, &What::Revision, to, withheld(case).as_ref());
    }

    /// Takes the next step that reaches a person. Steps that reach no person are skipped.
    fn take_step(
        &mut self,
        batch: &mut NoticesBatch,
        case: Case<'_>,
        mut progress: Progress,
        is_news: bool,
    ) {
        let taken = next_step(case, progress.steps, &self.channels);
        if !taken.is_reached && case.team.is_some() && !is_for_nobody(case) {
            tracing::warn!(
                alert = case.alert.id,
                step = taken.steps,
                "the escalation reaches no person of the team"
            );
            progress.told_everybody = true;
        }
        let what = if is_news {
            What::Revision
        } else {
            What::Step(taken.steps)
        };
        let to = To {
            people: &taken.people,
            everybody: progress.told_everybody,
        };
        self.emit(batch, case, &what, to, None);
        let is_untold =
            batch.notices.is_empty() && progress.told.is_empty() && !is_for_nobody(case);
        self.keep_untold(case, is_untold);
        if is_untold {
            // No step is taken. The plan begins anew when somebody can be told.
            progress.told_everybody = false;
            set(batch, case, &progress, Some(case.now_us + UNTOLD_US));
            return;
        }
        progress.steps = taken.steps;
        let people = taken.people.iter();
        progress
            .told
            .extend(people.map(|contact| contact.id.clone()));
        let due_us = next_due(case, &progress);
        // No row is needed without a timer and without people who need the end.
        if due_us.is_some() || !progress.told.is_empty() || case.timer.is_some() {
            set(batch, case, &progress, due_us);
        }
    }

    fn keep_untold(&mut self, case: Case<'_>, is_untold: bool) {
        let name = case.timer_name();
        if !is_untold {
            self.untold.remove(&name);
        } else if self.untold.len() < UNTOLD_MAX && self.untold.insert(name) {
            tracing::error!(
                alert = case.alert.id,
                tenant = case.tenant,
                "the alert reaches nobody; it is tried again every minute"
            );
        }
    }
}

/// Why no person is notified, and until when.
struct Withheld {
    result: NoticeResult,
    detail: String,
    until_us: i64,
}

fn withheld(case: Case<'_>) -> Option<Withheld> {
    if let Some(silence) = case.silence {
        return Some(Withheld {
            result: NoticeResult::Silenced,
            detail: format!("{} by {}", silence.id, silence.author),
            until_us: silence.until_us.min(case.now_us + WITHHELD_US),
        });
    }
    case.inhibited_by.map(|by| Withheld {
        result: NoticeResult::Inhibited,
        detail: format!("by {by}"),
        until_us: case.now_us + WITHHELD_US,
    })
}

/// When the next step or reminder is due. `None`: none is left.
fn next_due(case: Case<'_>, progress: &Progress) -> Option<i64> {
    if let Some(step) = step(case, progress.steps) {
        let due_us = progress.opened_us + i64::from(step.after_s) * SECOND_US;
        return Some(due_us.max(case.now_us));
    }
    let after_s = remind_after_s(case, progress.reminders)?;
    Some(case.now_us + i64::from(after_s) * SECOND_US)
}

fn set(batch: &mut NoticesBatch, case: Case<'_>, progress: &Progress, due_us: Option<i64>) {
    let progress = Progress {
        set_us: case.now_us,
        due_us,
        ..progress.clone()
    };
    put(batch, case, &progress, due_us);
}

/// A hastened timer waits on: until its own time, or for `again_us` while it stays hastened.
fn wait_on(batch: &mut NoticesBatch, case: Case<'_>, progress: &Progress, again_us: Option<i64>) {
    let own_us = progress.due_us.unwrap_or(case.now_us);
    let due_us = again_us.map_or(own_us, |again_us| own_us.min(case.now_us + again_us));
    put(batch, case, progress, Some(due_us));
}

fn put(batch: &mut NoticesBatch, case: Case<'_>, progress: &Progress, due_us: Option<i64>) {
    batch.timers.push(TimerChange::Set(EscalationTimer {
        alert: case.timer_name(),
        version: case.timer.map_or(1, |timer| timer.version + 1),
        due_us,
        state: write(progress),
    }));
}

#[cfg(test)]
#[path = "routing/escalation_tests.rs"]
mod escalation_tests;
#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
