//! Transports of the kernel on the same links: TCP over one path, MPTCP over all.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::bed::{Bed, KernelError, KernelReport, Receipt};
use super::network::{SERVER_IP, client_ip, device_name};
use super::transfer::{receive, send};
use crate::scenario::{Direction, Interface, RateSpec, Scenario};

/// Where the receiver listens.
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 5201);
const BACKLOG: i32 = 16;
/// The kernel's congestion controls that are compared; those that it lacks are left out.
const CONGESTIONS: [&str; 3] = ["cubic", "bbr", "reno"];

/// One of the kernel's transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Over the first interface of the scenario.
    Tcp,
    /// Over all of them.
    Mptcp,
}

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Mptcp => "mptcp",
        }
    }

    fn protocol(self) -> Protocol {
        match self {
            Self::Tcp => Protocol::TCP,
            Self::Mptcp => Protocol::MPTCP,
        }
    }
}

/// Runs the scenario's transfer as one flow of the kernel's, with its congestion control of that
/// name at both ends.
pub fn run(
    scenario: &Scenario,
    transport: Transport,
    congestion: &str,
) -> Result<KernelReport, KernelError> {
    let bed = Bed::new(scenario)?;
    if transport == Transport::Mptcp {
        bed.network.allow_mptcp(scenario.interfaces.len())?;
    }
    let receipt = Receipt::new(bed.origin, 1);
    let listener = {
        let congestion = congestion.to_owned();
        let listening = bed
            .server
            .spawn(async move { listen(transport, &congestion, SERVER) });
        bed.server
            .block_on(listening)
            .map_err(|error| KernelError::Endpoint(error.to_string()))??
    };
    let (total, direction, origin) = (scenario.bytes, scenario.direction, bed.origin);
    let served = receipt.clone();
    bed.server.spawn(async move {
        let outcome = async {
            let (mut stream, _) = listener.accept().await?;
            match direction {
                Direction::Upload => receive(&mut stream, total, &served).await,
                Direction::Download => {
                    stream.read_u8().await?;
                    send(&mut stream, total).await
                }
            }
        };
        if let Err(error) = outcome.await {
            served.failed(format!("server: {error}"));
        }
    });
    let opened: Arc<Mutex<Option<Duration>>> = Arc::default();
    let (asked, open, congestion) = (receipt.clone(), opened.clone(), congestion.to_owned());
    bed.client.spawn(async move {
        let outcome = async {
            tokio::time::sleep_until(origin.into()).await;
            let mut stream = connect(transport, &congestion, SERVER).await?;
            *open.lock() = Some(asked.now());
            match direction {
                Direction::Upload => send(&mut stream, total).await,
                Direction::Download => {
                    stream.write_u8(1).await?;
                    receive(&mut stream, total, &asked).await
                }
            }
        };
        if let Err(error) = outcome.await {
            asked.failed(format!("client: {error}"));
        }
    });
    receipt.wait(&bed.client, scenario.limit());
    let bulk = receipt.bulk(*opened.lock(), scenario.limit());
    bed.finish(scenario, bulk)
}

fn socket(transport: Transport, congestion: &str) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(transport.protocol()))?;
    socket.set_tcp_congestion(congestion.as_bytes())?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

pub(super) fn listen(
    transport: Transport,
    congestion: &str,
    at: SocketAddr,
) -> std::io::Result<TcpListener> {
    let socket = socket(transport, congestion)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// TCP over the first path, or MPTCP over those that the namespace lists for further subflows.
pub(super) async fn connect(
    transport: Transport,
    congestion: &str,
    to: SocketAddr,
) -> std::io::Result<TcpStream> {
    if transport == Transport::Tcp {
        return connect_over(0, congestion, to).await;
    }
    let socket = socket(transport, congestion)?;
    start(socket, 0, to).await
}

/// TCP over this path.
pub(super) async fn connect_over(
    path: usize,
    congestion: &str,
    to: SocketAddr,
) -> std::io::Result<TcpStream> {
    let socket = socket(Transport::Tcp, congestion)?;
    socket.bind_device(Some(device_name(path).as_bytes()))?;
    start(socket, path, to).await
}

async fn start(socket: Socket, path: usize, to: SocketAddr) -> std::io::Result<TcpStream> {
    socket.bind(&SocketAddr::new(IpAddr::V4(client_ip(path)), 0).into())?;
    TcpSocket::from_std_stream(socket.into()).connect(to).await
}

/// The same transfer over the link that carries most until the end.
pub(super) fn best_alone(scenario: &Scenario) -> Scenario {
    let mut alone = scenario.clone();
    let capacity = |interface: &Interface| {
        let half = interface.half(scenario.direction);
        match (half.changes.is_empty(), &half.rate) {
            (true, RateSpec::Mbit(mbit)) => *mbit,
            _ => 0.0,
        }
    };
    let best = scenario
        .interfaces
        .iter()
        .max_by(|a, b| capacity(a).total_cmp(&capacity(b)));
    alone.interfaces = best.into_iter().cloned().collect();
    alone
}

/// Congestion controls of the comparison that the kernel has.
pub(super) fn available_congestions() -> Vec<&'static str> {
    let all = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    let has = |name: &&str| all.split_whitespace().any(|one| one == *name);
    CONGESTIONS.into_iter().filter(has).collect()
}
