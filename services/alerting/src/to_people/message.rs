//! Content of messages: the JSON of a webhook and of MQTT, and the text of an e-mail.

use calendar::{Zone, duration_text};
use contracts::alerts::{Alert, AlertState, Notice};
use serde_json::{Value, json};

use crate::unheard;

const SECOND_US: i64 = 1_000_000;
/// An alert that was recorded so long after its time is said to be late. A live one takes seconds.
const LATE_FROM_US: i64 = 120 * SECOND_US;

/// One or more notices in one message. The first names the message. After an outage of the channel
/// it is a digest: each alert once, as it was decided last, open ones first.
pub(super) struct Message<'a> {
    notices: &'a [&'a Notice],
    /// Base address for links.
    public_url: Option<&'a str>,
}

/// Why a message was not delivered.
pub(super) struct Undelivered {
    pub reason: String,
    /// Whether a later attempt may succeed.
    pub is_retryable: bool,
}

impl Undelivered {
    /// A mail server that refuses a letter for good refuses its address, and not every letter.
    pub(super) fn is_of_channel(&self, channel: &str) -> bool {
        self.is_retryable || channel != crate::routing::EMAIL
    }
}

impl<'a> Message<'a> {
    pub(super) fn new(notices: &'a [&'a Notice], public_url: Option<&'a str>) -> Message<'a> {
        Message {
            notices,
            public_url,
        }
    }

    /// Link to the alert on the page.
    fn link(&self, alert: &Alert) -> Option<String> {
        let base = self.public_url?.trim_end_matches('/');
        let patient = match alert.patient.as_str() {
            "" => String::new(),
            patient => format!("patient={}&", escaped(patient)),
        };
        Some(format!("{base}/#{patient}alert={}", escaped(&alert.id)))
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
            "patient_name": notice.patient_name,
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
            "since": zone_of(notice).rfc3339(alert.since_us),
            "time_zone": zone_of(notice).name(),
            "link": self.link(alert),
            "changed_us": alert.changed_us,
            "recorded_us": alert.recorded_us,
            "reported_late_s": late_us(alert) / SECOND_US,
            "acknowledged_by": alert.acknowledged_by,
            "note": alert.note,
            "traceparent": alert.traceparent,
            "reason": reason(notice),
            "step": notice.step,
            "people": notice.people,
        })
    }

    /// The last notice of each alert: open alerts first, then the most urgent.
    fn each_alert(&self) -> Vec<(&'a Notice, &'a Alert)> {
        let mut last: Vec<(&Notice, &Alert)> = Vec::new();
        let pairs = self.notices.iter().copied();
        for (notice, alert) in pairs.filter_map(|it| Some((it, it.alert.as_ref()?))) {
            match last.iter_mut().find(|(_, known)| known.id == alert.id) {
                Some(known)
                    if (known.1.revision, known.0.created_us)
                        > (alert.revision, notice.created_us) => {}
                Some(known) => *known = (notice, alert),
                None => last.push((notice, alert)),
            }
        }
        last.sort_by_key(|(_, alert)| (is_over(alert), std::cmp::Reverse(alert.priority)));
        last
    }

    pub(super) fn subject(&self) -> String {
        let alerts = self.each_alert();
        let Some((notice, alert)) = alerts.first() else {
            return String::new();
        };
        let ended = alerts.iter().filter(|(_, alert)| is_over(alert)).count();
        let more = match (alerts.len() - 1, ended) {
            (0, _) => String::new(),
            (more, 0) => format!(" and {more} more"),
            (more, ended) if ended == alerts.len() => format!(" and {more} more"),
            (more, ended) => format!(" and {more} more, {ended} of them ended"),
        };
        let head = match reason(notice) {
            _ if is_over(alert) => "Ended: ",
            "reminder" => "Reminder: ",
            "escalation" => "Not acknowledged: ",
            _ => "",
        };
        one_line(&format!(
            "{head}[{}] {}: {}{}{more}",
            priority(alert),
            subject_of(notice, alert),
            title(alert),
            late(notice, alert)
        ))
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let alerts = self.each_alert();
        let open = alerts.iter().filter(|(_, alert)| !is_over(alert)).count();
        for (index, (notice, alert)) in alerts.iter().enumerate() {
            if index == open && open > 0 {
                text.push_str("Ended meanwhile:\n\n");
            }
            self.add_alert(&mut text, notice, alert);
        }
        let mut people: Vec<&str> = Vec::new();
        for name in self.notices.iter().flat_map(|notice| &notice.people) {
            if !people.contains(&name.as_str()) {
                people.push(name);
            }
        }
        if !people.is_empty() {
            text.push_str(&format!("Told: {}\n", one_line(&people.join(", "))));
        }
        text.push_str("Braid is not a certified medical device.\n");
        text
    }

    fn add_alert(&self, text: &mut String, notice: &Notice, alert: &Alert) {
        let by = if alert.acknowledged_by.is_empty() {
            String::new()
        } else {
            format!(" by {}", one_line(&alert.acknowledged_by))
        };
        text.push_str(&format!(
            "{}\n  {}, priority {}, rule {}, {}{by}\n  since {}{}\n",
            one_line(&alert.summary),
            one_line(&subject_of(notice, alert)),
            priority(alert),
            alert.rule,
            state(alert),
            zone_of(notice).text(alert.since_us),
            late(notice, alert),
        ));
        if is_over(alert) {
            let until = zone_of(notice).text(alert.changed_us);
            text.push_str(&format!("  until {until}\n"));
        }
        if !alert.note.is_empty() {
            text.push_str(&format!("  note: {}\n", one_line(&alert.note)));
        }
        if let Some(link) = self.link(alert) {
            text.push_str(&format!("  {link}\n"));
        }
        text.push_str(&format!("  alert {}\n\n", alert.id));
    }
}

/// A report of what is over is news all the same.
fn is_over(alert: &Alert) -> bool {
    alert.state() == AlertState::Resolved && !unheard::is_report(alert)
}

fn title(alert: &Alert) -> &str {
    match unheard::is_report(alert) {
        true => unheard::title(&alert.summary),
        false => &alert.summary,
    }
}

/// How long after its time an alert that still waits for people was recorded. 0: at once.
fn late_us(alert: &Alert) -> i64 {
    let late_us = alert.recorded_us.saturating_sub(alert.changed_us);
    match alert.state() {
        AlertState::Active | AlertState::Latched if late_us >= LATE_FROM_US => late_us,
        _ => 0,
    }
}

fn late(notice: &Notice, alert: &Alert) -> String {
    if late_us(alert) == 0 {
        return String::new();
    }
    let ago = duration_text(notice.created_us.saturating_sub(alert.since_us));
    format!(", {ago} ago, reported late")
}

fn subject_of(notice: &Notice, alert: &Alert) -> String {
    if alert.patient.is_empty() && alert.gateway.is_empty() {
        "all gateways".to_owned()
    } else if alert.patient.is_empty() {
        format!("gateway {}", alert.gateway)
    } else if notice.patient_name.is_empty() {
        alert.patient.clone()
    } else {
        format!("{} ({})", notice.patient_name, alert.patient)
    }
}

/// UTC for a notice from a version without a zone.
fn zone_of(notice: &Notice) -> Zone {
    Zone::parse(&notice.time_zone).unwrap_or_default()
}

/// Escapes a value for the fragment of a URL. Identifiers consist of letters, digits and `. _ : -`.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b':' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
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

/// Text from a sensor or a person must not begin a line or a header.
pub(super) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use contracts::alerts::NoticeReason;
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
        let message = Message::new(&notices, None);
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

    #[test]
    fn a_digest_says_each_alert_once_and_what_ended_meanwhile() {
        let with = |mut notice: Notice, state: AlertState, revision: u32, people: &str| {
            let alert = notice.alert.get_or_insert_default();
            alert.state = state.into();
            alert.revision = revision;
            alert.changed_us = 1_774_746_000_000_000;
            notice.created_us = i64::from(revision);
            notice.people = vec![people.into()];
            notice
        };
        use AlertState::{Active, Resolved};
        let raised = with(notice("a", Priority::High, "Fallen"), Active, 1, "Ada");
        let ended = with(notice("a", Priority::High, "Fallen"), Resolved, 2, "Ada");
        let open = with(notice("b", Priority::Medium, "Fever"), Active, 1, "Nurse");
        let mut again = with(notice("b", Priority::Medium, "Fever"), Active, 1, "Nurse");
        again.reason = NoticeReason::Reminder.into();
        again.created_us = 2;
        let notices = [&raised, &ended, &open, &again];
        let message = Message::new(&notices, None);
        assert_eq!(
            message.subject(),
            "Reminder: [medium] ada: Fever and 1 more, 1 of them ended"
        );
        let text = message.text();
        assert_eq!(text.matches("Fallen").count(), 1, "{text}");
        assert_eq!(text.matches("Fever").count(), 1, "{text}");
        let at = |part: &str| text.find(part).unwrap_or(usize::MAX);
        assert!(at("Fever") < at("Ended meanwhile:"), "{text}");
        assert!(at("Ended meanwhile:") < at("Fallen"), "{text}");
        assert!(
            text.contains("until Sun 29 Mar 2026 01:00:00 UTC"),
            "{text}"
        );
        assert!(text.contains("Told: Ada, Nurse\n"), "{text}");
        let notices = [&raised, &ended];
        let message = Message::new(&notices, None);
        assert_eq!(message.subject(), "Ended: [high] ada: Fallen");
    }

    #[test]
    fn a_message_says_who_when_and_where_to_look() {
        let mut notice = notice("a b", Priority::High, "Fallen");
        notice.time_zone = "Europe/Berlin".into();
        let alert = notice.alert.get_or_insert_default();
        // The first second of summer time.
        alert.since_us = 1_774_746_000_000_000;
        for (name, subject) in [
            ("", "[high] ada: Fallen"),
            ("A. E.", "[high] A. E. (ada): Fallen"),
            ("Ada Example", "[high] Ada Example (ada): Fallen"),
        ] {
            notice.patient_name = name.into();
            let notices = [&notice];
            let message = Message::new(&notices, Some("https://braid.example.org/"));
            assert_eq!(message.subject(), subject);
            let text = message.text();
            let expected = [
                "since Sun 29 Mar 2026 03:00:00 CEST (Europe/Berlin)",
                "https://braid.example.org/#patient=ada&alert=a%20b\n",
            ];
            for part in expected {
                assert!(text.contains(part), "{text}");
            }
            let json = message.json();
            assert_eq!(json["patient_name"], name);
            assert_eq!(json["since"], "2026-03-29T03:00:00+02:00");
            assert_eq!(json["time_zone"], "Europe/Berlin");
            // Only the policy decides whether the name is included.
            let says_name = text.contains("Example") || json.to_string().contains("Example");
            assert_eq!(says_name, name.contains("Example"));
        }
        let notices = [&notice];
        let message = Message::new(&notices, None);
        assert!(message.json()["link"].is_null() && !message.text().contains("http"));
    }

    #[test]
    fn an_alert_of_a_backlog_says_when_it_happened_and_that_it_is_late() {
        let mut notice = notice("a", Priority::High, "Fallen");
        notice.created_us = 10_000 * SECOND_US;
        let alert = notice.alert.get_or_insert_default();
        alert.since_us = 7_600 * SECOND_US;
        alert.changed_us = 7_610 * SECOND_US;
        for (state, recorded_s, late_s) in [
            (AlertState::Active, 7_612, 0),
            (AlertState::Active, 10_000, 2_390),
            (AlertState::Latched, 10_000, 2_390),
            // A person's doing.
            (AlertState::Acknowledged, 10_000, 0),
        ] {
            let alert = notice.alert.get_or_insert_default();
            alert.state = state.into();
            alert.recorded_us = recorded_s * SECOND_US;
            let notices = [&notice];
            let message = Message::new(&notices, None);
            let says = ", 40 min ago, reported late";
            let (subject, text) = (message.subject(), message.text());
            assert_eq!(subject.ends_with(says), late_s > 0, "{subject}");
            assert_eq!(text.contains(&format!("(UTC){says}\n")), late_s > 0);
            assert_eq!(message.json()["reported_late_s"], late_s);
        }
    }
}
