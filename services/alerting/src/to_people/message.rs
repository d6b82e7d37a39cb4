//! What people and machines read: the JSON of a webhook and of MQTT, and the text of an e-mail.

use contracts::alerts::{Alert, Notice};
use serde_json::{Value, json};

/// One or more notices that go together; the first one names the message.
pub(super) struct Message<'a> {
    notices: &'a [&'a Notice],
}

impl<'a> Message<'a> {
    pub(super) fn new(notices: &'a [&'a Notice]) -> Message<'a> {
        Message { notices }
    }

    pub(super) fn first(&self) -> Option<&'a Notice> {
        self.notices.first().copied()
    }

    fn alerts(&self) -> impl Iterator<Item = &'a Alert> {
        self.notices
            .iter()
            .filter_map(|notice| notice.alert.as_ref())
    }

    /// Same for every attempt: `<alert>/<revision>`, `<alert>/step-2` or `<alert>/reminder-1`.
    pub(super) fn key(&self) -> String {
        let id = self.first().map_or("", |notice| &notice.id);
        let mut parts = id.splitn(3, '/');
        format!(
            "{}/{}",
            parts.next().unwrap_or_default(),
            parts.next().unwrap_or_default()
        )
    }

    pub(super) fn json(&self) -> Value {
        let (Some(notice), Some(alert)) = (self.first(), self.alerts().next()) else {
            return Value::Null;
        };
        json!({
            "id": alert.id,
            "revision": alert.revision,
            "tenant": notice.tenant,
            "patient": alert.patient,
            "device": alert.device,
            "gateway": alert.gateway,
            "rule": alert.rule,
            "rule_version": alert.rule_version,
            "metric": vitals::name(alert.metric()),
            "priority": priority(alert),
            "state": state(alert),
            "summary": alert.summary,
            "value": alert.value,
            "since_us": alert.since_us,
            "changed_us": alert.changed_us,
            "recorded_us": alert.recorded_us,
            "acknowledged_by": alert.acknowledged_by,
            "note": alert.note,
            "traceparent": alert.traceparent,
            "reason": reason(notice),
            "step": notice.step,
            "people": notice.people,
        })
    }

    pub(super) fn subject(&self) -> String {
        let Some(alert) = self.alerts().max_by_key(|alert| alert.priority) else {
            return String::new();
        };
        let more = match self.notices.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let head = match self.first().map(reason) {
            Some("reminder") => "Reminder: ",
            Some("escalation") => "Not acknowledged: ",
            _ => "",
        };
        one_line(&format!(
            "{head}[{}] {}: {}{more}",
            priority(alert),
            subject_of(alert),
            alert.summary
        ))
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for notice in self.notices {
            let Some(alert) = &notice.alert else {
                continue;
            };
            let by = if alert.acknowledged_by.is_empty() {
                String::new()
            } else {
                format!(" by {}", alert.acknowledged_by)
            };
            text.push_str(&format!(
                "{}\n  {}, priority {}, rule {}, {}{by}\n  since {} (Unix seconds)\n",
                one_line(&alert.summary),
                subject_of(alert),
                priority(alert),
                alert.rule,
                state(alert),
                alert.since_us.div_euclid(1_000_000),
            ));
            if !alert.note.is_empty() {
                text.push_str(&format!("  note: {}\n", one_line(&alert.note)));
            }
            text.push_str(&format!("  alert {}\n\n", alert.id));
        }
        if let Some(notice) = self.first().filter(|notice| !notice.people.is_empty()) {
            text.push_str(&format!("Told: {}\n", one_line(&notice.people.join(", "))));
        }
        text.push_str("Braid is not a certified medical device.\n");
        text
    }
}

fn subject_of(alert: &Alert) -> String {
    if alert.patient.is_empty() {
        format!("gateway {}", alert.gateway)
    } else {
        alert.patient.clone()
    }
}

pub(super) fn priority(alert: &Alert) -> String {
    lower(alert.priority().as_str_name(), "PRIORITY_")
}

fn state(alert: &Alert) -> String {
    lower(alert.state().as_str_name(), "ALERT_STATE_")
}

fn reason(notice: &Notice) -> &'static str {
    use contracts::alerts::NoticeReason;
    match notice.reason() {
        NoticeReason::Escalation => "escalation",
        NoticeReason::Reminder => "reminder",
        NoticeReason::News | NoticeReason::Unspecified => "news",
    }
}

fn lower(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

/// Nothing that a sensor or a person wrote begins a line or a header of its own.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use contracts::alerts::{AlertState, NoticeReason};
    use contracts::vitals::Priority;

    use super::*;

    fn notice(id: &str, priority: Priority, summary: &str) -> Notice {
        Notice {
            id: format!("{id}/1/email/ada@example.org"),
            alert: Some(Alert {
                id: id.into(),
                patient: "ada".into(),
                summary: summary.into(),
                priority: priority.into(),
                state: AlertState::Active.into(),
                note: "two\nlines".into(),
                ..Alert::default()
            }),
            reason: NoticeReason::News.into(),
            ..Notice::default()
        }
    }

    #[test]
    fn several_alerts_are_one_message_headed_by_the_most_urgent() {
        let (low, high) = (
            notice("a", Priority::Low, "Battery 9 %"),
            notice("b", Priority::High, "Fallen\r\nBcc: everybody"),
        );
        let notices = [&low, &high];
        let message = Message::new(&notices);
        assert_eq!(message.key(), "a/1");
        assert_eq!(
            message.subject(),
            "[high] ada: Fallen  Bcc: everybody and 1 more"
        );
        let text = message.text();
        assert!(
            text.contains("Battery 9 %") && text.contains("note: two lines"),
            "{text}"
        );
        assert_eq!(message.json()["reason"], "news");
    }
}
