//! A resumable stream whose bytes go by two paths at once, both ways, while a path is cut silently.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Bench, Identities, authority, listen_anywhere, serve};
use testkit::{link::LinkConfig, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{TunnelServer, Urgency, steering_rules::Schedule};

const MESSAGE_BYTES: usize = 300;
const INTERVAL: Duration = Duration::from_millis(50);
/// One way.
const DELAY: Duration = Duration::from_millis(10);
const CUTS: usize = 6;
/// Messages before, during and after a cut.
const MESSAGES: [u64; 3] = [10, 6, 24];

/// Times from a message to its echo, of the messages that were sent while a path was cut, sorted.
async fn echoes_in_cuts(copied: bool) -> Vec<Duration> {
    let identities = Identities::new();
    let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
    let server = Arc::new(server);
    serve(server.clone(), |request, _| async move {
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
    let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Prompt)).await;
    let stream = stream.unwrap();
    stream.copy_switch().set(copied);
    let (mut read, mut write) = tokio::io::split(stream);
    let reading = tokio::spawn(async move {
        let mut message = [0; MESSAGE_BYTES];
        let mut came = Vec::new();
        while came.len() < CUTS * MESSAGES.iter().sum::<u64>() as usize {
            within(read.read_exact(&mut message)).await.unwrap();
            // In order and once, whichever path was first.
            let number = u64::from_be_bytes(message[..8].try_into().unwrap());
            assert_eq!(number, came.len() as u64);
            came.push(Instant::now());
        }
        came
    });
    let mut sent = Vec::new();
    let mut in_cut = Vec::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    for cut in 0..CUTS {
        let link = &bench.links[cut % 2];
        for (part, messages) in MESSAGES.into_iter().enumerate() {
            link.set_up(part != 1);
            for _ in 0..messages {
                ticks.tick().await;
                if part == 1 {
                    in_cut.push(sent.len());
                }
                let mut message = [0; MESSAGE_BYTES];
                message[..8].copy_from_slice(&(sent.len() as u64).to_be_bytes());
                sent.push(Instant::now());
                within(write.write_all(&message)).await.unwrap();
                within(write.flush()).await.unwrap();
            }
        }
    }
    let came = reading.await.unwrap();
    bench.tunnel.close().await;
    server.close().await;
    let mut echoes: Vec<Duration> = in_cut.iter().map(|at| came[*at] - sent[*at]).collect();
    echoes.sort_unstable();
    echoes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_path_does_not_hold_up_a_copied_stream() {
    let part = |echoes: &[Duration]| echoes[echoes.len() * 9 / 10];
    let worst = |echoes: &[Duration]| *echoes.last().unwrap();
    let (plain, copied) = (echoes_in_cuts(false).await, echoes_in_cuts(true).await);
    println!(
        "p90 and longest echo in a cut: plain {:?} {:?}, copied {:?} {:?}",
        part(&plain),
        worst(&plain),
        part(&copied),
        worst(&copied)
    );
    // A dead path is known after more than 100 ms, and a busy machine delays a tenth.
    assert!(part(&copied) < DELAY * 6, "{copied:?}");
}
