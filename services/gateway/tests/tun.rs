//! Programs that know no proxy: plain sockets in the gateway's network namespace reach what lies behind the proxy, over two access networks of
//! which one is cut without notice; the kernels of both ends do the rest. Skips where there are no namespaces to be had.

#![allow(clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use clap::Parser;
use service_kit::{
    Context,
    tls::{IdentityFiles, PeerId, authority::LocalAuthority},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tempfile::TempDir;
use testkit::{
    DEADLINE,
    netns::{World, proxy},
    noise,
};

const DEVICES: [(&str, u8); 2] = [("wlan0", 1), ("wwan0", 2)];
const RATE: &str = "20mbit";

const TUN: &str = "braid0";

/// Allowed at the proxy, and not; both are there.
const LISTED: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const UNLISTED: Ipv4Addr = Ipv4Addr::new(10, 8, 1, 2);
const PORT: u16 = 9_000;

/// A few seconds' worth of both networks.
const BYTES: usize = 8_000_000;

/// Each network has to have carried so much of a transfer for it to count as spread.
const SHARE_BYTES: u64 = 500_000;

/// Longer than an answer takes; what is not answered by then was dropped.
const SILENCE: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct GatewayLine {
    #[command(flatten)]
    config: gateway::Config,
}

#[derive(Parser)]
struct ProxyLine {
    #[command(flatten)]
    config: ::proxy::Config,
}

fn with_identity(line: &mut Vec<String>, files: &IdentityFiles) {
    let file = |path: &Path| path.display().to_string();
    for (flag, path) in [
        ("--cert", &files.cert),
        ("--key", &files.key),
        ("--ca", &files.ca),
    ] {
        line.extend([flag.to_owned(), file(path)]);
    }
}

/// Gateway and proxy as they ship, each in its namespace.
struct Stage {
    world: Arc<World>,
    ends: Vec<(Context, JoinHandle<()>)>,
    _dir: TempDir,
}

impl Stage {
    fn start(gateway_flags: &str) -> Option<Self> {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let world = Arc::new(World::new()?);
        world.plug_far();
        for (device, net) in DEVICES {
            world.plug(device, net, RATE);
        }
        service_kit::tls::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let line =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let files = authority
            .issue(&PeerId::service("proxy"), &["proxy".to_owned()])
            .unwrap();
        let mut flags = line(&format!("proxy --listen {} --tun {TUN}", proxy()));
        flags.extend(["--path-telemetry".to_owned(), String::new()]);
        flags.extend(line("--ip-pool 10.64.0.0/24,fd00:64::/112"));
        flags.extend(line("--allow-ip 10.8.0.0/24,fd00:8::/64"));
        with_identity(&mut flags, &files);
        let config = ProxyLine::parse_from(flags).config;
        let context = Context::new("proxy");
        let running = world.spawn("px", {
            let context = context.clone();
            move || async move { ::proxy::run(config, context).await.unwrap() }
        });
        let mut ends = vec![(context, running)];

        let files = authority
            .issue(&PeerId::gateway("acme", "gw-1"), &[])
            .unwrap();
        let mut flags = line(&format!("gateway --listen 127.0.0.1:0 --proxy {}", proxy()));
        flags.extend(["--path-telemetry".to_owned(), String::new()]);
        // Nothing listens there.
        flags.extend(line("--ingest https://127.0.0.1:1"));
        flags.extend(line(&format!("--tun {TUN} {gateway_flags}")));
        let data = dir.path().join("gateway");
        flags.extend(["--data-dir".to_owned(), data.display().to_string()]);
        for (device, _) in DEVICES {
            flags.extend(["--interface".to_owned(), device.to_owned()]);
        }
        with_identity(&mut flags, &files);
        let config = GatewayLine::parse_from(flags).config;
        let context = Context::new("gateway");
        let running = world.spawn("gw", {
            let context = context.clone();
            move || async move { gateway::run(config, None, context).await.unwrap() }
        });
        ends.push((context, running));
        Some(Self {
            world,
            ends,
            _dir: dir,
        })
    }

    /// Runs a program in a namespace, on a thread of its own.
    fn run<T: Send + 'static>(
        &self,
        side: &str,
        program: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.world.spawn(side, move || async move { program() })
    }

    /// Ends the gateway, then the proxy; both must end in order.
    fn stop(self) {
        for (context, running) in self.ends.into_iter().rev() {
            context.shutdown().request();
            running.join().unwrap();
        }
    }
}

/// Asks until it works.
// Blocks the thread of one program.
#[allow(clippy::disallowed_methods)]
fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(it) = attempt() {
            return it;
        }
        assert!(start.elapsed() < DEADLINE, "never");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One echo of ICMP from the address that the kernel chooses; how long it took, if it came back.
fn ping(to: IpAddr, number: u16) -> Option<Duration> {
    let (domain, protocol, kinds) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, [8, 0]),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, [128, 129]),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    let [high, low] = number.to_be_bytes();
    let mut question = [kinds[0], 0, 0, 0, 0x77, 0x77, high, low];
    if to.is_ipv4() {
        let sum = 0x0800 + 0x7777 + u32::from(number);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        question[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    let start = Instant::now();
    let address = SockAddr::from(SocketAddr::new(to, 0));
    socket.send_to(&question, &address).ok()?;
    let mut heard = [0; 256];
    while start.elapsed() < SILENCE {
        let length = (&socket).read(&mut heard).ok()?;
        let message = &heard[if to.is_ipv4() { 20 } else { 0 }..length];
        if message.first() == Some(&kinds[1]) && message[4..8] == question[4..] {
            return Some(start.elapsed());
        }
    }
    None
}

/// Gives whoever connects noise by the byte that it sends; tells from where each came.
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

fn connect(to: Ipv4Addr) -> std::io::Result<std::net::TcpStream> {
    std::net::TcpStream::connect_timeout(&(to, PORT).into(), SILENCE)
}

/// Takes a whole transfer; `midway` runs when a quarter has arrived.
fn transfer(seed: u8, midway: impl FnOnce()) -> Duration {
    let mut stream = connect(LISTED).unwrap();
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
fn a_program_that_knows_no_proxy_goes_on_when_a_network_is_cut() {
    let Some(stage) = Stage::start("--tun-routes") else {
        return;
    };
    let (to, peers) = mpsc::channel();
    let listed = stage.run("far", serve_noise(LISTED, to.clone()));
    let unlisted = stage.run("far", serve_noise(UNLISTED, to));
    // Hears what comes in another's name, if any does.
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

        // Not allowed, though the kernel would send it on; and in another's name.
        world.ip("gw", &format!("route add {UNLISTED} dev {TUN}"));
        assert_eq!(ping(UNLISTED.into(), next()), None);
        assert!(connect(UNLISTED).is_err());
        world.ip("gw", "addr add 10.64.0.254/32 dev lo");
        let forged = std::net::UdpSocket::bind("10.64.0.254:0").unwrap();
        for _ in 0..5 {
            forged.send_to(b"forged", (LISTED, PORT)).unwrap();
        }

        // The same connection before and after; nobody is told of the cut.
        let (device, net) = DEVICES[0];
        let took = transfer(2, || world.cut(device, net));
        println!("with {device} cut after a quarter: {took:?}");
        until(|| ping(LISTED.into(), next()));
        for seed in [3, 0] {
            connect(LISTED).unwrap().write_all(&[seed]).unwrap();
        }
    });
    program.join().unwrap();
    listed.join().unwrap();
    assert!(ear.recv_from(&mut [0; 64]).is_err());
    // The gateway's one address of the pool, throughout.
    let seen: Vec<IpAddr> = peers.try_iter().collect();
    let pool: tunnel::IpPrefix = "10.64.0.0/24".parse().unwrap();
    assert_eq!(seen.len(), 3);
    assert!(
        pool.contains(seen[0]) && seen.iter().all(|it| *it == seen[0]),
        "{seen:?}"
    );
    // So that its thread ends, too; by the way of the core itself.
    let ending = stage.run("far", || {
        connect(UNLISTED).unwrap().write_all(&[0]).unwrap();
    });
    ending.join().unwrap();
    unlisted.join().unwrap();
    stage.stop();
}
