//! An application's traffic in kernel time. Messages and pages are those of virtual time. They go
//! over TCP and MPTCP of this machine, SCTP of userland, or the product's own tunnel.
//!
//! ```text
//!   client: Course -- connections --> TCP, MPTCP | relay = SCTP = relay | Tunnel --> server: Course
//! ```
//!
//! Time counts from when the connections are up, as in virtual time. Both ends are in one process
//! and have one clock.

mod competitors;
pub(crate) mod course;
pub(crate) mod relay;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tunnel::{Authority, ServerConfig, TunnelConfig, TunnelServer, Urgency};

use super::baseline::{self, Transport};
use super::bed::{Bed, KernelError, KernelReport, Receipt};
use super::identities::{Identities, SERVER_NAME};
use super::network::SERVER_IP;
use super::transfer::{SERVER as TUNNEL_SERVER, start_tunnel};
use crate::mix::Mix;
use crate::scenario::Scenario;

use course::Course;
use relay::Relay;

/// Where the application's server listens for TCP and MPTCP.
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 5201);
const CONGESTION: &str = "cubic";

/// Carrier of the application's streams.
#[derive(Clone, Copy)]
pub(crate) enum Carrier<'a> {
    /// Over the scenario's first link.
    Tcp,
    /// Over all of them.
    Mptcp,
    /// Over all links of the scenario; one link is plain SCTP.
    Sctp(&'a Relay),
    /// The product's tunnel, over all of them.
    Tunnel(&'a Identities),
}

/// Runs the scenario's traffic, which must be a mix, once.
pub(crate) fn run(
    scenario: &Scenario,
    mix: &Mix,
    carrier: Carrier<'_>,
) -> Result<KernelReport, KernelError> {
    let bed = Bed::new(scenario)?;
    if let Some(buffers) = scenario.buffers {
        bed.network.limit_buffers(buffers)?;
    }
    let paths = scenario.interfaces.len();
    let receipt = Receipt::new(bed.origin, 1);
    let course = Arc::new(Course::new(scenario, mix, receipt.clone(), bed.origin));
    competitors::start(&bed, scenario)?;
    let opened: Arc<Mutex<Option<Duration>>> = Arc::default();
    let end = Ends {
        bed: &bed,
        course: &course,
        opened: &opened,
    };
    // Processes end with the run.
    let mut processes = Vec::new();
    match carrier {
        Carrier::Tcp => end.tcp(Transport::Tcp)?,
        Carrier::Mptcp => {
            bed.network.allow_mptcp(paths)?;
            end.tcp(Transport::Mptcp)?;
        }
        Carrier::Sctp(relay) => processes.extend(end.sctp(relay, scenario)?),
        Carrier::Tunnel(identities) => end.tunnel(identities, scenario)?,
    }
    receipt.wait(&bed.client, scenario.limit());
    let bulk = receipt.bulk(*opened.lock(), scenario.limit());
    drop(processes);
    let mut report = bed.finish(scenario, bulk)?;
    report.report = report.report.with_noted(&course.noted());
    Ok(report)
}

/// Both ends of a run.
struct Ends<'a> {
    bed: &'a Bed,
    course: &'a Arc<Course>,
    opened: &'a Arc<Mutex<Option<Duration>>>,
}

impl Ends<'_> {
    /// The outcome of a task in the server's namespace.
    fn at_server<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, KernelError> {
        let server = &self.bed.server;
        server
            .block_on(server.spawn(task))
            .map_err(|error| KernelError::Endpoint(error.to_string()))
    }

    fn tcp(&self, transport: Transport) -> Result<(), KernelError> {
        let listening = async move { baseline::listen(transport, CONGESTION, SERVER) };
        let listener: TcpListener = self.at_server(listening)??;
        let served = self.course.clone();
        self.bed.server.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Without it a message would wait for the answer to the one before.
                if let Err(error) = stream.set_nodelay(true) {
                    return served.failed("server", &error);
                }
                tokio::spawn(served.clone().serve(stream));
            }
        });
        let (course, opened) = (self.course.clone(), self.opened.clone());
        self.bed.client.spawn(async move {
            let connected = async {
                course.wait_for_the_beginning().await;
                let mut streams = Vec::new();
                for _ in 0..course.connections() {
                    let stream = baseline::connect(transport, CONGESTION, SERVER).await?;
                    stream.set_nodelay(true)?;
                    streams.push(stream);
                }
                Ok(streams)
            };
            course.clone().ask(connected.await, &opened).await;
        });
        Ok(())
    }

    fn sctp(&self, relay: &Relay, scenario: &Scenario) -> Result<[relay::Running; 2], KernelError> {
        let sockets = relay.sockets()?;
        let paths = scenario.interfaces.len();
        let at_server = sockets.server();
        let listener = self.at_server(async move { UnixListener::bind(at_server) })??;
        let served = self.course.clone();
        self.bed.server.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(served.clone().serve(stream));
            }
        });
        let network = &self.bed.network;
        let mut accepting = relay.accept(&network.server, &sockets, scenario.buffers, paths)?;
        accepting.wait_until_ready()?;
        let connecting = relay.connect(&network.client, &sockets, scenario.buffers, paths);
        let (course, opened) = (self.course.clone(), self.opened.clone());
        let (connecting, ended) = connecting.split();
        self.bed.client.spawn(async move {
            let connected = async {
                course.wait_for_the_beginning().await;
                // The handshake of an association can take seconds where it is lost.
                let up = tokio::task::spawn_blocking(move || connecting.start());
                up.await.map_err(io::Error::other)??;
                let mut streams = Vec::new();
                for _ in 0..course.connections() {
                    streams.push(UnixStream::connect(sockets.client()).await?);
                }
                Ok(streams)
            };
            course.clone().ask(connected.await, &opened).await;
        });
        Ok([accepting, ended])
    }

    fn tunnel(&self, identities: &Identities, scenario: &Scenario) -> Result<(), KernelError> {
        let tls = identities.server.server_config(true, &[tunnel::ALPN]);
        let config = ServerConfig::new(TUNNEL_SERVER, tls);
        let server = self
            .at_server(async move { TunnelServer::bind(config) })?
            .map_err(|error| KernelError::Endpoint(error.to_string()))?;
        let served = self.course.clone();
        self.bed.server.spawn(async move {
            while let Some(mut session) = server.accept().await {
                let served = served.clone();
                tokio::spawn(async move {
                    while let Some(request) = session.accept().await {
                        let served = served.clone();
                        tokio::spawn(async move {
                            match request.accept().await {
                                Ok(stream) => served.serve(stream).await,
                                Err(error) => served.failed("server", &error),
                            }
                        });
                    }
                });
            }
        });
        let tls = identities.client.client_config(&[tunnel::ALPN]);
        let config = TunnelConfig::new(TUNNEL_SERVER, SERVER_NAME, tls);
        let (course, opened) = (self.course.clone(), self.opened.clone());
        let (own, origin) = (scenario.clone(), self.bed.origin);
        self.bed.client.spawn(async move {
            let starting = start_tunnel(config, &own, origin + course.lead());
            let tunnel = match starting.await {
                Ok(tunnel) if tunnel.up().await => tunnel,
                Ok(_) => return course.failed("client", &"the tunnel has ended"),
                Err(error) => return course.failed("client", &error),
            };
            let authority = Authority::from_static("application.lab:1");
            let connected = async {
                let mut streams = Vec::new();
                for _ in 0..course.connections() {
                    streams.push(tunnel.open_tcp(&authority, Urgency::Bulk).await?);
                }
                Ok(streams)
            };
            course.clone().ask(connected.await, &opened).await;
            // The tunnel lives as long as the run: the runtime's end takes it.
            std::future::pending::<()>().await;
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::namespace::permitted;
    use crate::scenario::{Buffers, Controller, Direction, Interface};

    const BYTES: u64 = 3_000_000;

    fn scenario(mix: Mix, direction: Direction) -> Scenario {
        let interfaces = ["first", "second"].map(|name| Interface::symmetric(name, 8.0, 30.0, 0.0));
        let mut scenario = Scenario::transfer(
            "application",
            3,
            direction,
            1,
            Controller::Ours,
            20.0,
            interfaces.into(),
        );
        scenario.mix = Some(mix);
        scenario.buffers = Some(Buffers {
            send_bytes: 1 << 20,
            receive_bytes: 2 << 20,
        });
        scenario
    }

    fn page() -> Mix {
        Mix::Page {
            objects: 9,
            bytes: BYTES,
            at_once: 6,
        }
    }

    fn video() -> Mix {
        Mix::Video {
            kbit: 950.0,
            frames_per_s: 30.0,
            seconds: 1.0,
        }
    }

    fn ran(mix: Mix, direction: Direction, carrier: Carrier<'_>) -> KernelReport {
        let scenario = scenario(mix.clone(), direction);
        let run = run(&scenario, &mix, carrier).unwrap();
        assert!(run.report.completed, "{:?}", run.report.error);
        run
    }

    /// Seconds of the page, and the least share of a path.
    fn fetched(carrier: Carrier<'_>) -> (f64, f64) {
        let report = ran(page(), Direction::Download, carrier).report;
        assert_eq!(report.delivered_bytes, BYTES);
        let carried: Vec<f64> = report.carried_bytes.iter().map(|it| *it as f64).collect();
        let least = carried.iter().copied().fold(f64::INFINITY, f64::min);
        (report.page_s.unwrap(), least / carried.iter().sum::<f64>())
    }

    #[test]
    fn kernel_transports_carry_pages_and_messages() {
        if let Err(why) = permitted() {
            eprintln!("skipped: {why}");
            return;
        }
        let identities = Identities::new().unwrap();
        for carrier in [Carrier::Tcp, Carrier::Mptcp, Carrier::Tunnel(&identities)] {
            // Three megabytes take 3 s over one link, and half of it over both.
            let (page_s, least) = fetched(carrier);
            assert!((1.4..12.0).contains(&page_s), "{page_s}");
            assert_eq!(least < 0.01, matches!(carrier, Carrier::Tcp), "{least}");
            for direction in [Direction::Upload, Direction::Download] {
                let report = ran(video(), direction, carrier).report;
                assert_eq!(report.messages_ms.len(), 30);
                let too_soon = |ms: &&f64| **ms < 15.0;
                assert_eq!(report.messages_ms.iter().find(too_soon), None);
            }
        }
    }

    #[test]
    fn concurrent_multipath_transfer_uses_both_paths() {
        if let Err(why) = permitted() {
            eprintln!("skipped: {why}");
            return;
        }
        let relay = match Relay::build().unwrap() {
            Ok(relay) => relay,
            Err(why) => {
                eprintln!("skipped: {why}");
                return;
            }
        };
        let (_, least) = fetched(Carrier::Sctp(&relay));
        assert!(least > 0.3, "{least}");
        let mut alone = scenario(page(), Direction::Download);
        alone.interfaces.truncate(1);
        let alone = run(&alone, &page(), Carrier::Sctp(&relay)).unwrap();
        assert!(alone.report.completed, "{:?}", alone.report.error);
        for direction in [Direction::Upload, Direction::Download] {
            let report = ran(video(), direction, Carrier::Sctp(&relay)).report;
            assert_eq!(report.messages_ms.len(), 30);
        }
    }

    #[test]
    fn competitors_take_their_part_of_a_link() {
        if let Err(why) = permitted() {
            eprintln!("skipped: {why}");
            return;
        }
        let mut scenario = scenario(page(), Direction::Download);
        scenario.interfaces.truncate(1);
        scenario.competitors = vec![Controller::Cubic];
        let beside = run(&scenario, &page(), Carrier::Tcp).unwrap().report;
        let (page_s, delivered) = (beside.page_s.unwrap(), beside.links[0].delivered_bytes);
        let own = beside.carried_bytes[0];
        assert!(page_s > 3.2, "{page_s}");
        assert!(delivered as f64 > 1.1 * own as f64, "{delivered} {own}");
        assert!(own < 2 * BYTES, "{own}");
    }
}
