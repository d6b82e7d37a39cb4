//! What an application holds of a UDP tunnel (RFC 9298): datagrams both ways, to and from one destination.

use bytes::Bytes;

use crate::datagram_tunnel::{DatagramTunnel, TunnelEnded};

/// One destination's datagrams. Dropped, it ends the request.
#[derive(Debug)]
pub struct UdpTunnel(pub(crate) DatagramTunnel);

impl UdpTunnel {
    /// Takes one datagram to be sent; whether there was room for it, which is how UDP says that it was lost.
    pub fn send(&self, payload: &[u8]) -> bool {
        self.0.send(payload)
    }

    /// The next datagram of the destination. Cancel-safe; for one receiver at a time.
    pub async fn receive(&self) -> Result<Bytes, TunnelEnded> {
        self.0.receive().await
    }
}
