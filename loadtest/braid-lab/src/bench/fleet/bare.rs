//! The same fleet with the bare library: the same number of connections with two paths each, both
//! ends in this process. Both ends ping each path as Braid's ask an idle one, and each connection
//! asks for a small answer as often as a gateway uploads. Without journal, inner TLS and services
//! it is the least cost of a fleet on this transport.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use service_kit::tls::{Identity, PeerId};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, sleep};
use tunnel::ALPN;

use super::super::line::Scratch;
use super::used::Used;
use crate::failure::{Failure, block_on};

const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A gateway's default freshness.
const UPLOADS_PER_S: u32 = 1;
/// Bytes of an upload of six samples, and of its acknowledgement.
const QUESTION_BYTES: usize = 300;
const ANSWER_BYTES: usize = 40;
/// Paths of one connection, as both ends permit.
const PATHS_MAX: u32 = 4;
/// Interval of attempts until the peer has given identifiers for a second path.
const PATH_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time until the connections are established; then the measurement fails.
const CONNECT_MAX: Duration = Duration::from_secs(120);

/// Processor time of a connection in each second, and its answers.
pub(super) struct Bare {
    pub(super) cpu_s: f64,
    pub(super) answers_per_s: f64,
}

pub(super) fn measure(connections: u32, length: Duration) -> Result<Bare, Failure> {
    block_on(async {
        let scratch = Scratch::new()?;
        let server = server(&scratch)?;
        let client = client(&scratch)?;
        let (connected, answers) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut asking = JoinSet::new();
        let mut endpoints = Vec::new();
        let began = Instant::now();
        for _ in 0..connections {
            let endpoint = noq::Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into());
            let endpoint = endpoint.map_err(Failure::other)?;
            let connecting = endpoint.connect_with(client.clone(), address(1, server), "proxy");
            let connection = connecting.map_err(Failure::other)?.await;
            let connection = connection.map_err(Failure::other)?;
            endpoints.push(endpoint);
            let (connected, answers) = (Arc::clone(&connected), Arc::clone(&answers));
            asking.spawn(async move {
                let _second = loop {
                    let second =
                        connection.open_path(address(2, server), noq::PathStatus::Available);
                    match second.await {
                        Ok(path) => break path,
                        Err(_) => sleep(PATH_INTERVAL).await,
                    }
                };
                connected.fetch_add(1, Ordering::Relaxed);
                ask(&connection, &answers).await
            });
        }
        while connected.load(Ordering::Relaxed) < u64::from(connections) {
            if began.elapsed() > CONNECT_MAX {
                return Err(Failure::other("the bare fleet has no second paths"));
            }
            sleep(PATH_INTERVAL).await;
        }
        answers.store(0, Ordering::Relaxed);
        let (began, before) = (Instant::now(), Used::now()?);
        tokio::select! {
            () = sleep(length) => {}
            Some(ended) = asking.join_next() => ended.map_err(Failure::other)??,
        }
        let seconds = began.elapsed().as_secs_f64() * f64::from(connections);
        Ok(Bare {
            cpu_s: (Used::now()?.total_s_since(&before)) / seconds,
            answers_per_s: answers.load(Ordering::Relaxed) as f64 / seconds,
        })
    })?
}

/// Two networks of the loopback device lead to the server.
fn address(network: u8, server: SocketAddr) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, network), server.port()).into()
}

fn transport() -> Arc<noq::TransportConfig> {
    let mut transport = noq::TransportConfig::default();
    transport
        .max_concurrent_multipath_paths(PATHS_MAX)
        .default_path_keep_alive_interval(Some(PING_INTERVAL));
    Arc::new(transport)
}

/// Answers until the process ends.
fn server(scratch: &Scratch) -> Result<SocketAddr, Failure> {
    let identity = scratch.identity(&PeerId::service("proxy"))?;
    let tls = Identity::load(&identity).map_err(Failure::other)?;
    let tls = tls.server_config(false, &[ALPN]);
    let crypto = QuicServerConfig::try_from((*tls).clone()).map_err(Failure::other)?;
    let mut config = noq::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport());
    let endpoint = noq::Endpoint::server(config, (Ipv4Addr::UNSPECIFIED, 0).into());
    let endpoint = endpoint.map_err(Failure::other)?;
    let address = endpoint.local_addr().map_err(Failure::other)?;
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            // The client reports the error.
            tokio::spawn(async move {
                let connection = incoming.await.map_err(Failure::other)?;
                answer(&connection).await
            });
        }
    });
    Ok(address)
}

fn client(scratch: &Scratch) -> Result<noq::ClientConfig, Failure> {
    let identity = scratch.identity(&PeerId::gateway(store::DEFAULT_TENANT, "fleet"))?;
    let tls = Identity::load(&identity).map_err(Failure::other)?;
    let tls = tls.client_config(&[ALPN]);
    let crypto = QuicClientConfig::try_from((*tls).clone()).map_err(Failure::other)?;
    let mut config = noq::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport());
    Ok(config)
}

async fn ask(connection: &noq::Connection, answers: &AtomicU64) -> Result<(), Failure> {
    let (mut send, mut receive) = connection.open_bi().await.map_err(Failure::other)?;
    let every = Duration::from_secs(1) / UPLOADS_PER_S;
    let mut tick = interval_at(tokio::time::Instant::now(), every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answer = [0; ANSWER_BYTES];
    loop {
        tick.tick().await;
        let question = [0x5a; QUESTION_BYTES];
        send.write_all(&question).await.map_err(Failure::other)?;
        receive
            .read_exact(&mut answer)
            .await
            .map_err(Failure::other)?;
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

async fn answer(connection: &noq::Connection) -> Result<(), Failure> {
    let (mut send, mut receive) = connection.accept_bi().await.map_err(Failure::other)?;
    let mut question = [0; QUESTION_BYTES];
    loop {
        receive
            .read_exact(&mut question)
            .await
            .map_err(Failure::other)?;
        let answer = [0x5a; ANSWER_BYTES];
        send.write_all(&answer).await.map_err(Failure::other)?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_connection_gets_all_its_answers() {
        service_kit::tls::install_provider();
        let bare = measure(3, Duration::from_secs(4)).unwrap();
        let asked = f64::from(UPLOADS_PER_S);
        assert!((0.5 * asked..1.2 * asked).contains(&bare.answers_per_s));
        // So little may be less than a tick of the kernel's account.
        assert!((0.0..4.0).contains(&bare.cpu_s), "{}", bare.cpu_s);
    }
}
