//! Numbers of sessions, unique over the restarts of a process.

/// The first number of this process. It differs from those of the process before, whose reports may
/// still arrive.
pub(crate) fn first_number() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros().try_into().unwrap_or(1))
}
