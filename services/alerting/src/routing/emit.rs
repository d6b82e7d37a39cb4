//! Notices of one decision: one for each channel and recipient.

use std::collections::{BTreeSet, HashMap};

use contracts::{
    alerts::{Alert, AlertState, Notice, NoticeOutcome, NoticeReason},
    vitals::Priority,
};
use store::NoticesBatch;

use super::{
    Router, Withheld,
    case::{Case, EMAIL, MQTT, WEBHOOK},
};
use crate::{names::NamePolicy, team::Contact};

/// Grouping windows of e-mails. Beyond it all windows restart, so some e-mails are sent separately.
const WINDOWS_MAX: usize = 10_000;

/// Subject of a notice, as part of its id.
pub(super) enum What {
    Revision,
    Step(u32),
    Reminder(u32),
}

/// Recipients of a notice.
#[derive(Clone, Copy)]
pub(super) struct To<'a> {
    pub(super) people: &'a [&'a Contact],
    /// The recipients of alerts that no person of the team can be told of, too.
    pub(super) everybody: bool,
}

impl<'a> To<'a> {
    pub(super) fn people(people: &'a [&'a Contact]) -> To<'a> {
        To {
            people,
            everybody: false,
        }
    }
}

impl Router {
    /// One notice for each configured channel and recipient. If the alert is withheld, the outcome
    /// is added at once.
    pub(super) fn emit(
        &mut self,
        batch: &mut NoticesBatch,
        case: Case<'_>,
        what: &What,
        to: To<'_>,
        withheld: Option<&Withheld>,
    ) {
        let people = to.people;
        let (name, reason, number) = match what {
            What::Revision => (case.alert.revision.to_string(), NoticeReason::News, 0),
            What::Step(number) => (format!("step-{number}"), NoticeReason::Escalation, *number),
            What::Reminder(number) => (format!("reminder-{number}"), NoticeReason::Reminder, 0),
        };
        // An alert of several tenants has notices of each.
        let timer = case.timer_name();
        let of_tenant = timer.strip_prefix(&case.alert.id).unwrap_or_default();
        let name = format!("{name}{of_tenant}");
        let zone = case.team.and_then(|team| team.time_zone.as_ref());
        let zone = zone.unwrap_or(&self.channels.zone);
        let base = Notice {
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
            let policy = name_policy(case, channel);
            let alert = Alert {
                summary: case.unmonitored.summary(case.alert, policy),
                ..case.alert.clone()
            };
            batch.notices.push(Notice {
                id,
                alert: Some(alert),
                channel: channel.to_owned(),
                recipient: recipient.to_owned(),
                patient_name: policy.label(case.patient_name),
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
        if !self.channels.email || case.has_departed {
            return;
        }
        let own = people.iter().filter_map(|contact| contact.email.as_deref());
        let mut addresses: BTreeSet<String> = own.map(str::to_owned).collect();
        if case.team.is_none() || to.everybody {
            addresses.extend(self.channels.email_to.iter().cloned());
        }
        if addresses.is_empty() {
            return;
        }
        let due_us = match reason {
            NoticeReason::News if withheld.is_none() => {
                due(&mut self.windows, self.channels.group_us, case)
            }
            _ => case.now_us,
        };
        for address in &addresses {
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
fn due(windows: &mut HashMap<(String, String), (i64, i32)>, group_us: i64, case: Case<'_>) -> i64 {
    // The end of an alert has the lowest urgency.
    let urgency = match case.alert.state() {
        AlertState::Active => case.alert.priority,
        _ => Priority::Unspecified.into(),
    };
    let key = (case.tenant.to_owned(), case.alert.patient.clone());
    match windows.get(&key) {
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
            windows.insert(key, (case.now_us + group_us, urgency));
            case.now_us
        }
    }
}
