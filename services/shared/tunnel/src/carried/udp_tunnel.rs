//! The application's end of a UDP tunnel (RFC 9298): datagrams to and from one destination.

use bytes::Bytes;

use crate::carried::datagram_tunnel::{DatagramTunnel, ended::TunnelEnded};

/// The datagrams of one destination. Dropping it ends the request.
#[derive(Debug)]
pub struct UdpTunnel(pub(crate) DatagramTunnel);

impl UdpTunnel {
    /// Queues one datagram; returns whether there was room. Otherwise the datagram is lost, as UDP
    /// permits.
    pub fn send(&self, payload: &[u8]) -> bool {
        self.0.send(payload)
    }

    /// The same for a datagram that goes by two paths at once. The destination gets it once, and
    /// its answers come by two paths as well.
    pub fn send_copied(&self, payload: &[u8]) -> bool {
        self.0.send_copied(payload)
    }

    /// The next datagram of the destination. Cancel-safe; for one receiver at a time.
    pub async fn receive(&self) -> Result<Bytes, TunnelEnded> {
        self.0.receive().await
    }
}
