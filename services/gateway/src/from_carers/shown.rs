//! The forms of alerts, values and accesses in JSON.

use contracts::vitals::{LocalAlert, Priority};
use serde_json::{Value, json};

use crate::carers::{Heard, Shown};

pub fn alerts(alerts: &[LocalAlert]) -> Vec<Value> {
    alerts.iter().map(alert).collect()
}

pub fn alert(alert: &LocalAlert) -> Value {
    json!({
        "id": alert.id,
        "device": alert.device,
        "patient": alert.patient,
        "rule": alert.rule,
        "metric": vitals::name(alert.metric()),
        "priority": priority(alert.priority()),
        "summary": alert.summary,
        "value": alert.value,
        "since_us": alert.since_us,
        "age_ms": alert.age_ms,
        "ended": alert.ended,
        "acknowledged_by": alert.acknowledged_by,
    })
}

fn priority(priority: Priority) -> &'static str {
    match priority {
        Priority::High => "high",
        Priority::Medium => "medium",
        Priority::Low | Priority::Unspecified => "low",
    }
}

pub fn values(values: &[Shown]) -> Vec<Value> {
    let shown = values.iter().map(|it| {
        json!({
            "device": it.device,
            "metric": vitals::name(it.metric),
            "unit": it.unit,
            "value": it.value,
            "age_ms": it.age_ms,
            "late": it.is_late,
        })
    });
    shown.collect()
}

pub fn accesses(accesses: &[(String, bool)]) -> Vec<Value> {
    let shown = accesses.iter();
    shown
        .map(|(name, is_up)| json!({ "name": name, "up": is_up }))
        .collect()
}

/// The one line on top. A gateway that hears no sensor watches over nobody.
pub fn watched(heard: Heard, values: &[Shown]) -> &'static str {
    match heard {
        Heard::NoNetwork => "no-network",
        Heard::NoAnswer => "no-answer",
        Heard::Yes if values.iter().all(|it| it.is_late) => "no-readings",
        Heard::Yes => "watched",
    }
}
