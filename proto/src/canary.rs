//! The canary: a synthetic patient whose readings raise and clear a test alert every minute, to
//! prove the way from ingest to the page. No real patient has this name: the register refuses it,
//! lists leave it out, and its alerts cause no notices.

/// Name of the canary's patient, device, gateway and rule.
pub const NAME: &str = "braid-canary";

/// For places where real names and the canary's could be mixed up.
pub fn is_canary(name: &str) -> bool {
    name == NAME
}
