//! Two hosts joined by TUN devices, with offloads at both ends, at one and at none. The program
//! between them sees single packets that fit the MTU, and moves them as they are. Skips on hosts
//! without namespaces.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use host_network::{READ_BYTES_MAX, TunDevice};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use testkit::{DEADLINE, netns::World, noise};
use tokio::sync::mpsc;

const TUN: &str = "braid0";
const MTU: u16 = 1_400;
const PORT: u16 = 9_000;
/// Packets of one read on their way to the other device; further reads wait.
const READS_WAITING_MAX: usize = 64;

/// The addresses of both hosts.
const HOSTS: [[&str; 2]; 2] = [["10.65.0.1", "10.65.0.2"], ["fd00:65::1", "fd00:65::2"]];

const TCP_BYTES: usize = 8 << 20;

/// A datagram for the kernel to cut: 20 of this size and a smaller one.
const SEGMENT_BYTES: usize = 1_200;
const LARGE_BYTES: usize = 20 * SEGMENT_BYTES + 300;

/// Numbers of one direction.
#[derive(Default)]
struct Counts {
    reads: AtomicUsize,
    packets: AtomicUsize,
}

/// Two namespaces with devices, and a relay of packets between them.
struct Line {
    world: World,
    /// Counts of the packets that each side has sent.
    counts: [Arc<Counts>; 2],
}

const SIDES: [&str; 2] = ["gw", "px"];

async fn device(side: usize, offloads: bool) -> TunDevice {
    let device = match offloads {
        true => TunDevice::open(TUN).unwrap(),
        false => TunDevice::open_plain(TUN).unwrap(),
    };
    device.set_up().await.unwrap();
    device.set_mtu(MTU).await;
    for (hosts, length) in HOSTS.iter().zip([24, 64]) {
        let own: IpAddr = hosts[side].parse().unwrap();
        device.add_address(own, length).await.unwrap();
    }
    device
}

async fn move_packets(
    device: TunDevice,
    counts: Arc<Counts>,
    to: mpsc::Sender<Vec<Bytes>>,
    mut from: mpsc::Receiver<Vec<Bytes>>,
) {
    let reading = async {
        let mut buffer = vec![0; READ_BYTES_MAX];
        loop {
            let mut received = device.receive(&mut buffer).await.unwrap();
            let mut packets = Vec::new();
            while let Some(packet) = received.next() {
                assert!(packet.len() <= MTU.into(), "{} bytes", packet.len());
                packets.push(Bytes::copy_from_slice(packet));
            }
            counts.reads.fetch_add(1, Ordering::Relaxed);
            counts.packets.fetch_add(packets.len(), Ordering::Relaxed);
            if to.send(packets).await.is_err() {
                return;
            }
        }
    };
    let writing = async {
        while let Some(mut packets) = from.recv().await {
            while let Ok(more) = from.try_recv() {
                packets.extend(more);
            }
            device.send_all(&packets, |_, accepted| assert!(accepted));
        }
    };
    tokio::join!(reading, writing);
}

impl Line {
    fn start(offloads: [bool; 2]) -> Option<Self> {
        let world = World::new()?;
        let counts: [Arc<Counts>; 2] = Default::default();
        let (up, ups) = mpsc::channel(READS_WAITING_MAX);
        let (down, downs) = mpsc::channel(READS_WAITING_MAX);
        let (ready, prepared) = std::sync::mpsc::channel();
        for (side, (to, from)) in [(up, downs), (down, ups)].into_iter().enumerate() {
            let (counts, ready) = (counts[side].clone(), ready.clone());
            // Until the test's process ends.
            world.spawn(SIDES[side], move || async move {
                let device = device(side, offloads[side]).await;
                ready.send(()).unwrap();
                move_packets(device, counts, to, from).await;
            });
        }
        for _ in SIDES {
            prepared.recv_timeout(DEADLINE).unwrap();
        }
        Some(Self { world, counts })
    }

    /// Runs a program on a side.
    fn run<T: Send + 'static>(
        &self,
        side: usize,
        program: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        self.world.spawn(SIDES[side], || async move { program() })
    }

    /// Packets in a read of that side, on average.
    fn packets_per_read(&self, side: usize) -> f64 {
        let counts = &self.counts[side];
        let reads = counts.reads.swap(0, Ordering::Relaxed);
        counts.packets.swap(0, Ordering::Relaxed) as f64 / reads as f64
    }
}

fn carries_tcp(line: &Line, from: usize, hosts: [IpAddr; 2]) {
    let sent = noise(TCP_BYTES, 7);
    let listener = line.run(1 - from, move || {
        TcpListener::bind((hosts[1 - from], PORT)).unwrap()
    });
    let listener = listener.join().unwrap();
    let receiving = std::thread::spawn(move || {
        let mut got = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
        got
    });
    let sending = line.run(from, {
        let sent = sent.clone();
        move || {
            let mut stream = TcpStream::connect((hosts[1 - from], PORT)).unwrap();
            stream.write_all(&sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            // Until the other end has all.
            stream.read_to_end(&mut Vec::new()).unwrap();
        }
    });
    assert!(receiving.join().unwrap() == sent, "bytes differ");
    sending.join().unwrap();
}

fn cuts_large_datagrams(line: &Line, from: usize, hosts: [IpAddr; 2]) {
    let bind = |side: usize| {
        let bound = line.run(side, move || UdpSocket::bind((hosts[side], PORT)).unwrap());
        bound.join().unwrap()
    };
    let (sender, receiver) = (bind(from), bind(1 - from));
    receiver.set_read_timeout(Some(DEADLINE)).unwrap();
    setsockopt(&sender, UdpGsoSegment, &(SEGMENT_BYTES as i32)).unwrap();
    let large = noise(LARGE_BYTES, 9);
    let to = SocketAddr::new(hosts[1 - from], PORT);
    let mut buffer = [0; 2 * SEGMENT_BYTES];
    for _ in 0..20 {
        sender.send_to(&large, to).unwrap();
        for segment in large.chunks(SEGMENT_BYTES) {
            let length = receiver.recv(&mut buffer).unwrap();
            assert!(buffer[..length] == *segment, "{length} bytes");
        }
    }
    // Nothing more has come.
    receiver
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert!(receiver.recv(&mut buffer).is_err());
}

fn programs_notice_nothing(offloads: [bool; 2]) {
    let Some(line) = Line::start(offloads) else {
        return;
    };
    for hosts in HOSTS {
        let hosts = hosts.map(|host| host.parse().unwrap());
        for (from, has_offloads) in offloads.into_iter().enumerate() {
            line.packets_per_read(from);
            carries_tcp(&line, from, hosts);
            let tcp = line.packets_per_read(from);
            cuts_large_datagrams(&line, from, hosts);
            let udp = line.packets_per_read(from);
            println!("{hosts:?}: packets a read {tcp:.1} of TCP, {udp:.1} of UDP");
            match has_offloads {
                true => assert!(tcp > 2.0 && udp > 2.0),
                false => assert_eq!([tcp, udp], [1.0, 1.0]),
            }
        }
    }
}

#[test]
fn programs_notice_nothing_of_offloads() {
    programs_notice_nothing([true, true]);
}

#[test]
fn programs_notice_nothing_of_offloads_at_one_end() {
    programs_notice_nothing([true, false]);
}

#[test]
fn programs_notice_nothing_without_offloads() {
    programs_notice_nothing([false, false]);
}

#[test]
fn a_device_of_an_operator_is_used_with_offloads_and_without_in_turn() {
    let Some(world) = World::new() else {
        return;
    };
    world.ip("px", &format!("tuntap add mode tun {TUN}"));
    for offloads in [true, false, true] {
        let packets = world.spawn("px", move || async move {
            let device = device(0, offloads).await;
            // The device belongs to this process alone until the end.
            let sending = tokio::task::spawn_blocking(|| {
                let socket = UdpSocket::bind((HOSTS[0][0], PORT)).unwrap();
                setsockopt(&socket, UdpGsoSegment, &(SEGMENT_BYTES as i32)).unwrap();
                let large = vec![7; LARGE_BYTES];
                socket.send_to(&large, (HOSTS[0][1], PORT)).unwrap();
            });
            sending.await.unwrap();
            let mut buffer = vec![0; READ_BYTES_MAX];
            loop {
                let mut received = device.receive(&mut buffer).await.unwrap();
                let mut packets = 0;
                while let Some(packet) = received.next() {
                    // The kernel sends its own packets on a new device as well.
                    packets += usize::from(packet.len() > SEGMENT_BYTES);
                }
                if packets > 0 {
                    return packets;
                }
            }
        });
        let packets = packets.join().unwrap();
        assert_eq!(packets, if offloads { 20 } else { 1 });
    }
}
