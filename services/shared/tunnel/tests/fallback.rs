//! Blocked UDP: the same tunnels as HTTP/2 over TLS over MPTCP, and back to QUIC when it answers.
//! The emulated links carry only UDP, so cutting them acts like a firewall.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bench::{Bench, Identities, authority, echo, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use futures::FutureExt;
use testkit::{noise, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::JoinHandle,
};
use tunnel::{
    OpenError, SessionHandle, StatusCode, Transport, TunnelServer, TunnelStream, Urgency,
};

/// Exchanges after which a conversation counts as going on.
const EXCHANGES: u64 = 20;

const SESSIONS_TOLD_MAX: usize = 4;

const BLOCK_BYTES: usize = 8_000;

fn link() -> LinkConfig {
    LinkConfig::new(20e6, Duration::from_millis(5))
}

/// A server with TCP, and a client that may use it.
fn start(server: &Arc<TunnelServer>, identities: Identities, down: &[usize]) -> Bench {
    let addr = server.local_addr();
    Bench::start_with(identities, addr, &link(), down, |config| {
        config.fallback = true;
    })
}

fn server(identities: &Identities, fallback: bool) -> Arc<TunnelServer> {
    let mut config = identities.server_config(listen_anywhere());
    config.fallback = fallback;
    Arc::new(TunnelServer::bind(config).unwrap())
}

fn set_up(bench: &Bench, up: bool) {
    bench.links.iter().for_each(|link| link.set_up(up));
}

async fn carried_by(bench: &Bench, wanted: impl Fn(Transport) -> bool) -> Transport {
    within(async {
        loop {
            match bench.tunnel.transport() {
                Some(transport) if wanted(transport) => return transport,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await
}

fn is_tcp(transport: Transport) -> bool {
    transport != Transport::Quic
}

/// Echoed blocks, one after another, each compared, until the test ends it.
struct Conversation {
    exchanged: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    talking: JoinHandle<()>,
}

impl Conversation {
    async fn start(bench: &Bench) -> Self {
        let to = authority();
        let opened = bench.tunnel.open_tcp(&to, Urgency::Prompt);
        let stream = within(opened).await.unwrap();
        assert!(stream.is_resumable());
        let exchanged = Arc::new(AtomicU64::new(0));
        let ends = Arc::new(AtomicBool::new(false));
        let talking = tokio::spawn(talk(stream, exchanged.clone(), ends.clone()));
        Self {
            exchanged,
            ends,
            talking,
        }
    }

    async fn goes_on(&self) {
        let target = self.exchanged.load(Ordering::Relaxed) + EXCHANGES;
        within(async {
            while self.exchanged.load(Ordering::Relaxed) < target {
                assert!(!self.talking.is_finished(), "the conversation broke off");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    async fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        within(self.talking).await.unwrap();
    }
}

async fn talk(mut stream: TunnelStream, exchanged: Arc<AtomicU64>, ends: Arc<AtomicBool>) {
    let mut back = vec![0; BLOCK_BYTES];
    while !ends.load(Ordering::Relaxed) {
        let number = exchanged.load(Ordering::Relaxed);
        let block = noise(BLOCK_BYTES, number);
        stream.write_all(&block).await.unwrap();
        stream.flush().await.unwrap();
        stream.read_exact(&mut back).await.unwrap();
        assert!(back == block, "block {number} differs");
        exchanged.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut back).await.unwrap(), 0);
}

/// The sessions whose requests the server has accepted.
fn serve_echo(server: &Arc<TunnelServer>) -> mpsc::Receiver<SessionHandle> {
    let (tell, sessions) = mpsc::channel(SESSIONS_TOLD_MAX);
    serve(server.clone(), move |request, session| {
        // A test that needs the first session reads it in time; later ones may be dropped.
        let _ = tell.try_send(session.clone());
        echo(request, session)
    });
    sessions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_from_the_start_then_quic_again() {
    let identities = Identities::new();
    let server = server(&identities, true);
    let mut sessions = serve_echo(&server);
    let bench = start(&server, identities, &[0, 1]);
    let transport = carried_by(&bench, is_tcp).await;
    let conversation = Conversation::start(&bench).await;
    conversation.goes_on().await;
    let at_server = sessions.recv().await.unwrap();
    assert_eq!(at_server.transport(), transport, "both ends say the same");
    // The proxy reports one path, with its measurements.
    within(async {
        loop {
            let paths = at_server.paths();
            if paths[0].name == transport.as_str() && !paths[0].rtt.is_zero() {
                assert!(paths[0].received_bytes > EXCHANGES * BLOCK_BYTES as u64);
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // The gateway reports the access that carries it, where its kernel shows that.
    let path = &bench.tunnel.paths()[0];
    assert!(bench::NAMES.contains(&&*path.name), "{path:?}");
    assert!(path.received_bytes > EXCHANGES * BLOCK_BYTES as u64 && !path.rtt.is_zero());
    set_up(&bench, true);
    carried_by(&bench, |transport| transport == Transport::Quic).await;
    conversation.goes_on().await;
    // The tunnel has left the TCP session, which ends.
    within(at_server.closed()).await;
    conversation.end().await;
    bench.tunnel.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_under_a_running_tunnel() {
    let identities = Identities::new();
    let server = server(&identities, true);
    let _sessions = serve_echo(&server);
    let bench = start(&server, identities, &[]);
    carried_by(&bench, |transport| transport == Transport::Quic).await;
    let conversation = Conversation::start(&bench).await;
    conversation.goes_on().await;
    set_up(&bench, false);
    carried_by(&bench, is_tcp).await;
    conversation.goes_on().await;
    conversation.end().await;
    bench.tunnel.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_tunnels_end_regularly_and_wait_for_their_reader() {
    let identities = Identities::new();
    let server = server(&identities, true);
    let _sessions = serve_echo(&server);
    let bench = start(&server, identities, &[0, 1]);
    carried_by(&bench, is_tcp).await;
    let to = authority();
    let open = || async {
        let opened = bench.tunnel.open_plain_tcp(&to, Urgency::Bulk);
        let stream = within(opened).await.unwrap();
        assert!(!stream.is_resumable());
        stream
    };
    let sent = noise(6_000_000, 3);
    let (mut read, mut write) = tokio::io::split(open().await);
    let bytes = sent.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&bytes).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    within(read.read_to_end(&mut back)).await.unwrap();
    within(writing).await.unwrap();
    assert!(back == sent, "bytes differ");

    // The echo is not read, so the server, and then the writer, has to wait.
    let mut stuck = open().await;
    let mut taken = 0;
    let writing = async {
        loop {
            taken += stuck.write(&sent[..64 * 1024]).await.unwrap();
        }
    };
    let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(2), writing).await;
    assert!(taken < 8_000_000, "{taken} bytes were taken for nobody");
    // Other tunnels go on meanwhile, and a dropped tunnel returns its room.
    let others = Conversation::start(&bench).await;
    others.goes_on().await;
    drop(stuck);
    others.end().await;
    bench.tunnel.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_resets_pass() {
    let identities = Identities::new();
    let server = server(&identities, true);
    serve(server.clone(), |request, _| async move {
        if request.urgency() == Urgency::Bulk {
            return request.refuse(StatusCode::FORBIDDEN).await;
        }
        let mut stream = request.accept().await.unwrap();
        stream.write_all(b"torn").await.unwrap();
        stream.flush().await.unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        stream.abort();
    });
    let bench = start(&server, identities, &[0, 1]);
    carried_by(&bench, is_tcp).await;
    let refused = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk)).await;
    assert!(matches!(
        refused,
        Err(OpenError::Refused(StatusCode::FORBIDDEN))
    ));
    for resumable in [true, false] {
        let to = authority();
        let opened = match resumable {
            true => bench.tunnel.open_tcp(&to, Urgency::Prompt).boxed(),
            false => bench.tunnel.open_plain_tcp(&to, Urgency::Prompt).boxed(),
        };
        let mut stream = within(opened).await.unwrap();
        let mut all = [0; 4];
        within(stream.read_exact(&mut all)).await.unwrap();
        assert_eq!(&all, b"torn");
        stream.write_all(b"!").await.unwrap();
        stream.flush().await.unwrap();
        let error = within(stream.read(&mut all)).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    bench.tunnel.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_drains_says_goodbye() {
    let identities = Identities::new();
    let first = server(&identities, true);
    let mut sessions = serve_echo(&first);
    let bench = start(&first, identities, &[0, 1]);
    carried_by(&bench, is_tcp).await;
    let to = authority();
    let opened = bench.tunnel.open_plain_tcp(&to, Urgency::Prompt);
    let mut stream = within(opened).await.unwrap();
    let session = sessions.recv().await.unwrap();
    first.refuse_new();
    let draining = tokio::spawn(async move { session.drain(Duration::from_secs(20)).await });
    // Open tunnels go on to their end.
    let sent = noise(500_000, 5);
    let mut back = vec![0; sent.len()];
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let both = async {
        let writing = async {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(writing, read.read_exact(&mut back));
        read.unwrap();
    };
    within(both).await;
    assert!(back == sent, "bytes differ");
    within(draining).await.unwrap();
    // New connections are refused, and the port is free again.
    let address = first.local_addr();
    within(async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    bench.tunnel.close().await;
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_fallback_listens_only_on_udp() {
    let identities = Identities::new();
    let server = server(&identities, false);
    let connected = tokio::net::TcpStream::connect(server.local_addr()).await;
    assert_eq!(
        connected.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    server.close().await;
}
