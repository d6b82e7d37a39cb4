//! Tunnels that outlive the stream and the session that carry them, with data in both directions.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Bench, Identities, authority, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use testkit::{noise, within, write_until_blocked};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::JoinHandle,
};
use tunnel::{ResumeLimits, SessionHandle, TunnelServer, TunnelStream, Urgency};

const UP_BYTES: usize = 4_500_000;
const DOWN_BYTES: usize = 5_000_000;

fn link() -> LinkConfig {
    LinkConfig::new(20e6, Duration::from_millis(5))
}

/// The server's view of one tunnel.
struct Served {
    resumable: bool,
    received: std::io::Result<Vec<u8>>,
    sent: std::io::Result<()>,
}

struct Scene {
    bench: Bench,
    server: Arc<TunnelServer>,
    served: mpsc::Receiver<Served>,
    sessions: mpsc::Receiver<SessionHandle>,
}

/// A server that sends `DOWN_BYTES` and reads all data at the same time.
fn scene(limits: ResumeLimits) -> Scene {
    let identities = Identities::new();
    let mut config = identities.server_config(listen_anywhere());
    config.resume = limits;
    let server = Arc::new(TunnelServer::bind(config).unwrap());
    let (tell, served) = mpsc::channel(8);
    let (session_to, sessions) = mpsc::channel(64);
    serve(server.clone(), move |request, session| {
        let (tell, session_to) = (tell.clone(), session_to.clone());
        async move {
            let stream = request.accept().await.unwrap();
            session_to.send(session).await.unwrap();
            let resumable = stream.is_resumable();
            let (sent, received) = transfer(stream, noise(DOWN_BYTES, 1));
            tell.send(Served {
                resumable,
                received: received.await.unwrap(),
                sent: sent.await.unwrap(),
            })
            .await
            .unwrap();
        }
    });
    let addr = server.local_addr();
    Scene {
        bench: Bench::start(identities, addr, &link(), &[]),
        server,
        served,
        sessions,
    }
}

type Sent = JoinHandle<std::io::Result<()>>;
type Received = JoinHandle<std::io::Result<Vec<u8>>>;

/// Sends all of `bytes` and an end, and reads up to the peer's end.
fn transfer(stream: TunnelStream, bytes: Vec<u8>) -> (Sent, Received) {
    let (mut read, mut write) = tokio::io::split(stream);
    let sent = tokio::spawn(async move {
        write.write_all(&bytes).await?;
        write.shutdown().await
    });
    let received = tokio::spawn(async move {
        let mut all = Vec::new();
        read.read_to_end(&mut all).await?;
        Ok(all)
    });
    (sent, received)
}

impl Scene {
    /// The server's end of the tunnel has got the client's reset.
    async fn is_reset(&mut self) -> Served {
        let served = within(self.served.recv()).await.unwrap();
        let error = served.received.as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        served
    }

    async fn open(&self) -> TunnelStream {
        within(self.bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
            .await
            .unwrap()
    }

    async fn open_plain(&self) -> TunnelStream {
        let (tunnel, authority) = (&self.bench.tunnel, authority());
        let opened = tunnel.open_plain_tcp(&authority, Urgency::Bulk);
        within(opened).await.unwrap()
    }

    /// The transfer ends in both directions as if nothing had happened.
    async fn complete(&mut self, (sent, received): (Sent, Received)) {
        within(sent).await.unwrap().unwrap();
        let received = within(received).await.unwrap().unwrap();
        assert!(received == noise(DOWN_BYTES, 1), "bytes down differ");
        let served = within(self.served.recv()).await.unwrap();
        assert!(served.resumable);
        served.sent.unwrap();
        assert!(
            served.received.unwrap() == noise(UP_BYTES, 2),
            "bytes up differ"
        );
    }

    /// Waits until the session has received this many bytes.
    async fn received(&self, bytes: u64) {
        within(async {
            loop {
                let paths = self.bench.tunnel.paths();
                if paths.iter().map(|path| path.received_bytes).sum::<u64>() >= bytes {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    fn set_up(&self, up: bool) {
        for link in &self.bench.links {
            link.set_up(up);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_may_be_killed_in_the_middle() {
    let mut scene = scene(ResumeLimits::default());
    let stream = scene.open().await;
    let session = within(scene.sessions.recv()).await.unwrap();
    let transfer = transfer(stream, noise(UP_BYTES, 2));
    scene.received(500_000).await;
    session.close("killed by the test");
    scene.complete(transfer).await;
    scene.bench.tunnel.close().await;
}

/// One direction has ended before the session is lost; its end is neither lost nor repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_closed_tunnel_goes_on_too() {
    let mut scene = scene(ResumeLimits::default());
    let mut stream = scene.open().await;
    let session = within(scene.sessions.recv()).await.unwrap();
    within(stream.write_all(b"short")).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    scene.received(500_000).await;
    session.close("killed by the test");
    let mut received = Vec::new();
    within(stream.read_to_end(&mut received)).await.unwrap();
    assert!(received == noise(DOWN_BYTES, 1), "bytes differ");
    let served = within(scene.served.recv()).await.unwrap();
    assert_eq!(served.received.unwrap(), b"short");
    served.sent.unwrap();
    scene.bench.tunnel.close().await;
}

/// The outage outlasts the silence after which a fresh session is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_networks_may_be_away_for_ten_seconds() {
    let mut scene = scene(ResumeLimits::default());
    let stream = scene.open().await;
    scene.bench.both_up().await;
    let transfer = transfer(stream, noise(UP_BYTES, 2));
    scene.received(500_000).await;
    scene.set_up(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    scene.set_up(true);
    let back = Instant::now();
    scene.complete(transfer).await;
    tracing::info!(after = ?back.elapsed(), "complete");
    scene.bench.tunnel.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_path_may_be_cut() {
    for index in [0, 1] {
        let mut scene = scene(ResumeLimits::default());
        let stream = scene.open().await;
        scene.bench.both_up().await;
        let transfer = transfer(stream, noise(UP_BYTES, 2));
        scene.received(500_000).await;
        scene.bench.links[index].set_up(false);
        scene.complete(transfer).await;
        scene.bench.tunnel.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_is_not_resumed_is_reset() {
    let mut scene = scene(ResumeLimits {
        detached_max: Duration::from_millis(300),
        ..ResumeLimits::default()
    });
    let stream = scene.open().await;
    let session = within(scene.sessions.recv()).await.unwrap();
    let (sent, received) = transfer(stream, noise(UP_BYTES, 2));
    scene.received(500_000).await;
    scene.set_up(false);
    session.close("killed by the test");
    let served = scene.is_reset().await;
    assert_eq!(served.sent.unwrap_err().kind(), ErrorKind::ConnectionReset);
    // The client gets the reset when its networks are back.
    scene.set_up(true);
    let error = within(received).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = within(sent).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    scene.bench.tunnel.close().await;
}

/// A tunnel dropped before its end is a reset for the peer, at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_tunnel_is_reset_at_the_other_end() {
    let mut scene = scene(ResumeLimits::default());
    let stream = scene.open().await;
    drop(stream);
    scene.is_reset().await;
    scene.bench.tunnel.close().await;
}

/// The reset arrives although the tunnel had no carrying stream when it was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_dropped_without_a_network_is_reset_later() {
    let mut scene = scene(ResumeLimits::default());
    let stream = scene.open().await;
    let session = within(scene.sessions.recv()).await.unwrap();
    scene.set_up(false);
    session.close("killed by the test");
    // Long enough for the client to notice the silence.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    drop(stream);
    scene.set_up(true);
    scene.is_reset().await;
    scene.bench.tunnel.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_server_resets_detached_tunnels() {
    let mut scene = scene(ResumeLimits::default());
    let stream = scene.open().await;
    let session = within(scene.sessions.recv()).await.unwrap();
    let (_sent, received) = transfer(stream, noise(UP_BYTES, 2));
    scene.received(500_000).await;
    scene.set_up(false);
    session.close("killed by the test");
    scene.server.refuse_new();
    scene.is_reset().await;
    received.abort();
    scene.bench.tunnel.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_tunnel_takes_no_more_than_its_window() {
    let mut scene = scene(ResumeLimits::default());
    let mut stream = scene.open().await;
    let session = within(scene.sessions.recv()).await.unwrap();
    scene.set_up(false);
    session.close("killed by the test");
    let taken = within(write_until_blocked(&mut stream, Duration::from_secs(1))).await;
    assert!(taken <= 4_000_000, "{taken} bytes were taken");
    drop(stream);
    scene.set_up(true);
    let served = within(scene.served.recv()).await.unwrap();
    assert!(served.received.is_err());
    scene.bench.tunnel.close().await;
}

/// Confirmations travel behind unread data; the writer must not wait for that data to be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_goes_on_while_its_reader_sleeps() {
    let mut scene = scene(ResumeLimits::default());
    let mut stream = scene.open().await;
    // Far more than the window, without a single read.
    within(stream.write_all(&noise(UP_BYTES, 2))).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    let mut received = Vec::new();
    within(stream.read_to_end(&mut received)).await.unwrap();
    assert!(received == noise(DOWN_BYTES, 1), "bytes differ");
    let served = within(scene.served.recv()).await.unwrap();
    assert!(served.received.unwrap() == noise(UP_BYTES, 2));
    scene.bench.tunnel.close().await;
}

async fn exchange_plain(stream: TunnelStream, served: &mut mpsc::Receiver<Served>) {
    assert!(!stream.is_resumable());
    let (sent, received) = transfer(stream, b"plain".to_vec());
    within(sent).await.unwrap().unwrap();
    let received = within(received).await.unwrap().unwrap();
    assert!(received == noise(DOWN_BYTES, 1), "bytes differ");
    let served = within(served.recv()).await.unwrap();
    assert!(!served.resumable);
    assert_eq!(served.received.unwrap(), b"plain");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_the_offer_gets_a_plain_tunnel() {
    let mut scene = scene(ResumeLimits::default());
    let stream = scene.open_plain().await;
    exchange_plain(stream, &mut scene.served).await;
    scene.bench.tunnel.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_the_offer_gets_a_plain_tunnel() {
    let mut scene = scene(ResumeLimits {
        detached_max: Duration::ZERO,
        ..ResumeLimits::default()
    });
    let stream = scene.open().await;
    exchange_plain(stream, &mut scene.served).await;
    scene.bench.tunnel.close().await;
}

/// A plain tunnel ends with its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_tunnel_dies_with_its_session() {
    let mut scene = scene(ResumeLimits::default());
    let stream = scene.open_plain().await;
    let session = within(scene.sessions.recv()).await.unwrap();
    let (_sent, received) = transfer(stream, noise(UP_BYTES, 2));
    scene.received(500_000).await;
    session.close("killed by the test");
    let error = within(received).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    scene.bench.tunnel.close().await;
}
