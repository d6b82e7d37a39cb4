//! Packets of a TUN device obey the steering rules. A flow that must not be split stays on one
//! access, both ways, and goes on over the other one when that is cut. A redundant one takes both,
//! and a cut delays none of it. Short flows of every kind have their decision before their first
//! byte. Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

#[path = "tun/short_flows.rs"]
mod short_flows;
#[path = "tun/stage.rs"]
mod stage;

use std::{
    collections::BTreeMap,
    io::Write,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use emulated_link::link::LinkConfig;
use short_flows::{
    KINDS, Kind, PROXY_FOR_PROGRAMS, ask_socks, one_flow, serve_datagrams, serve_streams,
};
use stage::{DEVICES, LISTED, PORT, Stage, own, ping, until};
use tempfile::TempDir;
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

/// The same by a cap that the first flow reaches.
const CAPPED: &str = r#"
format = 1

[[access]]
name = "wlan0"
cap_gb = 0.001
"#;
const CAP_BYTES: u64 = 1_000_000;
/// Bytes in flight when the cap is reached, and between two looks.
const BEYOND_CAP_MAX: u64 = 200_000;

/// Longer than a decision outlives its flow, so that each flow changes the schedule.
const PAUSE: Duration = Duration::from_millis(1_600);
/// Share of the bytes of short flows on an access that their rule forbids. Keepalives count.
const FORBIDDEN_MAX: f64 = 0.01;

/// A gateway with this document, and the programs behind the proxy.
fn start_with(document: &str) -> Option<(Stage, TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steering.toml");
    std::fs::write(&file, document).unwrap();
    let flags = "--tun-routes --applications";
    let flags = format!("{flags} {PROXY_FOR_PROGRAMS} --steering {}", file.display());
    let stage = start(&flags)?;
    drop(stage.run("far", serve_streams));
    drop(stage.run("far", serve_datagrams));
    Some((stage, dir))
}

/// Bytes that each access carries for the flow.
fn bytes_of(stage: &Stage, kind: Kind, up: bool) -> [u64; 2] {
    let before = carried(&stage.world);
    stage.run("gw", move || one_flow(kind, up)).join().unwrap();
    let after = carried(&stage.world);
    let bytes = [0, 1].map(|at| after[at] - before[at]);
    println!("{kind:?}, up {up}: {bytes:?} bytes");
    bytes
}

fn share_of(flows: &[[u64; 2]]) -> f64 {
    let [aside, allowed] = [0, 1].map(|at| flows.iter().map(|flow| flow[at]).sum::<u64>());
    let share = aside as f64 / (aside + allowed) as f64;
    println!(
        "{:.3} % of {} bytes on the forbidden access",
        100.0 * share,
        aside + allowed
    );
    share
}

// Blocks the thread of the test.
#[allow(clippy::disallowed_methods)]
#[test]
fn a_forbidden_access_carries_nothing_of_short_flows() {
    let Some((stage, _dir)) = start_with(KEPT_OFF) else {
        return;
    };
    let flows = [false, true].map(|up| {
        KINDS.map(|kind| {
            std::thread::sleep(PAUSE);
            bytes_of(&stage, kind, up)
        })
    });
    let share = share_of(flows.as_flattened());
    assert!(share < FORBIDDEN_MAX, "{share}");
    let past = bytes_after_a_cut(&stage);
    println!("{past} bytes of a download over the forbidden access after a cut");
    assert!(past < IN_WINDOWS_MAX, "{past}");
    stage.stop();
}

/// The window of a stream, with headers and what was lost with the other access.
const IN_WINDOWS_MAX: u64 = 2_300_000 + 500_000;

/// Bytes of the access that a rule forbids, from the cut of the allowed one to the end of a
/// download that it carried.
// Blocks the thread of the test.
#[allow(clippy::disallowed_methods)]
fn bytes_after_a_cut(stage: &Stage) -> u64 {
    let download = stage.run("gw", || {
        let (mut stream, _) = ask_socks(1);
        stream.write_all(b"l").unwrap();
        // Its reset, or its end.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let device = DEVICES[1];
    let begun = stage.world.received(device.0);
    until(|| (stage.world.received(device.0) > begun + 1_000_000).then_some(()));
    let before = carried(&stage.world)[0];
    stage.world.cut(device.0, device.1);
    download.join().unwrap();
    carried(&stage.world)[0] - before
}

/// The cap is reached in the middle of a flow. Later flows find it reached.
#[test]
fn a_capped_access_carries_nothing_of_later_flows() {
    let Some((stage, _dir)) = start_with(CAPPED) else {
        return;
    };
    // The flow that reaches the cap is the last one that the access carries.
    while bytes_of(&stage, Kind::Socks, false)[0] > BEYOND_CAP_MAX / 2 {}
    let all = carried(&stage.world)[0];
    println!("{all} bytes, the cap is {CAP_BYTES}");
    assert!(all < CAP_BYTES + BEYOND_CAP_MAX, "{all}");
    let flows = KINDS.map(|kind| bytes_of(&stage, kind, false));
    let share = share_of(&flows);
    assert!(share < FORBIDDEN_MAX, "{share}");
    stage.stop();
}

/// Short flows of all kinds, with pauses in which some decisions end and others do not.
#[test]
#[ignore = "takes minutes"]
// Blocks the thread of the test.
#[allow(clippy::disallowed_methods)]
fn a_forbidden_access_carries_nothing_of_a_thousand_flows() {
    for document in [KEPT_OFF, REDUNDANT_OFF] {
        let Some((stage, _dir)) = start_with(document) else {
            return;
        };
        let flows: Vec<[u64; 2]> = (0..500_u64)
            .map(|number| {
                std::thread::sleep(Duration::from_millis(number * 773 % 200));
                if number % 10 == 0 {
                    std::thread::sleep(PAUSE);
                }
                bytes_of(
                    &stage,
                    KINDS[number as usize % KINDS.len()],
                    number % 3 == 0,
                )
            })
            .collect();
        let share = share_of(&flows);
        assert!(share < FORBIDDEN_MAX, "{share}");
        stage.stop();
    }
}

/// Copies find one access only.
const REDUNDANT_OFF: &str = r#"
format = 1

[[rule]]
name = "kept off"
match = { urgency = ["bulk"] }
mode = "redundant"
accesses = ["wwan0"]
"#;
