//! The emulated link on real loopback sockets.

#![allow(clippy::unwrap_used)]

use std::{future::poll_fn, io::IoSliceMut, net::SocketAddr, pin::Pin, time::Duration};

use emulated_link::{emulate, link::LinkConfig};
use noq::{
    AsyncUdpSocket, Runtime, TokioRuntime, UdpSender,
    udp::{RecvMeta, Transmit},
};
use tokio::time::Instant;

/// Bytes of the IPv4 and UDP headers of a datagram.
const HEADER_BYTES: u64 = 28;

fn socket() -> Box<dyn AsyncUdpSocket> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    TokioRuntime.wrap_udp_socket(socket).unwrap()
}

async fn send(sender: &mut Pin<Box<dyn UdpSender>>, to: SocketAddr, bytes: usize) {
    let contents = vec![7; bytes];
    let transmit = Transmit {
        destination: to,
        ecn: None,
        contents: &contents,
        segment_size: None,
        src_ip: None,
    };
    poll_fn(|cx| sender.as_mut().poll_send(&transmit, cx))
        .await
        .unwrap();
}

/// Receives datagrams until there are `count`, or until none arrives for `patience`.
async fn receive(socket: &mut Box<dyn AsyncUdpSocket>, count: usize, patience: Duration) -> usize {
    let mut seen = 0;
    while seen < count {
        let mut buffer = vec![0; 2048];
        let mut metas = [RecvMeta::default()];
        let receiving =
            poll_fn(|cx| socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut metas));
        match tokio::time::timeout(patience, receiving).await {
            Ok(received) => seen += received.unwrap(),
            Err(_) => break,
        }
    }
    seen
}

const LONG: Duration = Duration::from_secs(10);

#[tokio::test]
async fn both_directions_are_delayed() {
    let delay = Duration::from_millis(30);
    let (mut emulated, control) = emulate(socket(), &LinkConfig::new(1e7, delay), 1);
    let mut plain = socket();
    let (here, there) = (emulated.local_addr().unwrap(), plain.local_addr().unwrap());
    let start = Instant::now();
    send(&mut emulated.create_sender(), there, 1000).await;
    assert_eq!(receive(&mut plain, 1, LONG).await, 1);
    assert!(start.elapsed() >= delay);
    let start = Instant::now();
    send(&mut plain.create_sender(), here, 1000).await;
    assert_eq!(receive(&mut emulated, 1, LONG).await, 1);
    assert!(start.elapsed() >= delay);
    let snapshot = control.snapshot();
    assert_eq!(snapshot.uplink.delivered_packets, 1);
    assert_eq!(snapshot.downlink.delivered_bytes, 1000 + HEADER_BYTES);
}

#[tokio::test]
async fn what_exceeds_the_queue_is_dropped_and_the_rate_holds() {
    // 1 Mbit/s and a queue of 20 packets of 1500 bytes.
    let (emulated, control) = emulate(socket(), &LinkConfig::new(1e6, Duration::ZERO), 2);
    let mut plain = socket();
    let there = plain.local_addr().unwrap();
    let start = Instant::now();
    let mut sender = emulated.create_sender();
    for _ in 0..40 {
        send(&mut sender, there, 1472).await;
    }
    let queued = control.snapshot().uplink.delivered_packets as usize;
    assert!((20..40).contains(&queued), "{queued} of 40 passed");
    assert_eq!(receive(&mut plain, queued, LONG).await, queued);
    assert!(start.elapsed() >= Duration::from_micros(12_000) * queued as u32);
}

#[tokio::test]
async fn a_cut_loses_what_is_under_way_and_what_comes_after() {
    let (emulated, control) = emulate(
        socket(),
        &LinkConfig::new(1e8, Duration::from_millis(50)),
        3,
    );
    let mut plain = socket();
    let there = plain.local_addr().unwrap();
    let mut sender = emulated.create_sender();
    send(&mut sender, there, 100).await;
    control.set_up(false);
    send(&mut sender, there, 100).await;
    control.set_up(true);
    send(&mut sender, there, 100).await;
    assert_eq!(receive(&mut plain, 3, Duration::from_millis(500)).await, 1);
    assert_eq!(control.snapshot().uplink.lost_down, 1);
}
