//! The prober over real sockets: its 28 bytes as UDP through the emulator, which changes the round
//! trip in the course of a run.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use path_probe::{Client, PAYLOAD_BYTES, Payload, Server};
use tokio::net::UdpSocket;
use tokio::time::{Instant, MissedTickBehavior};

use super::bed::{Bed, Kept, KernelError, Receipt};
use super::network::{SERVER_IP, client_ip};
use crate::scenario::{Controller, Direction, Half, Interface, Scenario};

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 5401);
/// Lead of the server's clock.
const CLOCK_OFFSET_US: u64 = 3_000_000_000;
const LINK_MBIT: f64 = 10.0;
/// After the last probe, for its answer.
const LAST_ANSWER_S: f64 = 1.0;
/// AnswerTimers of one run that are kept.
const SAMPLES_MAX: usize = 100_000;

/// Result of a run of the prober.
pub(crate) struct Probed {
    /// Seconds since time zero, and round trip in milliseconds.
    pub(crate) samples: Vec<(f64, f64)>,
    pub(crate) sent: u64,
    pub(crate) kept: Kept,
}

#[derive(Default)]
struct Record {
    samples: Vec<(f64, f64)>,
    sent: u64,
}

/// Probes every `t_ka` for `end_s`, over a link whose round trip follows the course: seconds and
/// milliseconds, split evenly over both directions.
pub(crate) fn run(
    seed: u64,
    t_ka: Duration,
    course: &[(f64, f64)],
    end_s: f64,
) -> Result<Probed, KernelError> {
    let scenario = scenario(seed, course, end_s);
    let bed = Bed::new(&scenario)?;
    let receipt = Receipt::new(bed.origin, 1);
    let record: Arc<Mutex<Record>> = Arc::default();
    let origin = Instant::from_std(bed.origin);
    let failed = receipt.clone();
    bed.server.spawn(async move {
        if let Err(error) = answer(origin).await {
            failed.failed(format!("server: {error}"));
        }
    });
    let (asked, own) = (receipt.clone(), record.clone());
    bed.client.spawn(async move {
        match ask(origin, t_ka, Duration::from_secs_f64(end_s), &own).await {
            Ok(()) => asked.stream_ended(),
            Err(error) => asked.failed(format!("client: {error}")),
        }
    });
    receipt.wait(&bed.client, scenario.limit());
    let bulk = receipt.bulk(None, scenario.limit());
    let report = bed.finish(&scenario, bulk)?;
    if let Some(error) = report.report.error {
        return Err(KernelError::Endpoint(error));
    }
    let record = std::mem::take(&mut *record.lock());
    Ok(Probed {
        samples: record.samples,
        sent: record.sent,
        kept: report.kept,
    })
}

fn scenario(seed: u64, course: &[(f64, f64)], end_s: f64) -> Scenario {
    let one_way = |rtt_ms: f64| rtt_ms / 2.0;
    let first = course.first().map_or(0.0, |step| step.1);
    let mut half = Half::constant(LINK_MBIT, one_way(first));
    half.delay_steps = course
        .iter()
        .skip(1)
        .map(|&(at_s, rtt_ms)| (at_s, one_way(rtt_ms)))
        .collect();
    Scenario::transfer(
        "prober",
        seed,
        Direction::Upload,
        1,
        Controller::Ours,
        end_s + 2.0 * LAST_ANSWER_S,
        vec![Interface::alike("probed", half)],
    )
}

fn micros(origin: Instant) -> u64 {
    let since = Instant::now().saturating_duration_since(origin);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

async fn answer(origin: Instant) -> std::io::Result<()> {
    let socket = UdpSocket::bind(SERVER).await?;
    let mut server = Server::default();
    let mut buffer = [0; PAYLOAD_BYTES];
    loop {
        let (bytes, from) = socket.recv_from(&mut buffer).await?;
        if bytes != PAYLOAD_BYTES {
            continue;
        }
        let now_us = CLOCK_OFFSET_US + micros(origin);
        server.on_request(now_us, &Payload::decode(&buffer), false);
        if let Some(response) = server.respond(now_us, false) {
            socket.send_to(&response.encode(), from).await?;
        }
    }
}

async fn ask(
    origin: Instant,
    t_ka: Duration,
    length: Duration,
    record: &Mutex<Record>,
) -> std::io::Result<()> {
    let socket = UdpSocket::bind((client_ip(0), 0)).await?;
    socket.connect(SERVER).await?;
    let mut client = Client::default();
    let mut buffer = [0; PAYLOAD_BYTES];
    let mut ticks = tokio::time::interval_at(origin, t_ka);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let last = origin + length;
    let end = last + Duration::from_secs_f64(LAST_ANSWER_S);
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(end) => return Ok(()),
            tick = ticks.tick() => {
                if tick < last {
                    socket.send(&client.request(micros(origin), false).encode()).await?;
                    record.lock().sent += 1;
                }
            }
            received = socket.recv(&mut buffer) => {
                if received? != PAYLOAD_BYTES {
                    continue;
                }
                let now_us = micros(origin);
                let seen = client.on_response(now_us, &Payload::decode(&buffer), false);
                let mut record = record.lock();
                if let Some(rtt_us) = seen.rtt_us
                    && record.samples.len() < SAMPLES_MAX
                {
                    let sample = (now_us as f64 / 1e6, f64::from(rtt_us) / 1e3);
                    record.samples.push(sample);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::permitted;

    #[test]
    fn real_packets_show_the_round_trip_of_the_link_and_its_step() {
        if let Err(why) = permitted() {
            eprintln!("skipped: {why}");
            return;
        }
        let t_ka = Duration::from_millis(50);
        let probed = run(1, t_ka, &[(0.0, 20.0), (1.0, 60.0)], 2.0).unwrap();
        assert!((38..=40).contains(&probed.sent), "{}", probed.sent);
        assert!(probed.samples.len() as u64 >= probed.sent - 2);
        let (mut early, mut late) = (probed.samples.clone(), probed.samples.clone());
        early.retain(|sample| sample.0 < 1.0);
        late.retain(|sample| sample.0 >= 1.0);
        // The link never delivers sooner, however busy the machine is.
        assert!(!early.is_empty() && early.iter().all(|sample| sample.1 >= 20.0));
        assert!(late.iter().filter(|sample| sample.1 >= 60.0).count() >= 15);
        if probed.kept.up {
            let near = |sample: &&(f64, f64)| sample.1 < 25.0;
            assert!(early.iter().filter(near).count() * 10 >= early.len() * 9);
        }
    }
}
