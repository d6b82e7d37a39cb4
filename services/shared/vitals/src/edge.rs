//! Alerts on their way from the edge to the core.

use contracts::{
    alerts::{Alert, AlertState},
    vitals::EdgeAlert,
};

/// What the gateway sends of a transition at the edge. `None` for one that only the core can make.
pub fn edge_alert(alert: &Alert, sequence: u64) -> Option<EdgeAlert> {
    let resolved = match alert.state() {
        AlertState::Active => false,
        AlertState::Latched | AlertState::Resolved => true,
        AlertState::Unspecified | AlertState::Pending | AlertState::Acknowledged => return None,
    };
    Some(EdgeAlert {
        gateway: alert.gateway.clone(),
        patient: alert.patient.clone(),
        device: alert.device.clone(),
        sequence,
        rule: alert.rule.clone(),
        rule_version: alert.rule_version,
        metric: alert.metric,
        value: alert.value,
        since_us: alert.since_us,
        time_us: alert.changed_us,
        priority: alert.priority,
        summary: alert.summary.clone(),
        traceparent: alert.traceparent.clone(),
        resolved,
        cancelled: false,
        // What the gateway's own clock says, and whose rules these are, is the gateway's to add.
        gateway_time_us: 0,
        gateway_uptime_us: 0,
        gateway_boot: 0,
        gateway_behind_us: None,
        ingest_time_us: 0,
        rules_subject: String::new(),
    })
}
