//! Copies of a message by streams with different numbers, while a path is cut silently.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Bench, Identities, NAMES, authority, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use parking_lot::Mutex;
use testkit::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tunnel::{
    CopyNumber, TunnelServer, TunnelStream, Urgency,
    steering_rules::{PathSchedule, Rank, Schedule},
};

const COPIES: u8 = 3;
const MESSAGE_BYTES: usize = 500;
const INTERVAL: Duration = Duration::from_millis(50);
const DELAY: Duration = Duration::from_millis(10);
const CUTS: usize = 6;
/// Messages before, during and after a cut.
const MESSAGES: [u64; 3] = [8, 6, 26];

/// First arrival of each message.
type Arrivals = Arc<Mutex<BTreeMap<u64, Instant>>>;

/// Writes the messages whose numbers come by the channel.
fn write(mut stream: TunnelStream) -> mpsc::Sender<u64> {
    let (messages, mut numbers) = mpsc::channel::<u64>(64);
    tokio::spawn(async move {
        let mut message = [0; MESSAGE_BYTES];
        while let Some(number) = numbers.recv().await {
            message[..8].copy_from_slice(&number.to_be_bytes());
            stream.write_all(&message).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    messages
}

/// Notes the first arrival of each message.
fn server(identities: &Identities, arrivals: &Arrivals) -> Arc<TunnelServer> {
    let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
    let server = Arc::new(server);
    let record = arrivals.clone();
    serve(server.clone(), move |request, _| {
        let record = record.clone();
        async move {
            let mut stream = request.accept().await.unwrap();
            let mut message = [0; MESSAGE_BYTES];
            while stream.read_exact(&mut message).await.is_ok() {
                let number = u64::from_be_bytes(message[..8].try_into().unwrap());
                let now = Instant::now();
                record.lock().entry(number).or_insert(now);
            }
        }
    });
    server
}

async fn open_streams(bench: &Bench, numbered: bool) -> Vec<mpsc::Sender<u64>> {
    let to = authority();
    let mut streams = Vec::new();
    for number in 0..COPIES {
        let copy = CopyNumber::default();
        copy.set(number);
        let stream = match numbered {
            true => within(bench.tunnel.open_copied_tcp(&to, Urgency::Urgent, &copy)).await,
            false => within(bench.tunnel.open_plain_tcp(&to, Urgency::Urgent)).await,
        };
        streams.push(write(stream.unwrap()));
    }
    streams
}

fn copied(paths: Vec<(String, PathSchedule)>) -> Schedule {
    Schedule {
        paths,
        copies: 2,
        ..Schedule::default()
    }
}

/// The second access stands by for other flows; copies of alerts may take it, or not.
fn second_stands_by(carries_copies: bool) -> Schedule {
    let of = |place, rank| PathSchedule {
        place,
        rank: Some(rank),
        weight: None,
        carries_copies,
    };
    let [first, second] = NAMES.map(str::to_owned);
    copied(vec![
        (first, of(0, Rank::Active)),
        (second, of(1, Rank::Standby)),
    ])
}

/// The delays of the messages that were sent while a path was cut, sorted. These links are cut.
async fn delays_in_cuts(schedule: Schedule, numbered: bool, cut: &[usize]) -> Vec<Duration> {
    let identities = Identities::new();
    let arrivals = Arrivals::default();
    let server = server(&identities, &arrivals);
    let link = LinkConfig::new(20e6, DELAY);
    let bench = Bench::start(identities, server.local_addr(), &link, &[]);
    bench.both_up().await;
    bench.tunnel.set_schedule(schedule);
    let streams = open_streams(&bench, numbered).await;
    let mut sent = BTreeMap::new();
    let mut in_cut = Vec::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut number = 0;
    for link in cut.iter().cycle().take(CUTS) {
        let link = &bench.links[*link];
        for (part, messages) in MESSAGES.into_iter().enumerate() {
            link.set_up(part != 1);
            for _ in 0..messages {
                ticks.tick().await;
                number += 1;
                sent.insert(number, Instant::now());
                if part == 1 {
                    in_cut.push(number);
                }
                for stream in &streams {
                    stream.send(number).await.unwrap();
                }
            }
        }
    }
    within(async {
        while arrivals.lock().len() < sent.len() {
            tokio::time::sleep(INTERVAL).await;
        }
    })
    .await;
    bench.tunnel.close().await;
    server.close().await;
    let arrivals = arrivals.lock();
    let delay = |number: &u64| arrivals[number] - sent[number];
    let mut delays: Vec<Duration> = in_cut.iter().map(delay).collect();
    delays.sort_unstable();
    delays
}

fn part(delays: &[Duration], percent: usize) -> Duration {
    delays[delays.len() * percent / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_path_never_holds_up_all_copies() {
    let delays = async |numbered| delays_in_cuts(copied(Vec::new()), numbered, &[0, 1]).await;
    let (plain, numbered) = (delays(false).await, delays(true).await);
    let worst = |delays: &[Duration]| *delays.last().unwrap();
    println!(
        "p90 and longest delay in a cut: plain {:?} {:?}, numbered {:?} {:?}",
        part(&plain, 90),
        worst(&plain),
        part(&numbered, 90),
        worst(&numbered)
    );
    // A dead path is known after more than 100 ms. A machine without idle cores delays a quarter.
    assert!(part(&numbered, 70) < DELAY * 5, "{numbered:?}");
}

/// The path in use is cut, and the other one stands by for all but copies of alerts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_take_a_path_that_stands_by_for_other_flows() {
    let delays = async |carries| delays_in_cuts(second_stands_by(carries), true, &[0]).await;
    let (one, two) = (delays(false).await, delays(true).await);
    println!(
        "p70 and p90 in a cut: on one path {:?} {:?}, on two {:?} {:?}",
        part(&one, 70),
        part(&one, 90),
        part(&two, 70),
        part(&two, 90)
    );
    assert!(part(&two, 70) < DELAY * 6, "{two:?}");
}

/// An upload goes on meanwhile, and stays on its path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_stays_away_from_a_path_that_carries_copies() {
    const MESSAGES: u64 = 6;
    const EVERY: Duration = Duration::from_millis(500);
    /// Packets on the path for each message: its copy, and pings with other data.
    const PACKETS_MAX: u64 = 4;
    let identities = Identities::new();
    let arrivals = Arrivals::default();
    let server = server(&identities, &arrivals);
    let link = LinkConfig::new(20e6, DELAY);
    let bench = Bench::start(identities, server.local_addr(), &link, &[]);
    bench.both_up().await;
    bench.tunnel.set_schedule(second_stands_by(true));
    let streams = open_streams(&bench, true).await;
    let bulk = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk)).await;
    let mut bulk = bulk.unwrap();
    let upload = tokio::spawn(async move { while bulk.write_all(&[0; 16_384]).await.is_ok() {} });
    let sent = || {
        let mut sent = [0; 2];
        for path in bench.tunnel.paths() {
            let index = NAMES.iter().position(|name| *name == path.name);
            sent[index.unwrap()] += path.sent_bytes;
        }
        sent
    };
    tokio::time::sleep(EVERY).await;
    let before = sent();
    let mut ticks = tokio::time::interval(EVERY);
    for number in 1..=MESSAGES {
        ticks.tick().await;
        for stream in &streams {
            stream.send(number).await.unwrap();
        }
    }
    ticks.tick().await;
    let after = sent();
    upload.abort();
    let [active, held] = [0, 1].map(|index| after[index] - before[index]);
    println!("sent beside an upload: {active} bytes on its path, {held} on the other one");
    assert!(active > 2_000_000, "{active}");
    assert!(held > MESSAGES * MESSAGE_BYTES as u64, "{held}");
    assert!(held < MESSAGES * PACKETS_MAX * 1_300, "{held}");
    bench.tunnel.close().await;
    server.close().await;
}
