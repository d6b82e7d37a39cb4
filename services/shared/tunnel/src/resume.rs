//! Tunnels that outlive the stream and the connection that carry them, between two ends of Braid.
//!
//! The client offers resumption with a header of its CONNECT request (`header`). If the server
//! answers with the header, both exchange capsules in the stream (`capsule`). Otherwise the tunnel
//! is a plain CONNECT.
//!
//! ```text
//!   application -- ResumableStream -- Line ==stream== Line -- ResumableStream -- application
//!                                      |  Flow          |  Flow
//!                        client: Companion        server: accompany, Table
//! ```
//!
//! `flow` is the protocol, sans-IO: kept and received bytes, and the start of an attachment. `line`
//! moves the bytes. The client's companion (`client`) asks for the tunnel by its token on a fresh
//! stream. It does so if the carrying stream has died, its session is silent while another exists,
//! or the tunnel has stalled. `server` keeps the tunnel until then, for a bounded time.

mod capsule;
pub(crate) mod client;
mod flow;
pub(crate) mod header;
pub(crate) mod ledger;
mod line;
pub(crate) mod server;
mod stall;
mod table;

#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod ownership_tests;
#[cfg(test)]
mod tests;

pub(crate) use line::ResumableStream;
pub use line::StreamSwitch;
pub use table::ResumeLimits;
