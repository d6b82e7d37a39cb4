//! The application's end of an IP tunnel (RFC 9484): packets in both directions, and capsules for
//! addresses and routes. Packets are not inspected here.

pub(crate) mod capsule;

use std::time::{Duration, Instant};

use bytes::Bytes;
use ip_packets::too_big;
use tokio::sync::{Mutex, watch};

use crate::carried::datagram_tunnel::{Capsules, DatagramTunnel, ended::TunnelEnded};
use capsule::IpCapsule;

/// Answers to packets that are too large, each second; beyond it they go as capsules.
const ANSWERS_MAX: u32 = 100;

/// Packets between a gateway and a proxy. Dropping it ends the request.
#[derive(Debug)]
pub struct IpTunnel {
    packets: DatagramTunnel,
    leaving: tokio::sync::mpsc::Sender<Bytes>,
    /// For one receiver at a time.
    arriving: Mutex<tokio::sync::mpsc::Receiver<capsule::Raw>>,
    /// The begin of a second, and the answers given in it.
    answers: parking_lot::Mutex<(Instant, u32)>,
}

impl IpTunnel {
    pub(crate) fn new((packets, capsules): (DatagramTunnel, Capsules)) -> Self {
        Self {
            packets,
            leaving: capsules.leaving,
            arriving: Mutex::new(capsules.arriving),
            answers: parking_lot::Mutex::new((Instant::now(), 0)),
        }
    }

    /// Queues one packet; returns whether there was room. Otherwise the packet is lost and counted.
    pub fn send(&self, packet: &[u8]) -> bool {
        self.packets.send(packet)
    }

    /// The same for a packet that goes by two paths at once. Its destination gets it once, and the
    /// answers to its flow come by two paths as well.
    pub fn send_copied(&self, packet: &[u8]) -> bool {
        self.packets.send_copied(packet)
    }

    /// The largest packet that goes in one piece over each path; `None` until it is known, or if no
    /// size matters.
    pub fn packet_size(&self) -> watch::Receiver<Option<u16>> {
        self.packets.packet_size().clone()
    }

    /// The answer of ICMP to the sender of a packet that is larger than that. `None` if the packet
    /// is to be sent: it fits, or nobody may be answered and it goes as a capsule.
    pub fn too_big(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let size = (*self.packets.packet_size().borrow())?;
        if packet.len() <= usize::from(size) {
            return None;
        }
        let answer = too_big(packet, size)?;
        let mut answers = self.answers.lock();
        if answers.0.elapsed() > Duration::from_secs(1) {
            *answers = (Instant::now(), 0);
        }
        answers.1 += 1;
        (answers.1 <= ANSWERS_MAX).then_some(answer)
    }

    /// The next packet. Cancel-safe; for one receiver at a time.
    pub async fn receive(&self) -> Result<Bytes, TunnelEnded> {
        self.packets.receive().await
    }

    /// The next packets, at most 64, into an empty buffer. Cancel-safe; for one receiver at a time.
    pub async fn receive_many(&self, packets: &mut Vec<Bytes>) -> Result<(), TunnelEnded> {
        self.packets.receive_many(packets).await
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

    /// The reason of the relay's end.
    fn reason(&self) -> TunnelEnded {
        self.packets.ended().unwrap_or(TunnelEnded::ByPeer)
    }
}
