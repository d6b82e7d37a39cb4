//! Properties of a tunnelled stream: refusals with their status, half-close, torn transfers as
//! errors, and back-pressure. A session returns after an absence of the server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::bench::{Bench, Identities, authority, echo, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use testkit::{noise, within, write_until_blocked};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tunnel::{
    ConnectRequest, OpenError, SessionHandle, StatusCode, TunnelEvent, TunnelServer, Urgency,
};

fn fast() -> LinkConfig {
    LinkConfig::new(100e6, Duration::from_millis(1))
}

/// QUIC's smallest packet of 1,200 bytes in IPv4.
const NARROWEST_MTU: u64 = 1228;

fn start<F, S>(handler: F) -> (Bench, Arc<TunnelServer>)
where
    F: Fn(ConnectRequest, SessionHandle) -> S + Clone + Send + Sync + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    start_over(&fast(), handler)
}

fn start_over<F, S>(link: &LinkConfig, handler: F) -> (Bench, Arc<TunnelServer>)
where
    F: Fn(ConnectRequest, SessionHandle) -> S + Clone + Send + Sync + 'static,
    S: Future<Output = ()> + Send + 'static,
{
    let identities = Identities::new();
    let server = Arc::new(TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap());
    let addr = server.local_addr();
    serve(server.clone(), handler);
    (Bench::start(identities, addr, link, &[]), server)
}

#[tokio::test]
async fn a_refusal_carries_its_status() {
    let (bench, _server) = start(|request, _| async move {
        assert_eq!(request.authority().as_str(), "echo.test:7");
        assert_eq!(request.urgency(), Urgency::Urgent);
        request.refuse(StatusCode::FORBIDDEN).await;
    });
    let opened = within(bench.tunnel.open_tcp(&authority(), Urgency::Urgent)).await;
    let Err(OpenError::Refused(status)) = opened else {
        panic!("{opened:?}");
    };
    assert_eq!(status, StatusCode::FORBIDDEN);
    let without_port = within(
        bench
            .tunnel
            .open_tcp(&"echo.test".parse().unwrap(), Urgency::Bulk),
    )
    .await;
    assert!(matches!(
        without_port,
        Err(OpenError::Refused(StatusCode::BAD_REQUEST))
    ));
    bench.tunnel.close().await;
}

#[tokio::test]
async fn one_direction_ends_while_the_other_goes_on() {
    let (bench, _server) = start(|request, _| async move {
        let mut stream = request.accept().await.unwrap();
        let mut question = Vec::new();
        stream.read_to_end(&mut question).await.unwrap();
        question.reverse();
        stream.write_all(&question).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    let mut stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let question = noise(200_000, 1);
    within(stream.write_all(&question)).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    let mut answer = Vec::new();
    within(stream.read_to_end(&mut answer)).await.unwrap();
    answer.reverse();
    assert!(answer == question);
    bench.tunnel.close().await;
}

#[tokio::test]
async fn a_torn_transfer_is_an_error_not_an_end() {
    let (bench, _server) = start(|request, _| async move {
        let mut stream = request.accept().await.unwrap();
        stream.write_all(b"half of it").await.unwrap();
        stream.flush().await.unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        // Dropped without shutdown.
    });
    let mut stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let mut half = [0; 10];
    within(stream.read_exact(&mut half)).await.unwrap();
    within(stream.write_all(b"x")).await.unwrap();
    within(stream.flush()).await.unwrap();
    let error = within(stream.read_to_end(&mut Vec::new()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    bench.tunnel.close().await;
}

/// A writer without progress for so long is blocked. A busy machine stands still for less.
const BLOCKED_FOR: Duration = Duration::from_millis(1_500);

/// Bytes that a writer can write while no reader reads; later a reader gets all of them.
async fn taken_unread(link: &LinkConfig, plain: bool) -> usize {
    let (go, going) = tokio::sync::watch::channel(false);
    let (read_to, mut read) = mpsc::channel(1);
    let (bench, _server) = start_over(link, move |request, _| {
        let mut going = going.clone();
        let read_to = read_to.clone();
        async move {
            let mut stream = request.accept().await.unwrap();
            going.wait_for(|go| *go).await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            read_to.send(all.len()).await.unwrap();
        }
    });
    let to = authority();
    let opened = match plain {
        true => within(bench.tunnel.open_plain_tcp(&to, Urgency::Bulk)).await,
        false => within(bench.tunnel.open_tcp(&to, Urgency::Bulk)).await,
    };
    let mut stream = opened.unwrap();
    let taken = within(write_until_blocked(&mut stream, BLOCKED_FOR)).await;
    go.send(true).unwrap();
    within(stream.shutdown()).await.unwrap();
    assert_eq!(within(read.recv()).await, Some(taken));
    bench.tunnel.close().await;
    taken
}

#[tokio::test]
async fn a_reader_that_does_not_read_stops_the_writer() {
    let taken = taken_unread(&fast(), false).await;
    // At most the window of a resumable tunnel.
    assert!((1_000_000..=4_000_000).contains(&taken), "{taken}");
}

/// Each packet waits as a separate chunk, and the transport ends the whole connection above 2,048
/// chunks of one stream.
#[tokio::test]
async fn a_window_of_the_smallest_packets_may_stay_unread() {
    // Slow enough for a busy machine: data taken for lost is sent again in more and smaller pieces.
    let narrow = LinkConfig {
        mtu: NARROWEST_MTU,
        ..LinkConfig::new(20e6, Duration::from_millis(5))
    };
    let taken = taken_unread(&narrow, true).await;
    assert!(taken >= 2_000_000, "only {taken} bytes were taken");
}

#[tokio::test]
async fn the_session_comes_back_after_the_server_was_away() {
    let (mut bench, server) = start(echo);
    within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    server.close().await;
    drop(server);
    bench
        .until(|event| matches!(event, TunnelEvent::SessionDown { .. }))
        .await;
    let config = bench.identities.server_config(bench.server_addr);
    // The old socket ends with the endpoint's last task.
    let again = within(async {
        loop {
            match TunnelServer::bind(config.clone()) {
                Ok(server) => return server,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await;
    serve(Arc::new(again), echo);
    let mut stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    within(stream.write_all(b"again")).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    let mut back = String::new();
    within(stream.read_to_string(&mut back)).await.unwrap();
    assert_eq!(back, "again");
    bench.tunnel.close().await;
}

#[tokio::test]
async fn a_draining_session_ends_its_tunnels_in_peace() {
    let (handle_to, mut handles) = mpsc::channel(4);
    let (bench, server) = start(move |request, handle| {
        let handle_to = handle_to.clone();
        async move {
            handle_to.send(handle.clone()).await.unwrap();
            echo(request, handle).await;
        }
    });
    let mut stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let handle: SessionHandle = within(handles.recv()).await.unwrap();
    server.refuse_new();
    let draining = tokio::spawn({
        let handle = handle.clone();
        async move { handle.drain(Duration::from_secs(20)).await }
    });
    within(stream.write_all(b"last words")).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    let mut back = String::new();
    within(stream.read_to_string(&mut back)).await.unwrap();
    assert_eq!(back, "last words");
    drop(stream);
    within(draining).await.unwrap();
    assert!(handle.is_closed());
    bench.tunnel.close().await;
}

#[tokio::test]
async fn a_server_that_refuses_is_asked_with_growing_pauses() {
    let identities = Identities::new();
    let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
    let addr = server.local_addr();
    let mut bench = Bench::start(identities, addr, &fast(), &[]);
    let mut first = None;
    for _ in 0..5 {
        let session = within(server.accept()).await.unwrap();
        bench
            .until(|event| matches!(event, TunnelEvent::SessionUp { .. }))
            .await;
        first.get_or_insert_with(Instant::now);
        session.handle().close("not you");
    }
    // Pauses of at least 50, 100, 200 and 400 ms lie between five sessions.
    assert!(first.unwrap().elapsed() >= Duration::from_millis(750));
    bench.tunnel.close().await;
}

#[tokio::test]
async fn a_closed_tunnel_returns_an_error() {
    let (bench, _server) = start(echo);
    assert!(within(bench.tunnel.up()).await);
    bench.tunnel.close().await;
    let opened = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk)).await;
    assert!(matches!(opened, Err(OpenError::Closed)), "{opened:?}");
    within(async {
        while bench.tunnel.is_up() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
