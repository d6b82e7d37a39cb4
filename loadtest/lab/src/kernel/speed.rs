//! The emulator's rate when the links limit nothing: `iperf3` between the two namespaces where it
//! is installed, otherwise a TCP flow of our own.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::baseline::{self, Transport};
use super::bed::{Bed, Kept, KernelError};
use super::network::SERVER_IP;
use super::priority::{self, Role};
use crate::scenario::{Controller, Direction, Half, Interface, RateSpec, Scenario};
use crate::wire::Bulk;

const SECONDS: u64 = 4;
/// More than any emulator in user space.
const UNLIMITED_MBIT: f64 = 1e6;
const QUEUE_BYTES: u64 = 64 << 20;
/// How long `iperf3 --server` may take to listen.
const START_ATTEMPTS_MAX: u32 = 20;

/// Outcome of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    pub mbit: f64,
    /// By `iperf3`.
    pub independent: bool,
    pub kept: Kept,
}

fn scenario() -> Scenario {
    let half = Half {
        rate: RateSpec::Mbit(UNLIMITED_MBIT),
        queue_bytes: Some(QUEUE_BYTES),
        ..Half::constant(UNLIMITED_MBIT, 0.0)
    };
    let interface = Interface::alike("wan", half);
    Scenario::transfer(
        "unlimited",
        1,
        Direction::Upload,
        u64::MAX / 4,
        Controller::Ours,
        SECONDS as f64,
        vec![interface],
    )
}

pub fn measure() -> Result<Speed, KernelError> {
    let scenario = scenario();
    let found = Command::new("iperf3")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        let report = baseline::run(&scenario, Transport::Tcp, "cubic")?;
        let seconds = report.report.from_stream_s.max(1e-3);
        return Ok(Speed {
            mbit: report.report.delivered_bytes as f64 * 8e-6 / seconds,
            independent: false,
            kept: report.kept,
        });
    }
    let bed = Bed::new(&scenario)?;
    let mut server = bed.network.server.run(|| {
        // Threads take the priority of the thread that starts them, as every endpoint's do, so that
        // other load of the machine is not measured.
        priority::raise(Role::Endpoint);
        Command::new("iperf3")
            .args(["--server", "--one-off"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    })??;
    let measured = bed.network.client.run(|| {
        priority::raise(Role::Endpoint);
        iperf_client()
    })?;
    // Ends by itself after one client; after none it would wait for ever.
    let _ = server.kill();
    let _ = server.wait();
    let bulk = Bulk {
        completed: true,
        error: None,
        opened: Duration::ZERO,
        end: Duration::from_secs(SECONDS),
        timeline: Default::default(),
    };
    let report = bed.finish(&scenario, bulk)?;
    let mbit =
        measured.ok_or_else(|| KernelError::Endpoint("iperf3 printed no rate".to_owned()))?;
    Ok(Speed {
        mbit,
        independent: true,
        kept: report.kept,
    })
}

/// The rate that the receiver saw, in Mbit/s. Asks again while the server is not there yet.
fn iperf_client() -> Option<f64> {
    (0..START_ATTEMPTS_MAX).find_map(|_| {
        let output = Command::new("iperf3")
            .args(["--client", &SERVER_IP.to_string(), "--json"])
            .args(["--time", &SECONDS.to_string(), "--congestion", "cubic"])
            .args(["--connect-timeout", "500"])
            .output()
            .ok()?;
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        bits.map(|bits| bits / 1e6)
    })
}
