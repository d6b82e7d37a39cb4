//! The transport parameters of both ends, and their reasons.

use std::{sync::Arc, time::Duration};

use noq::{TransportConfig, VarInt};

/// The protocol spoken inside: HTTP/3.
pub const ALPN: &[u8] = b"h3";

/// Bytes that one stream may have under way. Above 2.5 MB a dead path's unanswered data can exceed the library's bound of chunks
/// behind one gap.
const STREAM_WINDOW_BYTES: u32 = 2_500_000;

/// Bytes that all streams of one connection may have received and nobody read.
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// Bytes that one connection keeps for sending and re-sending; writers wait beyond it.
const SEND_WINDOW_BYTES: u64 = 8 * 1024 * 1024;

/// Tunnels that one connection may have open at once; further opens wait at the client.
const TUNNELS_MAX: u32 = 256;

/// Paths at once; half of them may be on their way out while their successors open.
pub(crate) const PATHS_MAX: u32 = 16;

/// A connection without a sign of life from the peer for so long is over.
const IDLE_MAX_MS: u32 = 30_000;

/// A path without a sign of life is given up by the library after so long. The steering closes a silent path much earlier while
/// another lives. This one is for the last path, so it is as long as the connection may be idle: the end of the last path ends the connection.
const PATH_IDLE_MAX: Duration = Duration::from_secs(30);

/// The library's own keepalive, beside the steering's pings, so that a connection survives a stalled steering task.
const PATH_KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Before the first sample. A lost first datagram is repeated after about three of these; on a slower network the only harm
/// is a repeated handshake packet.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Parameters common to both ends; `tune` may set the congestion controller.
pub(crate) fn transport_config(tune: impl FnOnce(&mut TransportConfig)) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES)
        .max_concurrent_bidi_streams(VarInt::from_u32(TUNNELS_MAX))
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_MAX_MS).into()))
        .max_concurrent_multipath_paths(PATHS_MAX)
        .default_path_max_idle_timeout(Some(PATH_IDLE_MAX))
        .default_path_keep_alive_interval(Some(PATH_KEEP_ALIVE))
        .initial_rtt(INITIAL_RTT);
    tune(&mut transport);
    Arc::new(transport)
}
