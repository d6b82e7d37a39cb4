//! One simulated machine: an endpoint of the library with at most one connection, the steering of
//! its paths, and its application. The world hands it datagrams and the time, and takes the
//! datagrams it wants to send.

mod error;
mod manager;
mod transport;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use multipath::{Command, InterfaceId, OpenFailure, PathScheduler};
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event,
    FourTuple, PathError, PathEvent, PathId, PathStatus, ServerConfig, VarInt,
};

use crate::address::{self, Generation, SERVER, interface_of};
use crate::chaos::{PathWhim, Plan};
use crate::identity::{Identity, SERVER_NAME};
use crate::mechanisms::Mechanisms;
use crate::oracle::{Oracle, WAKE_EVERY};
use crate::scenario::{Controller, Scenario};
use crate::steered::RuleFollower;
use crate::traffic::Application;

use error::SILENT_MAX;
use manager::{Manager, open, open_missing};
use transport::transport;

pub use error::HostError;

/// Datagrams of one transmit, sent back to back.
const BATCH_DATAGRAMS: NonZeroUsize = NonZeroUsize::MIN;
/// How often the models are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A datagram that a host wants to send.
#[derive(Debug)]
pub struct Outgoing {
    pub interface: usize,
    /// The client's address, of what the server sends to a known one.
    pub to: Option<SocketAddr>,
    pub payload: BytesMut,
}

/// Packets that a host has sent, and those that it declared lost and sent again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    pub packets: u64,
    pub lost_packets: u64,
    pub lost_bytes: u64,
}

pub struct Host {
    client: bool,
    start: Instant,
    endpoint: Endpoint,
    conn: Option<(ConnectionHandle, Connection)>,
    manager: Manager,
    /// Interfaces that exist; until the server has answered, the handshake is sent over each.
    interfaces: Vec<usize>,
    /// Changes that this end makes to its own paths, by time.
    whims: VecDeque<(Duration, PathWhim)>,
    /// The interface of the first answer, which carries the first path.
    first: Option<usize>,
    open_paths: Vec<PathId>,
    received: bool,
    /// Datagrams that open paths had brought when one last brought some, and when that was.
    heard: (u64, Duration),
    /// Only where there is chaos: when it is over.
    calm_from: Option<Duration>,
    lost: Option<HostError>,
    pub application: Application,
    pub paths_opened: u32,
    pub paths_closed: u32,
    buffer: Vec<u8>,
    path_scheduler: Arc<PathScheduler>,
    /// Only where the controller is one.
    oracle: Option<Arc<Oracle>>,
    rules: Option<RuleFollower>,
    /// When the models are looked at next, how often that was, and how often two paths were
    /// coupled.
    look_at: Duration,
    looks: u32,
    coupled: u32,
    trace: bool,
}

impl Host {
    pub fn new(
        client: bool,
        scenario: &Scenario,
        identity: &Identity,
        mechanisms: Mechanisms,
        start: Instant,
        seed: u64,
    ) -> Self {
        let path_scheduler = PathScheduler::new();
        let oracle = (scenario.controller == Controller::Oracle).then(Arc::<Oracle>::default);
        let transport = Arc::new(transport(
            scenario,
            &path_scheduler,
            mechanisms,
            oracle.as_ref(),
        ));
        let mut config = EndpointConfig::default();
        let mut rng_seed = [0; 32];
        rng_seed[..8].copy_from_slice(&seed.to_be_bytes());
        config.rng_seed(Some(rng_seed));
        let server = (!client).then(|| {
            let mut server = ServerConfig::with_crypto(identity.server.clone());
            server.transport_config(transport.clone());
            Arc::new(server)
        });
        let manager = Manager::new(client, scenario, mechanisms, &path_scheduler);
        let plan = scenario.chaos.map(|chaos| {
            Plan::draw(
                scenario.seed,
                chaos,
                scenario.bytes,
                scenario.interfaces.len(),
            )
        });
        let whims = plan
            .iter()
            .flat_map(|plan| &plan.paths)
            .filter(|whim| whim.1 == client)
            .map(|&(at, _, whim)| (at, whim))
            .collect();
        let mut host = Self {
            client,
            start,
            endpoint: Endpoint::new(Arc::new(config), server, true),
            conn: None,
            manager,
            interfaces: Vec::new(),
            whims,
            first: None,
            open_paths: vec![PathId::ZERO],
            received: false,
            heard: (0, Duration::ZERO),
            calm_from: scenario
                .chaos
                .map(|chaos| Duration::from_secs_f64(chaos.until_s)),
            lost: None,
            application: Application::new(client, scenario, plan, (&path_scheduler, start)),
            paths_opened: 0,
            paths_closed: 0,
            buffer: Vec::with_capacity(65_536),
            path_scheduler,
            oracle,
            rules: scenario
                .steered
                .as_ref()
                .map(|steered| RuleFollower::new(steered, scenario)),
            look_at: Duration::ZERO,
            looks: 0,
            coupled: 0,
            trace: std::env::var_os("BRAID_LAB_TRACE").is_some(),
        };
        if client {
            let mut config = ClientConfig::new(identity.client.clone());
            config.transport_config(transport);
            host.conn = host
                .endpoint
                .connect(start, config, SERVER, SERVER_NAME)
                .ok();
        }
        host
    }

    /// The links as this host foresees them, if it does.
    pub(crate) fn oracle(&self) -> Option<&Oracle> {
        self.oracle.as_deref()
    }

    /// When a host that foresees its links looks at them again.
    pub(crate) fn looks_ahead_at(&self, now: Duration) -> Option<Duration> {
        let sends = self.oracle.is_some() && self.application.wants_to_send();
        sends.then(|| now + WAKE_EVERY)
    }

    /// Reports a change of an interface to the client's steering.
    pub fn link_changed(&mut self, now: Duration, interface: usize, up: bool) {
        let at = self.start + now;
        let id = InterfaceId(interface as u16);
        let event = if up {
            multipath::Event::LinkUp { interface: id }
        } else {
            multipath::Event::LinkDown { interface: id }
        };
        self.manager.feed(at, event);
    }

    /// The component that asks to be called at the next deadline.
    pub fn who_is_due(&mut self, now: Duration) -> &'static str {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let start = self.start;
        let timer = self.conn.as_mut().and_then(|(_, conn)| conn.poll_timeout());
        if due(timer.map(|at| at.saturating_duration_since(start))) {
            "the library's timer"
        } else if due(self.application.next_deadline()) {
            "the application"
        } else if due(self.next_deadline()) {
            "the steering's deadline"
        } else {
            "nobody"
        }
    }

    pub fn next_deadline(&mut self) -> Option<Duration> {
        let timer = self.conn.as_mut().and_then(|(_, conn)| conn.poll_timeout());
        let library = [timer, self.manager.next_deadline(self.start)]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.saturating_duration_since(self.start));
        // During the handshake a whim waits for the event that ends it.
        let connected = self
            .conn
            .as_ref()
            .is_some_and(|(_, conn)| !conn.is_handshaking());
        let whim = self.whims.front().map(|whim| whim.0).filter(|_| connected);
        [library, self.application.next_deadline(), whim]
            .into_iter()
            .flatten()
            .min()
    }

    /// A datagram has arrived.
    pub fn receive(
        &mut self,
        now: Duration,
        interface: usize,
        generation: Generation,
        payload: BytesMut,
        out: &mut Vec<Outgoing>,
    ) {
        let at = self.start + now;
        let path = if self.client {
            FourTuple::new(SERVER, Some(address::client(interface).ip()))
        } else {
            let client = address::public(interface, generation);
            FourTuple::new(multipath::mapped(client), Some(SERVER.ip()))
        };
        self.received = true;
        self.first.get_or_insert(interface);
        if let Some(oracle) = &self.oracle {
            oracle.answered_by(interface);
            // A server builds a path's controller when the path's first packet comes.
            if !self.client {
                oracle.builds_for(interface);
            }
        }
        self.buffer.clear();
        match self
            .endpoint
            .handle(at, path, None, payload, &mut self.buffer)
        {
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.buffer.clear();
                match self.endpoint.accept(incoming, at, &mut self.buffer, None) {
                    Ok(conn) if self.conn.is_none() => self.conn = Some(conn),
                    Ok(_) => {}
                    Err(error) => self.lost = Some(error.cause.into()),
                }
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some((own, conn)) = &mut self.conn
                    && *own == handle
                {
                    conn.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                let size = transmit.size;
                out.push(Outgoing {
                    interface,
                    to: None,
                    payload: BytesMut::from(&self.buffer[..size]),
                });
            }
            None => {}
        }
    }

    /// Lets everything happen that can happen at `now`.
    pub fn turn(&mut self, now: Duration, out: &mut Vec<Outgoing>) -> Result<(), HostError> {
        let at = self.start + now;
        let Some((handle, mut conn)) = self.conn.take() else {
            return if self.client {
                Err(HostError::Connect)
            } else {
                Ok(())
            };
        };
        if conn.poll_timeout().is_some_and(|due| due <= at) {
            conn.handle_timeout(at);
        }
        while let Some(event) = conn.poll() {
            self.on_connection_event(now, &mut conn, event);
        }
        let mut outcome = self.application.turn(&mut conn, now);
        self.look_at_models(now);
        self.indulge(now, &mut conn);
        self.steer(now, &mut conn);
        while let Some(event) = conn.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                conn.handle_event(event);
            }
        }
        self.transmit(at, &mut conn, out);
        // Each copy is written once the packet of the one before has left.
        while outcome.is_ok() && self.application.waits_for_copy() {
            let before = self.application.written_bytes();
            outcome = self.application.turn(&mut conn, now);
            self.transmit(at, &mut conn, out);
            if self.application.written_bytes() == before {
                break;
            }
        }
        while let Some(event) = conn.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(handle, event) {
                conn.handle_event(event);
            }
        }
        self.conn = Some((handle, conn));
        outcome?;
        self.lost.take().map_or(Ok(()), Err)
    }

    fn transmit(&mut self, at: Instant, conn: &mut Connection, out: &mut Vec<Outgoing>) {
        loop {
            self.buffer.clear();
            let Some(transmit) = conn.poll_transmit(at, BATCH_DATAGRAMS, &mut self.buffer) else {
                break;
            };
            let to = (!self.client).then(|| multipath::unmapped(transmit.destination));
            let interface = match to {
                Some(client) => interface_of(client.ip()),
                None => transmit.src_ip.map_or(self.first, interface_of),
            };
            let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
            let Some(interface) = interface else {
                // The handshake races over all interfaces.
                for (&interface, payload) in self.interfaces.iter().flat_map(|interface| {
                    self.buffer[..transmit.size]
                        .chunks(segment)
                        .map(move |payload| (interface, payload))
                }) {
                    out.push(Outgoing {
                        interface,
                        to: None,
                        payload: BytesMut::from(payload),
                    });
                }
                continue;
            };
            // A dead path's datagrams leave by a living interface.
            let interface = match &self.manager {
                Manager::Ours(steering) if self.client => {
                    usize::from(steering.route_of(InterfaceId(interface as u16)).0)
                }
                _ => interface,
            };
            for payload in self.buffer[..transmit.size].chunks(segment) {
                out.push(Outgoing {
                    interface,
                    to,
                    payload: BytesMut::from(payload),
                });
            }
        }
    }

    /// Ten times a virtual second. For developers, with `BRAID_LAB_TRACE` set, the models are
    /// printed on standard error.
    fn look_at_models(&mut self, now: Duration) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let models = self.path_scheduler.models();
        self.looks += 1;
        self.coupled += u32::from(models.iter().any(|model| model.coupled));
        if self.trace {
            let name = if self.client { "client" } else { "server" };
            for model in models {
                eprintln!("{:>10.3} {name} {model:?}", now.as_secs_f64());
            }
        }
    }

    /// Bytes and packets of all paths together, the closed ones included.
    pub fn sent(&mut self) -> Sent {
        let Some((_, conn)) = &mut self.conn else {
            return Sent::default();
        };
        let stats = conn.stats();
        Sent {
            packets: stats.sent_packets,
            lost_packets: stats.lost_packets,
            lost_bytes: stats.lost_bytes,
        }
    }

    /// Share of the time in which paths were coupled.
    pub fn coupled_share(&self) -> f64 {
        f64::from(self.coupled) / f64::from(self.looks.max(1))
    }

    fn on_connection_event(&mut self, now: Duration, conn: &mut Connection, event: Event) {
        let at = self.start + now;
        match event {
            Event::Connected => {
                let first = self.first.unwrap_or_default();
                self.manager
                    .on_connected(self.client, first, conn, (now, at));
                self.application.on_connected(conn, now);
            }
            Event::ConnectionLost { reason } => self.lost = Some(reason.into()),
            Event::Path(event) => {
                if self.trace {
                    eprintln!(
                        "{:>10.3} {} {event:?}",
                        now.as_secs_f64(),
                        if self.client { "client" } else { "server" }
                    );
                }
                match &event {
                    PathEvent::Established { id, .. } if !self.open_paths.contains(id) => {
                        self.open_paths.push(*id);
                    }
                    PathEvent::Abandoned { id, .. } => {
                        self.paths_closed += 1;
                        self.open_paths.retain(|path| path != id);
                    }
                    _ => {}
                }
                self.manager
                    .on_path_event(self.client, &event, conn, (now, at));
                if matches!(event, PathEvent::Abandoned { .. }) {
                    self.application.on_path_trouble(conn, now);
                }
            }
            _ => {}
        }
    }

    /// Names an interface of the client. The handshake races over all of them; the others are
    /// opened after it.
    pub fn add_interface(&mut self, now: Duration, interface: usize, up: bool) {
        self.interfaces.push(interface);
        match &mut self.manager {
            Manager::Ours(_) if up => self.link_changed(now, interface, true),
            Manager::Ours(_) => {}
            Manager::Plain { missing, .. } => missing.push((interface, Duration::MAX / 4)),
        }
    }

    /// Closes and opens paths as the plan of a chaotic run has it, without asking the steering.
    fn indulge(&mut self, now: Duration, conn: &mut Connection) {
        let at = self.start + now;
        while let Some(&(due, whim)) = self.whims.front()
            && due <= now
            && !conn.is_handshaking()
        {
            self.whims.pop_front();
            match whim {
                PathWhim::Close(rank) => {
                    let open = conn.paths();
                    if !open.is_empty() {
                        // The last one is refused.
                        let _ = conn.close_path(at, open[rank % open.len()], VarInt::from_u32(1));
                    }
                }
                PathWhim::Open(interface) => {
                    // Refused while the peer grants no further id.
                    let oracle = self.oracle.as_deref();
                    let status = PathStatus::Available;
                    let Ok(path) = open(conn, oracle, interface, status, at) else {
                        continue;
                    };
                    self.paths_opened += 1;
                    let interface = InterfaceId(interface as u16);
                    let event = multipath::Event::Opened { interface, path };
                    self.manager.feed(at, event);
                }
            }
        }
    }

    fn steer(&mut self, now: Duration, conn: &mut Connection) {
        let at = self.start + now;
        if let Manager::Plain { missing, of_path } = &mut self.manager {
            self.paths_opened += open_missing(conn, missing, of_path, now, at);
            return;
        }
        self.report_arrivals(now, at, conn);
        let silent_from = self.calm_from.map(|calm| calm.max(self.heard.1));
        if self.client && silent_from.is_some_and(|from| now > from + SILENT_MAX) {
            self.lost = Some(HostError::Silent);
        }
        if self.application.wants_to_send() {
            self.manager
                .feed(at, multipath::Event::Backlog { bytes: 1 });
        }
        if let Some(bytes) = self.application.written_bytes() {
            self.manager.feed(at, multipath::Event::Written { bytes });
        }
        if let (Some(rules), Manager::Ours(steering)) = (&mut self.rules, &mut self.manager) {
            rules.follow((now, at), self.client, conn, &self.open_paths, steering);
        }
        let mut suspected = false;
        while let Some(command) = self.manager.next_command(at) {
            if self.trace && !matches!(command, Command::Ping { .. }) {
                eprintln!(
                    "{:>10.3} {} {command:?}",
                    now.as_secs_f64(),
                    if self.client { "client" } else { "server" }
                );
            }
            suspected |= self.obey(command, at, conn);
        }
        if suspected {
            self.application.on_path_trouble(conn, now);
        }
    }

    /// Datagrams of each path since the last look, and its peer's address.
    fn report_arrivals(&mut self, now: Duration, at: Instant, conn: &mut Connection) {
        if !std::mem::take(&mut self.received) {
            return;
        }
        let Manager::Ours(steering) = &mut self.manager else {
            return;
        };
        let mut heard = 0;
        for &path in &self.open_paths {
            if let Some(stats) = conn.path_stats(path) {
                let datagrams = stats.udp_rx.datagrams;
                heard += datagrams;
                let rtt = stats.rtt;
                let event = multipath::Event::Received {
                    path,
                    datagrams,
                    rtt,
                };
                steering.on_event(at, event);
            }
            if let Ok(way) = conn.network_path(path) {
                let address = way.remote();
                let event = multipath::Event::PeerAddress { path, address };
                steering.on_event(at, event);
            }
        }
        if heard > self.heard.0 {
            self.heard.1 = now;
        }
        for path in steering.closing() {
            let event = match conn.path_stats(path) {
                Some(stats) => multipath::Event::Held {
                    path,
                    rtt: stats.rtt,
                },
                None => multipath::Event::Discarded { path },
            };
            steering.on_event(at, event);
        }
        // A path that closed takes its share out of the sum.
        self.heard.0 = heard;
    }

    /// Does what the steering wants; returns whether a path is suspected.
    fn obey(&mut self, command: Command, at: Instant, conn: &mut Connection) -> bool {
        match command {
            Command::Ping { path } => drop(conn.ping_path(path)),
            Command::SetStatus { path, status } => {
                let _ = conn.set_path_status(path, status);
                return status == PathStatus::Backup && self.manager.is_suspect(path, at);
            }
            Command::Close { path } => drop(conn.close_path(at, path, VarInt::from_u32(0))),
            Command::GiveUp { path } => {
                conn.close(at, VarInt::from_u32(1), Bytes::new());
                self.lost = Some(HostError::GaveUp(path));
            }
            Command::Open { interface, status } => {
                let number = usize::from(interface.0);
                let failed = |failure| multipath::Event::OpenFailed { interface, failure };
                let event = match open(conn, self.oracle.as_deref(), number, status, at) {
                    Ok(path) => {
                        self.paths_opened += 1;
                        // Datagrams on a path before it is validated count too.
                        if !self.open_paths.contains(&path) {
                            self.open_paths.push(path);
                        }
                        multipath::Event::Opened { interface, path }
                    }
                    Err(PathError::RemoteCidsExhausted | PathError::MaxPathIdReached) => {
                        failed(OpenFailure::NoIdYet)
                    }
                    Err(_) => failed(OpenFailure::Refused),
                };
                self.manager.feed(at, event);
            }
        }
        false
    }
}
