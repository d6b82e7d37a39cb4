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

/// Every patient wears one device of this name.
pub fn device_of(patient: &str) -> String {
    format!("belt-{patient}")
}

pub fn patients() -> impl Iterator<Item = (&'static Gateway, &'static str)> {
    GATEWAYS.iter().flat_map(|gateway| {
        gateway
            .patients
            .iter()
            .map(move |patient| (gateway, *patient))
    })
}

/// Address of the person on call for a patient.
pub fn on_call_of(patient: &str) -> String {
    let tenant = patients().find(|(_, id)| *id == patient);
    on_call(tenant.map_or("", |(gateway, _)| gateway.tenant))
}

pub fn on_call(tenant: &str) -> String {
    format!("on-call@{tenant}.example")
}

/// The team of a tenant: one person is always on call, and hears of everything at once.
pub fn team_document(tenant: &str) -> Value {
    let plan = json!({ "steps": [{ "after_s": 0, "tell": ["on-call"] }] });
    json!({
        "contacts": [{ "id": "nurse", "name": "Nurse", "email": on_call(tenant) }],
        "time_zone": "Europe/Berlin",
        "rota": [{ "shifts": [{ "from": "mon 00:00", "to": "mon 00:00", "contact": "nurse" }] }],
        "patients": {},
        "escalation": { "low": plan, "medium": plan, "high": plan },
    })
}

/// The metrics of every device, with a value at which no rule holds.
pub const METRICS: [(Metric, &str, f64); 4] = [
    (Metric::HeartRate, "heart-rate", 70.0),
    (Metric::Temperature, "temperature", 36.7),
    (Metric::Spo2, "spo2", 97.0),
    (Metric::RespirationRate, "respiration-rate", 14.0),
];

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

/// The same rules as a document for `braid rules put`.
pub fn rules_document() -> Value {
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            let kind = match rule.side {
                Side::Above => "above",
                Side::Below => "below",
            };
            json!({
                "id": rule.id,
                "priority": if rule.is_latched { "high" } else { "medium" },
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
    json!({ "name": "chaos", "version": 1, "extends": "none", "rules": rules })
}
