//! A fleet: gateways of people who move, all in this process, each with a Wi-Fi and an LTE that lose packets; proxy, ingest and alerting as
//! processes on a real Kafka and a real TimescaleDB. Counts what the gateways accepted and what the store has, and the processor
//! time that each part took for it: time used, not time passed, so that a busy machine gives the same figure as a quiet one.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use contracts::vitals::gateway_service_client::GatewayServiceClient;
use contracts::vitals::{Metric, RecordRequest, Sample, sample::Reading};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use service_kit::Context;
use store::{Scope, VitalsStore};
use testkit::emulated_link::{LinkControl, emulate};
use testkit::link::{LinkConfig, Loss};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tunnel::Interface;

use super::core::Core;
use super::line::{TICKS_PER_S, free_tcp};
use super::{Figure, PATIENCE, quantile_ms};
use crate::process::{Failure, block_on};
use crate::register::now_us;
use crate::up::defaults;

const SAMPLES_PER_S: u32 = 10;
const STREAM: &str = "heart-rate";
/// Rate and one-way delay of each access network: those of `braid up`.
const NETWORKS: [(&str, u8, f64, u64); 2] = [("wifi", 1, 40e6, 8), ("lte", 2, 12e6, 35)];
const LOSS: f64 = 0.01;
const SEED: u64 = 1;
/// Addresses of one network on the loopback device; more gateways share them.
const ADDRESSES: u32 = 250;
/// Samples of one patient that are read back for their times; the newest are left out of those percentiles beyond it.
const READ_BACK_MAX: usize = 1_000;
const REQUESTS_WAITING_MAX: usize = 16;
/// After the last sample: until journals are empty and the store has everything.
const CATCH_UP_MAX: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How somebody moves: which network goes away, for how long, and how long it then stays.
#[derive(Clone, Copy)]
struct Mobility {
    name: &'static str,
    network: usize,
    away: Duration,
    there: Duration,
}

const HOME: Mobility = Mobility::new("home", 0, 0, 3_600);
/// Out of the door and back.
const WALK: Mobility = Mobility::new("walk", 0, 6, 9);
/// Tunnels and dead spots, beside a Wi-Fi that the train has.
const COMMUTE: Mobility = Mobility::new("commute", 1, 2, 6);

impl Mobility {
    const fn new(name: &'static str, network: usize, away_s: u64, there_s: u64) -> Mobility {
        Mobility {
            name,
            network,
            away: Duration::from_secs(away_s),
            there: Duration::from_secs(there_s),
        }
    }

    /// Of ten, five stay at home, three walk and two travel.
    fn of(gateway: u32) -> Mobility {
        match gateway % 10 {
            0..5 => HOME,
            5..8 => WALK,
            _ => COMMUTE,
        }
    }
}

/// Of what sensors that never wait would send.
const SHARE_MIN: f64 = 0.95;

pub(super) fn figures(gateways: u32, length: Duration) -> Result<[Figure; 7], Failure> {
    block_on(async {
        let mut core = Core::start().await?;
        let listen = free_tcp()?.to_string();
        core.serve("alerting", &["--listen", &listen]).await?;
        let proxy = core.proxy().await?.to_string();
        let mut homes = Vec::new();
        for number in 0..gateways {
            homes.push(Home::start(&core, &proxy, number).await?);
        }
        let mut people = JoinSet::new();
        let before = Used::now()?;
        let began = Instant::now();
        for (number, home) in (0..).zip(homes) {
            people.spawn(live(home, number, length));
        }
        let mut lived = Vec::new();
        while let Some(ended) = people.join_next().await {
            lived.push(ended.map_err(Failure::other)??);
        }
        let passed = began.elapsed();
        let used = Used::now()?.since(&before);
        let accepted: u64 = lived.iter().map(|life| life.accepted).sum();
        let caught_up = Instant::now();
        let (stored, doubled) = loop {
            let found = stored(&core, &lived).await?;
            if found.0 >= accepted || caught_up.elapsed() > CATCH_UP_MAX {
                break found;
            }
            sleep(LOOK_INTERVAL).await;
        };
        let mut latencies = Vec::new();
        for life in &lived {
            let samples = core
                .store()
                .samples(&Scope::Service, &life.device, 0, i64::MAX, READ_BACK_MAX)
                .await
                .map_err(Failure::other)?;
            latencies.extend(samples.iter().map(|sample| {
                let took_us = sample.ingest_time_us - sample.device_time_us;
                Duration::from_micros(took_us.max(0).cast_unsigned())
            }));
        }
        latencies.sort();
        let handovers: u64 = lived.iter().map(|life| life.handovers).sum();
        tell(gateways, passed, &used, &lived);
        let behind: f64 = used.behind().map(|(_, s)| s).sum();
        eprintln!("bench: accepted {accepted}, stored {stored}, doubled {doubled}");
        let offered_per_s = f64::from(gateways * SAMPLES_PER_S);
        let per_s = accepted as f64 / passed.as_secs_f64();
        let per_core = f64::from(gateways) * passed.as_secs_f64() / behind;
        let [p50, p99] = [0.5, 0.99].map(|share| quantile_ms(&latencies, share));
        let lost = accepted.saturating_sub(stored) as f64;
        Ok([
            Figure::at_most("fleet.lost", "samples", lost, 0.0),
            Figure::at_most("fleet.doubled", "samples", doubled as f64, 0.0),
            Figure::at_least(
                "fleet.samples_per_s",
                "samples/s",
                per_s,
                SHARE_MIN * offered_per_s,
            ),
            Figure::plain("fleet.to_ingest_p50", "ms", p50),
            Figure::plain("fleet.to_ingest_p99", "ms", p99),
            Figure::plain("fleet.handovers", "handovers", handovers as f64),
            Figure::plain("fleet.gateways_per_core", "gateways", per_core),
        ])
    })?
}

fn tell(gateways: u32, passed: Duration, used: &Used, lived: &[Life]) {
    let seconds = f64::from(gateways) * passed.as_secs_f64();
    let accepted: u64 = lived.iter().map(|life| life.accepted).sum();
    eprintln!(
        "bench: {gateways} gateways, {:.0} s; a core carries so many of them, at the {:.1} samples/s that each got through over two paths:",
        passed.as_secs_f64(),
        accepted as f64 / seconds
    );
    for (part, cpu_s) in &used.0 {
        eprintln!(
            "bench:   {part:<16} {:>8.2} ms of processor a gateway and second, {:>8.0} gateways a core",
            cpu_s / seconds * 1e3,
            seconds / cpu_s
        );
    }
    for mobility in [HOME, WALK, COMMUTE] {
        let of: Vec<&Life> = lived
            .iter()
            .filter(|it| it.mobility == mobility.name)
            .collect();
        let accepted: u64 = of.iter().map(|life| life.accepted).sum();
        let handovers: u64 = of.iter().map(|life| life.handovers).sum();
        eprintln!(
            "bench:   {:<16} {} gateways, {accepted} accepted, {handovers} handovers",
            mobility.name,
            of.len()
        );
    }
}

/// What the store has of the fleet, and how much of it twice.
async fn stored(core: &Core, lived: &[Life]) -> Result<(u64, u64), Failure> {
    let (mut all, mut doubled) = (0, 0);
    for life in lived {
        let (rows, _) = core
            .store()
            .stream_count(&life.device, STREAM)
            .await
            .map_err(Failure::other)?;
        all += rows;
        doubled += rows.saturating_sub(life.accepted);
    }
    Ok((all - doubled, doubled))
}

struct Home {
    device: String,
    links: Vec<LinkControl>,
    sensors: String,
    context: Context,
}

impl Home {
    async fn start(core: &Core, proxy: &str, number: u32) -> Result<Home, Failure> {
        let id = format!("fleet-{number}");
        core.register(&id, 1).await?;
        let mut config: gateway::Config = defaults()?;
        config.listen = (std::net::Ipv4Addr::LOCALHOST, 0).into();
        config.data_dir = core.folder().join(&id);
        proxy.clone_into(&mut config.proxy);
        config.ingest = core.ingest_url();
        config.path_telemetry = String::new();
        config.identity = core.gateway_identity(&id)?;
        let (mut interfaces, mut links) = (Vec::new(), Vec::new());
        for (name, net, bits_per_s, delay_ms) in NETWORKS {
            let last = u8::try_from(number % ADDRESSES + 1).map_err(Failure::other)?;
            let address = IpAddr::from([127, 0, net, last]);
            let plain = Interface::bind(name, address, None).map_err(Failure::other)?;
            let link = LinkConfig::new(bits_per_s, Duration::from_millis(delay_ms));
            let link = link.with_loss(Loss::Bernoulli(LOSS));
            let seed = SEED + (u64::from(number) << 8) + u64::from(net);
            let (socket, control) = emulate(plain.socket, &link, seed);
            interfaces.push(Interface { socket, ..plain });
            links.push(control);
        }
        let context = Context::new("gateway");
        tokio::spawn({
            let context = context.clone();
            async move {
                if let Err(error) = gateway::run(config, Some(interfaces), context.clone()).await {
                    eprintln!("bench: a gateway ended: {error}");
                }
                context.end();
            }
        });
        let sensors = context.address(gateway::from_sensors::LISTENER).await;
        let sensors = sensors.ok_or_else(|| Failure::other("a gateway did not start"))?;
        Ok(Home {
            device: format!("{id}-0"),
            links,
            sensors: format!("http://{sensors}"),
            context,
        })
    }
}

struct Life {
    device: String,
    mobility: &'static str,
    accepted: u64,
    handovers: u64,
    /// The gateway goes on until its journal is empty.
    _end: End,
}

struct End(Context);

impl Drop for End {
    fn drop(&mut self) {
        self.0.shutdown().request();
    }
}

/// One sample every tenth of a second, the next one when the gateway has it on disk, while networks come and go.
async fn live(home: Home, number: u32, length: Duration) -> Result<Life, Failure> {
    let mobility = Mobility::of(number);
    let end = End(home.context);
    let mut random = StdRng::seed_from_u64(SEED + u64::from(number));
    let phase = random.random_range(0.0..1.0);
    let link = home.links[mobility.network].clone();
    let handovers = Arc::new(AtomicU64::new(0));
    let moving = tokio::spawn({
        let (link, handovers) = (link.clone(), handovers.clone());
        async move {
            sleep(mobility.there.mul_f64(phase)).await;
            while !mobility.away.is_zero() {
                link.set_up(false);
                handovers.fetch_add(1, Ordering::Relaxed);
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
    let mut tick = tokio::time::interval(Duration::from_secs(1) / SAMPLES_PER_S);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (began, mut accepted) = (Instant::now(), 0);
    while began.elapsed() < length {
        tick.tick().await;
        accepted += 1;
        let request = RecordRequest {
            request: accepted,
            samples: vec![Sample {
                device: home.device.clone(),
                metric: Metric::HeartRate.into(),
                device_time_us: now_us(),
                sensor_sequence: Some(accepted),
                reading: Some(Reading::Value(60.0 + f64::from(number % 40))),
                ..Sample::default()
            }],
        };
        let ended = || Failure::other("a gateway has ended its sensor's stream");
        requests.send(request).await.map_err(|_| ended())?;
        let answer = timeout(PATIENCE, answers.message())
            .await
            .map_err(|_| Failure::other("a gateway did not answer its sensor"))?;
        let answer = answer.map_err(Failure::other)?.ok_or_else(ended)?;
        if let Some(refused) = answer.rejections.first() {
            return Err(Failure::other(format!("refused: {}", refused.reason)));
        }
    }
    moving.abort();
    link.set_up(true);
    Ok(Life {
        device: home.device,
        mobility: mobility.name,
        accepted,
        handovers: handovers.load(Ordering::Relaxed),
        _end: end,
    })
}

/// Processor time in seconds of this process and of every process below it, by what they are.
struct Used(BTreeMap<String, f64>);

impl Used {
    const FLEET: &'static str = "the fleet itself";

    fn now() -> Result<Used, Failure> {
        let own = std::process::id();
        let mut found: BTreeMap<u32, (u32, String, f64)> = BTreeMap::new();
        for entry in fs::read_dir("/proc").map_err(Failure::other)?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
                continue;
            };
            // Gone since the folder was read: it is not of ours, which stay.
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
                continue;
            };
            let command = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.extend(read(&stat, &command).map(|it| (pid, it)));
        }
        let mut used = BTreeMap::new();
        for (pid, (_, name, cpu_s)) in &found {
            let mut above = *pid;
            // Bounded: every step leads nearer to the first process.
            while above != own && above != 0 {
                above = found.get(&above).map_or(0, |(parent, _, _)| *parent);
            }
            if above == own {
                let name = if *pid == own { Used::FLEET } else { name };
                *used.entry(name.to_owned()).or_default() += cpu_s;
            }
        }
        Ok(Used(used))
    }

    fn since(mut self, before: &Used) -> Used {
        for (part, cpu_s) in &mut self.0 {
            *cpu_s -= before.0.get(part).copied().unwrap_or_default();
        }
        self.0.retain(|_, cpu_s| *cpu_s > 0.0);
        self
    }

    /// Everything but the fleet.
    fn behind(&self) -> impl Iterator<Item = (&String, f64)> {
        let of = self.0.iter().filter(|(part, _)| *part != Used::FLEET);
        of.map(|(part, cpu_s)| (part, *cpu_s))
    }
}

/// Parent, what it is, and processor seconds.
fn read(stat: &str, command: &str) -> Option<(u32, String, f64)> {
    // The name in parentheses may hold anything.
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let noun = command.split('\0').nth(1).unwrap_or_default();
    let what = match name {
        "java" => "kafka",
        "postgres" => "timescaledb",
        _ if ["proxy", "ingest", "alerting"].contains(&noun) => noun,
        other => other,
    };
    Some((
        fields.get(1)?.parse().ok()?,
        what.to_owned(),
        ticks / TICKS_PER_S,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_is_known_by_its_name_or_its_noun() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0";
        let (parent, what, cpu_s) = read(stat, "braid\0proxy\0--log").unwrap();
        assert_eq!((parent, what.as_str()), (3, "proxy"));
        assert!((cpu_s - 2.0).abs() < 1e-9);
        let java = stat.replace("a) b", "java");
        assert_eq!(read(&java, "java\0-Xmx1g").unwrap().1, "kafka");
        assert!(read("7 (cut", "").is_none());
    }

    #[test]
    fn own_processor_time_is_found() {
        let used = Used::now().unwrap();
        assert!(used.0.contains_key(Used::FLEET), "{:?}", used.0);
    }

    #[test]
    fn half_of_a_fleet_moves() {
        let moving = (0..100).filter(|n| !Mobility::of(*n).away.is_zero());
        assert_eq!(moving.count(), 50);
    }
}
