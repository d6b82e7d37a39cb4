//! The canary: a made-up patient whose readings raise and clear a test alert every minute, to prove the whole way from ingest to the
//! page. Nobody of this name exists: the register refuses it, lists leave it out, and nobody is notified of its alerts.

/// Name of the canary's patient, device, gateway and rule.
pub const NAME: &str = "braid-canary";

/// For places where real names and the canary's could meet.
pub fn is_canary(name: &str) -> bool {
    name == NAME
}
