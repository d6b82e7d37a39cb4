//! The cost of the way through TUN devices, in network namespaces (root). It measures sequential
//! round trips and a download by plain sockets, directly over one network and through gateway and
//! proxy.
//!
//! `cargo run --release -p gateway --example packets`

#![allow(clippy::unwrap_used)]

#[path = "../tests/tun/stage.rs"]
mod stage;

use std::{
    io::{Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use stage::{DEVICES, LISTED, PORT, Stage, ping, ping_by, until};

/// Far more than a tunnel on this machine carries.
const RATE: &str = "10gbit";

const ROUND_TRIPS: u16 = 2_000;

const DOWNLOADS: usize = 5;
const BYTES: usize = 100_000_000;

/// Sends each of this many connections its bytes.
fn serve(connections: usize) {
    let listener = std::net::TcpListener::bind((LISTED, PORT)).unwrap();
    let chunk = vec![7; 64 * 1024];
    for _ in 0..connections {
        let (mut stream, _) = listener.accept().unwrap();
        let mut left = BYTES;
        while left > 0 {
            let taken = left.min(chunk.len());
            stream.write_all(&chunk[..taken]).unwrap();
            left -= taken;
        }
    }
}

fn download(device: Option<&str>) -> Duration {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind_device(device.map(str::as_bytes)).unwrap();
    let address: SocketAddr = (LISTED, PORT).into();
    socket.connect(&address.into()).unwrap();
    let start = Instant::now();
    let mut buffer = vec![0; 256 * 1024];
    let mut received = 0;
    while received < BYTES {
        let count = (&socket).read(&mut buffer).unwrap();
        assert!(count > 0, "torn");
        received += count;
    }
    start.elapsed()
}

fn measure(name: &str, device: Option<&str>) {
    let trips = (1..=ROUND_TRIPS).map(|number| ping_by(device, LISTED.into(), number));
    let mut trips: Vec<Duration> = trips.flatten().collect();
    assert!(!trips.is_empty(), "nothing comes back");
    trips.sort();
    let us = |share: f64| trips[((trips.len() - 1) as f64 * share) as usize].as_micros();
    let lost = usize::from(ROUND_TRIPS) - trips.len();
    let mut rates: Vec<f64> = (0..DOWNLOADS)
        .map(|_| BYTES as f64 * 8.0 / 1e6 / download(device).as_secs_f64())
        .collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "{name}: round trip {} us in the middle, {} us at 99 %, {lost} of {ROUND_TRIPS} lost; download {:.0} Mbit/s in the middle, {:.0} to {:.0}",
        us(0.5),
        us(0.99),
        rates[DOWNLOADS / 2],
        rates[0],
        rates[DOWNLOADS - 1],
    );
}

fn main() {
    let Some(stage) = Stage::start(RATE, "--tun-routes") else {
        return;
    };
    // The route without a tunnel.
    stage.world.ip("rt", "route add 10.8.0.0/24 via 10.9.0.2");
    let serving = stage.run("far", || serve(2 * DOWNLOADS));
    let program = stage.run("gw", || {
        until(|| ping(LISTED.into(), 1));
        measure("direct", Some(DEVICES[0].0));
        measure("through gateway and proxy", None);
    });
    program.join().unwrap();
    serving.join().unwrap();
    stage.stop();
}
