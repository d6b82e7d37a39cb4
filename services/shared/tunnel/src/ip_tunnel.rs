//! The application's end of an IP tunnel (RFC 9484): packets in both directions, and capsules for
//! addresses and routes. Packets are not inspected here.

pub(crate) mod capsule;

use bytes::Bytes;
use tokio::sync::Mutex;

use crate::datagram_tunnel::{Capsules, DatagramTunnel, TunnelEnded};
pub use capsule::{IpAddressEntry, IpCapsule};

/// Packets between a gateway and a proxy. Dropping it ends the request.
#[derive(Debug)]
pub struct IpTunnel {
    packets: DatagramTunnel,
    leaving: tokio::sync::mpsc::Sender<Bytes>,
    /// For one receiver at a time.
    arriving: Mutex<tokio::sync::mpsc::Receiver<capsule::Raw>>,
}

impl IpTunnel {
    pub(crate) fn new((packets, capsules): (DatagramTunnel, Capsules)) -> Self {
        Self {
            packets,
            leaving: capsules.leaving,
            arriving: Mutex::new(capsules.arriving),
        }
    }

    /// Queues one packet; returns whether there was room. Otherwise the packet is lost and counted.
    pub fn send(&self, packet: &[u8]) -> bool {
        self.packets.send(packet)
    }

    /// The next packet. Cancel-safe; for one receiver at a time.
    pub async fn receive(&self) -> Result<Bytes, TunnelEnded> {
        self.packets.receive().await
    }

    /// Sends a capsule to the peer; waits while earlier capsules are on their way.
    pub async fn say(&self, capsule: &IpCapsule) -> Result<(), TunnelEnded> {
        let said = self.leaving.send(capsule.encode()).await;
        said.map_err(|_| self.reason())
    }

    /// The peer's next capsule. Cancel-safe. Must be awaited all the time: packets that arrive as
    /// capsules wait behind it.
    pub async fn hear(&self) -> Result<IpCapsule, TunnelEnded> {
        let raw = self.arriving.lock().await.recv().await;
        let raw = raw.ok_or_else(|| self.reason())?;
        IpCapsule::decode(&raw).map_err(|malformed| {
            let reason = TunnelEnded::from(malformed);
            self.packets.end(reason.clone());
            reason
        })
    }

    /// The reason of the courier's end.
    fn reason(&self) -> TunnelEnded {
        self.packets.ended().unwrap_or(TunnelEnded::ByPeer)
    }
}
