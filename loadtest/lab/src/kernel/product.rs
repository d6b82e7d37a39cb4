//! The product's whole path: a TCP flow of an application through a gateway-like forwarder, the
//! tunnel, the proxy service, and TCP again.
//!
//! ```text
//!   application -- TCP --> forwarder -- Tunnel ==paths==> proxy -- TCP --> receiver
//!   |________________ client ________________|           |_______ server _______|
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use parking_lot::Mutex;
use service_kit::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream};
use tunnel::{Authority, Tunnel, TunnelConfig, Urgency};

use super::bed::{Bed, KernelError, KernelReport, Receipt};
use super::identities::{Identities, SERVER_NAME};
use super::network::SERVER_IP;
use super::transfer::{SERVER, receive, send, start_tunnel};
use crate::figures::Figure;
use crate::report::{BIN, RunReport};
use crate::rival;
use crate::scenario::{Controller, Direction, Scenario};

/// Where the application's peer listens, in the server's namespace.
pub(super) const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 5001);
/// Where the forwarder listens, in the client's namespace.
const FORWARDER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1080);
/// Bytes that the forwarder holds for each direction.
const BUFFER_BYTES: usize = 64 * 1024;
/// How long the proxy may take to listen.
const START_MAX: Duration = Duration::from_secs(5);

/// A restored path carries traffic within this; so does the only path that is up at the start.
const RESUMED_S_MAX: f64 = 1.0;
/// Times of the outage in which both paths are silent.
const OUTAGE_S: (f64, f64) = (3.0, 7.0);
/// Length of the runs that end by time.
const END_S: f64 = 12.0;

/// Runs by id: the rival's profiles and cuts, an outage of everything, and a first path that is
/// down at the start.
pub fn scenarios(seed: u64, direction: Direction) -> Vec<(&'static str, Scenario)> {
    let mut all = rival::scenarios(seed, Controller::Ours, direction);
    let near = || {
        let near = all.iter().find(|(id, _)| *id == "near");
        near.map(|(_, scenario)| {
            let mut scenario = scenario.clone();
            scenario.bytes *= 4;
            scenario.limit_s = END_S;
            scenario
        })
    };
    let outage = near().map(|mut scenario| {
        for interface in &mut scenario.interfaces {
            let changes = [(OUTAGE_S.0, false), (OUTAGE_S.1, true)];
            *interface = interface.clone().with_changes(&changes);
        }
        ("outage", scenario)
    });
    let first_down = near().map(|mut scenario| {
        let first = &mut scenario.interfaces[0];
        *first = first.clone().with_changes(&[(0.0, false)]);
        ("first_down", scenario)
    });
    all.push(rival::asymmetric(seed, Controller::Ours, direction));
    all.extend(outage);
    all.extend(first_down);
    all
}

/// Rows of a run that ends by time.
pub fn figures(prefix: &str, id: &str, report: &RunReport) -> Vec<Figure> {
    // By the end of the tenth of a second in which the first bytes came.
    let first_after = |from_s: f64| {
        let from = (from_s / BIN.as_secs_f64()) as usize;
        let mut bins = report.timeline.bins.iter().skip(from);
        let empty = bins.position(|bytes| *bytes > 0);
        empty.map_or(f64::INFINITY, |empty| {
            (empty + 1) as f64 * BIN.as_secs_f64()
        })
    };
    match id {
        "cut_first" => rival::cut_figures(prefix, 0, report).into(),
        "cut_second" => rival::cut_figures(prefix, 1, report).into(),
        "outage" => vec![Figure::at_most(
            format!("{prefix}.outage.resumed"),
            "s",
            None,
            RESUMED_S_MAX,
            first_after(OUTAGE_S.1),
        )],
        _ => vec![Figure::at_most(
            format!("{prefix}.{id}.first_byte"),
            "s",
            None,
            RESUMED_S_MAX,
            first_after(0.0),
        )],
    }
}

#[derive(Parser)]
struct ProxyLine {
    #[command(flatten)]
    config: proxy::Config,
}

/// Runs the scenario's transfer as TCP flows, one for each of its streams.
pub fn run(scenario: &Scenario, identities: &Identities) -> Result<KernelReport, KernelError> {
    let bed = Bed::new(scenario)?;
    let receipt = Receipt::new(bed.origin, scenario.streams);
    let scenario = Arc::new(scenario.clone());
    let context = Context::new("proxy");
    start_proxy(&bed, identities, &context)?;
    let peer = bed.server.spawn(TcpListener::bind(PEER));
    let started = bed.server.block_on(peer).map_err(io::Error::other)??;
    bed.server
        .spawn(answer(started, scenario.clone(), receipt.clone()));
    let opened: Arc<Mutex<Option<Duration>>> = Arc::default();
    let tls = identities.client.client_config(&[tunnel::ALPN]);
    let origin = bed.origin;
    let (asked, open, own) = (receipt.clone(), opened.clone(), scenario.clone());
    bed.client.spawn(async move {
        let config = TunnelConfig::new(SERVER, SERVER_NAME, tls);
        let tunnel = start_tunnel(config, &own, origin).await;
        let outcome = async {
            let tunnel = tunnel.map_err(io::Error::other)?;
            let listener = TcpListener::bind(FORWARDER).await?;
            tokio::spawn(forward(listener, tunnel.clone(), asked.clone()));
            if !tunnel.up().await {
                return Err(io::Error::other("the tunnel has ended"));
            }
            *open.lock() = Some(asked.now());
            let flows = (0..own.streams).map(|_| application(&own, &asked));
            futures::future::try_join_all(flows).await.map(|_| ())
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

/// The proxy service in the server's namespace, once it listens.
pub(super) fn start_proxy(
    bed: &Bed,
    identities: &Identities,
    context: &Context,
) -> Result<(), KernelError> {
    let config = proxy_config(identities)?;
    bed.server.spawn(proxy::run(config, context.clone()));
    let listens = bed.server.block_on(async {
        let address = tokio::time::timeout(START_MAX, context.address("tunnel")).await;
        matches!(address, Ok(Some(_)))
    });
    if listens {
        return Ok(());
    }
    Err(KernelError::Endpoint(
        "the proxy does not listen".to_owned(),
    ))
}

fn proxy_config(identities: &Identities) -> Result<proxy::Config, KernelError> {
    let files = &identities.server_files;
    let path = |path: &std::path::Path| path.display().to_string();
    let line = [
        "proxy".to_owned(),
        "--listen".to_owned(),
        SERVER.to_string(),
        "--path-telemetry".to_owned(),
        String::new(),
        "--allow".to_owned(),
        PEER.to_string(),
        "--drain-ms".to_owned(),
        "0".to_owned(),
        "--cert".to_owned(),
        path(&files.cert),
        "--key".to_owned(),
        path(&files.key),
        "--ca".to_owned(),
        path(&files.ca),
    ];
    ProxyLine::try_parse_from(line)
        .map(|line| line.config)
        .map_err(|error| KernelError::Endpoint(error.to_string()))
}

/// The gateway's part for each connection of an application.
async fn forward(listener: TcpListener, tunnel: Tunnel, receipt: Arc<Receipt>) {
    while let Ok((mut local, _)) = listener.accept().await {
        let tunnel = tunnel.clone();
        let receipt = receipt.clone();
        tokio::spawn(async move {
            let passing = async {
                let authority = Authority::try_from(PEER.to_string()).map_err(io::Error::other)?;
                let mut remote = tunnel.open_tcp(&authority, Urgency::Bulk).await?;
                copy_bidirectional_with_sizes(&mut local, &mut remote, BUFFER_BYTES, BUFFER_BYTES)
                    .await
            };
            if let Err(error) = passing.await {
                receipt.failed(format!("forwarder: {error}"));
            }
        });
    }
}

async fn application(scenario: &Scenario, receipt: &Receipt) -> io::Result<()> {
    let mut stream = TcpStream::connect(FORWARDER).await?;
    let total = scenario.bytes / u64::from(scenario.streams);
    match scenario.direction {
        Direction::Upload => send(&mut stream, total).await,
        Direction::Download => {
            stream.write_u8(1).await?;
            receive(&mut stream, total, receipt).await
        }
    }
}

async fn answer(listener: TcpListener, scenario: Arc<Scenario>, receipt: Arc<Receipt>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let (scenario, receipt) = (scenario.clone(), receipt.clone());
        tokio::spawn(async move {
            let total = scenario.bytes / u64::from(scenario.streams);
            let outcome = match scenario.direction {
                Direction::Upload => receive(&mut stream, total, &receipt).await,
                Direction::Download => {
                    async {
                        stream.read_u8().await?;
                        send(&mut stream, total).await
                    }
                    .await
                }
            };
            if let Err(error) = outcome {
                receipt.failed(format!("server: {error}"));
            }
        });
    }
}
