//! One UDP socket per access network, joined into the one socket of a QUIC endpoint. Networks come
//! and go while it lives ([`Slots`]).
//!
//! A path is opened with its slot's label as local address. Its datagrams carry the label as
//! `src_ip`, and the fan-out sends each through the socket of that slot. Datagrams without a label
//! belong to the first path of a connection, whose interface is not chosen yet. Until the server
//! has answered they leave over *every* interface, which races the handshake with a single
//! connection. The server keeps the address that reached it first and ignores the copies: before
//! the handshake is confirmed it takes no packet from another address. The first answer settles the
//! interface here.
//!
//! While a dead path is being emptied, the upkeep sends its datagrams over another interface
//! ([`Routes`]); the server sees a change of the client's address. A slot without a socket loses
//! its datagrams, like a dead network.
//!
//! The transport sees all proxies as IPv6, with mapped addresses for IPv4; [`ProxyAddress`]
//! translates between the families.
//!
//! A full socket buffer on one interface must not block the others. With more than one interface
//! such a datagram is dropped, and congestion control sees a loss, as at any full queue.

use std::{
    io::{self, IoSliceMut},
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use noq::{
    AsyncUdpSocket, UdpSender,
    udp::{RecvMeta, Transmit},
};

use crate::{
    client::proxy_address::ProxyAddress,
    paths::{
        routes::{Race, Routes},
        slots::{SharedSocket, Slots, label, slot_of},
    },
    sockets::icmp,
};

/// Consecutive errors of a socket without a datagram; at the bound it is skipped until the next
/// wake-up. So a broken interface does not spin the endpoint.
const RECEIVE_ERRORS_MAX: usize = 16;

/// The sockets of all interfaces as one.
#[derive(Debug)]
pub(crate) struct FanOut {
    slots: Arc<Slots>,
    /// Generation of the table from which the sockets were taken.
    generation: Option<u64>,
    sockets: Vec<Option<SharedSocket>>,
    race: Race,
    routes: Routes,
    /// The first interface of the next receive call, so that none starves.
    next: usize,
    proxy: Arc<ProxyAddress>,
}

impl FanOut {
    pub(crate) fn new(slots: Arc<Slots>, proxy: Arc<ProxyAddress>) -> Self {
        Self {
            slots,
            generation: None,
            sockets: Vec::new(),
            race: Race::default(),
            routes: Routes::default(),
            next: 0,
            proxy,
        }
    }

    pub(crate) fn race(&self) -> Race {
        self.race.clone()
    }

    pub(crate) fn routes(&self) -> Routes {
        self.routes.clone()
    }

    fn refresh(&mut self) {
        let generation = self.slots.generation();
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            let attached = self.slots.attached();
            self.sockets = attached
                .into_iter()
                .map(|slot| slot.map(|attached| attached.socket))
                .collect();
        }
    }
}

impl AsyncUdpSocket for FanOut {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(FanOutSender {
            slots: self.slots.clone(),
            generation: None,
            members: Vec::new(),
            race: self.race.clone(),
            routes: self.routes.clone(),
            proxy: self.proxy.clone(),
        })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.slots.register(cx.waker());
        self.refresh();
        let count = self.sockets.len();
        for offset in 0..count {
            let index = (self.next + offset) % count;
            let Some(socket) = &self.sockets[index] else {
                continue;
            };
            let mut socket = socket.lock();
            // An error of one interface (gone, unreachable) must not end the endpoint, which uses
            // the others.
            for _ in 0..RECEIVE_ERRORS_MAX {
                match socket.poll_recv(cx, bufs, meta) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => {
                        tracing::debug!(slot = index, %error, "receiving failed");
                        if icmp::is_refusal(&error) {
                            self.slots.refused(index);
                        }
                    }
                    Poll::Ready(Ok(received)) => {
                        for meta in meta.iter_mut().take(received) {
                            meta.dst_ip = Some(label(index));
                            meta.addr = mapped(self.proxy.known_as(meta.addr));
                        }
                        self.race.settle(index);
                        self.slots.heard(index);
                        self.next = (index + 1) % count;
                        return Poll::Ready(Ok(received));
                    }
                }
            }
        }
        Poll::Pending
    }

    /// No interface's address; the endpoint reads only the family.
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok((Ipv6Addr::UNSPECIFIED, 0).into())
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.slots.receive_segments()
    }

    fn may_fragment(&self) -> bool {
        let attached = self.slots.attached();
        attached
            .iter()
            .flatten()
            .any(|attached| attached.socket.lock().may_fragment())
    }
}

/// The address in the endpoint's view.
fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
        SocketAddr::V6(_) => address,
    }
}

#[derive(Debug)]
struct Member {
    ipv6: bool,
    socket: SharedSocket,
    sender: Pin<Box<dyn UdpSender>>,
}

#[derive(Debug)]
struct FanOutSender {
    slots: Arc<Slots>,
    generation: Option<u64>,
    members: Vec<Option<Member>>,
    race: Race,
    routes: Routes,
    proxy: Arc<ProxyAddress>,
}

impl FanOutSender {
    fn refresh(&mut self) {
        let generation = self.slots.generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let mut before = std::mem::take(&mut self.members);
        before.resize_with(crate::paths::slots::SLOTS_MAX, || None);
        let attached = self.slots.attached().into_iter();
        self.members = attached
            .zip(before)
            .map(|(attached, before)| {
                let attached = attached?;
                if let Some(member) = before
                    && Arc::ptr_eq(&member.socket, &attached.socket)
                {
                    return Some(member);
                }
                let sender = attached.socket.lock().create_sender();
                Some(Member {
                    ipv6: attached.local_ip.is_ipv6(),
                    sender,
                    socket: attached.socket,
                })
            })
            .collect();
    }

    fn send_over(
        &mut self,
        index: usize,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let alone = self.members.iter().flatten().count() == 1;
        let Some(Some(member)) = self.members.get_mut(index) else {
            return Poll::Ready(Ok(()));
        };
        let destination = SocketAddr::new(
            transmit.destination.ip().to_canonical(),
            transmit.destination.port(),
        );
        let Some(destination) = self.proxy.reached_by(destination, member.ipv6) else {
            return Poll::Ready(Ok(()));
        };
        // The socket is bound to its address already.
        let transmit = Transmit {
            destination,
            src_ip: None,
            ..transmit.clone()
        };
        match member.sender.as_mut().poll_send(&transmit, cx) {
            Poll::Pending if alone => Poll::Pending,
            Poll::Pending => {
                metrics::counter!("braid_tunnel_socket_full_datagrams_total").increment(1);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                tracing::debug!(slot = index, %error, "sending failed");
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
        }
    }
}

impl UdpSender for FanOutSender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.refresh();
        let chosen = match transmit.src_ip {
            Some(ip) => match slot_of(ip) {
                Some(own) => this.routes.get(own),
                // No label: the datagram has no interface and counts as lost.
                None => return Poll::Ready(Ok(())),
            },
            None => {
                let winner = this.race.winner();
                match winner.filter(|index| matches!(this.members.get(*index), Some(Some(_)))) {
                    Some(index) => index,
                    None => {
                        for index in 1..this.members.len() {
                            let _ = this.send_over(index, transmit, cx);
                        }
                        0
                    }
                }
            }
        };
        this.send_over(chosen, transmit, cx)
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.members
            .iter()
            .flatten()
            .map(|member| member.sender.max_transmit_segments())
            .min()
            .unwrap_or(NonZeroUsize::MIN)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{collections::VecDeque, net::IpAddr, sync::Arc, task::Waker};

    use parking_lot::Mutex;

    use super::*;
    use crate::sockets::interface::Interface;

    #[derive(Debug, Default)]
    struct Wire {
        sent: Vec<Option<IpAddr>>,
        to_receive: VecDeque<io::Result<usize>>,
        full: bool,
    }

    #[derive(Debug, Clone, Default)]
    struct Fake(Arc<Mutex<Wire>>);

    impl AsyncUdpSocket for Fake {
        fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
            Box::pin(self.clone())
        }

        fn poll_recv(
            &mut self,
            _: &mut Context<'_>,
            _: &mut [IoSliceMut<'_>],
            _: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            match self.0.lock().to_receive.pop_front() {
                Some(received) => Poll::Ready(received),
                None => Poll::Pending,
            }
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
        }
    }

    impl UdpSender for Fake {
        fn poll_send(
            self: Pin<&mut Self>,
            transmit: &Transmit<'_>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            let mut wire = self.0.lock();
            if wire.full {
                return Poll::Pending;
            }
            wire.sent.push(transmit.src_ip);
            Poll::Ready(Ok(()))
        }
    }

    struct Bench {
        wires: Vec<Fake>,
        slots: Arc<Slots>,
        fan_out: FanOut,
        sender: Pin<Box<dyn UdpSender>>,
    }

    fn interface(index: usize, wire: &Fake) -> Interface {
        Interface {
            name: format!("way-{index}"),
            // Both interfaces have the same address, as some modems give it.
            local_ip: IpAddr::from([192, 168, 8, 100]),
            device: None,
            socket: Box::new(wire.clone()),
        }
    }

    impl Bench {
        fn new(count: usize) -> Self {
            let wires: Vec<Fake> = (0..count).map(|_| Fake::default()).collect();
            let interfaces = wires.iter().enumerate();
            let interfaces = interfaces.map(|(index, wire)| interface(index, wire));
            let slots = Slots::new(interfaces.collect());
            let proxy = ProxyAddress::new(None, [([127, 0, 0, 1], 2).into()]);
            let fan_out = FanOut::new(slots.clone(), proxy);
            let sender = fan_out.create_sender();
            Self {
                wires,
                slots,
                fan_out,
                sender,
            }
        }

        fn send(&mut self, src_ip: Option<IpAddr>) -> bool {
            let transmit = Transmit {
                destination: mapped(([127, 0, 0, 1], 2).into()),
                ecn: None,
                contents: b"x",
                segment_size: None,
                src_ip,
            };
            let mut cx = Context::from_waker(Waker::noop());
            self.sender
                .as_mut()
                .poll_send(&transmit, &mut cx)
                .is_ready()
        }

        fn receive(&mut self) -> Option<IpAddr> {
            let mut metas = [RecvMeta::default()];
            let mut cx = Context::from_waker(Waker::noop());
            match self.fan_out.poll_recv(&mut cx, &mut [], &mut metas) {
                Poll::Ready(received) => {
                    received.unwrap();
                    metas[0].dst_ip
                }
                Poll::Pending => None,
            }
        }

        fn sent(&self) -> Vec<usize> {
            self.wires
                .iter()
                .map(|wire| wire.0.lock().sent.len())
                .collect()
        }
    }

    #[test]
    fn the_handshake_races_until_the_first_answer() {
        let mut bench = Bench::new(3);
        bench.send(None);
        assert_eq!(bench.sent(), [1, 1, 1]);
        assert_eq!(bench.fan_out.race.winner(), None);
        bench.wires[1].0.lock().to_receive.push_back(Ok(1));
        assert_eq!(bench.receive(), Some(label(1)));
        bench.send(None);
        assert_eq!(bench.sent(), [1, 2, 1]);
        // A later datagram on another interface changes nothing.
        bench.wires[0].0.lock().to_receive.push_back(Ok(1));
        assert_eq!(bench.receive(), Some(label(0)));
        assert_eq!(bench.fan_out.race.winner(), Some(1));
        bench.fan_out.race().start();
        bench.send(None);
        assert_eq!(bench.sent(), [2, 3, 2]);
    }

    #[test]
    fn a_path_has_its_own_interface_unless_it_is_rerouted() {
        let mut bench = Bench::new(2);
        bench.send(Some(label(1)));
        assert_eq!(bench.sent(), [0, 1]);
        let routes = bench.fan_out.routes();
        routes.belong_to(7);
        routes.set(6, 1, 0);
        bench.send(Some(label(1)));
        assert_eq!(bench.sent(), [0, 2], "another session's route is ignored");
        routes.set(7, 1, 0);
        bench.send(Some(label(1)));
        assert_eq!(bench.sent(), [1, 2]);
        assert_eq!(bench.wires[0].0.lock().sent, [None]);
        routes.belong_to(8);
        bench.send(Some(label(1)));
        assert_eq!(bench.sent(), [1, 3]);
        assert!(bench.send(Some(label(9))), "no such slot: lost");
        assert!(bench.send(Some([127, 0, 0, 1].into())), "no label: lost");
        assert_eq!(bench.sent(), [1, 3]);
    }

    #[test]
    fn networks_come_and_go() {
        let mut bench = Bench::new(1);
        let late = Fake::default();
        bench.send(Some(label(1)));
        assert_eq!(bench.slots.attach(interface(1, &late)), Ok(1));
        bench.wires.push(late);
        bench.send(Some(label(1)));
        assert_eq!(bench.sent(), [0, 1]);
        bench.wires[1].0.lock().to_receive.push_back(Ok(1));
        assert_eq!(bench.receive(), Some(label(1)));
        // The winner of the race disappears: the race is open again.
        assert!(bench.slots.detach("way-1"));
        assert!(!bench.slots.detach("way-1"));
        bench.send(None);
        bench.send(Some(label(1)));
        assert_eq!(bench.sent(), [1, 1]);
        bench.wires[1].0.lock().to_receive.push_back(Ok(1));
        assert_eq!(bench.receive(), None);
        // It returns with another socket, in its old slot.
        let again = Fake::default();
        assert_eq!(bench.slots.attach(interface(1, &again)), Ok(1));
        bench.wires.push(again);
        bench.send(Some(label(1)));
        assert_eq!(bench.sent(), [1, 1, 1]);
    }

    #[test]
    fn a_place_is_reused_only_when_no_other_is_free() {
        use crate::paths::slots::{AttachError, SLOTS_MAX};
        let bench = Bench::new(SLOTS_MAX);
        let one_more = || interface(SLOTS_MAX, &Fake::default());
        assert_eq!(bench.slots.attach(one_more()), Err(AttachError::Full));
        assert!(bench.slots.detach("way-3"));
        assert_eq!(bench.slots.attach(one_more()), Ok(3));
        assert_eq!(
            bench.slots.attach(interface(3, &Fake::default())),
            Err(AttachError::Full)
        );
    }

    #[test]
    fn a_full_or_broken_interface_does_not_block_the_others() {
        let mut bench = Bench::new(2);
        bench.wires[0].0.lock().full = true;
        assert!(bench.send(Some(label(0))));
        assert!(bench.send(Some(label(1))));
        assert_eq!(bench.sent(), [0, 1]);
        let broken = (0..RECEIVE_ERRORS_MAX).map(|_| Err(io::ErrorKind::NetworkDown.into()));
        bench.wires[0].0.lock().to_receive.extend(broken);
        bench.wires[1].0.lock().to_receive.push_back(Ok(1));
        assert_eq!(bench.receive(), Some(label(1)));
        assert_eq!(bench.receive(), None);
        let mut alone = Bench::new(1);
        alone.wires[0].0.lock().full = true;
        assert!(!alone.send(Some(label(0))), "alone it may wait");
    }
}
