//! A monthly cap holds where UDP is blocked: bulk leaves the access that has reached it. The bytes
//! of the month are those of each device. Skips on hosts without namespaces or MPTCP.

#![allow(clippy::unwrap_used)]

#[path = "tun/stage.rs"]
mod stage;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use stage::{DEVICES, LISTED, PORT, Stage, ping, until};
use testkit::netns::World;

const RATE: &str = "20mbit";
const RATE_BYTES_PER_S: f64 = 2.5e6;

/// Several seconds of the link, so that the cap is reached after UDP was blocked.
const CAP_BYTES: f64 = 20e6;
const RULES: &str = "format = 1\n[[access]]\nname = \"wwan0\"\ncap_gb = 0.02\n";

/// Bytes beyond the cap: what a second carries, and what counts differently.
const BEYOND_MAX: f64 = 2.0 * RATE_BYTES_PER_S;
/// Share of bulk's bytes that may still take the capped access.
const ASIDE_MAX: f64 = 0.03;
/// Difference between the month and the bytes of the device.
const COUNT_OFF_MAX: f64 = 0.05;
/// Longer than it takes to reach the cap over half of both links.
const BULK_MAX: Duration = Duration::from_secs(60);
const LASTS: Duration = Duration::from_secs(3);

fn carried(world: &World) -> [f64; 2] {
    DEVICES.map(|(device, _)| (world.received(device) + world.sent(device)) as f64)
}

/// Sends to each client until it leaves.
fn flood() {
    let listener = TcpListener::bind((LISTED, PORT)).unwrap();
    while let Ok((mut stream, _)) = listener.accept() {
        std::thread::spawn(move || while stream.write_all(&[7; 16_384]).is_ok() {});
    }
}

/// Reads from the flood until told to end, over as many connections as that takes.
fn read_until(ended: &AtomicBool) {
    let start = Instant::now();
    while !ended.load(Ordering::Relaxed) && start.elapsed() < BULK_MAX {
        let Ok(mut stream) = TcpStream::connect((LISTED, PORT)) else {
            continue;
        };
        stream.set_read_timeout(Some(stage::SILENCE)).unwrap();
        let mut buffer = [0; 65_536];
        while !ended.load(Ordering::Relaxed) {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                _ => {}
            }
        }
    }
}

/// Bytes of the month by access, as the gateway wrote them down.
fn months(dir: &Path) -> BTreeMap<String, f64> {
    let text = std::fs::read(dir.join("gateway/steering-usage.json")).unwrap();
    let read: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&text).unwrap();
    let bytes = |month: &serde_json::Value| month["bytes"].as_f64().unwrap();
    read.iter().map(|it| (it.0.clone(), bytes(it.1))).collect()
}

// Blocks the thread of the test.
#[allow(clippy::disallowed_methods)]
#[test]
fn bulk_leaves_an_access_whose_cap_is_reached_and_each_access_counts_its_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steering.toml");
    std::fs::write(&file, RULES).unwrap();
    let flags = format!("--tun-routes --steering {}", file.display());
    let Some(stage) = Stage::start(RATE, &flags) else {
        return;
    };
    if let Err(error) = stage.world.mptcp_endpoints() {
        println!("SKIPPED: no MPTCP here ({error})");
        return;
    }
    stage.world.block_udp();
    let _flooding = stage.run("far", flood);
    let answered = stage.run("gw", || until(|| ping(IpAddr::from(LISTED), 1)));
    answered.join().unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let reading = stage.run("gw", {
        let ended = ended.clone();
        move || read_until(&ended)
    });
    let start = Instant::now();
    let mut before = carried(&stage.world);
    // Both carry at first; then one only.
    let left_after = loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = carried(&stage.world);
        let rates = [now[0] - before[0], now[1] - before[1]];
        println!("{:.0?}: {rates:.0?} bytes/s", start.elapsed());
        before = now;
        // The gateway may count more than the device, so the access may rest a little earlier.
        if now[1] >= CAP_BYTES * (1.0 - COUNT_OFF_MAX) {
            break start.elapsed();
        }
        assert!(start.elapsed() < BULK_MAX, "the cap is never reached");
    };
    std::thread::sleep(Duration::from_secs(1));
    let before = carried(&stage.world);
    std::thread::sleep(LASTS);
    let after = carried(&stage.world);
    let rates = [0, 1].map(|at| (after[at] - before[at]) / LASTS.as_secs_f64());
    println!(
        "cap reached after {left_after:?}; then {rates:.0?} bytes/s, {after:.0?} bytes in all"
    );
    assert!(rates[0] > 0.7 * RATE_BYTES_PER_S, "bulk goes on");
    assert!(rates[1] < ASIDE_MAX * rates[0], "the cap holds");
    assert!(
        after[1] < CAP_BYTES + BEYOND_MAX,
        "the cap was noticed late"
    );
    ended.store(true, Ordering::Relaxed);
    reading.join().unwrap();
    let carried = carried(&stage.world);
    let dir = stage.stop_and_keep();
    let months = months(dir.path());
    for (at, (device, _)) in DEVICES.iter().enumerate() {
        let off = months[*device] / carried[at] - 1.0;
        println!(
            "{device}: {:.0} bytes by the device, counted {off:+.3} more",
            carried[at]
        );
        assert!(off.abs() < COUNT_OFF_MAX, "{months:?}");
    }
    assert_eq!(months.len(), DEVICES.len(), "{months:?}");
}
