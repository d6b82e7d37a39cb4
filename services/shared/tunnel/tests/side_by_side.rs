//! Tunnels of one session side by side: bulk streams share fairly, and urgent streams do not wait
//! for bulk.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Bench, Identities, authority, echo, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use parking_lot::Mutex;
use testkit::{within, write_until_blocked};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinSet,
};
use tunnel::{ConnectRequest, SessionHandle, Transport, TunnelServer, TunnelStream, Urgency};

const BUSY: usize = 24;

/// Plain tunnels have no bound except the windows: this number fills the connection's.
const BUSY_PLAIN: usize = 40;

const STALLED: usize = 12;

/// Longer than it takes to give up a tunnel's stream, and then its session.
const OUTRANKED: Duration = Duration::from_secs(20);

/// Time in which bulk fills all windows.
const FILLING: Duration = Duration::from_secs(4);

/// Largest difference of a question beside bulk to a question alone.
const LONGER_MAX: Duration = Duration::from_millis(300);

/// Questions of ten that a pause of the machine may make longer. Bulk would delay every one.
const PAUSES_MAX: usize = 2;

fn slow() -> LinkConfig {
    LinkConfig::new(2e6, Duration::from_millis(20))
}

fn start<F, S>(link: &LinkConfig, handler: F) -> (Bench, Arc<TunnelServer>)
where
    F: Fn(ConnectRequest, SessionHandle) -> S + Clone + Send + Sync + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let identities = Identities::new();
    let mut config = identities.server_config(listen_anywhere());
    config.fallback = true;
    let server = Arc::new(TunnelServer::bind(config).unwrap());
    let addr = server.local_addr();
    serve(server.clone(), handler);
    let bench = Bench::start_with(identities, addr, link, &[], |config| config.fallback = true);
    (bench, server)
}

/// Bulk goes to `bulk`; other streams are echoed.
async fn sorted<S: Future<Output = ()>>(
    request: ConnectRequest,
    session: SessionHandle,
    bulk: impl FnOnce(TunnelStream) -> S,
) {
    if request.urgency() == Urgency::Bulk {
        bulk(request.accept().await.unwrap()).await;
    } else {
        echo(request, session).await;
    }
}

async fn open_bulk(bench: &Bench, count: usize, plain: bool) -> Vec<TunnelStream> {
    let (tunnel, to) = (&bench.tunnel, authority());
    let mut streams = Vec::new();
    for _ in 0..count {
        let opened = if plain {
            within(tunnel.open_plain_tcp(&to, Urgency::Bulk)).await
        } else {
            within(tunnel.open_tcp(&to, Urgency::Bulk)).await
        };
        streams.push(opened.unwrap());
    }
    streams
}

async fn write_for_ever(mut stream: impl AsyncWrite + Unpin) {
    let chunk = vec![1; 64 * 1024];
    while stream.write_all(&chunk).await.is_ok() {}
}

/// Time of a small question and its answer over a new tunnel.
async fn ask(bench: &Bench) -> Duration {
    let start = Instant::now();
    let to = authority();
    let opened = bench.tunnel.open_tcp(&to, Urgency::Urgent);
    let mut stream = within(opened).await.unwrap();
    within(stream.write_all(&[7; 1000])).await.unwrap();
    within(stream.flush()).await.unwrap();
    within(stream.read_exact(&mut [0; 1000])).await.unwrap();
    start.elapsed()
}

async fn read_for_ever(mut stream: impl AsyncRead + Unpin) {
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}

/// Asks alone, and then beside `count` busy tunnels, which live as long as the returned value.
async fn ask_beside<S>(
    bench: &Bench,
    (count, plain): (usize, bool),
    busy: impl FnMut(TunnelStream) -> S,
) -> JoinSet<()>
where
    S: Future<Output = ()> + Send + 'static,
{
    bench.both_up().await;
    let alone = ask(bench).await;
    let streams = open_bulk(bench, count, plain).await;
    let tasks = streams.into_iter().map(busy).collect();
    tokio::time::sleep(FILLING).await;
    let mut times = Vec::new();
    for _ in 0..10 {
        times.push(ask(bench).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let late = times.iter().filter(|took| **took >= alone + LONGER_MAX);
    assert!(late.count() <= PAUSES_MAX, "{times:?}, and alone {alone:?}");
    tasks
}

#[tokio::test]
async fn uploads_share_alike_and_let_an_alert_pass() {
    let received: Arc<Mutex<Vec<usize>>> = Arc::default();
    let counts = received.clone();
    let (bench, _server) = start(&slow(), move |request, session| {
        let counts = counts.clone();
        sorted(request, session, async move |mut stream| {
            let own = counts.lock().len();
            counts.lock().push(0);
            let mut piece = vec![0; 64 * 1024];
            while let Ok(count) = stream.read(&mut piece).await {
                counts.lock()[own] += count;
            }
        })
    });
    let _uploads = ask_beside(&bench, (BUSY, false), write_for_ever).await;
    let counts = received.lock().clone();
    let mean = counts.iter().sum::<usize>() / counts.len();
    let least = counts.iter().min().copied().unwrap();
    assert_eq!(counts.len(), BUSY);
    assert!(least > mean / 3, "{least} bytes of {mean}: {counts:?}");
    bench.tunnel.close().await;
}

#[tokio::test]
async fn downloads_let_an_alert_pass() {
    let (bench, _server) = start(&slow(), |request, session| {
        sorted(request, session, write_for_ever)
    });
    ask_beside(&bench, (BUSY, false), read_for_ever).await;
    bench.tunnel.close().await;
}

#[tokio::test]
async fn plain_uploads_that_fill_the_send_window_let_an_alert_pass() {
    let (bench, _server) = start(&slow(), |request, session| {
        sorted(request, session, read_for_ever)
    });
    ask_beside(&bench, (BUSY_PLAIN, true), write_for_ever).await;
    bench.tunnel.close().await;
}

/// Vitals stored during an outage use all of a slow link for a while. Starved bulk then says
/// nothing about the session.
#[tokio::test]
async fn bulk_that_waits_for_vitals_does_not_end_the_session() {
    let link = LinkConfig::new(1e6, Duration::from_millis(20));
    let (bench, _server) = start(&link, |request, session| {
        sorted(request, session, read_for_ever)
    });
    bench.both_up().await;
    let session = bench.session();
    let bulk = open_bulk(&bench, 1, false).await.remove(0);
    let to = authority();
    let opened = bench.tunnel.open_plain_tcp(&to, Urgency::Prompt);
    let (answers, vitals) = tokio::io::split(within(opened).await.unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(write_for_ever(bulk));
    tasks.spawn(read_for_ever(answers));
    tasks.spawn(write_for_ever(vitals));
    tokio::time::sleep(OUTRANKED).await;
    assert_eq!(bench.session(), session, "the session was given up");
    bench.tunnel.close().await;
}

async fn stalled_readers_hold_up_nobody_else(by_udp: bool) {
    let link = LinkConfig::new(200e6, Duration::from_millis(1));
    let (bench, _server) = start(&link, |request, session| {
        sorted(request, session, async |_stream| pending().await)
    });
    bench.links.iter().for_each(|link| link.set_up(by_udp));
    within(async {
        while bench.tunnel.transport().map(|by| by == Transport::Quic) != Some(by_udp) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let mut stalled = open_bulk(&bench, STALLED, false).await;
    for stream in &mut stalled {
        within(write_until_blocked(stream, Duration::from_millis(300))).await;
    }
    let took = ask(&bench).await;
    assert!(took < LONGER_MAX, "{took:?}");
    bench.tunnel.close().await;
}

#[tokio::test]
async fn stalled_readers_do_not_delay_others_over_udp() {
    stalled_readers_hold_up_nobody_else(true).await;
}

#[tokio::test]
async fn stalled_readers_do_not_delay_others_over_tcp() {
    stalled_readers_hold_up_nobody_else(false).await;
}
