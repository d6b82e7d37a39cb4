//! Time from a reading's upload to the call of the webhook, through ingest, Kafka, alerting and
//! TimescaleDB, beside a load of ordinary readings.
//!
//! Each probe is a separate patient whose heart rate has been high for longer than the rule's
//! delay. One upload contains a reading dated back and a current reading, so the rule fires on
//! arrival. The time begins before the upload, so it is slightly longer than the way from ingest's
//! acceptance.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contracts::vitals::Metric;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::core::{Core, Gateway, METRICS};
use super::end_to_end::usual;
use super::line::free_port;
use super::readings::{PATIENCE, POLL_INTERVAL};
use crate::failure::{Failure, block_on};

/// A built-in rule: 131 /min and more for ten seconds.
pub(super) const RULE: &str = "heart-rate-very-high";
pub(super) const TOO_FAST: f64 = 150.0;
pub(super) const DATED_BACK: Duration = Duration::from_secs(12);

const LOAD_GATEWAYS: u32 = 4;
const LOAD_DEVICES: u32 = 100;
/// Rate of all load gateways together.
const LOAD_PER_S: u32 = 10_000;
/// Devices in one upload, with one reading of every metric each.
const UPLOAD_DEVICES: u32 = 10;
pub(super) const PROBES_PER_S: u64 = 20;
/// Probes of one measurement; a longer measurement sends no more.
const PROBES_MAX: u64 = 2_000;
/// Longer than [`DATED_BACK`] and [`store::ASSIGN_LEAD_US`] together: a reading of the time before
/// its assignment belongs to nobody, so its alert would come late or never. Connections, keys and
/// statements are cached by then, too.
pub(super) const SETTLE: Duration = Duration::from_secs(20);
/// Bytes of a body; a larger body is not alerting's.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Time of the first call of the webhook for each patient, by the rule.
pub(super) type Calls = Arc<Mutex<HashMap<String, Instant>>>;

/// The times of the probes, sorted.
pub(super) fn measure(length: Duration) -> Result<Vec<Duration>, Failure> {
    let calls = Calls::default();
    let url = format!("http://{}/", receive(calls.clone())?);
    let probes = (length.as_secs() * PROBES_PER_S).clamp(1, PROBES_MAX) as u32;
    block_on(async {
        let mut core = Core::start().await?;
        let listen = free_port()?.to_string();
        core.serve("alerting", &["--listen", &listen, "--webhook", &url])
            .await?;
        let mut load = JoinSet::new();
        for n in 0..LOAD_GATEWAYS {
            let gateway = core.gateway(&format!("load-{n}"), LOAD_DEVICES).await?;
            load.spawn(offer(gateway));
        }
        let mut gateway = core.gateway("probe", probes).await?;
        tokio::time::sleep(SETTLE).await;
        let mut sent = Vec::new();
        let mut tick = tokio::time::interval(Duration::from_secs(1) / PROBES_PER_S as u32);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for probe in 0..probes {
            tick.tick().await;
            let readings = gateway.readings(probe..probe + 1, 2, DATED_BACK, ill);
            let patient = readings.first().map(|sample| sample.device.clone());
            sent.push((patient.unwrap_or_default(), Instant::now()));
            gateway.upload(readings).await?;
        }
        let times = times_of(&calls, &sent).await?;
        match load.try_join_next() {
            Some(Ok(failure)) => Err(failure),
            _ => Ok(times),
        }
    })?
}

/// Time until the call for each patient, sorted; waits for missing calls.
pub(super) async fn times_of(
    calls: &Calls,
    sent: &[(String, Instant)],
) -> Result<Vec<Duration>, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut times: Vec<Duration> = {
            let calls = calls.lock();
            let told = sent.iter().filter_map(|(patient, at)| {
                let called = calls.get(patient)?;
                Some(called.saturating_duration_since(*at))
            });
            told.collect()
        };
        if times.len() == sent.len() {
            times.sort_unstable();
            return Ok(times);
        }
        if Instant::now() > deadline {
            let calls = calls.lock();
            let untold = sent
                .iter()
                .find(|(patient, _)| !calls.contains_key(patient));
            return Err(Failure::other(format!(
                "the webhook was called for {} of {} people, and not for {}",
                times.len(),
                sent.len(),
                untold.map_or("", |(patient, _)| patient)
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

pub(super) fn ill(metric: Metric) -> f64 {
    match metric {
        Metric::HeartRate => TOO_FAST,
        other => usual(other),
    }
}

async fn offer(mut gateway: Gateway) -> Failure {
    let samples = UPLOAD_DEVICES * METRICS.len() as u32;
    let per_s = f64::from(LOAD_PER_S) / f64::from(LOAD_GATEWAYS) / f64::from(samples);
    let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / per_s));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        for part in 0..LOAD_DEVICES / UPLOAD_DEVICES {
            tick.tick().await;
            let devices = part * UPLOAD_DEVICES..(part + 1) * UPLOAD_DEVICES;
            let readings = gateway.readings(devices, 1, Duration::ZERO, usual);
            if let Err(failure) = gateway.upload(readings).await {
                return failure;
            }
        }
    }
}

/// Accepts the webhook's calls until the process ends.
pub(super) fn receive(calls: Calls) -> Result<std::net::SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(Failure::other)?;
    let address = listener.local_addr().map_err(Failure::other)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Alerting repeats a call without an answer.
            let _ = take(&stream, &calls);
        }
    });
    Ok(address)
}

fn take(mut stream: &TcpStream, calls: &Calls) -> std::io::Result<()> {
    let called = Instant::now();
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.take(BODY_BYTES_MAX as u64));
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length.min(BODY_BYTES_MAX)];
    reader.read_exact(&mut body)?;
    if let Some(patient) = told(&body) {
        calls.lock().entry(patient).or_insert(called);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}

/// The patient of a call, if the rule matches.
fn told(body: &[u8]) -> Option<String> {
    let alert: serde_json::Value = serde_json::from_slice(body).ok()?;
    (alert["rule"] == RULE).then(|| alert["patient"].as_str().map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rules_own_calls_count() {
        let ours = format!(r#"{{"rule":"{RULE}","patient":"ann"}}"#);
        assert_eq!(told(ours.as_bytes()), Some("ann".to_owned()));
        assert_eq!(told(br#"{"rule":"spo2-low","patient":"ann"}"#), None);
        assert_eq!(told(b"{"), None);
    }
}
