//! Programs without proxy support: plain sockets in the gateway's network namespace reach
//! destinations behind the proxy. Two access networks carry them, one of which is cut without
//! notice; the kernels of both ends do the rest. Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

#[path = "tun/stage.rs"]
mod stage;

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr},
    sync::mpsc,
    time::{Duration, Instant},
};

use stage::{DEVICES, LISTED, PORT, SILENCE, Stage, TUN, UNLISTED, ping, until};
use testkit::{DEADLINE, noise};

const RATE: &str = "20mbit";

/// Several seconds of both networks' capacity.
const BYTES: usize = 8_000_000;

/// Bytes that each network must carry for a transfer to count as spread.
const SHARE_BYTES: u64 = 500_000;

/// Sends each client noise by the byte that it sends; reports the clients' addresses.
fn serve_noise(at: Ipv4Addr, peers: mpsc::Sender<IpAddr>) -> impl FnOnce() + Send + 'static {
    move || {
        let listener = std::net::TcpListener::bind((at, PORT)).unwrap();
        while let Ok((mut stream, peer)) = listener.accept() {
            let mut seed = [0];
            if stream.read_exact(&mut seed).is_err() {
                continue;
            }
            if seed == [0] {
                return;
            }
            let _ = peers.send(peer.ip());
            let _ = stream.write_all(&noise(BYTES, seed[0].into()));
        }
    }
}

fn connect(to: Ipv4Addr, patience: Duration) -> std::io::Result<std::net::TcpStream> {
    std::net::TcpStream::connect_timeout(&(to, PORT).into(), patience)
}

/// Runs a whole transfer; `midway` runs when a quarter has arrived.
fn transfer(seed: u8, midway: impl FnOnce()) -> Duration {
    let mut stream = connect(LISTED, DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let start = Instant::now();
    stream.write_all(&[seed]).unwrap();
    let mut all = vec![0; BYTES];
    let (first, rest) = all.split_at_mut(BYTES / 4);
    stream.read_exact(first).unwrap();
    midway();
    stream.read_exact(rest).unwrap();
    assert!(all == noise(BYTES, seed.into()), "bytes differ");
    start.elapsed()
}

#[test]
fn a_program_without_proxy_support_continues_when_a_network_is_cut() {
    let Some(stage) = Stage::start(RATE, "--tun-routes --tun-tcp packets") else {
        return;
    };
    let (to, peers) = mpsc::channel();
    let listed = stage.run("far", serve_noise(LISTED, to.clone()));
    let unlisted = stage.run("far", serve_noise(UNLISTED, to));
    // Receives packets with a false source, if any arrive.
    let ear = stage.run("far", || std::net::UdpSocket::bind((LISTED, PORT)).unwrap());
    let ear = ear.join().unwrap();
    ear.set_nonblocking(true).unwrap();
    let world = stage.world.clone();
    let program = stage.run("gw", move || {
        let number = std::cell::Cell::new(0);
        let next = || {
            number.set(number.get() + 1_u16);
            number.get()
        };
        let v4 = until(|| ping(LISTED.into(), next()));
        let v6 = until(|| ping("fd00:8::2".parse().unwrap(), next()));
        println!("echoes by IPv4 and IPv6 after {v4:?} and {v6:?}");

        let before = DEVICES.map(|(device, _)| world.received(device));
        let took = transfer(1, || {});
        let shares: Vec<u64> = DEVICES
            .iter()
            .zip(before)
            .map(|((device, _), before)| world.received(device) - before)
            .collect();
        println!("{BYTES} bytes after {took:?}, of which the networks carried {shares:?}");
        assert!(
            shares.iter().all(|share| *share > SHARE_BYTES),
            "{shares:?}"
        );

        // A destination that is not permitted, though the kernel would forward to it; and a false
        // source.
        world.ip("gw", &format!("route add {UNLISTED} dev {TUN}"));
        assert_eq!(ping(UNLISTED.into(), next()), None);
        assert!(connect(UNLISTED, SILENCE).is_err());
        world.ip("gw", "addr add 10.64.0.254/32 dev lo");
        let forged = std::net::UdpSocket::bind("10.64.0.254:0").unwrap();
        for _ in 0..5 {
            forged.send_to(b"forged", (LISTED, PORT)).unwrap();
        }

        // The same connection before and after the cut, which is not reported to any end.
        let (device, net) = DEVICES[0];
        let took = transfer(2, || world.cut(device, net));
        println!("with {device} cut after a quarter: {took:?}");
        until(|| ping(LISTED.into(), next()));
        for seed in [3, 0] {
            connect(LISTED, DEADLINE)
                .unwrap()
                .write_all(&[seed])
                .unwrap();
        }
    });
    program.join().unwrap();
    listed.join().unwrap();
    assert!(ear.recv_from(&mut [0; 64]).is_err());
    // The gateway has one address of the pool throughout.
    let seen: Vec<IpAddr> = peers.try_iter().collect();
    let pool: ip_packets::IpPrefix = "10.64.0.0/24".parse().unwrap();
    assert_eq!(seen.len(), 3);
    assert!(
        pool.contains(seen[0]) && seen.iter().all(|it| *it == seen[0]),
        "{seen:?}"
    );
    // Lets its thread end; over the core's own network.
    let ending = stage.run("far", || {
        connect(UNLISTED, DEADLINE)
            .unwrap()
            .write_all(&[0])
            .unwrap();
    });
    ending.join().unwrap();
    unlisted.join().unwrap();
    stage.stop();
}

#[test]
fn a_connection_outlives_the_proxys_restart_and_the_end_of_udp() {
    let Some(stage) = Stage::start(RATE, "--tun-routes --tun-tcp packets") else {
        return;
    };
    let (to, peers) = mpsc::channel();
    let listed = stage.run("far", serve_noise(LISTED, to));
    let (quarter_to, quarter) = mpsc::channel();
    let world = stage.world.clone();
    let program = stage.run("gw", move || {
        until(|| ping(LISTED.into(), 1));
        let took = transfer(1, || quarter_to.send(()).unwrap());
        println!("with the proxy restarted after a quarter: {took:?}");
        let took = transfer(2, || world.block_udp());
        println!("with UDP blocked after a quarter: {took:?}");
        connect(LISTED, DEADLINE).unwrap().write_all(&[0]).unwrap();
    });
    quarter.recv().unwrap();
    // The lease is lost with the proxy; the address follows from the gateway's identity.
    let stage = stage.restart_proxy();
    program.join().unwrap();
    listed.join().unwrap();
    let seen: Vec<IpAddr> = peers.try_iter().collect();
    assert!(seen.len() == 2 && seen[0] == seen[1], "{seen:?}");
    stage.stop();
}

#[test]
fn both_ends_warn_of_a_missing_device() {
    let Some(stage) = Stage::start(RATE, "--tun-routes") else {
        return;
    };
    let program = stage.run("gw", || until(|| ping(LISTED.into(), 1)));
    program.join().unwrap();
    assert_eq!(stage.warn(), [false, false]);
    for (side, expected) in [("px", [false, true]), ("gw", [true, true])] {
        stage.world.ip(side, &format!("link del {TUN}"));
        until(|| (stage.warn() == expected).then_some(()));
    }
    stage.stop();
}

/// One TCP connection of a program without a proxy fills both networks, and continues when one of
/// them is cut silently.
#[test]
fn one_tcp_connection_uses_both_networks_at_once() {
    let Some(stage) = Stage::start(RATE, "--tun-routes") else {
        return;
    };
    let (to, peers) = mpsc::channel();
    let listed = stage.run("far", serve_noise(LISTED, to));
    let world = stage.world.clone();
    let program = stage.run("gw", move || {
        until(|| ping(LISTED.into(), 1));
        // The first transfer ends the start-up of both paths.
        transfer(1, || {});
        let took = transfer(2, || {});
        let mbit_per_s = BYTES as f64 * 8.0 / took.as_secs_f64() / 1e6;
        println!("one connection: {mbit_per_s:.1} Mbit/s, both networks together have 40");
        assert!(mbit_per_s > 1.5 * 20.0, "{mbit_per_s}");
        let (device, net) = DEVICES[0];
        let took = transfer(3, || world.cut(device, net));
        println!("with {device} cut after a quarter: {took:?}");
        // The proxy allows streams only where it allows packets.
        world.ip("gw", &format!("route add {UNLISTED} dev {TUN}"));
        let refused = connect(UNLISTED, DEADLINE).and_then(|mut stream| stream.read(&mut [0; 1]));
        assert!(matches!(refused, Err(_) | Ok(0)), "{refused:?}");
        connect(LISTED, DEADLINE).unwrap().write_all(&[0]).unwrap();
    });
    program.join().unwrap();
    listed.join().unwrap();
    assert_eq!(peers.try_iter().count(), 3);
    assert_eq!(stage.warn_of("tun-tcp"), [false, false]);
    assert!(stage.is_ready());
    stage.stop();
}
