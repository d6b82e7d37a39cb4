//! Streams and datagrams that go by two paths at once, both ways, while a path is cut silently.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Bench, Identities, authority, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{TunnelServer, Urgency, steering_rules::Schedule};

const MESSAGE_BYTES: usize = 300;
const INTERVAL: Duration = Duration::from_millis(50);
/// One way.
const DELAY: Duration = Duration::from_millis(10);
/// Sooner than a lost datagram comes again.
const SOON: Duration = Duration::from_millis(80);
const CUTS: usize = 6;
/// Messages before, during and after a cut.
const MESSAGES: [usize; 3] = [10, 6, 24];

/// The bench and its server, which echoes messages.
async fn start() -> (Bench, Arc<TunnelServer>) {
    let identities = Identities::new();
    let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
    let server = Arc::new(server);
    serve(server.clone(), |request, _| async move {
        if request.authority().host() == "datagrams" {
            let tunnel = request.accept_udp().await.unwrap();
            while let Ok(message) = tunnel.receive().await {
                tunnel.send(&message);
            }
            return;
        }
        let stream = request.accept().await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let mut message = [0; MESSAGE_BYTES];
        while read.read_exact(&mut message).await.is_ok() {
            write.write_all(&message).await.unwrap();
            write.flush().await.unwrap();
        }
    });
    let link = LinkConfig::new(20e6, DELAY);
    let bench = Bench::start(identities, server.local_addr(), &link, &[]);
    bench.both_up().await;
    bench.tunnel.set_schedule(Schedule {
        copies: 2,
        ..Schedule::default()
    });
    (bench, server)
}

/// When each message was sent, and those that were sent while a path was cut.
struct Sent {
    all: Vec<Instant>,
    in_cut: Vec<usize>,
}

/// Sends the messages at their times, and cuts the paths in turn.
async fn send_all(bench: &Bench, mut send: impl AsyncFnMut(&[u8])) -> Sent {
    let (mut all, mut in_cut) = (Vec::new(), Vec::new());
    let mut ticks = tokio::time::interval(INTERVAL);
    for cut in 0..CUTS {
        let link = &bench.links[cut % 2];
        for (part, messages) in MESSAGES.into_iter().enumerate() {
            link.set_up(part != 1);
            for _ in 0..messages {
                ticks.tick().await;
                if part == 1 {
                    in_cut.push(all.len());
                }
                let mut message = [0; MESSAGE_BYTES];
                message[..8].copy_from_slice(&(all.len() as u64).to_be_bytes());
                all.push(Instant::now());
                send(&message).await;
            }
        }
    }
    Sent { all, in_cut }
}

fn number(message: &[u8]) -> usize {
    u64::from_be_bytes(message[..8].try_into().unwrap()) as usize
}

/// Times from a message to its echo, of the messages that were sent while a path was cut, sorted.
async fn stream_echoes(copied: bool) -> Vec<Duration> {
    let (bench, server) = start().await;
    let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Prompt)).await;
    let stream = stream.unwrap();
    stream.switch().copy(copied);
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = tokio::spawn(async move {
        let mut message = [0; MESSAGE_BYTES];
        let mut came = Vec::new();
        while came.len() < CUTS * MESSAGES.iter().sum::<usize>() {
            within(read.read_exact(&mut message)).await.unwrap();
            // In order and once, whichever path was first.
            assert_eq!(number(&message), came.len());
            came.push(Instant::now());
        }
        came
    });
    let sent = send_all(&bench, async |message| {
        within(write.write_all(message)).await.unwrap();
        within(write.flush()).await.unwrap();
    })
    .await;
    let came = reading.await.unwrap();
    bench.tunnel.close().await;
    server.close().await;
    let echo = |at: &usize| came[*at] - sent.all[*at];
    let mut echoes: Vec<Duration> = sent.in_cut.iter().map(echo).collect();
    echoes.sort_unstable();
    echoes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_path_does_not_hold_up_a_copied_stream() {
    let part = |echoes: &[Duration], percent: usize| echoes[echoes.len() * percent / 100];
    let (plain, copied) = (stream_echoes(false).await, stream_echoes(true).await);
    println!(
        "median and p90 of echoes in a cut: plain {:?} {:?}, copied {:?} {:?}",
        part(&plain, 50),
        part(&plain, 90),
        part(&copied, 50),
        part(&copied, 90)
    );
    // A dead path is known after more than 100 ms. A machine without idle cores delays a quarter.
    assert!(part(&copied, 70) < DELAY * 6, "{copied:?}");
    assert!(part(&plain, 50) > part(&copied, 50) * 2, "{plain:?}");
}

/// Messages in a cut, those of them whose echo never came, and those whose echo came late or never.
async fn datagram_echoes(copied: bool) -> (usize, usize, usize) {
    let (bench, server) = start().await;
    let to = "datagrams:9".parse().unwrap();
    let tunnel = within(bench.tunnel.open_udp(&to, Urgency::Prompt)).await;
    let tunnel = Arc::new(tunnel.unwrap());
    let receiver = tunnel.clone();
    let reading = tokio::spawn(async move {
        let mut came = Vec::new();
        while let Ok(message) = receiver.receive().await {
            came.push((number(&message), Instant::now()));
        }
        came
    });
    let sent = send_all(&bench, async |message| {
        match copied {
            true => assert!(tunnel.send_copied(message)),
            false => assert!(tunnel.send(message)),
        };
    })
    .await;
    // The last echo is on its way.
    tokio::time::sleep(DELAY * 20).await;
    bench.tunnel.close().await;
    server.close().await;
    let came = reading.await.unwrap();
    let once: BTreeMap<usize, Instant> = came.iter().copied().collect();
    assert_eq!(once.len(), came.len(), "an echo came twice");
    let is_soon = |at: &usize| {
        once.get(at)
            .is_some_and(|came| *came <= sent.all[*at] + SOON)
    };
    let late = sent.in_cut.iter().filter(|at| !is_soon(at)).count();
    let lost = sent.in_cut.iter().filter(|at| !once.contains_key(at));
    (sent.in_cut.len(), lost.count(), late)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_path_does_not_delay_a_copied_datagram() {
    let (plain, copied) = (datagram_echoes(false).await, datagram_echoes(true).await);
    println!("messages, lost and late echoes in a cut: plain {plain:?}, copied {copied:?}");
    assert!(
        plain.2 > copied.2,
        "{plain:?}, {copied:?}: the cut harms nobody"
    );
    assert!(copied.1 * 20 <= copied.0, "{copied:?}");
}
