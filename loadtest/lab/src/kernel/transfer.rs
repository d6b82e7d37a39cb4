//! A scenario's transfer in real time, by the product's own tunnel (`Tunnel` and `TunnelServer`).
//! The UDP sockets are in two namespaces, with an emulated link for each interface of the scenario.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tunnel::{
    Authority, ConnectRequest, Interface, ServerConfig, Tunnel, TunnelConfig, TunnelServer, Urgency,
};

use super::bed::{Bed, KernelError, KernelReport, Receipt};
use super::identities::{Identities, SERVER_NAME};
use super::network::{SERVER_IP, client_ip, device_name};
use crate::pattern::{matches_pattern, pattern_from};
use crate::scenario::{Direction, Scenario};

/// Where the server listens.
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 4433);
/// Bytes taken from a stream at once.
const READ_BYTES: usize = 64 * 1024;

/// Runs the scenario once. Its controller must be ours: the tunnel has no other. Vitals and
/// competitors are left out.
pub fn run(scenario: &Scenario, identities: &Identities) -> Result<KernelReport, KernelError> {
    let bed = Bed::new(scenario)?;
    let receipt = Receipt::new(bed.origin, scenario.streams);
    let (ready, bound) = oneshot::channel();
    bed.server.spawn(serve(
        ServerConfig::new(
            SERVER,
            identities.server.server_config(true, &[tunnel::ALPN]),
        ),
        Served {
            scenario: Arc::new(scenario.clone()),
            receipt: receipt.clone(),
            requests: Arc::default(),
        },
        ready,
    ));
    bed.server
        .block_on(bound)
        .unwrap_or_else(|_| Err("the server's task ended".to_owned()))
        .map_err(KernelError::Endpoint)?;
    let opened = Arc::new(Mutex::new(None));
    let tls = identities.client.client_config(&[tunnel::ALPN]);
    bed.client.spawn(ask(
        TunnelConfig::new(SERVER, SERVER_NAME, tls),
        scenario.clone(),
        receipt.clone(),
        opened.clone(),
        bed.origin,
    ));
    receipt.wait(&bed.client, scenario.limit());
    let bulk = receipt.bulk(*opened.lock(), scenario.limit());
    bed.finish(scenario, bulk)
}

/// Bytes of stream number `index`.
fn share_of(scenario: &Scenario, index: u32) -> u64 {
    let streams = u64::from(scenario.streams);
    scenario.bytes / streams + u64::from(u64::from(index) < scenario.bytes % streams)
}

#[derive(Clone)]
struct Served {
    scenario: Arc<Scenario>,
    receipt: Arc<Receipt>,
    requests: Arc<AtomicUsize>,
}

async fn serve(config: ServerConfig, served: Served, ready: oneshot::Sender<Result<(), String>>) {
    let server = match TunnelServer::bind(config) {
        Ok(server) => server,
        Err(error) => {
            let _ = ready.send(Err(error.to_string()));
            return;
        }
    };
    // The run has ended when nobody waits for this.
    let _ = ready.send(Ok(()));
    while let Some(mut session) = server.accept().await {
        let served = served.clone();
        tokio::spawn(async move {
            while let Some(request) = session.accept().await {
                tokio::spawn(served.clone().answer(request));
            }
        });
    }
}

impl Served {
    async fn answer(self, request: ConnectRequest) {
        let index = self.requests.fetch_add(1, Ordering::Relaxed) as u32;
        let total = share_of(&self.scenario, index);
        let outcome = async {
            let mut stream = request.accept().await?;
            match self.scenario.direction {
                Direction::Upload => receive(&mut stream, total, &self.receipt).await,
                Direction::Download => send(&mut stream, total).await,
            }
        };
        if let Err(error) = outcome.await {
            self.receipt.failed(format!("server: {error}"));
        }
    }
}

/// Characters of an access's name in the tunnel.
const ACCESS_NAME_MAX: usize = 32;

/// A link's name as the tunnel takes it: scenarios may have spaces in theirs.
fn access_name(name: &str) -> String {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let each = name.chars().take(ACCESS_NAME_MAX);
    each.map(|it| if plain(it) { it } else { '-' }).collect()
}

/// The interfaces of a scenario as sockets bound to their devices. Must be called on the client's
/// runtime.
pub fn interfaces(scenario: &Scenario) -> std::io::Result<Vec<Interface>> {
    let each = scenario.interfaces.iter().enumerate();
    each.map(|(path, interface)| {
        Interface::bind(
            access_name(&interface.name),
            IpAddr::V4(client_ip(path)),
            Some(&device_name(path)),
        )
    })
    .collect()
}

/// Starts the tunnel at time zero, and passes announced changes to it when they happen.
pub async fn start_tunnel(
    config: TunnelConfig,
    scenario: &Scenario,
    origin: Instant,
) -> Result<Tunnel, String> {
    let interfaces = interfaces(scenario).map_err(|error| error.to_string())?;
    tokio::time::sleep_until(origin.into()).await;
    let tunnel = Tunnel::start(config, interfaces).map_err(|error| error.to_string())?;
    for interface in scenario.interfaces.iter().filter(|one| one.announced) {
        let tunnel = tunnel.clone();
        let name = access_name(&interface.name);
        let changes = interface.to_server.changes.clone();
        let mut changes = changes.into_iter().peekable();
        // A state that holds from the start must be known before the first handshake is over.
        while let Some((_, up)) = changes.next_if(|change| change.0 <= 0.0) {
            tunnel.set_link(&name, up);
        }
        tokio::spawn(async move {
            for (at_s, up) in changes {
                let at = origin + Duration::from_secs_f64(at_s);
                tokio::time::sleep_until(at.into()).await;
                tunnel.set_link(&name, up);
            }
        });
    }
    Ok(tunnel)
}

async fn ask(
    config: TunnelConfig,
    scenario: Scenario,
    receipt: Arc<Receipt>,
    opened: Arc<Mutex<Option<Duration>>>,
    origin: Instant,
) {
    let tunnel = match start_tunnel(config, &scenario, origin).await {
        Ok(tunnel) => tunnel,
        Err(error) => {
            receipt.failed(error);
            return;
        }
    };
    if !tunnel.up().await {
        receipt.failed("the tunnel has ended");
        return;
    }
    *opened.lock() = Some(receipt.now());
    let authority = Authority::from_static("bulk.lab:1");
    let streams = (0..scenario.streams).map(|index| {
        let total = share_of(&scenario, index);
        let (tunnel, receipt) = (&tunnel, &receipt);
        let (authority, direction) = (&authority, scenario.direction);
        async move {
            let mut stream = tunnel.open_tcp(authority, Urgency::Bulk).await?;
            match direction {
                Direction::Upload => send(&mut stream, total).await,
                Direction::Download => receive(&mut stream, total, receipt).await,
            }
        }
    });
    let outcomes: Vec<std::io::Result<()>> = futures::future::join_all(streams).await;
    if let Some(error) = outcomes.into_iter().find_map(Result::err) {
        receipt.failed(format!("client: {error}"));
    }
    // The tunnel lives until the receiver has everything: the runtime's end takes it.
    std::future::pending::<()>().await;
}

pub async fn send(
    stream: &mut (impl AsyncWrite + AsyncRead + Unpin),
    total: u64,
) -> std::io::Result<()> {
    let mut sent = 0;
    while sent < total {
        let chunk = pattern_from(sent, total);
        stream.write_all(&chunk).await?;
        sent += chunk.len() as u64;
    }
    stream.shutdown().await?;
    // The stream is let go when the receiver has ended it too: dropping it sooner would break it
    // off.
    while stream.read(&mut [0; 1]).await? > 0 {}
    Ok(())
}

pub async fn receive(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    total: u64,
    receipt: &Receipt,
) -> std::io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut got = 0;
    while got < total {
        let bytes = stream.read(&mut buffer).await?;
        if bytes == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if !matches_pattern(got, &buffer[..bytes]) {
            return Err(std::io::Error::other(format!("wrong bytes at {got}")));
        }
        got += bytes as u64;
        receipt.delivered(bytes);
    }
    receipt.stream_ended();
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_links_are_names_of_accesses() {
        assert_eq!(access_name("wlan_0.1-b"), "wlan_0.1-b");
        assert_eq!(access_name("3g b/\u{e9}"), "3g-b--");
        assert_eq!(access_name(&"x".repeat(200)).len(), ACCESS_NAME_MAX);
    }
}
