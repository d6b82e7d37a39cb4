//! Names of the alerts about silence and degraded paths. Such an alert means that a patient is not
//! monitored, not that the patient is ill.

/// One metric is silent while its device sends others.
pub const SIGNAL: &str = "signal-silent";
/// All metrics of one device are silent.
pub const DEVICE: &str = "device-silent";
/// A gateway and all devices behind it are silent.
pub const GATEWAY: &str = "gateway-silent";
/// All devices of all gateways are silent, so the fault is in the core.
pub const PIPELINE: &str = "pipeline-silent";
/// A gateway has fewer paths than it had.
pub const PATH: &str = "path-degraded";

pub const ALL: [&str; 5] = [SIGNAL, DEVICE, GATEWAY, PIPELINE, PATH];

/// Longest staleness limit of a metric whose sensor is worn without pauses.
pub(crate) const WORN_STALE_US: i64 = 600_000_000;

/// Whether a metric with this staleness limit is measured by a worn sensor.
pub fn is_worn(stale_after_us: i64) -> bool {
    stale_after_us <= WORN_STALE_US
}

/// The cause in the summary of a silence alert, for example `the path: wifi lost before`.
pub fn cause_of(summary: &str) -> Option<&str> {
    let (_, cause) = summary.split_once("the cause is ")?;
    Some(cause)
}

/// Whether a silent gateway explains an alert of this rule. False for every rule about readings.
pub fn is_below_gateway(rule: &str) -> bool {
    [SIGNAL, DEVICE, PATH].contains(&rule)
}

pub fn is_of_gateway(rule: &str) -> bool {
    rule == GATEWAY
}
