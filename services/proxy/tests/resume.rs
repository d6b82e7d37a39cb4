//! A TCP connection through gateway and proxy, while the network between them is cut and restored.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bench::{Proxy, authority_of, echo, fast, run_apart};
use emulated_link::{LinkControl, link::LinkConfig};
use testkit::{DEADLINE, noise, within};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::oneshot,
    task::JoinHandle,
};
use tunnel::{Tunnel, TunnelStream, Urgency};

const BYTES: usize = 4_000_000;

type Got = io::Result<Vec<u8>>;

/// A destination that sends `BYTES` and reads all data, on one connection.
async fn destination() -> (SocketAddr, JoinHandle<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        both_ways(stream, noise(BYTES, 1)).await
    });
    (address, serving)
}

/// Sends all data and an end, and reads up to the other side's end.
async fn both_ways(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    bytes: Vec<u8>,
) -> io::Result<Vec<u8>> {
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = tokio::spawn(async move {
        write.write_all(&bytes).await?;
        write.shutdown().await
    });
    let mut all = Vec::new();
    read.read_to_end(&mut all).await?;
    sending.await.unwrap()?;
    Ok(all)
}

struct Scene {
    proxy: Proxy,
    tunnel: Tunnel,
    links: Vec<LinkControl>,
    destination: JoinHandle<Got>,
    stream: Option<TunnelStream>,
}

impl Scene {
    async fn start(flags: &[&str]) -> Self {
        let (address, destination) = destination().await;
        let allowed = address.to_string();
        let flags = [&["--allow", allowed.as_str()], flags].concat();
        let proxy = Proxy::start(&flags).await;
        let link = LinkConfig::new(20e6, Duration::from_millis(10));
        let (tunnel, links) = proxy.tunnel_over(&proxy.gateway(), &link, DEADLINE);
        let to = authority_of(address);
        let opened = tunnel.open_tcp(&to, Urgency::Bulk);
        let stream = within(opened).await.unwrap();
        assert!(stream.is_resumable());
        Self {
            proxy,
            tunnel,
            links,
            destination,
            stream: Some(stream),
        }
    }

    fn transfer(&mut self) -> JoinHandle<Got> {
        let stream = self.stream.take().unwrap();
        tokio::spawn(both_ways(stream, noise(BYTES, 2)))
    }

    async fn received(&self, bytes: u64) {
        within(async {
            loop {
                let paths = self.tunnel.paths();
                if paths.iter().map(|path| path.received_bytes).sum::<u64>() >= bytes {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    fn set_up(&self, up: bool) {
        self.links.iter().for_each(|link| link.set_up(up));
    }

    async fn complete(self, transfer: JoinHandle<Got>) {
        let down = within(transfer).await.unwrap().unwrap();
        assert!(down == noise(BYTES, 1), "bytes down differ");
        let up = within(self.destination).await.unwrap().unwrap();
        assert!(up == noise(BYTES, 2), "bytes up differ");
        self.tunnel.close().await;
        self.proxy.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_path_may_be_cut_under_a_flow() {
    for index in [0, 1] {
        let mut scene = Scene::start(&[]).await;
        let transfer = scene.transfer();
        scene.received(1_000_000).await;
        scene.links[index].set_up(false);
        scene.complete(transfer).await;
    }
}

/// The proxy closes the session, as it closes the oldest session of a gateway with too many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_may_be_closed_under_a_flow() {
    let mut scene = Scene::start(&["--sessions-per-gateway-max", "1"]).await;
    let transfer = scene.transfer();
    scene.received(1_000_000).await;
    let link = LinkConfig::new(20e6, Duration::from_millis(10));
    let usurper = scene.proxy.tunnel(&scene.proxy.gateway(), &link, DEADLINE);
    assert!(within(usurper.up()).await);
    usurper.close().await;
    scene.complete(transfer).await;
}

/// Without any network for ten seconds the same flow continues, without a reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_networks_may_go_and_return_under_a_flow() {
    let mut scene = Scene::start(&[]).await;
    let transfer = scene.transfer();
    scene.received(1_000_000).await;
    scene.set_up(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    scene.set_up(true);
    scene.complete(transfer).await;
}

/// The gateway stays away: the destination gets a reset and not an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_stays_away_is_a_reset_for_the_destination() {
    let mut scene =
        Scene::start(&["--resume-within-s", "1", "--sessions-per-gateway-max", "1"]).await;
    let transfer = scene.transfer();
    scene.received(1_000_000).await;
    scene.set_up(false);
    // Evicts the gateway's session, which cannot come back.
    let link = LinkConfig::new(20e6, Duration::from_millis(10));
    let usurper = scene.proxy.tunnel(&scene.proxy.gateway(), &link, DEADLINE);
    assert!(within(usurper.up()).await);
    let error = within(scene.destination).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    usurper.close().await;
    // The gateway gets the reset when it is back.
    scene.links.iter().for_each(|link| link.set_up(true));
    let error = within(transfer).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    scene.tunnel.close().await;
    scene.proxy.stop().await;
}

/// A reset by the destination arrives as a reset, whatever lies between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_crosses_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (go, going) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        going.await.unwrap();
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    });
    let proxy = Proxy::start(&["--allow", &address.to_string()]).await;
    let link = LinkConfig::new(20e6, Duration::from_millis(10));
    let (tunnel, links) = proxy.tunnel_over(&proxy.gateway(), &link, DEADLINE);
    let to = authority_of(address);
    let opened = tunnel.open_tcp(&to, Urgency::Bulk);
    let mut stream = within(opened).await.unwrap();
    links.iter().for_each(|link| link.set_up(false));
    go.send(()).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    links.iter().for_each(|link| link.set_up(true));
    let error = within(stream.read_to_end(&mut Vec::new()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    tunnel.close().await;
    proxy.stop().await;
}

/// From the end of a killed proxy to the reset of a flow.
const SILENCE_MAX: Duration = Duration::from_secs(3);

#[tokio::test]
async fn the_process_of_a_proxy() {
    run_apart().await;
}

/// Returns how long after the kill the flow has ended.
async fn ended(mut stream: TunnelStream, killed_at: Instant) -> (Duration, io::Error) {
    let ended = within(stream.read(&mut [0; 16])).await;
    (killed_at.elapsed(), ended.unwrap_err())
}

/// Flows that rest, or carry data, when their proxy is killed. The successor knows none of them. It
/// resets their connection, unless it is another server at the same address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_proxy_silences_no_flow_for_long() {
    kill_under_flows(&[]).await;
    kill_under_flows(&["--server-id", "0b01"]).await;
}

async fn kill_under_flows(successor: &[&str]) {
    let destination = echo().await;
    let (proxy, mut apart) = Proxy::start_apart(&["--allow", &destination.to_string()]);
    let (tunnel, _links) = proxy.tunnel_over(&proxy.gateway(), &fast(), DEADLINE);
    let to = authority_of(destination);
    let mut flows = Vec::new();
    for resumable in [true, true, false] {
        // The last one as a gateway's link to ingest.
        let opened = match resumable {
            true => within(tunnel.open_tcp(&to, Urgency::Bulk)).await,
            false => within(tunnel.open_plain_tcp(&to, Urgency::Urgent)).await,
        };
        let mut stream = opened.unwrap();
        assert_eq!(stream.is_resumable(), resumable);
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        within(stream.read_exact(&mut [0])).await.unwrap();
        flows.push(stream);
    }
    apart.kill();
    let killed_at = Instant::now();
    // Data that nobody takes.
    flows[0].write_all(&noise(100_000, 3)).await.unwrap();
    apart.start_again(successor);
    let ends = flows.into_iter().map(|flow| ended(flow, killed_at));
    let anew = async {
        let mut stream = within(tunnel.open_tcp(&to, Urgency::Bulk)).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        within(stream.read_exact(&mut [0])).await.unwrap();
        killed_at.elapsed()
    };
    let (ends, anew) = futures::join!(futures::future::join_all(ends), anew);
    println!("ended after {ends:?}, a new flow carries after {anew:?}");
    assert!(
        ends.iter().all(|(after, _)| *after < SILENCE_MAX),
        "{ends:?}"
    );
    assert!(anew < SILENCE_MAX, "{anew:?}");
    tunnel.close().await;
}
