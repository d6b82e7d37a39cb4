//! The transport parameters of both ends, and their reasons; `multipath::tune` sets the parameters
//! that multipath itself needs.

use std::{sync::Arc, time::Duration};

use noq::{TransportConfig, VarInt};

/// The protocol spoken inside: HTTP/3.
pub const ALPN: &[u8] = b"h3";

/// Bytes that one connection keeps for sending and repeating; bulk writers wait beyond it. As many
/// as 128 resumable tunnels may hold together (`resume::Ledger`), so that each is bounded by its
/// own window. When streams wait for room in this window, the transport serves the last and the
/// first in turn, and the others starve.
pub(crate) const SEND_WINDOW_BYTES: u64 = 72 * 1024 * 1024;

/// Bytes by which urgent streams and headers may exceed it; prompt streams may exceed it by half.
pub(crate) const SEND_BEYOND_BYTES: u64 = 2 * 1024 * 1024;

/// Received and unread bytes of all streams of one connection. The unsent bytes of a peer's writer
/// count as well.
const CONNECTION_WINDOW_BYTES: u32 = 80 * 1024 * 1024;

/// Memory of unsent datagrams in the transport: as many and as long as `http::unsent` permits, and
/// 32 bytes for each. At this bound the transport would drop the oldest.
pub(crate) const UNSENT_BYTES_MAX: usize = 48 * 1024;

/// Bytes of arrived datagrams of one connection; at the bound the transport drops the oldest.
pub(crate) const UNREAD_BYTES_MAX: usize = 512 * 1024;

/// Open tunnels of one connection; further ones wait at the client.
const TUNNELS_MAX: u32 = 512;

/// Paths of one connection; half of them may be closing while their successors open.
pub(crate) const PATHS_MAX: u32 = 16;

/// Silence of the peer after which a connection ends. Longer than most outages of all networks: the
/// same connection then continues one round trip after the return.
const IDLE_MAX_MS: u32 = 120_000;

/// The transport's own keepalive, beside the upkeep's pings, so that a connection survives a
/// stalled upkeep task. Longer than the upkeep's interval at rest (25 s), and a quarter of
/// `IDLE_MAX_MS`.
const PATH_KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Parameters common to both ends; `tune` may set the congestion controller.
pub(crate) fn transport_config(tune: impl FnOnce(&mut TransportConfig)) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .max_concurrent_bidi_streams(VarInt::from_u32(TUNNELS_MAX))
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_MAX_MS).into()))
        .max_concurrent_multipath_paths(PATHS_MAX)
        .default_path_keep_alive_interval(Some(PATH_KEEP_ALIVE))
        .datagram_send_buffer_size(UNSENT_BYTES_MAX)
        .datagram_receive_buffer_size(Some(UNREAD_BYTES_MAX));
    multipath::tune(&mut transport);
    tune(&mut transport);
    Arc::new(transport)
}

/// The transport of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// HTTP/3 over multipath QUIC.
    Quic,
    /// HTTP/2 over TLS over Multipath TCP, where UDP is blocked.
    Mptcp,
    /// The same over plain TCP, where a kernel has no MPTCP.
    Tcp,
}

impl Transport {
    pub const ALL: [Self; 3] = [Self::Quic, Self::Mptcp, Self::Tcp];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Mptcp => "mptcp",
            Self::Tcp => "tcp",
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
