//! The participants, and their rules.

use contracts::vitals::Metric;
use serde_json::{Value, json};

/// Gateways with their tenants. Names are unique, so that a fault can name its target.
pub const GATEWAYS: [Gateway; 3] = [
    Gateway {
        name: "gw-1",
        tenant: "default",
        patients: &["ada", "ben", "cleo"],
    },
    Gateway {
        name: "gw-2",
        tenant: "default",
        patients: &["dan", "eva", "finn"],
    },
    Gateway {
        name: "gw-3",
        tenant: "north",
        patients: &["gus", "hana"],
    },
];

/// Processes of services, each with its subcommand of `braid`. Alerting has two members, so that
/// patients move between them.
pub const SERVICES: [(&str, &str); 6] = [
    ("path-telemetry", "path-telemetry"),
    ("ingest", "ingest"),
    ("alerting", "alerting"),
    ("alerting-2", "alerting"),
    ("proxy", "proxy"),
    ("dashboard", "dashboard"),
];

/// A sensor that sends nothing for this time is silent. Most of the long faults last longer.
pub const SILENT_AFTER_S: u32 = 10;

/// Access networks of every gateway, with the bound address of each.
pub const LINKS: [(&str, &str); 2] = [("wifi", "127.0.1.200"), ("lte", "127.0.2.200")];

#[derive(Debug)]
pub struct Gateway {
    pub name: &'static str,
    pub tenant: &'static str,
    pub patients: &'static [&'static str],
}

/// Patients whose device is given to another patient during the run, each with the next wearer.
pub const MOVED: [(&str, &str); 2] = [("ben", "ines"), ("finn", "jon")];

/// Every patient wears one device of this name. The next wearer gets the same device.
pub fn device_of(patient: &str) -> String {
    let first = MOVED.iter().find(|(_, next)| *next == patient);
    format!("belt-{}", first.map_or(patient, |(first, _)| first))
}

/// The first wearer of each device.
pub fn patients() -> impl Iterator<Item = (&'static Gateway, &'static str)> {
    GATEWAYS.iter().flat_map(|gateway| {
        gateway
            .patients
            .iter()
            .map(move |patient| (gateway, *patient))
    })
}

/// All patients: the first and the next wearers.
pub fn wearers() -> impl Iterator<Item = (&'static Gateway, &'static str)> {
    let next = patients().filter_map(|(gateway, patient)| {
        let moved = MOVED.iter().find(|(first, _)| *first == patient);
        moved.map(|(_, next)| (gateway, *next))
    });
    patients().chain(next)
}

fn tenant_of(patient: &str) -> &'static str {
    let found = wearers().find(|(_, id)| *id == patient);
    found.map_or("", |(gateway, _)| gateway.tenant)
}

/// Address of the person on call for a patient.
pub fn on_call_of(patient: &str) -> String {
    on_call(tenant_of(patient))
}

/// The account of the person who acknowledges alerts of a patient.
pub fn nurse_of(patient: &str) -> String {
    nurse(tenant_of(patient))
}

pub fn nurse(tenant: &str) -> String {
    format!("nurse-{tenant}")
}

pub fn on_call(tenant: &str) -> String {
    format!("on-call@{tenant}.example")
}

/// An alert of high priority that nobody acknowledges is repeated in this interval.
pub const REMIND_EVERY_S: u32 = 20;

/// The team of a tenant: one person is always on call, and hears of everything at once.
pub fn team_document(tenant: &str) -> Value {
    let steps = json!([{ "after_s": 0, "tell": ["on-call"] }]);
    let plan = json!({ "steps": steps });
    let high = json!({ "steps": steps, "remind_every_s": REMIND_EVERY_S, "reminders_max": 100 });
    json!({
        "contacts": [{ "id": "nurse", "name": "Nurse", "email": on_call(tenant) }],
        "time_zone": "Europe/Berlin",
        "rota": [{ "shifts": [{ "from": "mon 00:00", "to": "mon 00:00", "contact": "nurse" }] }],
        "patients": {},
        "escalation": { "low": plan, "medium": plan, "high": high },
    })
}

/// The metrics of every device, with a value at which no rule holds. The readings of one second
/// are sent in this order.
pub const METRICS: [(Metric, &str, f64); 5] = [
    (Metric::HeartRate, "heart-rate", 70.0),
    (Metric::Temperature, "temperature", 36.7),
    (Metric::Spo2, "spo2", 97.0),
    (Metric::RespirationRate, "respiration-rate", 14.0),
    (Metric::Activity, ACTIVITY, 1.5),
];
/// Mean acceleration in g. A person who moves has a value away from 1.
pub const ACTIVITY: &str = "activity";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Holds at the limit or above, ends below `clear`.
    Above,
    /// Holds at the limit or below, ends above `clear`.
    Below,
}

/// A threshold rule as data. Oracle and rule document come from the same constants.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub id: &'static str,
    pub metric: &'static str,
    pub side: Side,
    pub limit: f64,
    pub clear: f64,
    pub for_s: u32,
    pub clear_for_s: u32,
    /// High priority: after its end the alert stays until it is acknowledged, and becomes active
    /// again in the same episode.
    pub is_latched: bool,
}

/// The ids differ from those of the built-in set, so that alerts of the two sets cannot be mixed
/// up.
pub const RULES: [Rule; 5] = [
    Rule {
        id: "chaos-pulse-high",
        metric: "heart-rate",
        side: Side::Above,
        limit: 120.0,
        clear: 115.0,
        for_s: 3,
        clear_for_s: 3,
        is_latched: false,
    },
    Rule {
        id: "chaos-pulse-low",
        metric: "heart-rate",
        side: Side::Below,
        limit: 45.0,
        clear: 48.0,
        for_s: 6,
        clear_for_s: 4,
        is_latched: false,
    },
    Rule {
        id: "chaos-fever",
        metric: "temperature",
        side: Side::Above,
        limit: 39.0,
        clear: 38.5,
        for_s: 0,
        clear_for_s: 0,
        is_latched: false,
    },
    Rule {
        id: "chaos-spo2-low",
        metric: "spo2",
        side: Side::Below,
        limit: 90.0,
        clear: 92.0,
        for_s: 8,
        clear_for_s: 5,
        is_latched: false,
    },
    Rule {
        id: "chaos-breath-fast",
        metric: "respiration-rate",
        side: Side::Above,
        limit: 30.0,
        clear: 27.0,
        for_s: 2,
        clear_for_s: 2,
        is_latched: true,
    },
];

/// The rule for falls as data. It latches: somebody must look after a person who fell.
#[derive(Clone, Copy, Debug)]
pub struct FallRule {
    pub id: &'static str,
    pub impact_g: f64,
    /// Distance from gravity at rest.
    pub still_g: f64,
    /// Longest time from the impact to the stillness.
    pub within_s: u32,
    pub for_s: u32,
    pub clear_for_s: u32,
}

pub const FALL: FallRule = FallRule {
    id: "chaos-fall",
    impact_g: 2.5,
    still_g: 0.1,
    within_s: 10,
    for_s: 4,
    clear_for_s: 4,
};

/// A rule for a band of NEWS2 scores as data. The delays end between two readings, so that no
/// length is at a limit.
#[derive(Clone, Copy, Debug)]
pub struct ScoreRule {
    pub id: &'static str,
    pub from: u32,
    /// Inclusive.
    pub to: u32,
    pub for_ms: u32,
    pub clear_for_ms: u32,
    pub is_latched: bool,
}

pub const SCORES: [ScoreRule; 2] = [
    ScoreRule {
        id: "chaos-news2-medium",
        from: 5,
        to: 6,
        for_ms: 2_500,
        clear_for_ms: 4_500,
        is_latched: false,
    },
    ScoreRule {
        id: "chaos-news2-high",
        from: 7,
        to: 20,
        for_ms: 2_500,
        clear_for_ms: 4_500,
        is_latched: true,
    },
];

/// Whether the oracle says when alerts of this rule are due.
pub fn is_judged(rule: &str) -> bool {
    rule == FALL.id || RULES.iter().any(|it| it.id == rule) || SCORES.iter().any(|it| it.id == rule)
}

/// Whether alerts of this rule have high priority: they latch, and people are reminded of them.
pub fn is_latched(rule: &str) -> bool {
    rule == FALL.id
        || RULES.iter().any(|it| it.id == rule && it.is_latched)
        || SCORES.iter().any(|it| it.id == rule && it.is_latched)
}

/// The same rules as a document for `braid rules put`.
pub fn rules_document() -> Value {
    let priority = |is_latched: bool| if is_latched { "high" } else { "medium" };
    let mut rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            let kind = match rule.side {
                Side::Above => "above",
                Side::Below => "below",
            };
            json!({
                "id": rule.id,
                "priority": priority(rule.is_latched),
                "condition": {
                    "kind": kind,
                    "metric": rule.metric,
                    "limit": rule.limit,
                    "clear": rule.clear,
                },
                "for_ms": rule.for_s * 1_000,
                "clear_for_ms": rule.clear_for_s * 1_000,
            })
        })
        .collect();
    rules.push(json!({
        "id": FALL.id,
        "priority": "high",
        "condition": {
            "kind": "fall",
            "impact_g": FALL.impact_g,
            "still_g": FALL.still_g,
            "within_ms": FALL.within_s * 1_000,
        },
        "for_ms": FALL.for_s * 1_000,
        "clear_for_ms": FALL.clear_for_s * 1_000,
    }));
    rules.extend(SCORES.iter().map(|rule| {
        json!({
            "id": rule.id,
            "priority": priority(rule.is_latched),
            "condition": { "kind": "news2", "from": rule.from, "to": rule.to },
            "for_ms": rule.for_ms,
            "clear_for_ms": rule.clear_for_ms,
        })
    }));
    json!({ "name": "chaos", "version": 1, "extends": "none", "rules": rules })
}
