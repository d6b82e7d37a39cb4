//! Alerts on their way from the edge to the core.

use contracts::{
    alerts::{Alert, AlertState},
    vitals::EdgeAlert,
};

use crate::machine::episode_id;

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
        rules_subject: String::new(),
    })
}

/// An edge alert of a rule that the core does not know: recorded, never lost. Both ends of its life share one id
/// only by the time they carry.
pub(crate) fn foreign(patient: &str, edge: &EdgeAlert, backfill: bool) -> Alert {
    Alert {
        id: episode_id(patient, &edge.rule, edge.time_us),
        patient: patient.to_owned(),
        device: edge.device.clone(),
        gateway: edge.gateway.clone(),
        rule: edge.rule.clone(),
        rule_version: edge.rule_version,
        metric: edge.metric,
        priority: edge.priority,
        state: if edge.resolved {
            AlertState::Resolved
        } else {
            AlertState::Active
        }
        .into(),
        summary: edge.summary.clone(),
        value: edge.value,
        since_us: edge.time_us,
        changed_us: edge.time_us,
        recorded_us: 0,
        acknowledged_by: String::new(),
        note: String::new(),
        revision: 1,
        from_edge: true,
        from_core: false,
        traceparent: edge.traceparent.clone(),
        backfill,
    }
}
