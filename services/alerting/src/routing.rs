//! Decides who is notified of an alert, by which channel and when. Sans-IO: takes an alert, the
//! documents in force and time; returns notices and the alert's timer.
//!
//! - A webhook and MQTT get every transition. A person gets an e-mail when an escalation step names
//!   them. The person gets another when that alert is acknowledged or over.
//! - The timer of an unacknowledged alert runs through the steps. After the last step it reminds
//!   all notified people and everybody on shift by then. A step that reaches no person is skipped.
//! - The timer is a row of the store, so it survives its member. It runs on the wall clock, as
//!   people do.
//! - A silenced or inhibited alert is decided as well. Its row records that no person was notified,
//!   and the reason. The first step follows when the silence ends and the alert is still open and
//!   unacknowledged.
//! - E-mails about one patient within `group_us` are sent as one, unless a later alert is more
//!   urgent than the first.
//!
//! The id of a notice follows from its content. A decision that is made twice, by two members or
//! after a crash, is one notice.

mod progress;

use std::collections::HashMap;

use calendar::Zone;
use contracts::{
    alerts::{Alert, AlertState, Notice, NoticeOutcome, NoticeReason, NoticeResult},
    vitals::Priority,
};
use store::{EscalationTimer, NoticesBatch, TimerChange};

use self::progress::{Progress, read, write};
pub(crate) use self::progress::{moved, set_anew};
use crate::{
    names::NamePolicy,
    silence::SilenceInForce,
    team::{Contact, Plan, Role, Step, Team},
    unheard::is_report,
};

pub(crate) const WEBHOOK: &str = "webhook";
pub(crate) const EMAIL: &str = "email";
pub(crate) const MQTT: &str = "mqtt";

/// Patients with a grouping window. Beyond it all windows restart, so some e-mails are sent
/// separately.
const WINDOWS_MAX: usize = 10_000;
/// Interval at which a silenced or inhibited alert is checked again. The silence or inhibition may
/// end early.
const WITHHELD_US: i64 = 10_000_000;
const SECOND_US: i64 = 1_000_000;

/// The configured channels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    pub webhook: bool,
    pub mqtt: bool,
    pub email: bool,
    /// Recipients of every alert of a tenant without a team.
    pub email_to: Vec<String>,
    pub group_us: i64,
    /// Time zone of messages about a tenant whose team names none.
    pub zone: Zone,
}

/// One alert with everything that a decision needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub alert: &'a Alert,
    pub tenant: &'a str,
    /// The patient's registered name.
    pub patient_name: &'a str,
    pub team: Option<&'a Team>,
    pub silence: Option<&'a SilenceInForce>,
    /// Id of the open alert that explains this alert.
    pub inhibited_by: Option<&'a str>,
    pub timer: Option<&'a EscalationTimer>,
    pub now_us: i64,
}

pub(crate) struct Router {
    channels: Channels,
    /// By patient: end of the window, and priority of the alert that opened it.
    windows: HashMap<String, (i64, i32)>,
}

/// Plan of a tenant without a team: the first step uses the channels that need no contact.
const NOBODY: &Plan = &Plan {
    steps: Vec::new(),
    remind_every_s: 0,
    reminders_max: 0,
};

/// Subject of a notice, as part of its id.
enum What {
    Revision,
    Step(u32),
    Reminder(u32),
}

impl Router {
    pub(crate) fn new(channels: Channels) -> Router {
        Router {
            channels,
            windows: HashMap::new(),
        }
    }

    pub(crate) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// The alert has a state that people do not know yet.
    pub(crate) fn on_news(&mut self, case: Case<'_>) -> NoticesBatch {
        let alert = case.alert;
        let mut batch = NoticesBatch::default();
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
                    let people = people_of(case, 0);
                    self.emit(&mut batch, case, &What::Revision, &people, Some(&why));
                    set(&mut batch, case, &opened, Some(why.until_us));
                } else {
                    self.take_step(&mut batch, case, opened, true);
                }
            }
            AlertState::Active | AlertState::Latched => {
                self.emit(
                    &mut batch,
                    case,
                    &What::Revision,
                    &[],
                    withheld(case).as_ref(),
                );
            }
            AlertState::Acknowledged | AlertState::Resolved => {
                let told = told(case, &progress);
                self.emit(
                    &mut batch,
                    case,
                    &What::Revision,
                    &told,
                    withheld(case).as_ref(),
                );
                // Notified people also get the end. Until then the row keeps their names.
                if alert.state() == AlertState::Resolved {
                    batch.timers.push(TimerChange::End(alert.id.clone()));
                } else if case.timer.is_some() {
                    set(&mut batch, case, &progress, None);
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
        let mut progress = read(timer);
        if case.alert.state() == AlertState::Resolved {
            batch.timers.push(TimerChange::End(case.alert.id.clone()));
            return batch;
        }
        if !case.alert.acknowledged_by.is_empty() {
            set(&mut batch, case, &progress, None);
            return batch;
        }
        if let Some(why) = withheld(case) {
            set(&mut batch, case, &progress, Some(why.until_us));
            return batch;
        }
        if step(case, progress.steps).is_some() || progress.steps == 0 {
            self.take_step(&mut batch, case, progress, false);
            return batch;
        }
        progress.reminders += 1;
        // People who came on duty since then are reminded, too.
        for index in 0..progress.steps {
            let people = people_of(case, index);
            progress
                .told
                .extend(people.into_iter().map(|it| it.id.clone()));
        }
        let told = told(case, &progress);
        self.emit(
            &mut batch,
            case,
            &What::Reminder(progress.reminders),
            &told,
            None,
        );
        let due_us = next_due(case, &progress);
        if due_us.is_none() {
            tracing::error!(
                alert = case.alert.id,
                patient = case.alert.patient,
                "the alert is not acknowledged; no further reminder follows"
            );
            metrics::counter!("braid_alerting_unanswered_total").increment(1);
        }
        set(&mut batch, case, &progress, due_us);
        batch
    }

    /// Tells the people of the first step that reaches somebody, once.
    fn report(&mut self, batch: &mut NoticesBatch, case: Case<'_>) {
        let mut index = 0;
        while people_of(case, index).is_empty() && step(case, index + 1).is_some() {
            index += 1;
        }
        let (people, why) = (people_of(case, index), withheld(case));
        self.emit(batch, case, &What::Revision, &people, why.as_ref());
    }

    /// Takes the next step that reaches a person. Steps that reach no person are skipped.
    fn take_step(
        &mut self,
        batch: &mut NoticesBatch,
        case: Case<'_>,
        mut progress: Progress,
        is_news: bool,
    ) {
        let mut people = people_of(case, progress.steps);
        while people.is_empty() && step(case, progress.steps + 1).is_some() {
            progress.steps += 1;
            people = people_of(case, progress.steps);
        }
        if people.is_empty() && case.team.is_some() {
            tracing::warn!(
                alert = case.alert.id,
                step = progress.steps + 1,
                "the escalation reaches nobody"
            );
        }
        let what = if is_news {
            What::Revision
        } else {
            What::Step(progress.steps + 1)
        };
        self.emit(batch, case, &what, &people, None);
        progress.steps += 1;
        progress
            .told
            .extend(people.iter().map(|contact| contact.id.clone()));
        let due_us = next_due(case, &progress);
        // No row is needed without a timer and without people who need the end.
        if due_us.is_some() || !progress.told.is_empty() || case.timer.is_some() {
            set(batch, case, &progress, due_us);
        }
    }

    /// One notice for each configured channel and recipient. If the alert is withheld, the outcome
    /// is added at once.
    fn emit(
        &mut self,
        batch: &mut NoticesBatch,
        case: Case<'_>,
        what: &What,
        people: &[&Contact],
        withheld: Option<&Withheld>,
    ) {
        let (name, reason, number) = match what {
            What::Revision => (case.alert.revision.to_string(), NoticeReason::News, 0),
            What::Step(number) => (format!("step-{number}"), NoticeReason::Escalation, *number),
            What::Reminder(number) => (format!("reminder-{number}"), NoticeReason::Reminder, 0),
        };
        let zone = case.team.and_then(|team| team.time_zone.as_ref());
        let zone = zone.unwrap_or(&self.channels.zone);
        let base = Notice {
            alert: Some(case.alert.clone()),
            tenant: case.tenant.to_owned(),
            reason: reason.into(),
            people: people.iter().map(|contact| contact.name.clone()).collect(),
            step: number,
            time_zone: zone.name().to_owned(),
            created_us: case.now_us,
            due_us: case.now_us,
            ..Notice::default()
        };
        let mut add = |channel: &str, recipient: &str, due_us| {
            let mut id = format!("{}/{name}/{channel}", case.alert.id);
            if !recipient.is_empty() {
                id = format!("{id}/{recipient}");
            }
            if let Some(withheld) = withheld {
                batch.outcomes.push(NoticeOutcome {
                    notice: id.clone(),
                    result: withheld.result.into(),
                    attempts: 0,
                    at_us: case.now_us,
                    detail: withheld.detail.clone(),
                });
            }
            batch.notices.push(Notice {
                id,
                channel: channel.to_owned(),
                recipient: recipient.to_owned(),
                patient_name: name_policy(case, channel).label(case.patient_name),
                due_us,
                ..base.clone()
            });
        };
        if self.channels.webhook {
            add(WEBHOOK, "", case.now_us);
        }
        if self.channels.mqtt {
            add(MQTT, "", case.now_us);
        }
        if !self.channels.email {
            return;
        }
        let addresses: Vec<&str> = if case.team.is_some() {
            people
                .iter()
                .filter_map(|contact| contact.email.as_deref())
                .collect()
        } else {
            self.channels.email_to.iter().map(String::as_str).collect()
        };
        if addresses.is_empty() {
            return;
        }
        let due_us = match reason {
            NoticeReason::News if withheld.is_none() => {
                due(&mut self.windows, self.channels.group_us, case)
            }
            _ => case.now_us,
        };
        for address in addresses {
            add(EMAIL, address, due_us);
        }
    }
}

fn name_policy(case: Case<'_>, channel: &str) -> NamePolicy {
    let names = case.team.map(|team| team.names).unwrap_or_default();
    match channel {
        EMAIL => names.email,
        WEBHOOK => names.webhook,
        MQTT => names.mqtt,
        _ => NamePolicy::Id,
    }
}

/// Due now, or at the end of the window that an alert of at least this urgency opened.
fn due(windows: &mut HashMap<String, (i64, i32)>, group_us: i64, case: Case<'_>) -> i64 {
    // The end of an alert has the lowest urgency.
    let urgency = match case.alert.state() {
        AlertState::Active => case.alert.priority,
        _ => Priority::Unspecified.into(),
    };
    match windows.get(&case.alert.patient) {
        // A window that ends too late was opened by a clock that has been set back.
        Some((end_us, opened_by))
            if (1..=group_us).contains(&(*end_us - case.now_us)) && urgency <= *opened_by =>
        {
            *end_us
        }
        _ => {
            if windows.len() >= WINDOWS_MAX {
                windows.clear();
            }
            windows.insert(
                case.alert.patient.clone(),
                (case.now_us + group_us, urgency),
            );
            case.now_us
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

fn plan<'a>(case: Case<'a>) -> &'a Plan {
    case.team
        .map_or(NOBODY, |team| team.plan(case.alert.priority()))
}

fn step<'a>(case: Case<'a>, index: u32) -> Option<&'a Step> {
    plan(case).steps.get(index as usize)
}

fn people_of<'a>(case: Case<'a>, index: u32) -> Vec<&'a Contact> {
    let roles: &[Role] = step(case, index).map_or(&[], |step| &step.tell);
    case.team.map_or_else(Vec::new, |team| {
        team.people(roles, &case.alert.patient, case.now_us)
    })
}

/// Contacts who were notified of the alert and are still in the team.
fn told<'a>(case: Case<'a>, progress: &Progress) -> Vec<&'a Contact> {
    case.team.map_or_else(Vec::new, |team| {
        let told = progress.told.iter();
        told.filter_map(|id| team.contact(id)).collect()
    })
}

/// When the next step or reminder is due. `None`: none is left.
fn next_due(case: Case<'_>, progress: &Progress) -> Option<i64> {
    if let Some(step) = step(case, progress.steps) {
        let due_us = progress.opened_us + i64::from(step.after_s) * SECOND_US;
        return Some(due_us.max(case.now_us));
    }
    let plan = plan(case);
    let more = plan.remind_every_s > 0 && progress.reminders < plan.reminders_max;
    more.then(|| case.now_us + i64::from(plan.remind_every_s) * SECOND_US)
}

fn set(batch: &mut NoticesBatch, case: Case<'_>, progress: &Progress, due_us: Option<i64>) {
    let progress = Progress {
        set_us: case.now_us,
        ..progress.clone()
    };
    batch.timers.push(TimerChange::Set(EscalationTimer {
        alert: case.alert.id.clone(),
        version: case.timer.map_or(1, |timer| timer.version + 1),
        due_us,
        state: write(&progress),
    }));
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
