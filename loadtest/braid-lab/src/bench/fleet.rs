//! A fleet: gateways of moving patients in this process, each with a lossy Wi-Fi and LTE. Proxy,
//! ingest and alerting are processes on a real Kafka and a real TimescaleDB. It counts the samples
//! that gateways accepted and the store has, and the processor time of each part. Processor time,
//! unlike wall time, is the same on a busy machine.

mod bare;
mod home;
mod plot;
mod used;

use std::path::Path;
use std::time::{Duration, Instant};

use store::{Scope, VitalsStore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::core::Core;
use super::figure::{Figure, quantile_ms};
use super::line::free_port;
use super::readings::unusable;
use crate::failure::{Failure, block_on};
use home::{COMMUTE, HOME, Home, Life, SAMPLES_PER_S, WALK, live};
use plot::Panel;
use used::Used;

pub(super) const IDS: [&str; 8] = [
    "fleet.lost",
    "fleet.doubled",
    "fleet.samples_per_s",
    "fleet.to_ingest_p50",
    "fleet.to_ingest_p99",
    "fleet.handovers",
    "fleet.gateways_per_core",
    "fleet.cores_for_1000",
];
const STREAM: &str = "heart-rate";
/// Samples of one patient that are read back for their times; at the bound the newest are left out
/// of percentiles and diagram.
const READ_BACK_MAX: usize = 10_000;
/// Longest time after the last sample until journals are empty and the store has everything.
const CATCH_UP_MAX: Duration = Duration::from_secs(120);
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Share of the samples that sensors without waiting would send.
const SHARE_MIN: f64 = 0.95;
/// The target's number of gateways, on its number of cores for fleet and core together.
const GATEWAYS_ASKED: u32 = 1_000;
const CORES_ASKED: f64 = 2.0;
const BARE_LENGTH: Duration = Duration::from_secs(10);

pub(super) fn figures(
    gateways: u32,
    length: Duration,
    plot: &Path,
) -> Result<Vec<Figure>, Failure> {
    let bare = bare::measure(GATEWAYS_ASKED, BARE_LENGTH)?;
    eprintln!(
        "bench: {GATEWAYS_ASKED} bare connections of the library: {:.1} answers/s and {:.2} ms of processor each in a second, both ends",
        bare.answers_per_s,
        bare.cpu_s * 1e3
    );
    block_on(async {
        let mut core = Core::start().await?;
        let listen = free_port()?.to_string();
        core.serve("alerting", &["--listen", &listen]).await?;
        let proxy = core.proxy().await?.to_string();
        let (asked, unmoved) = (Instant::now(), Used::now()?);
        let mut homes = Vec::new();
        for number in 0..gateways {
            homes.push(Home::start(&core, &proxy, number).await?);
        }
        for home in &homes {
            home.ready().await?;
        }
        let before = Used::now()?;
        eprintln!(
            "bench: {gateways} gateways are connected after {:.1} s; {:.0} ms of processor each, on both sides",
            asked.elapsed().as_secs_f64(),
            before.total_s_since(&unmoved) / f64::from(gateways) * 1e3
        );
        let mut people = JoinSet::new();
        let (began, began_us) = (Instant::now(), contracts::now_us());
        for home in homes {
            people.spawn(live(home, began, length));
        }
        let mut lived = Vec::new();
        while let Some(ended) = people.join_next().await {
            lived.push(ended.map_err(Failure::other)??);
        }
        let passed = began.elapsed();
        let used = Used::now()?.since(&before);
        let accepted: u64 = lived.iter().map(Life::accepted).sum();
        let caught_up = Instant::now();
        let (stored, doubled) = loop {
            let found = stored(&core, &lived).await?;
            if found.0 >= accepted || caught_up.elapsed() > CATCH_UP_MAX {
                break found;
            }
            sleep(LOOK_INTERVAL).await;
        };
        let caught_up = caught_up.elapsed();
        let arrivals = arrivals(&core, &lived, began_us).await?;
        let mut latencies: Vec<Duration> = arrivals.iter().map(|(_, took)| *took).collect();
        latencies.sort();
        print_parts(gateways, passed, &used, &lived);
        let behind: f64 = used.behind().map(|(_, s)| s).sum();
        eprintln!(
            "bench: accepted {accepted}, stored {stored} {:.1} s after the last, doubled {doubled}",
            caught_up.as_secs_f64()
        );
        let [p50, p99] = [0.5, 0.99].map(|share| quantile_ms(&latencies, share));
        let lost = accepted.saturating_sub(stored);
        let title = format!(
            "{gateways} gateways, two paths each: accepted {accepted}, stored {stored}, lost {lost}, doubled {doubled}; p50 {p50:.0} ms, p99 {p99:.0} ms"
        );
        draw(plot, &title, length, &lived, &arrivals)?;
        eprintln!("bench: drawn second by second: {}", plot.display());
        let handovers: usize = lived.iter().map(|life| life.handovers.len()).sum();
        let offered_per_s = f64::from(gateways * SAMPLES_PER_S);
        let per_s = accepted as f64 / passed.as_secs_f64();
        let per_core = f64::from(gateways) * passed.as_secs_f64() / behind;
        let [
            lost_id,
            doubled_id,
            rate_id,
            p50_id,
            p99_id,
            handovers_id,
            per_core_id,
            cores_id,
        ] = IDS;
        let asked = f64::from(GATEWAYS_ASKED);
        let cores = used.total_s() / passed.as_secs_f64() / f64::from(gateways) * asked;
        let cores = Figure::at_most(cores_id, "cores", cores, CORES_ASKED);
        Ok(vec![
            Figure::at_most(lost_id, "samples", lost as f64, 0.0),
            Figure::at_most(doubled_id, "samples", doubled as f64, 0.0),
            Figure::at_least(rate_id, "samples/s", per_s, SHARE_MIN * offered_per_s),
            Figure::plain(p50_id, "ms", p50),
            Figure::plain(p99_id, "ms", p99),
            Figure::plain(handovers_id, "handovers", handovers as f64),
            Figure::plain(per_core_id, "gateways", per_core),
            cores.against(bare.cpu_s * asked),
        ])
    })?
}

fn print_parts(gateways: u32, passed: Duration, used: &Used, lived: &[Life]) {
    let seconds = f64::from(gateways) * passed.as_secs_f64();
    let accepted: u64 = lived.iter().map(Life::accepted).sum();
    let requests: usize = lived.iter().map(|life| life.accepted.len()).sum();
    let skipped: u64 = lived.iter().map(|life| life.skipped).sum();
    eprintln!(
        "bench: {gateways} gateways, {:.0} s; {:.1} samples/s each over two paths, {:.1} in a request, {skipped} not taken; a core carries so many:",
        passed.as_secs_f64(),
        accepted as f64 / seconds,
        accepted as f64 / requests as f64
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
        let accepted: u64 = of.iter().map(|life| life.accepted()).sum();
        let handovers: usize = of.iter().map(|life| life.handovers.len()).sum();
        eprintln!(
            "bench:   {:<16} {} gateways, {accepted} accepted, {handovers} handovers",
            mobility.name,
            of.len()
        );
    }
}

/// Number of the fleet's samples in the store, and of duplicates among them.
async fn stored(core: &Core, lived: &[Life]) -> Result<(u64, u64), Failure> {
    let (mut all, mut doubled) = (0, 0);
    for life in lived {
        let (rows, _) = core
            .store()
            .stream_count(&life.device, STREAM)
            .await
            .map_err(Failure::other)?;
        all += rows;
        doubled += rows.saturating_sub(life.accepted());
    }
    Ok((all - doubled, doubled))
}

/// For every stored sample: its arrival at ingest since the fleet's beginning, and its age then.
async fn arrivals(
    core: &Core,
    lived: &[Life],
    began_us: i64,
) -> Result<Vec<(Duration, Duration)>, Failure> {
    let us = |us: i64| Duration::from_micros(us.max(0).cast_unsigned());
    let mut all = Vec::new();
    for life in lived {
        let store = core.store();
        let samples = store.samples(&Scope::Service, &life.device, 0, i64::MAX, READ_BACK_MAX);
        all.extend(samples.await.map_err(Failure::other)?.iter().map(|it| {
            (
                us(it.ingest_time_us - began_us),
                us(it.ingest_time_us - it.device_time_us),
            )
        }));
    }
    Ok(all)
}

/// Second by second; the last one includes the time after the sensors' end.
fn draw(
    file: &Path,
    title: &str,
    length: Duration,
    lived: &[Life],
    arrivals: &[(Duration, Duration)],
) -> Result<(), Failure> {
    let seconds = length.as_secs() as usize + 1;
    let second = |time: &Duration| (time.as_secs() as usize).min(seconds - 1);
    let [mut accepted, mut reached, mut handovers] = [(); 3].map(|()| vec![Some(0.0); seconds]);
    let add = |to: &mut Vec<Option<f64>>, time: &Duration, count: f64| {
        to[second(time)] = to[second(time)].map(|had| had + count);
    };
    for life in lived {
        for (time, count) in &life.accepted {
            add(&mut accepted, time, *count as f64);
        }
        for time in &life.handovers {
            add(&mut handovers, time, 1.0);
        }
    }
    let mut took = vec![Vec::new(); seconds];
    for (time, latency) in arrivals {
        add(&mut reached, time, 1.0);
        took[second(time)].push(*latency);
    }
    took.iter_mut().for_each(|times| times.sort());
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| {
        let of = |times: &Vec<Duration>| (!times.is_empty()).then(|| quantile_ms(times, share));
        took.iter().map(of).collect()
    });
    let panels = [
        Panel {
            title: "Samples each second",
            unit: "samples",
            lines: vec![
                ("accepted by gateways", accepted),
                ("reached ingest and were stored", reached),
            ],
        },
        Panel {
            title: "From the sensor's clock to ingest's",
            unit: "ms",
            lines: vec![("p50", p50), ("p90", p90), ("p99", p99)],
        },
        Panel {
            title: "Networks that went away each second",
            unit: "handovers",
            lines: vec![("handovers", handovers)],
        },
    ];
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
    }
    std::fs::write(file, plot::svg(title, &panels)).map_err(|error| unusable(file, &error))
}
