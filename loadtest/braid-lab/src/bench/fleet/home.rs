//! One patient: the mobility, the gateway with its two lossy networks, and the sensor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contracts::vitals::gateway_service_client::GatewayServiceClient;
use contracts::vitals::{Metric, RecordRequest, Sample, sample::Reading};
use emulated_link::LinkControl;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use service_kit::Context;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval_at, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;

use super::super::core::Core;
use super::super::lossy_gateway::LossyGateway;
use super::super::readings::PATIENCE;
use crate::failure::Failure;

/// Samples of one patient.
pub(super) const SAMPLES_PER_S: u32 = 6;

const LOSS: f64 = 0.01;
const SEED: u64 = 1;
/// Addresses of one network on the loopback device; more gateways share them.
const ADDRESSES: u32 = 250;
/// Samples that a sensor keeps during a request, a minute's worth; further samples are skipped.
const SENSOR_MEMORY_MAX: usize = 60 * SAMPLES_PER_S as usize;
/// A sensor has one request under way.
const REQUESTS_WAITING_MAX: usize = 1;
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// A pattern of mobility: which network disappears, for how long, and how long it then stays.
#[derive(Clone, Copy)]
pub(super) struct Mobility {
    pub(super) name: &'static str,
    network: usize,
    away: Duration,
    there: Duration,
}

pub(super) const HOME: Mobility = Mobility::new("home", 0, 0, 3_600);
/// Out of the door and back.
pub(super) const WALK: Mobility = Mobility::new("walk", 0, 6, 9);
/// Tunnels and dead spots, beside the train's Wi-Fi.
pub(super) const COMMUTE: Mobility = Mobility::new("commute", 1, 2, 6);

impl Mobility {
    const fn new(name: &'static str, network: usize, away_s: u64, there_s: u64) -> Mobility {
        Mobility {
            name,
            network,
            away: Duration::from_secs(away_s),
            there: Duration::from_secs(there_s),
        }
    }

    /// Five of ten patients stay at home, three walk and two travel.
    fn of(gateway: u32) -> Mobility {
        match gateway % 10 {
            0..5 => HOME,
            5..8 => WALK,
            _ => COMMUTE,
        }
    }
}

pub(super) struct Home {
    number: u32,
    device: String,
    links: Vec<LinkControl>,
    sensors: String,
    context: Context,
}

impl Home {
    pub(super) async fn start(core: &Core, proxy: &str, number: u32) -> Result<Home, Failure> {
        let id = format!("fleet-{number}");
        core.register(&id, 1).await?;
        let last = u8::try_from(number % ADDRESSES + 1).map_err(Failure::other)?;
        let seed = SEED + (u64::from(number) << 8);
        let gateway = LossyGateway::start(core, proxy, &id, last, LOSS, seed).await?;
        Ok(Home {
            number,
            device: format!("{id}-0"),
            links: gateway.links,
            sensors: format!("http://{}", gateway.sensors),
            context: gateway.context,
        })
    }

    /// Returns once the gateway has its links to ingest.
    pub(super) async fn ready(&self) -> Result<(), Failure> {
        let asked = Instant::now();
        while !self.context.health().is_ready() {
            if asked.elapsed() > PATIENCE {
                let failing = self.context.health().failing();
                return Err(Failure::other(format!(
                    "gateway {} is not ready: {failing:?}",
                    self.number
                )));
            }
            sleep(READY_INTERVAL).await;
        }
        Ok(())
    }
}

/// The samples of one patient.
pub(super) struct Life {
    pub(super) device: String,
    pub(super) mobility: &'static str,
    /// Times, since the fleet's beginning, at which the gateway confirmed samples on disk, with
    /// their numbers.
    pub(super) accepted: Vec<(Duration, u64)>,
    pub(super) handovers: Vec<Duration>,
    /// Skipped, because the sensor's memory was full.
    pub(super) skipped: u64,
    /// The gateway goes on until its journal is empty.
    _end: End,
}

impl Life {
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.iter().map(|(_, count)| count).sum()
    }
}

struct End(Context);

impl Drop for End {
    fn drop(&mut self) {
        self.0.shutdown().request();
    }
}

/// Samples at their rate, whatever the gateway's disk does; samples taken during a request go with
/// the next one. Meanwhile networks come and go.
pub(super) async fn live(home: Home, began: Instant, length: Duration) -> Result<Life, Failure> {
    let mobility = Mobility::of(home.number);
    let end = End(home.context);
    let mut random = StdRng::seed_from_u64(SEED + u64::from(home.number));
    let (phase, offset): (f64, f64) =
        (random.random_range(0.0..1.0), random.random_range(0.0..1.0));
    let link = home.links[mobility.network].clone();
    let handovers = Arc::new(Mutex::new(Vec::new()));
    let moving = tokio::spawn({
        let (link, handovers) = (link.clone(), handovers.clone());
        async move {
            sleep(mobility.there.mul_f64(phase)).await;
            while !mobility.away.is_zero() {
                link.set_up(false);
                handovers.lock().push(began.elapsed());
                sleep(mobility.away).await;
                link.set_up(true);
                sleep(mobility.there).await;
            }
        }
    });
    let mut client = GatewayServiceClient::connect(home.sensors)
        .await
        .map_err(Failure::other)?;
    let (requests, waiting) = mpsc::channel(REQUESTS_WAITING_MAX);
    let answers = client.record(ReceiverStream::new(waiting)).await;
    let mut answers = answers.map_err(Failure::other)?.into_inner();
    let every = Duration::from_secs(1) / SAMPLES_PER_S;
    let mut tick = interval_at((began + every.mul_f64(offset)).into(), every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut memory, mut accepted) = (Vec::new(), Vec::new());
    let (mut taken, mut skipped, mut asked) = (0_u64, 0, None);
    let ended = || Failure::other("a gateway has ended its sensor's stream");
    loop {
        let taking = began.elapsed() < length;
        match asked {
            None if !memory.is_empty() => {
                let samples = std::mem::take(&mut memory);
                let request = RecordRequest {
                    request: taken,
                    samples,
                };
                requests.send(request).await.map_err(|_| ended())?;
                asked = Some(Instant::now() + PATIENCE);
            }
            None if !taking => break,
            _ => {}
        }
        tokio::select! {
            due = tick.tick(), if taking => {
                if memory.len() >= SENSOR_MEMORY_MAX {
                    skipped += 1;
                    continue;
                }
                taken += 1;
                // A busy machine wakes the sensor late; the sample's time is when it was due.
                let late_us = i64::try_from(due.elapsed().as_micros()).unwrap_or(i64::MAX);
                memory.push(Sample {
                    device: home.device.clone(),
                    metric: Metric::HeartRate.into(),
                    device_time_us: contracts::now_us() - late_us,
                    sensor_sequence: Some(taken),
                    reading: Some(Reading::Value(60.0 + f64::from(home.number % 40))),
                    ..Sample::default()
                });
            }
            answer = answers.message(), if asked.is_some() => {
                let answer = answer.map_err(Failure::other)?.ok_or_else(ended)?;
                if let Some(refused) = answer.rejections.first() {
                    return Err(Failure::other(format!("refused: {}", refused.reason)));
                }
                accepted.push((began.elapsed(), u64::from(answer.accepted)));
                asked = None;
            }
            () = sleep_until(asked.unwrap_or(began + length).into()) => {
                if asked.is_some() {
                    return Err(Failure::other("a gateway did not answer its sensor"));
                }
            }
        }
    }
    moving.abort();
    link.set_up(true);
    let handovers = std::mem::take(&mut *handovers.lock());
    Ok(Life {
        device: home.device,
        mobility: mobility.name,
        accepted,
        handovers,
        skipped,
        _end: end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_fleet_moves() {
        let moving = (0..100).filter(|n| !Mobility::of(*n).away.is_zero());
        assert_eq!(moving.count(), 50);
    }
}
