//! A TCP connection through gateway and proxy, while the network between them is cut and restored.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{io, net::SocketAddr, time::Duration};

use bench::{Proxy, authority_of};
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
