//! What an application holds of an IP tunnel (RFC 9484): packets both ways, and the capsules by which the ends agree on addresses and
//! routes. Packets are not looked at here.

pub(crate) mod capsule;

use bytes::Bytes;
use tokio::sync::Mutex;

use crate::datagram_tunnel::{Capsules, DatagramTunnel, TunnelEnded};
pub use capsule::{IpAddressEntry, IpCapsule};

/// Packets between a gateway and a proxy. Dropped, it ends the request.
#[derive(Debug)]
pub struct IpTunnel {
    packets: DatagramTunnel,
    leaving: tokio::sync::mpsc::Sender<Bytes>,
    /// For one listener at a time.
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

    /// Takes one packet to be sent; whether there was room for it. Otherwise it is lost, and counted.
    pub fn send(&self, packet: &[u8]) -> bool {
        self.packets.send(packet)
    }

    /// The next packet. Cancel-safe; for one receiver at a time.
    pub async fn receive(&self) -> Result<Bytes, TunnelEnded> {
        self.packets.receive().await
    }

    /// Tells the peer; waits while what was told before is on its way.
    pub async fn say(&self, capsule: &IpCapsule) -> Result<(), TunnelEnded> {
        let said = self.leaving.send(capsule.encode()).await;
        said.map_err(|_| self.reason())
    }

    /// What the peer tells next. Cancel-safe. To be asked all the time: packets that come as capsules wait behind it.
    pub async fn hear(&self) -> Result<IpCapsule, TunnelEnded> {
        let raw = self.arriving.lock().await.recv().await;
        let raw = raw.ok_or_else(|| self.reason())?;
        IpCapsule::decode(&raw).map_err(|malformed| {
            let reason = TunnelEnded::from(malformed);
            self.packets.end(reason.clone());
            reason
        })
    }

    /// The courier has ended.
    fn reason(&self) -> TunnelEnded {
        self.packets.ended().unwrap_or(TunnelEnded::ByPeer)
    }
}
