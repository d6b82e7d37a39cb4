//! The cost of gateway and proxy for a datagram over loopback, direct and through a SOCKS5
//! association. It measures sequential round trips, and a steady stream with its losses.
//!
//! `cargo run --release -p gateway --example datagrams`

#![allow(clippy::unwrap_used)]

#[path = "../tests/applications/stage.rs"]
mod stage;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use stage::Stage;
use testkit::udp_echo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
    time::MissedTickBehavior,
};

/// Payload of a datagram.
const PAYLOAD_BYTES: usize = 1_000;

const ROUND_TRIPS: usize = 5_000;

/// Datagrams of the steady stream at once, and their interval.
const AT_ONCE: u32 = 20;
const TURNS: u32 = 500;
const TURN: Duration = Duration::from_millis(10);

/// A datagram that is not back by then was lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// A route to the destination: the address to send to, and the header of each datagram.
struct Way {
    socket: Arc<UdpSocket>,
    header: Vec<u8>,
}

impl Way {
    async fn to(address: SocketAddr, header: Vec<u8>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(address).await.unwrap();
        Self {
            socket: Arc::new(socket),
            header,
        }
    }

    fn datagram(&self) -> Vec<u8> {
        let mut datagram = self.header.clone();
        datagram.resize(self.header.len() + PAYLOAD_BYTES, 7);
        datagram
    }

    /// One round trip; `None` if it was lost.
    async fn round_trip(&self) -> Option<Duration> {
        let datagram = self.datagram();
        let mut buffer = [0; 2_048];
        let start = Instant::now();
        self.socket.send(&datagram).await.unwrap();
        let back = tokio::time::timeout(LOST_AFTER, self.socket.recv(&mut buffer)).await;
        assert_eq!(back.ok()?.unwrap(), datagram.len());
        Some(start.elapsed())
    }

    /// Returned datagrams of a steady stream, sent datagrams, and the rate a second.
    async fn stream(&self) -> (u32, u32, f64) {
        let sent = AT_ONCE * TURNS;
        let sending = tokio::spawn({
            let (socket, datagram) = (self.socket.clone(), self.datagram());
            async move {
                let mut ticks = tokio::time::interval(TURN);
                // A busy machine sends later, and not more at once.
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let start = Instant::now();
                for _ in 0..TURNS {
                    ticks.tick().await;
                    for _ in 0..AT_ONCE {
                        socket.send(&datagram).await.unwrap();
                    }
                }
                start.elapsed()
            }
        });
        let mut buffer = [0; 2_048];
        let mut back = 0;
        while back < sent {
            match tokio::time::timeout(LOST_AFTER, self.socket.recv(&mut buffer)).await {
                Ok(received) => back += u32::from(received.is_ok()),
                Err(_) => break,
            }
        }
        let took = sending.await.unwrap();
        (back, sent, f64::from(sent) / took.as_secs_f64())
    }

    async fn measure(&self, name: &str) {
        // The first opens the flow.
        while self.round_trip().await.is_none() {}
        let mut times = Vec::new();
        for _ in 0..ROUND_TRIPS {
            times.extend(self.round_trip().await);
        }
        times.sort();
        let us = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
        let (back, sent, rate) = self.stream().await;
        println!(
            "{name}: round trip {} us in the middle, {} us at 99 %; {} of {ROUND_TRIPS} lost; at {rate:.0}/s {} of {sent} lost",
            us(0.5),
            us(0.99),
            ROUND_TRIPS - times.len(),
            sent - back,
        );
    }
}

#[tokio::main]
async fn main() {
    let to = udp_echo().await;
    let IpAddr::V4(ip) = to.ip() else {
        unreachable!("bound to an IPv4 address");
    };
    let mut header = vec![0, 0, 0, 1];
    header.extend(ip.octets());
    header.extend(to.port().to_be_bytes());
    let stage = Stage::start(&[to.to_string()], &[]).await;
    let mut connection = stage.connect().await;
    let request = [5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    connection.write_all(&request).await.unwrap();
    let mut answer = [0; 12];
    connection.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..4], [5, 0, 5, 0]);
    let relay = (
        stage.address.ip(),
        u16::from_be_bytes([answer[10], answer[11]]),
    );
    Way::to(to, Vec::new()).await.measure("direct").await;
    Way::to(relay.into(), header)
        .await
        .measure("through gateway and proxy")
        .await;
    drop(connection);
    stage.stop().await;
}
