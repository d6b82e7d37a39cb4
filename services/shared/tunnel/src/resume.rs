//! Tunnels that outlive the stream and the connection that carry them, between two ends of Braid.
//!
//! The client offers it with a header of its CONNECT request (`header`); a server that answers with one agrees, and from then on both speak
//! capsules in the stream (`capsule`). Without the answer, or without the offer, a tunnel is a plain CONNECT.
//!
//! ```text
//!   application -- ResumableStream -- Line ==stream== Line -- ResumableStream -- application
//!                                      |  Flow          |  Flow
//!                        client: Companion        server: accompany, Table
//! ```
//!
//! `flow` is the protocol, sans-IO: what is kept, what was received, where an attachment begins. `line` moves the bytes. When the
//! carrying stream dies, or its session falls silent while another is there, or the tunnel stalls, the client's companion (`client`)
//! asks for the tunnel by its token on a fresh stream; `server` keeps the tunnel until then, for a bounded time.

mod capsule;
pub(crate) mod client;
mod flow;
pub(crate) mod header;
mod ledger;
mod line;
pub(crate) mod server;
mod stall;
mod table;

#[cfg(test)]
mod ownership_tests;
#[cfg(test)]
mod tests;

pub(crate) use ledger::Ledger;
pub(crate) use line::ResumableStream;
pub use table::ResumeLimits;

fn count_resumed(replayed_bytes: u64) {
    metrics::counter!("braid_tunnel_resumed_total").increment(1);
    metrics::counter!("braid_tunnel_replayed_bytes_total").increment(replayed_bytes);
    tracing::debug!(replayed_bytes, "a tunnel goes on over another stream");
}
