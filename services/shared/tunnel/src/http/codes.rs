//! Error codes of HTTP/3 that end a connection (RFC 9114, 8.1).

/// `H3_NO_ERROR`.
pub(crate) const NO_ERROR: u32 = 0x100;
/// `H3_INTERNAL_ERROR`: the transport has lost bytes with a path.
pub(crate) const PATH_NOT_RELEASED: u32 = 0x102;
