//! Decides who is told of an alert, by which channel and when. Sans-IO: an alert, the decisions in force and time in; notices
//! and the alert's timer out.
//!
//! - A webhook and MQTT get every transition; a person gets an e-mail when a step of the escalation names them, and when the
//!   alert they were told of is acknowledged or over.
//! - The timer of an unacknowledged alert goes from step to step, then reminds everybody told and whoever has the shift by then. A step that has nobody to tell is
//!   not waited for. It runs on the wall clock, because people do; it is a row of the store, so it survives whoever set it.
//! - What is silenced or inhibited is decided all the same: a row says that nobody was told and why. When the silence is over and
//!   the alert still open and unacknowledged, the first step is taken then.
//! - E-mails about one patient that follow each other within `group_us` wait for each other and go as one, unless one is
//!   more urgent than the first.
//!
//! A notice's id follows from what it says, so a decision made twice, by two members or after a crash, is one notice.

mod progress;

use std::collections::HashMap;

use contracts::{
    alerts::{Alert, AlertState, Notice, NoticeOutcome, NoticeReason, NoticeResult},
    vitals::Priority,
};
use store::{NoticesBatch, Watch, WatchChange};

use self::progress::{Progress, read, write};
pub(crate) use self::progress::{moved, set_anew};
use crate::{
    names::NamePolicy,
    silence::InForce,
    team::{Contact, Plan, Role, Step, Team},
    zone::Zone,
};

pub(crate) const WEBHOOK: &str = "webhook";
pub(crate) const EMAIL: &str = "email";
pub(crate) const MQTT: &str = "mqtt";

/// Patients with a window for grouping; past it all windows begin anew, and some e-mails go one by one.
const WINDOWS_MAX: usize = 10_000;
/// A silenced or inhibited alert is looked at again after so long at the latest: what withholds it may end before its time.
const WITHHELD_US: i64 = 10_000_000;
const SECOND_US: i64 = 1_000_000;

/// What is configured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    pub webhook: bool,
    pub mqtt: bool,
    pub email: bool,
    /// Told of every alert of a tenant that has no team.
    pub email_to: Vec<String>,
    pub group_us: i64,
    /// Of messages about a tenant whose team names no zone.
    pub zone: Zone,
}

/// One alert and everything that decides about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub alert: &'a Alert,
    pub tenant: &'a str,
    /// Of the patient, as registered.
    pub patient_name: &'a str,
    pub team: Option<&'a Team>,
    pub silence: Option<&'a InForce>,
    /// Id of the open alert that says the same and more.
    pub inhibited_by: Option<&'a str>,
    pub watch: Option<&'a Watch>,
    pub now_us: i64,
}

pub(crate) struct Router {
    channels: Channels,
    /// By patient: when the window ends and how urgent what opened it was.
    windows: HashMap<String, (i64, i32)>,
}

/// Nobody is known: the first step goes to the channels that need no address book.
const NOBODY: &Plan = &Plan {
    steps: Vec::new(),
    remind_every_s: 0,
    reminders_max: 0,
};

/// What a notice is about, as part of its id.
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

    /// The alert has a state that people have not heard of.
    pub(crate) fn on_news(&mut self, case: Case<'_>) -> NoticesBatch {
        let alert = case.alert;
        let mut batch = NoticesBatch::default();
        if alert.backfill {
            return batch;
        }
        let progress = case.watch.map(read).unwrap_or_default();
        match alert.state() {
            AlertState::Active if case.watch.is_none() && alert.acknowledged_by.is_empty() => {
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
                // Whoever was told hears of the end, too; until then the row remembers them.
                if alert.state() == AlertState::Resolved {
                    batch.watches.push(WatchChange::End(alert.id.clone()));
                } else if case.watch.is_some() {
                    set(&mut batch, case, &progress, None);
                }
            }
            AlertState::Unspecified | AlertState::Pending => {}
        }
        batch
    }

    /// The alert's timer is due; `alert` is as stored now.
    pub(crate) fn on_timer(&mut self, case: Case<'_>) -> NoticesBatch {
        let mut batch = NoticesBatch::default();
        let Some(watch) = case.watch else {
            return batch;
        };
        let mut progress = read(watch);
        if case.alert.state() == AlertState::Resolved {
            batch.watches.push(WatchChange::End(case.alert.id.clone()));
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
        // Whoever has come on duty since, too.
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
                "nobody acknowledges; no further reminder"
            );
            metrics::counter!("braid_alerting_unanswered_total").increment(1);
        }
        set(&mut batch, case, &progress, due_us);
        batch
    }

    /// The next step that has somebody to tell: who is not there is not waited for.
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
                "the escalation has nobody to tell"
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
        // Without a timer and with nobody to be told of the end no row is needed.
        if due_us.is_some() || !progress.told.is_empty() || case.watch.is_some() {
            set(batch, case, &progress, due_us);
        }
    }

    /// A notice for each channel that is configured and each recipient; with the outcome when nobody is to be told.
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

/// At once, or at the end of the window that an alert at least as urgent has opened.
fn due(windows: &mut HashMap<String, (i64, i32)>, group_us: i64, case: Case<'_>) -> i64 {
    // That it is over is as urgent as nothing.
    let urgency = match case.alert.state() {
        AlertState::Active => case.alert.priority,
        _ => Priority::Unspecified.into(),
    };
    match windows.get(&case.alert.patient) {
        // A window that ends later than one that begins now is of a clock that has been set back.
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

/// Why nobody is told, and until when.
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

/// Those who have been told of the alert and are still of the team.
fn told<'a>(case: Case<'a>, progress: &Progress) -> Vec<&'a Contact> {
    case.team.map_or_else(Vec::new, |team| {
        let told = progress.told.iter();
        told.filter_map(|id| team.contact(id)).collect()
    })
}

/// When the next step or reminder is due; `None`: there is none.
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
    batch.watches.push(WatchChange::Set(Watch {
        alert: case.alert.id.clone(),
        version: case.watch.map_or(1, |watch| watch.version + 1),
        due_us,
        state: write(&progress),
    }));
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
