//! Names of access networks.

/// Bytes of a name of an access network; the client cuts a longer name, and the server refuses it.
pub(crate) const NAME_BYTES_MAX: usize = 32;

/// Whether an access network may have this name. Names appear in metrics and tables, so their
/// alphabet is small.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
