//! Silence: what its alerts are called.

/// One metric of somebody whose device goes on sending others.
pub const SIGNAL: &str = "signal-silent";
/// Everything of one device.
pub const DEVICE: &str = "device-silent";
/// Every device behind one gateway, and the gateway itself.
pub const GATEWAY: &str = "gateway-silent";

/// Whether a silent gateway explains an alert of this rule. Never true of what a sensor measured.
pub fn is_below_gateway(rule: &str) -> bool {
    rule == SIGNAL || rule == DEVICE
}

pub fn is_of_gateway(rule: &str) -> bool {
    rule == GATEWAY
}
