//! The canaries: synthetic patients, one for each partition of `vitals`, whose readings raise and
//! clear a test alert. They prove the way from ingest to the page. No real patient has such a name:
//! the register refuses it, lists leave it out, and its alerts are told to no person.

/// Name of the canaries' device, gateway and rule. The patient of one partition has this name, and
/// those of the others begin with it.
pub const NAME: &str = "braid-canary";

/// For places where real names and a canary's could be mixed up.
pub fn is_canary(name: &str) -> bool {
    name.starts_with(NAME)
}
