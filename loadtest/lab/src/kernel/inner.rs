//! An application's own QUIC flow in datagrams of the tunnel, as a VPN carries it: its congestion
//! control works on top of the tunnel's.
//!
//! ```text
//!   QUIC client -- UDP --> forwarder -- Tunnel ==paths==> proxy -- UDP --> QUIC server
//!   |_________________ client ________________|           |_________ server ________|
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use noq::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use parking_lot::Mutex;
use service_kit::Context;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tunnel::{Authority, Tunnel, TunnelConfig, UdpTunnel, Urgency};

use super::bed::{Bed, KernelError, KernelReport, Receipt};
use super::identities::{Identities, SERVER_NAME};
use super::product::{PEER, start_proxy};
use super::transfer::{SERVER, receive, send, start_tunnel};
use crate::scenario::{Direction, Scenario};

const ALPN: &[u8] = b"lab-inner";
/// Where the forwarder takes the application's datagrams, in the client's namespace.
const FORWARDER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1081);
/// Receive buffer of the application's socket.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;
/// Largest UDP payload.
const DATAGRAM_BYTES: usize = 65_535;

/// Runs the scenario's transfer as one stream of an inner QUIC connection, with the library's own
/// settings.
pub fn run(scenario: &Scenario, identities: &Identities) -> Result<KernelReport, KernelError> {
    let bed = Bed::new(scenario)?;
    let receipt = Receipt::new(bed.origin, 1);
    let context = Context::new("proxy");
    start_proxy(&bed, identities, &context)?;
    let scenario = Arc::new(scenario.clone());
    let tls = identities.server.server_config(false, &[ALPN]);
    let (own, served) = (scenario.clone(), receipt.clone());
    let listening = bed.server.spawn(async move {
        let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
        let config = ServerConfig::with_crypto(Arc::new(crypto));
        let endpoint = endpoint(PEER, Some(config))?;
        tokio::spawn(answer(endpoint, own, served));
        Ok::<_, io::Error>(())
    });
    bed.server
        .block_on(listening)
        .map_err(|error| KernelError::Endpoint(error.to_string()))??;
    let opened: Arc<Mutex<Option<Duration>>> = Arc::default();
    let outer = identities.client.client_config(&[tunnel::ALPN]);
    let inner = identities.client.client_config(&[ALPN]);
    let origin = bed.origin;
    let (asked, open, own) = (receipt.clone(), opened.clone(), scenario.clone());
    bed.client.spawn(async move {
        let outcome = async {
            let config = TunnelConfig::new(SERVER, SERVER_NAME, outer);
            let tunnel = start_tunnel(config, &own, origin);
            let tunnel = tunnel.await.map_err(io::Error::other)?;
            if !tunnel.up().await {
                return Err(io::Error::other("the tunnel has ended"));
            }
            *open.lock() = Some(asked.now());
            let local = UdpSocket::bind(FORWARDER).await?;
            tunnel::enlarge_buffers(&local);
            tokio::spawn(forward(local, tunnel, asked.clone()));
            let crypto = QuicClientConfig::try_from(inner).map_err(io::Error::other)?;
            let endpoint = endpoint((Ipv4Addr::LOCALHOST, 0).into(), None)?;
            let config = ClientConfig::new(Arc::new(crypto));
            let connecting = endpoint.connect_with(config, FORWARDER, SERVER_NAME);
            let connection = connecting.map_err(io::Error::other)?.await?;
            application(&connection, &own, &asked).await?;
            // The flow lives until the receiver has everything: the runtime's end takes it.
            std::future::pending::<io::Result<()>>().await
        };
        if let Err(error) = outcome.await {
            asked.failed(format!("client: {error}"));
        }
    });
    receipt.wait(&bed.client, scenario.limit());
    let bulk = receipt.bulk(*opened.lock(), scenario.limit());
    context.shutdown().request();
    bed.finish(&scenario, bulk)
}

/// An endpoint with the receive buffer that browsers ask for.
fn endpoint(address: SocketAddr, server: Option<ServerConfig>) -> io::Result<Endpoint> {
    let socket = std::net::UdpSocket::bind(address)?;
    SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    let config = EndpointConfig::default();
    Endpoint::new(config, server, socket, Arc::new(TokioRuntime))
}

/// The gateway's part: one flow, since there is one application.
async fn forward(local: UdpSocket, tunnel: Tunnel, receipt: Arc<Receipt>) {
    let outcome = async {
        let authority = Authority::try_from(PEER.to_string()).map_err(io::Error::other)?;
        let opening = tunnel.open_udp(&authority, Urgency::Bulk);
        let udp = opening.await.map_err(io::Error::other)?;
        pass(&local, &udp).await
    };
    if let Err(error) = outcome.await {
        receipt.failed(format!("forwarder: {error}"));
    }
}

async fn pass(local: &UdpSocket, udp: &UdpTunnel) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let mut application = None;
    loop {
        tokio::select! {
            arrived = local.recv_from(&mut buffer) => {
                let (bytes, from) = arrived?;
                application = Some(from);
                // Packets without room are lost, as in any queue.
                udp.send(&buffer[..bytes]);
            }
            answered = udp.receive() => {
                let payload = answered.map_err(io::Error::other)?;
                if let Some(to) = application {
                    local.send_to(&payload, to).await?;
                }
            }
        }
    }
}

async fn application(
    connection: &Connection,
    scenario: &Scenario,
    receipt: &Receipt,
) -> io::Result<()> {
    let (sending, receiving) = connection.open_bi().await?;
    let mut stream = tokio::io::join(receiving, sending);
    // The first byte opens the stream at the other end.
    stream.write_u8(1).await?;
    match scenario.direction {
        Direction::Upload => send(&mut stream, scenario.bytes).await,
        Direction::Download => receive(&mut stream, scenario.bytes, receipt).await,
    }
}

async fn answer(endpoint: Endpoint, scenario: Arc<Scenario>, receipt: Arc<Receipt>) {
    while let Some(incoming) = endpoint.accept().await {
        let outcome = async {
            let connection = incoming.await?;
            let (sending, receiving) = connection.accept_bi().await?;
            let mut stream = tokio::io::join(receiving, sending);
            stream.read_u8().await?;
            match scenario.direction {
                Direction::Upload => receive(&mut stream, scenario.bytes, &receipt).await?,
                Direction::Download => send(&mut stream, scenario.bytes).await?,
            }
            // Dropping it sooner would break the client's end off.
            connection.closed().await;
            Ok(())
        };
        let outcome: io::Result<()> = outcome.await;
        if let Err(error) = outcome {
            receipt.failed(format!("server: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::permitted;
    use crate::scenario::{Controller, Interface};

    #[test]
    fn an_inner_flow_passes_over_both_paths() {
        if let Err(why) = permitted() {
            assert!(std::env::var_os("BRAID_REQUIRE_NETNS").is_none(), "{why}");
            eprintln!("skipped: {why}");
            return;
        }
        let links = [("a", 20.0), ("b", 10.0)];
        let links = links.map(|(name, mbit)| Interface::symmetric(name, mbit, 20.0, 0.0));
        for direction in [Direction::Upload, Direction::Download] {
            let scenario = Scenario::transfer(
                "inner".to_owned(),
                1,
                direction,
                3_000_000,
                Controller::Ours,
                30.0,
                links.to_vec(),
            );
            let run = run(&scenario, &Identities::new().unwrap()).unwrap();
            assert!(run.report.completed, "{:?}", run.report.error);
            assert_eq!(run.report.delivered_bytes, 3_000_000);
        }
    }
}
