//! `speed.*`: the cost of gateway and proxy, against a bare pair of the library and against a
//! direct connection, all in one run.
//!
//! Bulk: repetitions of all sides take turns, so that other load of the machine affects all; the
//! figure is the ratio of the medians. The bare pair generates and discards its bytes. A second
//! pair stands between two TCP connections, like gateway and proxy (`joined`): on fully loaded
//! cores it is the bound that they could reach.
//!
//! Latency: an open loop, so a late answer delays no later request and every request's time counts
//! from when it was due. Slices with and without the tunnel take turns, and the quantiles are
//! exact, over all samples.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::figure::{Figure, median, quantile_ms};
use super::line::{Bare, Joined, Line, Scratch};
use crate::failure::Failure;

const BULK_UP: &str = "speed.bulk_up_vs_noq";
const BULK_DOWN: &str = "speed.bulk_down_vs_noq";
const CPU_UP: &str = "speed.cpu_up_vs_noq";
const CPU_DOWN: &str = "speed.cpu_down_vs_noq";
const PER_SEND: &str = "speed.datagrams_per_send";
const PER_RECEIVE: &str = "speed.datagrams_per_receive";
const LATENCY: &str = "speed.latency_added_p99";
const JOINED_UP: &str = "speed.bulk_up_vs_joined";
const JOINED_DOWN: &str = "speed.bulk_down_vs_joined";

pub(super) const IDS: [&str; 9] = [
    BULK_UP,
    BULK_DOWN,
    CPU_UP,
    CPU_DOWN,
    PER_SEND,
    PER_RECEIVE,
    LATENCY,
    JOINED_UP,
    JOINED_DOWN,
];

const BULK_BYTES: u64 = 256 << 20;
/// Bytes that do not count: slow start, MTU discovery, cold caches.
const WARM_UP_BYTES: u64 = 64 << 20;
const REPETITIONS: usize = 7;
const BLOCK_BYTES: usize = 256 << 10;
/// Target as a ratio to the bare pair.
const BULK_TARGET: f64 = 0.85;
/// Without segmentation offload in either direction each datagram needs a system call.
const DATAGRAMS_PER_CALL_TARGET: f64 = 2.0;

const REQUESTS_PER_S: u32 = 1_000;
const REQUEST_BYTES: usize = 64;
/// Connections that the requests use in turn.
const CONNECTIONS: usize = 8;
const SLICE: Duration = Duration::from_secs(3);
const SLICES: usize = 4;
const LATENCY_TARGET_MS: f64 = 1.0;

/// First byte of a connection to the destination: its purpose.
const UP: u8 = b'u';
const DOWN: u8 = b'd';
const ECHO: u8 = b'e';

/// All figures, since they share the processes.
pub(super) fn measure() -> Result<Vec<Figure>, Failure> {
    let scratch = Scratch::new()?;
    let destination = destination()?;
    let line = Line::start(&scratch, destination)?;
    let mut figures = bulk(&scratch, &line, destination)?;
    let (per_send, per_receive) = line.datagrams_per_call()?;
    for (id, per_call) in [(PER_SEND, per_send), (PER_RECEIVE, per_receive)] {
        let target = DATAGRAMS_PER_CALL_TARGET;
        figures.push(Figure::at_least(id, "datagrams", per_call, target));
    }
    figures.push(latency(&line, destination)?);
    Ok(figures)
}

fn destination() -> Result<SocketAddr, Failure> {
    serve_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// Serves the purpose in each connection's first byte, in one thread each, until the process ends.
pub(super) fn serve_at(address: SocketAddr) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind(address).map_err(Failure::other)?;
    let address = listener.local_addr().map_err(Failure::other)?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The other end reports the error.
            thread::spawn(move || serve(stream));
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut purpose = [0];
    stream.read_exact(&mut purpose)?;
    match purpose[0] {
        UP => {
            drain(&mut stream)?;
            stream.write_all(&[0])
        }
        DOWN => {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes)?;
            pour(&mut stream, u64::from_be_bytes(bytes))
        }
        _ => {
            let mut request = [0; REQUEST_BYTES];
            loop {
                stream.read_exact(&mut request)?;
                stream.write_all(&request)?;
            }
        }
    }
}

fn pour(stream: &mut TcpStream, bytes: u64) -> std::io::Result<()> {
    let block = vec![0x5a; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(BLOCK_BYTES as u64);
        stream.write_all(&block[..count as usize])?;
        left -= count;
    }
    stream.shutdown(Shutdown::Write)
}

fn drain(stream: &mut TcpStream) -> std::io::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut sum = 0;
    loop {
        match stream.read(&mut block)? {
            0 => return Ok(sum),
            count => sum += count as u64,
        }
    }
}

/// Moves `bytes` over a connection to the destination and returns the time that it took.
pub(super) fn through(
    mut stream: TcpStream,
    direction: &str,
    bytes: u64,
) -> Result<Duration, Failure> {
    let since = Instant::now();
    let (expected, got) = match direction {
        "up" => {
            let sent = stream
                .write_all(&[UP])
                .and_then(|()| pour(&mut stream, bytes));
            sent.map_err(Failure::other)?;
            (1, drain(&mut stream).map_err(Failure::other)?)
        }
        _ => {
            let order = [&[DOWN][..], &bytes.to_be_bytes()].concat();
            stream.write_all(&order).map_err(Failure::other)?;
            (bytes, drain(&mut stream).map_err(Failure::other)?)
        }
    };
    let took = since.elapsed();
    match got == expected {
        true => Ok(took),
        false => Err(Failure::other(format!(
            "{got} bytes came through instead of {expected}"
        ))),
    }
}

/// One side of the comparison: seconds of each repetition, and processor time of both its processes
/// in total.
#[derive(Default)]
struct Side {
    seconds: Vec<f64>,
    cpu: Duration,
}

impl Side {
    fn mb_per_s(&mut self) -> f64 {
        BULK_BYTES as f64 / 1e6 / median(&mut self.seconds)
    }

    fn cpu_ns_per_byte(&self) -> f64 {
        self.cpu.as_nanos() as f64 / (BULK_BYTES * REPETITIONS as u64) as f64
    }
}

fn bulk(scratch: &Scratch, line: &Line, destination: SocketAddr) -> Result<Vec<Figure>, Failure> {
    let mut bare = Bare::start(scratch)?;
    let joined = Joined::start(scratch, destination)?;
    let mut figures = Vec::new();
    for (direction, speed_id, cpu_id, joined_id) in [
        ("up", BULK_UP, CPU_UP, JOINED_UP),
        ("down", BULK_DOWN, CPU_DOWN, JOINED_DOWN),
    ] {
        let [mut ours, mut reference, mut most]: [Side; 3] = Default::default();
        through(line.connect(destination)?, direction, WARM_UP_BYTES)?;
        bare.transfer(direction, WARM_UP_BYTES)?;
        through(joined.connect()?, direction, WARM_UP_BYTES)?;
        for _ in 0..REPETITIONS {
            let before = line.gateway.cpu()? + line.proxy.cpu()?;
            let took = through(line.connect(destination)?, direction, BULK_BYTES)?;
            ours.seconds.push(took.as_secs_f64());
            ours.cpu += line.gateway.cpu()? + line.proxy.cpu()? - before;
            let before = bare.ends.cpu()?;
            let took = bare.transfer(direction, BULK_BYTES)?;
            reference.seconds.push(took.as_secs_f64());
            reference.cpu += bare.ends.cpu()? - before;
            let before = joined.ends.cpu()?;
            let took = through(joined.connect()?, direction, BULK_BYTES)?;
            most.seconds.push(took.as_secs_f64());
            most.cpu += joined.ends.cpu()? - before;
        }
        let (ours_mb, bare_mb) = (ours.mb_per_s(), reference.mb_per_s());
        let (ours_ns, bare_ns) = (ours.cpu_ns_per_byte(), reference.cpu_ns_per_byte());
        let (joined_mb, joined_ns) = (most.mb_per_s(), most.cpu_ns_per_byte());
        eprintln!(
            "bench: bulk {direction}: {ours_mb:.0} MB/s through gateway and proxy, {bare_mb:.0} MB/s bare, {joined_mb:.0} MB/s bare between TCP connections; {ours_ns:.2}, {bare_ns:.2} and {joined_ns:.2} ns of processor time a byte"
        );
        let ratio = Figure::at_least(speed_id, "ratio", ours_mb / bare_mb, BULK_TARGET);
        figures.push(ratio.against(bare_mb));
        figures.push(Figure::plain(joined_id, "ratio", ours_mb / joined_mb).against(joined_mb));
        figures.push(Figure::plain(cpu_id, "ns/byte", ours_ns).against(bare_ns));
    }
    Ok(figures)
}

fn latency(line: &Line, destination: SocketAddr) -> Result<Figure, Failure> {
    let direct = connections(|| {
        let stream = TcpStream::connect(destination).map_err(Failure::other)?;
        stream.set_nodelay(true).map_err(Failure::other)?;
        Ok(stream)
    })?;
    let tunnelled = connections(|| line.connect(destination))?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        without.extend(open_loop(&direct)?);
        with.extend(open_loop(&tunnelled)?);
    }
    for samples in [&mut without, &mut with] {
        samples.sort_unstable();
    }
    eprintln!(
        "bench: {REQUESTS_PER_S} requests/s: p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms through gateway and proxy; {:.3}, {:.3}, {:.3} ms direct",
        quantile_ms(&with, 0.5),
        quantile_ms(&with, 0.99),
        quantile_ms(&with, 0.999),
        quantile_ms(&without, 0.5),
        quantile_ms(&without, 0.99),
        quantile_ms(&without, 0.999),
    );
    let direct_ms = quantile_ms(&without, 0.99);
    let added_ms = quantile_ms(&with, 0.99) - direct_ms;
    Ok(Figure::at_most(LATENCY, "ms", added_ms, LATENCY_TARGET_MS).against(direct_ms))
}

fn connections(
    mut connect: impl FnMut() -> Result<TcpStream, Failure>,
) -> Result<Vec<TcpStream>, Failure> {
    let mut streams = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut stream = connect()?;
        stream.write_all(&[ECHO]).map_err(Failure::other)?;
        streams.push(stream);
    }
    Ok(streams)
}

#[expect(
    clippy::disallowed_methods,
    reason = "no runtime runs here: its timers have a resolution of a millisecond, a thread's of 50 us"
)]
/// Sends at fixed moments, whatever has been answered; each answer contains the moment at which its
/// request was due.
fn open_loop(streams: &[TcpStream]) -> Result<Vec<Duration>, Failure> {
    let count = (SLICE.as_secs_f64() * f64::from(REQUESTS_PER_S)) as u32;
    let pause = Duration::from_secs(1) / REQUESTS_PER_S;
    let start = Instant::now() + pause;
    let mut readers: Vec<JoinHandle<std::io::Result<Vec<Duration>>>> = Vec::new();
    for (index, stream) in streams.iter().enumerate() {
        let mut stream = stream.try_clone().map_err(Failure::other)?;
        let own = (0..count).filter(move |n| *n as usize % CONNECTIONS == index);
        readers.push(thread::spawn(move || {
            let mut answer = [0; REQUEST_BYTES];
            let mut samples = Vec::with_capacity(count as usize / CONNECTIONS + 1);
            for n in own {
                stream.read_exact(&mut answer)?;
                let came = Instant::now();
                samples.push(came.saturating_duration_since(start + n * pause));
            }
            Ok(samples)
        }));
    }
    let request = [0x5a; REQUEST_BYTES];
    for n in 0..count {
        let due = start + n * pause;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut stream = &streams[n as usize % CONNECTIONS];
        stream.write_all(&request).map_err(Failure::other)?;
    }
    let mut samples = Vec::with_capacity(count as usize);
    for reader in readers {
        let own = reader
            .join()
            .map_err(|_| Failure::other("a reader failed"))?;
        samples.extend(own.map_err(Failure::other)?);
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_samples() {
        let samples: Vec<Duration> = (1..=1000).map(Duration::from_millis).collect();
        assert_eq!(quantile_ms(&samples, 0.5), 500.0);
        assert_eq!(quantile_ms(&samples, 0.99), 990.0);
        assert_eq!(quantile_ms(&samples, 1.0), 1000.0);
        assert!(quantile_ms(&[], 0.99).is_nan());
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }
}
