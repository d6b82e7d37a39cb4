//! Packets of a TUN device obey the steering rules. A flow that must not be split stays on one
//! access, both ways, and goes on over the other one when that is cut. A redundant one takes both,
//! and a cut delays none of it. Short flows of every kind have their decision before their first
//! byte. Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

#[path = "tun/stage.rs"]
mod stage;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use emulated_link::link::LinkConfig;
use stage::{DEVICES, LISTED, PORT, Stage, own, ping, until};
use testkit::netns::World;

const LINK: (f64, Duration) = (20e6, Duration::from_millis(10));
/// More than one access carries.
const BITS_PER_S: f64 = 30e6;
const PAYLOAD_BYTES: usize = 1_200;
const LASTS: Duration = Duration::from_secs(3);

/// Share of the bytes that keepalives, pings and path reports have on the other access.
const ASIDE_MAX: f64 = 0.02;

const RULE: &str = r#"
format = 1

[[rule]]
name = "voice"
match = { application = ["tun"], protocol = ["udp"], port = ["9000"] }
mode = "active-standby"
accesses = ["wwan0", "wlan0"]
"#;

/// Bytes that each access has carried, both ways.
fn carried(world: &World) -> [u64; 2] {
    DEVICES.map(|(device, _)| world.received(device) + world.sent(device))
}

/// Sends for a while.
// Blocks the thread of one program.
#[allow(clippy::disallowed_methods)]
fn send(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), lasts: Duration) {
    let socket = UdpSocket::bind(from).unwrap();
    socket.connect(to).unwrap();
    let interval = Duration::from_secs_f64(PAYLOAD_BYTES as f64 * 8.0 / BITS_PER_S);
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < lasts {
        let due = start + interval.mul_f64(f64::from(number));
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let _ = socket.send(&[7; PAYLOAD_BYTES]);
        number += 1;
    }
}

/// The share of the slower part of what both accesses carry while datagrams go up or down.
fn share_aside(stage: &Stage, up: bool) -> f64 {
    let here = own(&stage.world);
    let flow = move |lasts| match up {
        true => send((here, 0), (LISTED, PORT), lasts),
        false => send((LISTED, PORT), (here, 5_000), lasts),
    };
    let side = if up { "gw" } else { "far" };
    // The rules see the flow, and both ends learn the schedule.
    stage
        .run(side, move || flow(Duration::from_secs(1)))
        .join()
        .unwrap();
    let before = carried(&stage.world);
    stage.run(side, move || flow(LASTS)).join().unwrap();
    let after = carried(&stage.world);
    let [first, second] = [0, 1].map(|at| (after[at] - before[at]) as f64);
    println!("up: {up}: {first:.0} and {second:.0} bytes");
    assert!(first + second > 1e6, "nothing passes");
    first / (first + second)
}

fn start(flags: &str) -> Option<Stage> {
    let links = [LINK; 2].map(|(rate, delay)| LinkConfig::new(rate, delay));
    let stage = Stage::start_over(links, flags)?;
    let answered = stage.run("gw", || until(|| ping(IpAddr::from(LISTED), 1)));
    answered.join().unwrap();
    Some(stage)
}

#[test]
fn a_flow_that_must_not_be_split_stays_on_one_access() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steering.toml");
    std::fs::write(&file, RULE).unwrap();
    let flags = format!("--tun-routes --steering {}", file.display());
    let Some(stage) = start(&flags) else {
        return;
    };
    for up in [true, false] {
        let aside = share_aside(&stage, up);
        assert!(aside < ASIDE_MAX, "{up}: {aside}");
    }
    // The standby takes over.
    let (device, net) = DEVICES[1];
    stage.world.cut(device, net);
    let here = own(&stage.world);
    let ear = stage.run("far", || UdpSocket::bind((LISTED, PORT)).unwrap());
    let ear = ear.join().unwrap();
    ear.set_read_timeout(Some(stage::SILENCE)).unwrap();
    let socket = stage.run("gw", move || UdpSocket::bind((here, 0)).unwrap());
    let socket = socket.join().unwrap();
    socket.connect((LISTED, PORT)).unwrap();
    until(|| {
        socket.send(b"goes on").unwrap();
        ear.recv(&mut [0; 16]).ok()
    });
    stage.stop();
}

#[test]
fn without_a_rule_it_uses_both() {
    let Some(stage) = start("--tun-routes") else {
        return;
    };
    for up in [true, false] {
        let aside = share_aside(&stage, up);
        assert!((0.1..0.9).contains(&aside), "{up}: {aside}");
    }
    stage.stop();
}

const REDUNDANT: &str = r#"
format = 1

[[rule]]
name = "call"
match = { application = ["tun"], protocol = ["udp"], port = ["9000"], urgency = ["bulk"] }
mode = "redundant"
"#;

/// As of a call.
const CALL_INTERVAL: Duration = Duration::from_millis(20);
const CALL_PACKETS: u64 = 200;
/// The busier access is cut in the middle of the call.
const CUT_AFTER: Duration = Duration::from_secs(2);

/// Time in which an echo is of use, over links of 20 ms there and back.
const SOON: Duration = Duration::from_millis(80);

/// Packets of a call through a cut: those whose echoes never came, and those whose echoes came too
/// late or never.
// Blocks the threads of programs.
#[allow(clippy::disallowed_methods)]
fn harmed_of_call(stage: &Stage) -> [u64; 2] {
    let here = own(&stage.world);
    let echo = stage.run("far", || {
        let socket = UdpSocket::bind((LISTED, PORT)).unwrap();
        let patience = Duration::from_secs(3);
        socket.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 1_500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).unwrap();
        }
    });
    let call = stage.run("gw", move || {
        let socket = UdpSocket::bind((here, 0)).unwrap();
        socket.connect((LISTED, PORT)).unwrap();
        socket.set_read_timeout(Some(stage::SILENCE)).unwrap();
        let ear = socket.try_clone().unwrap();
        let hearing = std::thread::spawn(move || {
            let (mut heard, mut buffer) = (BTreeMap::new(), [0; 1_500]);
            while let Ok(length) = ear.recv(&mut buffer) {
                assert_eq!(length, 160);
                let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
                let before = heard.insert(number, Instant::now());
                assert_eq!(before, None, "{number} came twice");
            }
            heard
        });
        let start = Instant::now();
        for number in 0..CALL_PACKETS {
            let due = start + CALL_INTERVAL * number as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut packet = [0; 160];
            packet[..8].copy_from_slice(&number.to_be_bytes());
            let _ = socket.send(&packet);
        }
        let due = |number: u64| start + CALL_INTERVAL * number as u32;
        let heard = hearing.join().unwrap();
        let soon = heard
            .iter()
            .filter(|(number, at)| **at <= due(**number) + SOON);
        [heard.len(), soon.count()].map(|count| CALL_PACKETS - count as u64)
    });
    let before = carried(&stage.world);
    std::thread::sleep(CUT_AFTER);
    let after = carried(&stage.world);
    let busier = usize::from(after[1] - before[1] > after[0] - before[0]);
    let (device, net) = DEVICES[busier];
    stage.world.cut(device, net);
    let harmed = call.join().unwrap();
    echo.join().unwrap();
    harmed
}

#[test]
fn a_cut_does_not_delay_a_redundant_call() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steering.toml");
    std::fs::write(&file, REDUNDANT).unwrap();
    let harmed = [
        "--tun-routes".to_owned(),
        format!("--tun-routes --steering {}", file.display()),
    ]
    .map(|flags| {
        let stage = start(&flags)?;
        let harmed = harmed_of_call(&stage);
        stage.stop();
        Some(harmed)
    });
    let [Some(plain), Some(redundant)] = harmed else {
        return;
    };
    println!("lost, and late or lost, in a cut: {plain:?} without the rule, {redundant:?} with it");
    assert!(redundant[0] <= 2, "{redundant:?}");
    assert!(redundant[1] < plain[1], "{redundant:?}, {plain:?}");
}

/// All bulk keeps off the access that is quicker to answer.
const KEPT_OFF: &str = r#"
format = 1

[[rule]]
name = "kept off"
match = { urgency = ["bulk"] }
accesses = ["wwan0"]
"#;

/// The same by a cap that is reached before any flow begins.
const CAPPED: &str = r#"
format = 1

[[access]]
name = "wlan0"
cap_gb = 0.00001
"#;

const FLOW_BYTES: usize = 1_000_000;
const PROXY_FOR_PROGRAMS: &str = "127.0.0.1:9002";
/// Longer than a decision outlives its flow, so that each flow changes the schedule.
const PAUSE: Duration = Duration::from_millis(1_600);
/// Share of the bytes of short flows on an access that their rule forbids. Keepalives count.
const FORBIDDEN_MAX: f64 = 0.01;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Socks,
    Connect,
    Tun,
    SocksUdp,
    TunUdp,
}

const KINDS: [Kind; 5] = [
    Kind::Socks,
    Kind::Connect,
    Kind::Tun,
    Kind::SocksUdp,
    Kind::TunUdp,
];

/// Sends what a program asks for, or reads what it sends; one program after the other.
fn serve_streams() {
    let listener = TcpListener::bind((LISTED, PORT)).unwrap();
    while let Ok((mut stream, _)) = listener.accept() {
        let mut first = [0];
        if stream.read_exact(&mut first).is_err() {
            continue;
        }
        let _ = match first[0] {
            b'd' => stream.write_all(&vec![7; FLOW_BYTES]),
            _ => std::io::copy(&mut stream, &mut std::io::sink())
                .and_then(|_| stream.write_all(b"k")),
        };
    }
}

/// The same by datagrams: each that begins with a `d` asks for all of them.
fn serve_datagrams() {
    let socket = UdpSocket::bind((LISTED, PORT)).unwrap();
    let mut buffer = [0; 1_500];
    while let Ok((_, from)) = socket.recv_from(&mut buffer) {
        if buffer[0] == b'd' {
            pace(|| drop(socket.send_to(&[7; PAYLOAD_BYTES], from)));
        }
    }
}

// Blocks the thread of one program.
#[allow(clippy::disallowed_methods)]
fn pace(mut send: impl FnMut()) {
    let interval = Duration::from_secs_f64(PAYLOAD_BYTES as f64 * 8.0 / BITS_PER_S);
    let start = Instant::now();
    for number in 0..(FLOW_BYTES / PAYLOAD_BYTES) as u32 {
        let due = start + interval * number;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        send();
    }
}

const TARGET: [u8; 7] = [1, 10, 8, 0, 2, (PORT >> 8) as u8, PORT as u8];

fn ask_socks(command: u8) -> (TcpStream, [u8; 10]) {
    let mut stream = TcpStream::connect(PROXY_FOR_PROGRAMS).unwrap();
    stream.write_all(&[5, 1, 0, 5, command, 0]).unwrap();
    let nowhere = [1, 0, 0, 0, 0, 0, 0];
    let target = if command == 1 { TARGET } else { nowhere };
    stream.write_all(&target).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..4], [5, 0, 5, 0], "{answer:?}");
    (stream, answer[2..].try_into().unwrap())
}

fn carry_stream(mut stream: TcpStream, up: bool) {
    let mut heard = Vec::new();
    match up {
        true => {
            stream.write_all(b"u").unwrap();
            stream.write_all(&vec![7; FLOW_BYTES]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard, b"k");
        }
        false => {
            stream.write_all(b"d").unwrap();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard.len(), FLOW_BYTES);
        }
    }
}

/// Every datagram has this header.
fn carry_datagrams(socket: &UdpSocket, header: &[u8], up: bool) {
    socket.set_read_timeout(Some(stage::SILENCE / 4)).unwrap();
    let payload = |first| [header, &[first; PAYLOAD_BYTES]].concat();
    match up {
        true => pace(|| drop(socket.send(&payload(b'u')))),
        false => {
            socket.send(&payload(b'd')).unwrap();
            let mut buffer = [0; 1_500];
            let heard = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count();
            assert!(heard > FLOW_BYTES / PAYLOAD_BYTES / 2, "{heard} datagrams");
        }
    }
}

fn one_flow(kind: Kind, up: bool) {
    match kind {
        Kind::Socks => carry_stream(ask_socks(1).0, up),
        Kind::Connect => {
            let mut stream = TcpStream::connect(PROXY_FOR_PROGRAMS).unwrap();
            let request = format!("CONNECT {LISTED}:{PORT} HTTP/1.1\r\nhost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.extend(byte);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{answer:?}");
            carry_stream(stream, up);
        }
        Kind::Tun => carry_stream(TcpStream::connect((LISTED, PORT)).unwrap(), up),
        Kind::SocksUdp => {
            let (_association, answer) = ask_socks(3);
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = u16::from_be_bytes([answer[8], answer[9]]);
            socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            carry_datagrams(&socket, &[&[0, 0, 0], &TARGET[..]].concat(), up);
        }
        Kind::TunUdp => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect((LISTED, PORT)).unwrap();
            carry_datagrams(&socket, &[], up);
        }
    }
}

// Blocks the thread of the test.
#[allow(clippy::disallowed_methods)]
#[test]
fn a_forbidden_access_carries_nothing_of_short_flows() {
    for document in [KEPT_OFF, CAPPED] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("steering.toml");
        std::fs::write(&file, document).unwrap();
        let flags = "--tun-routes --applications";
        let flags = format!("{flags} {PROXY_FOR_PROGRAMS} --steering {}", file.display());
        let Some(stage) = start(&flags) else {
            return;
        };
        drop(stage.run("far", serve_streams));
        drop(stage.run("far", serve_datagrams));
        let mut sums = [0; 2];
        for (number, kind) in KINDS.into_iter().chain(KINDS).enumerate() {
            let up = number >= KINDS.len();
            std::thread::sleep(PAUSE);
            let before = carried(&stage.world);
            stage.run("gw", move || one_flow(kind, up)).join().unwrap();
            let after = carried(&stage.world);
            let bytes = [0, 1].map(|at| after[at] - before[at]);
            println!("{kind:?}, up {up}: {bytes:?} bytes");
            sums = [0, 1].map(|at| sums[at] + bytes[at]);
        }
        let share = sums[0] as f64 / (sums[0] + sums[1]) as f64;
        println!("{:.3} % on the forbidden access", 100.0 * share);
        assert!(share < FORBIDDEN_MAX, "{share}");
        stage.stop();
    }
}
