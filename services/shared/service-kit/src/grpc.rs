//! gRPC and plain HTTP over TLS 1.3 with identities, for servers and clients.

pub mod calls;
mod channel;
mod front;
mod idle;
mod opening;
mod serve;

pub use channel::{ChannelError, channel, channel_over};
pub use front::FrontConfig;
pub use serve::{CONNECTIONS_DRAIN_LIMIT, Peer, ServeError, bind, serve, serve_routes};
