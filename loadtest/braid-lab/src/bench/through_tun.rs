//! `speed.tun_*`: TCP through the gateway's TUN device beside SOCKS5 in the same run, and TCP as
//! packets. Gateway, proxy and destination are in network namespaces without any shaping.
//!
//! Repetitions of both ways take turns, so that other load of the machine affects both; the figure
//! is the ratio of the medians.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use service_kit::tls::PeerId;
use testkit::netns::{UNSHAPED, World, proxy};

use super::figure::{Figure, median};
use super::line::{Process, Scratch, with_identity};
use super::readings::{PATIENCE, POLL_INTERVAL};
use super::speed::{serve_at, through};
use crate::failure::Failure;

const UP: &str = "speed.tun_up_vs_socks5";
const DOWN: &str = "speed.tun_down_vs_socks5";
const PACKETS_UP: &str = "speed.tun_packets_up";
const PACKETS_DOWN: &str = "speed.tun_packets_down";

pub(super) const IDS: [&str; 4] = [UP, DOWN, PACKETS_UP, PACKETS_DOWN];

const DESTINATION: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 8, 0, 2)), 9_000);
const SOCKS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9_001);
const DEVICES: [(&str, u8); 2] = [("wlan0", 1), ("wwan0", 2)];
const DEVICE: &str = "braid0";

const BYTES: u64 = 128 << 20;
/// Bytes that do not count: slow start, MTU discovery, cold caches.
const WARM_UP_BYTES: u64 = 32 << 20;
const REPETITIONS: usize = 7;
/// Target as a ratio to SOCKS5.
const STREAMS_TARGET: f64 = 0.95;
/// Target of TCP as packets: twice the rate of the fastest peer.
const PACKETS_GBIT_TARGET: f64 = 0.9;

/// No figure on hosts without namespaces; standard error says so.
pub(super) fn measure() -> Result<Vec<Figure>, Failure> {
    service_kit::tls::install_provider();
    let Some(world) = World::new() else {
        eprintln!("bench: speed.tun_* are left out: they need root and network namespaces");
        return Ok(Vec::new());
    };
    world.plug_far();
    for (device, net) in DEVICES {
        world.plug(device, net, UNSHAPED);
    }
    let serving = world.spawn("far", || async { serve_at(DESTINATION).map(drop) });
    joined(serving)?;
    let scratch = Scratch::new()?;
    let mut command = braid_in(&world, "px")?;
    command
        .args(["proxy", "--path-telemetry", "", "--log", "warn"])
        .args(["--listen", &proxy().to_string(), "--tun", DEVICE])
        .args(["--ip-pool", "10.64.0.0/24", "--allow-ip", "10.8.0.0/24"])
        .args(["--allow", &DESTINATION.to_string()]);
    with_identity(&mut command, &scratch.identity(&PeerId::service("proxy"))?);
    let _proxy = Process::spawn("braid proxy", &mut command)?;

    let mut figures = Vec::new();
    let gateway = start_gateway(&world, &scratch, "streams")?;
    for (direction, id) in [("up", UP), ("down", DOWN)] {
        let [by_tun, by_socks] = rates(&world, [Way::Tun, Way::Socks], direction)?;
        eprintln!("bench: TCP {direction}: {by_tun:.0} MB/s by TUN, {by_socks:.0} MB/s by SOCKS5");
        let ratio = Figure::at_least(id, "ratio", by_tun / by_socks, STREAMS_TARGET);
        figures.push(ratio.against(by_socks));
    }
    drop(gateway);
    let _gateway = start_gateway(&world, &scratch, "packets")?;
    for (direction, id) in [("up", PACKETS_UP), ("down", PACKETS_DOWN)] {
        let [mb_per_s] = rates(&world, [Way::Tun], direction)?;
        let gbit_per_s = mb_per_s * 8.0 / 1e3;
        figures.push(Figure::at_least(
            id,
            "Gbit/s",
            gbit_per_s,
            PACKETS_GBIT_TARGET,
        ));
    }
    Ok(figures)
}

fn braid_in(world: &World, side: &str) -> Result<Command, Failure> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &world.name(side)]);
    command.arg(lab::shipped::braid().map_err(Failure::other)?);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

/// Returns once each way reaches the destination.
fn start_gateway(world: &World, scratch: &Scratch, tcp: &str) -> Result<Process, Failure> {
    let mut command = braid_in(world, "gw")?;
    command
        .args(["gateway", "--path-telemetry", "", "--ingest", ""])
        .args(["--log", "warn", "--proxy", &proxy().to_string()])
        .args(["--applications", &SOCKS.to_string()])
        .args(["--tun", DEVICE, "--tun-routes", "--tun-tcp", tcp])
        .arg("--data-dir")
        .arg(scratch.path().join(tcp));
    for (device, _) in DEVICES {
        command.args(["--interface", device]);
    }
    let identity = scratch.identity(&PeerId::gateway("default", "bench"))?;
    with_identity(&mut command, &identity);
    let mut process = Process::spawn("braid gateway", &mut command)?;
    for way in [Way::Socks, Way::Tun] {
        let deadline = Instant::now() + PATIENCE;
        while joined(world.spawn("gw", move || async move { way.connect().map(drop) })).is_err() {
            process.is_running()?;
            if Instant::now() > deadline {
                return Err(Failure::other(format!("no connection by {way:?}")));
            }
            pause();
        }
    }
    Ok(process)
}

#[expect(
    clippy::disallowed_methods,
    reason = "no runtime runs here: the bench is a thread"
)]
fn pause() {
    std::thread::sleep(POLL_INTERVAL);
}

fn joined<T>(thread: std::thread::JoinHandle<Result<T, Failure>>) -> Result<T, Failure> {
    thread
        .join()
        .map_err(|_| Failure::other("a thread of the bench failed"))?
}

/// Median MB/s of each way.
fn rates<const N: usize>(
    world: &World,
    ways: [Way; N],
    direction: &'static str,
) -> Result<[f64; N], Failure> {
    let measuring = world.spawn("gw", move || async move {
        for way in ways {
            through(way.connect()?, direction, WARM_UP_BYTES)?;
        }
        let mut seconds: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
        for _ in 0..REPETITIONS {
            for (way, seconds) in ways.iter().zip(&mut seconds) {
                let took: Duration = through(way.connect()?, direction, BYTES)?;
                seconds.push(took.as_secs_f64());
            }
        }
        Ok(seconds.map(|mut seconds| BYTES as f64 / 1e6 / median(&mut seconds)))
    });
    joined(measuring)
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Tun,
    Socks,
}

impl Way {
    /// A connection to the destination, in the gateway's namespace.
    fn connect(self) -> Result<TcpStream, Failure> {
        let stream = match self {
            Self::Tun => TcpStream::connect_timeout(&DESTINATION, Duration::from_secs(1)),
            Self::Socks => by_socks(),
        };
        let stream = stream.map_err(Failure::other)?;
        stream.set_nodelay(true).map_err(Failure::other)?;
        Ok(stream)
    }
}

/// RFC 1928 without authentication.
fn by_socks() -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(SOCKS)?;
    stream.write_all(&[5, 1, 0])?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen)?;
    let mut request = vec![5, 1, 0, 1, 10, 8, 0, 2];
    request.extend(DESTINATION.port().to_be_bytes());
    stream.write_all(&request)?;
    let mut answer = [0; 10];
    stream.read_exact(&mut answer)?;
    match answer[1] {
        0 => Ok(stream),
        code => Err(std::io::Error::other(format!("SOCKS5 answers {code}"))),
    }
}
