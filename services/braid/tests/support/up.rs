//! `braid up` as a process with its addresses, its end and a sensor.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::program::{Program, eventually, http};

pub const ANYWHERE: [&str; 6] = [
    "--listen",
    "127.0.0.1:0",
    "--sensors",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
];

pub struct Up {
    pub program: Program,
    pub page: SocketAddr,
    pub sensors: SocketAddr,
    pub admin: SocketAddr,
}

/// Starts on `data` and waits until the addresses are known.
pub fn up(dir: &Path) -> Up {
    up_with(dir, &[])
}

pub fn up_with(dir: &Path, more: &[&str]) -> Up {
    let data = dir.join("data");
    let addresses = data.join("up.json");
    let _ = std::fs::remove_file(&addresses);
    let mut args = vec!["up", "--patients", "2", "--data", data.to_str().unwrap()];
    args.extend(ANYWHERE);
    args.extend(more);
    let mut program = Program::start(dir, "up", &args);
    eventually("up.json", || {
        assert!(program.is_running(), "{}", program.log());
        addresses.exists()
    });
    let text = std::fs::read_to_string(&addresses).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let address = |name: &str| found[name].as_str().unwrap().parse().unwrap();
    Up {
        page: address("page"),
        sensors: address("sensors"),
        admin: address("admin"),
        program,
    }
}

/// A sensor without an answer sends again.
pub fn send_twice(sensors: SocketAddr, number: u64) -> [u16; 2] {
    let line = format!(
        "{{\"device\":\"guest-sensor\",\"metric\":\"heart-rate\",\"value\":72,\"device_time_us\":{},\"sensor_sequence\":{number}}}",
        contracts::now_us(),
    );
    [(); 2].map(|()| http(sensors, "POST", "/v1/samples", "", &line).unwrap().0)
}

pub fn end(mut up: Up) {
    up.program.interrupt();
    let asked = Instant::now();
    let status = up.program.wait(Duration::from_secs(20));
    assert!(status.success(), "{status}\n{}", up.program.log());
    println!("drained in {} ms", asked.elapsed().as_millis());
}

pub fn password(log: &str) -> String {
    let (_, after) = log.rsplit_once("sign in as admin with ").unwrap();
    after.split_whitespace().next().unwrap().to_owned()
}
