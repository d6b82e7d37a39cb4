//! A gateway behind a UDP block: its samples arrive over TCP, and over QUIC again once UDP passes.
//! Every accepted sample is in the store exactly once.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/sensor.rs"]
mod sensor;
#[path = "support/separate.rs"]
mod separate;
#[path = "support/wall.rs"]
mod wall;

use std::{
    net::UdpSocket,
    path::Path,
    time::{Duration, Instant},
};

use program::{eventually, free_port, http, rows, run};
use sensor::Sensors;
use separate::{NOUNS, Separate};
use wall::Wall;

const DEVICES: usize = 4;
/// Samples stored over one transport before the change.
const PROGRESS: u64 = 200;

/// Longest time from the first refused datagram to a session over TCP.
const FALLBACK_MAX: Duration = Duration::from_secs(1);

/// The transport of the gateway's session, from its metrics; `None` without a session.
fn transport(separate: &Separate) -> Option<String> {
    let admin = separate.ports.admin("gateway");
    let (_, text) = http(admin, "GET", "/metrics", "", "").ok()?;
    let in_use = |line: &str| {
        let rest = line.strip_prefix("braid_tunnel_transport{transport=\"")?;
        Some(rest.strip_suffix("\"} 1")?.to_owned())
    };
    text.lines().find_map(in_use)
}

fn doctor(separate: &Separate) -> String {
    let data = separate.data.display();
    let engines = [
        format!("--store=sqlite:{data}"),
        format!("--bus=sqlite:{data}"),
    ];
    let admin = format!("--admin={}", separate.ports.admin("gateway"));
    let (_, text, _) = run(&["doctor", &engines[0], &engines[1], &admin]);
    text
}

#[test]
fn samples_arrive_by_tcp_and_by_quic_again() {
    let dir = tempfile::tempdir().unwrap();
    let devices: Vec<String> = (1..=DEVICES)
        .map(|number| format!("sensor-{number}"))
        .collect();
    let mut separate = Separate::prepare(dir.path(), &devices, &[]);
    let wall = Wall::build(free_port(), separate.ports.proxy);
    separate.to_proxy = Some(wall.address);
    for noun in NOUNS {
        separate.start(noun);
    }
    let sensors = Sensors::start(separate.sensors(), &devices, |number| 60 + number % 40);
    let data = separate.data.clone();
    let stored = || rows(&data, "sensor-%").0;
    let progress = |what: &str| {
        let then = stored();
        eventually(what, || stored() >= then + PROGRESS);
    };

    let by_tcp = || transport(&separate).is_some_and(|transport| transport != "quic");
    let by_quic = || transport(&separate).as_deref() == Some("quic");
    eventually("a session by TCP", by_tcp);
    progress("rows over TCP");
    // It is ready, and warns of the fallback.
    let told = "UDP gets no answer: the tunnel uses HTTP/2 over";
    eventually("a gateway that is ready", || {
        let admin = separate.ports.admin("gateway");
        let answer = http(admin, "GET", "/readyz", "", "");
        answer.is_ok_and(|(status, text)| status == 200 && text.contains(told))
    });
    let text = doctor(&separate);
    let warned = text
        .lines()
        .any(|line| line.starts_with("WARN") && line.contains(told));
    assert!(warned, "{text}");

    wall.let_udp_pass(true);
    eventually("QUIC again", by_quic);
    progress("rows over QUIC");
    let text = doctor(&separate);
    assert!(!text.contains(told), "{text}");

    wall.let_udp_pass(false);
    eventually("TCP under a running gateway", by_tcp);
    progress("rows over TCP again");

    let accepted = sensors.stop();
    eventually(&format!("{accepted} accepted samples in the store"), || {
        stored() >= accepted
    });
    let (rows, readings) = rows(&data, "sensor-%");
    println!("accepted {accepted}, stored {rows} rows of {readings} different readings");
    assert_eq!(
        (rows, readings),
        (accepted, accepted),
        "stored and different, of those accepted"
    );
    separate.assert_all_running();
}

/// Prepares and starts the services, with a wall before the proxy that lets UDP pass.
fn behind_a_wall(dir: &Path, devices: &[String]) -> (Separate, Wall) {
    let mut separate = Separate::prepare(dir, devices, &[]);
    let wall = Wall::build(free_port(), separate.ports.proxy);
    wall.let_udp_pass(true);
    separate.to_proxy = Some(wall.address);
    for noun in NOUNS {
        separate.start(noun);
    }
    (separate, wall)
}

/// A port of UDP that answers by ICMP costs no patience, and no sample.
#[test]
fn a_refused_port_costs_less_than_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let devices = ["sensor-1".to_owned()];
    let (mut separate, wall) = behind_a_wall(dir.path(), &devices);
    let by_quic = || transport(&separate).as_deref() == Some("quic");
    eventually("a session by QUIC", by_quic);
    let sensors = Sensors::start(separate.sensors(), &devices, |number| 60 + number % 40);
    let data = separate.data.clone();
    let stored = || rows(&data, "sensor-%").0;
    eventually("rows over QUIC", || stored() >= PROGRESS);

    for what in ["first", "again"] {
        wall.refuse_udp(true);
        eventually("a closed port", || UdpSocket::bind(wall.address).is_ok());
        let began = Instant::now();
        eventually("a session by TCP", || {
            transport(&separate).is_some_and(|transport| transport != "quic")
        });
        let took = began.elapsed();
        println!("{what}: TCP after {took:?}");
        assert!(took <= FALLBACK_MAX, "{what}: TCP after {took:?}");
        let then = stored();
        eventually("rows over TCP", || stored() >= then + PROGRESS);
        wall.refuse_udp(false);
        eventually("QUIC again", by_quic);
    }

    let accepted = sensors.stop();
    eventually(&format!("{accepted} accepted samples in the store"), || {
        stored() >= accepted
    });
    let (rows, readings) = rows(&data, "sensor-%");
    assert_eq!((rows, readings), (accepted, accepted));
    separate.assert_all_running();
}
