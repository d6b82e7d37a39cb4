//! Alerts on their way from the edge to the core.

use contracts::{
    alerts::{Alert, AlertState},
    vitals::EdgeAlert,
};

/// The message that a gateway sends about a transition. `None`: only the core can make this
/// transition.
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
        // The gateway knows whether it saw the beginning.
        first_look: false,
        // The gateway adds its clock readings and the subject of its rules.
        gateway_time_us: 0,
        gateway_uptime_us: 0,
        gateway_boot: 0,
        gateway_behind_us: None,
        ingest_time_us: 0,
        rules_subject: String::new(),
        acknowledged_by: String::new(),
        acknowledged_us: 0,
    })
}
