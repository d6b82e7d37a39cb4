//! Silence and bad paths: what their alerts are called. They say that somebody is not watched, never that somebody is ill.

/// One metric of somebody whose device goes on sending others.
pub const SIGNAL: &str = "signal-silent";
/// Everything of one device.
pub const DEVICE: &str = "device-silent";
/// Every device behind one gateway, and the gateway itself.
pub const GATEWAY: &str = "gateway-silent";
/// Everything from everybody: the fault is the core's.
pub const PIPELINE: &str = "pipeline-silent";
/// A gateway has fewer paths than it had.
pub const PATH: &str = "path-degraded";

pub const ALL: [&str; 5] = [SIGNAL, DEVICE, GATEWAY, PIPELINE, PATH];

/// Metrics that are stale this soon come from sensors that are worn and never pause.
const WORN_STALE_US: i64 = 600_000_000;

/// Whether a metric that counts as stale after so long is measured by a worn sensor.
pub fn is_worn(stale_after_us: i64) -> bool {
    stale_after_us <= WORN_STALE_US
}

/// What the summary of a silence alert names as the cause, for example `the path: wifi lost before`.
pub fn cause_of(summary: &str) -> Option<&str> {
    let (_, cause) = summary.split_once("the cause is ")?;
    Some(cause)
}

/// Whether a silent gateway explains an alert of this rule. Never true of what a sensor measured.
pub fn is_below_gateway(rule: &str) -> bool {
    [SIGNAL, DEVICE, PATH].contains(&rule)
}

pub fn is_of_gateway(rule: &str) -> bool {
    rule == GATEWAY
}
