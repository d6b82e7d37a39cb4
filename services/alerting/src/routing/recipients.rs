//! The people of a step, and whether a message can reach them.

use contracts::{
    alerts::{NoticeOutcome, NoticeReason, NoticeRecord, NoticeResult},
    vitals::Priority,
};

use super::{
    case::{Case, Channels, LastStep},
    progress::Progress,
};
use crate::team::{Contact, Escalation, Plan, Role, Step, Team};

/// Longest interval of reminders that a plan without a longer one reaches, and their interval at
/// medium and high priority where a plan names none.
pub(super) const REMIND_SLOWEST_S: u32 = 3600;
/// A notice without an outcome counts as under way for so long. After that it has failed.
const UNDER_WAY_US: i64 = 10_000_000;

impl Channels {
    /// Whether a message reaches this contact: by the contact's own address where e-mail is
    /// configured, else by name through a webhook or MQTT.
    pub(crate) fn reaches(&self, contact: &Contact) -> bool {
        if self.email {
            contact.email.is_some()
        } else {
            self.webhook || self.mqtt
        }
    }
}

/// The next step that reaches a person, with the steps before it that reach none.
pub(super) struct Taken<'a> {
    /// Steps taken so far, with this one.
    pub(super) steps: u32,
    /// Contacts of all these steps, also those without a working address: a webhook names them.
    pub(super) people: Vec<&'a Contact>,
    /// False: the plan is at its end, and reached nobody here.
    pub(super) is_reached: bool,
}

/// A step that reaches nobody is not waited for: the next is taken at once.
pub(super) fn next_step<'a>(case: Case<'a>, from: u32, channels: &Channels) -> Taken<'a> {
    let own = steps_from(case, from, channels, cares_for_self(case));
    if own.is_reached || !cares_for_self(case) {
        return own;
    }
    // The patient who cares for themself cannot be reached.
    steps_from(case, from, channels, false)
}

fn steps_from<'a>(case: Case<'a>, from: u32, channels: &Channels, is_own: bool) -> Taken<'a> {
    let mut people: Vec<&Contact> = Vec::new();
    let mut index = from;
    loop {
        let of_step = in_step(case, index, is_own);
        let is_reached = of_step.iter().any(|it| channels.reaches(it));
        for contact in of_step {
            if people.iter().all(|it| it.id != contact.id) {
                people.push(contact);
            }
        }
        if is_reached || step(case, index + 1).is_none() {
            return Taken {
                steps: index + 1,
                people,
                is_reached,
            };
        }
        index += 1;
    }
}

fn plan<'a>(case: Case<'a>) -> Option<&'a Plan> {
    case.team.map(|team| team.plan(case.alert.priority()))
}

pub(super) fn step<'a>(case: Case<'a>, index: u32) -> Option<&'a Step> {
    plan(case)?.steps.get(index as usize)
}

/// A team may tell nobody of low alerts. At a higher priority a plan without steps is a gap.
pub(super) fn is_for_nobody(case: Case<'_>) -> bool {
    let is_low = matches!(case.alert.priority(), Priority::Low | Priority::Unspecified);
    is_low && plan(case).is_some_and(|plan| plan.steps.is_empty())
}

/// Contacts of one step at this time. A low alert of a patient who cares for themself goes to the
/// person alone.
pub(super) fn people_of<'a>(case: Case<'a>, index: u32) -> Vec<&'a Contact> {
    in_step(case, index, cares_for_self(case))
}

fn cares_for_self(case: Case<'_>) -> bool {
    let own = |team: &Team| team.cares_for_self(&case.alert.patient);
    case.alert.priority() == Priority::Low && case.team.is_some_and(own)
}

fn in_step<'a>(case: Case<'a>, index: u32, is_own: bool) -> Vec<&'a Contact> {
    let Some(team) = case.team else {
        return Vec::new();
    };
    let roles: &[Role] = step(case, index).map_or(&[], |step| &step.tell);
    let roles = roles.iter().copied();
    let roles: Vec<Role> = roles
        .filter(|role| !is_own || *role == Role::Person)
        .collect();
    team.people(&roles, &case.alert.patient, case.now_us)
}

/// Contacts who were notified of the alert and are still in the team.
pub(super) fn told<'a>(case: Case<'a>, progress: &Progress) -> Vec<&'a Contact> {
    case.team.map_or_else(Vec::new, |team| {
        let told = progress.told.iter();
        told.filter_map(|id| team.contact(id)).collect()
    })
}

/// Seconds until the next reminder. Reminders have no end: after `reminders_max` of them the
/// interval doubles up to [`REMIND_SLOWEST_S`]. `None`: the plan is of low priority and has none.
pub(super) fn remind_after_s(case: Case<'_>, reminders: u32) -> Option<u32> {
    if is_for_nobody(case) {
        return None;
    }
    let (every_s, max) = match plan(case) {
        Some(plan) => (plan.remind_every_s, plan.reminders_max),
        None => {
            let default = Escalation::default();
            let plan = default.plan(case.alert.priority());
            (plan.remind_every_s, plan.reminders_max)
        }
    };
    if every_s == 0 {
        let is_higher = matches!(case.alert.priority(), Priority::Medium | Priority::High);
        return is_higher.then_some(REMIND_SLOWEST_S);
    }
    let doublings = match reminders.checked_sub(max) {
        None => 0,
        Some(beyond) => beyond.saturating_add(1).min(16),
    };
    let slowest_s = u64::from(every_s.max(REMIND_SLOWEST_S));
    let after_s = (u64::from(every_s) << doublings).min(slowest_s);
    Some(u32::try_from(after_s).unwrap_or(REMIND_SLOWEST_S))
}

/// Judges the notices of the last step of this tenant.
pub(crate) fn last_step(records: &[NoticeRecord], tenant: &str, now_us: i64) -> LastStep {
    let result = |outcome: &Option<NoticeOutcome>| outcome.as_ref().map(NoticeOutcome::result);
    let of_steps = records.iter().filter_map(|record| {
        let notice = record.notice.as_ref()?;
        let is_withheld = matches!(
            result(&record.outcome),
            Some(NoticeResult::Silenced | NoticeResult::Inhibited)
        );
        let is_step = notice.reason() != NoticeReason::Reminder && !is_withheld;
        (is_step && notice.tenant == tenant).then_some((notice.created_us, &record.outcome))
    });
    let of_steps: Vec<_> = of_steps.collect();
    let Some(newest_us) = of_steps.iter().map(|(created_us, _)| *created_us).max() else {
        return LastStep::Failed;
    };
    let last = of_steps.iter().filter(|(at_us, _)| *at_us == newest_us);
    let mut verdict = LastStep::Failed;
    for (created_us, outcome) in last {
        match result(outcome) {
            Some(NoticeResult::Delivered) => return LastStep::Delivered,
            None if now_us - created_us < UNDER_WAY_US => verdict = LastStep::UnderWay,
            _ => {}
        }
    }
    verdict
}
