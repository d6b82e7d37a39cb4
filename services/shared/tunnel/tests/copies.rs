//! Copies of a message by streams with different numbers, while a path is cut silently.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Bench, Identities, authority, listen_anywhere, serve};
use parking_lot::Mutex;
use testkit::{link::LinkConfig, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tunnel::{CopyNumber, TunnelServer, TunnelStream, Urgency, steering_rules::Schedule};

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

/// The delays of the messages that were sent while a path was cut, sorted.
async fn delays_in_cuts(numbered: bool) -> Vec<Duration> {
    let identities = Identities::new();
    let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
    let server = Arc::new(server);
    let arrivals = Arrivals::default();
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
    let link = LinkConfig::new(20e6, DELAY);
    let bench = Bench::start(identities, server.local_addr(), &link, &[]);
    bench.both_up().await;
    bench.tunnel.set_schedule(Schedule {
        copies: 2,
        ..Schedule::default()
    });
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
    let mut sent = BTreeMap::new();
    let mut in_cut = Vec::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut number = 0;
    for cut in 0..CUTS {
        let link = &bench.links[cut % 2];
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_path_never_holds_up_all_copies() {
    let part = |delays: &[Duration], percent: usize| delays[delays.len() * percent / 100];
    let (plain, numbered) = (delays_in_cuts(false).await, delays_in_cuts(true).await);
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
