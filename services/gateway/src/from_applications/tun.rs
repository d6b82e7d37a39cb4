//! Programs without proxy support: packets of a TUN device, through one IP tunnel (CONNECT-IP, RFC
//! 9484) to the destinations that the proxy permits.
//!
//! The proxy sends the gateway's address and the permitted prefixes. The device gets the address
//! and, if configured, the routes. Both stay when the tunnel ends with its session: the next tunnel
//! asks for the same address, and connections of programs outlive the change. Meanwhile packets are
//! dropped, as on a network without carrier. As bulk they go after alerts and vitals.
//!
//! The gateway's own packets must not use the device. So its access networks are bound to their
//! devices, which the configuration requires if routes are set.

mod ended;
mod packet_flows;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use host_network::{READ_BYTES_MAX, Received, TunDevice, TunError};
use ip_packets::{IpGate, IpPrefix, IpRange, IpRanges, PacketFlow};
use metrics::Counter;
use parking_lot::{Mutex, RwLock};
use service_kit::{Backoff, Shutdown, Warning, WarningHandle};
use tokio::sync::watch;
use tunnel::{IpAddressEntry, IpCapsule, IpTunnel, Tunnel, TunnelEnded, Urgency};

use crate::steering::Flows;
use ended::{AGREED_WITHIN, Ended};
use packet_flows::{PacketFlows, Passage};

/// Routes of the device; of a longer list none is set, since a part would lead some packets
/// elsewhere. The public addresses are 126 prefixes of IPv4 and 320 of IPv6. Each address that the
/// proxy excludes adds up to 30 or 125.
const ROUTES_MAX: usize = 1_024;

/// Pause before a failed setting of the device is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// A tunnel that lived this long does not count as a failure.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Numbers of the requests for addresses, by version.
const QUESTIONS: [(u64, &str); 2] = [(1, "0.0.0.0/32"), (2, "::/128")];

/// Relays packets until shutdown is requested.
pub struct Packets {
    tunnel: Tunnel,
    device: TunDevice,
    flows: Flows,
    /// Whether routes are set on the device.
    routes: bool,
    warning: WarningHandle,
    counters: [DirectionCounters; 2],
    /// Destinations that the proxy allows, as it last announced them.
    announced: Arc<RwLock<IpRanges>>,
    /// Addresses that this process has set.
    own: watch::Sender<Vec<IpAddr>>,
}

/// The addresses and routes that this process has set.
#[derive(Default)]
struct Installed {
    addresses: BTreeSet<IpPrefix>,
    routes: BTreeSet<IpPrefix>,
}

/// Counters of one direction.
struct DirectionCounters {
    direction: &'static str,
    packets: Counter,
    bytes: Counter,
}

impl DirectionCounters {
    fn new(direction: &'static str) -> Self {
        Self {
            direction,
            packets: metrics::counter!("braid_gateway_tun_packets_total", "direction" => direction),
            bytes: metrics::counter!("braid_gateway_applications_bytes_total", "direction" => direction),
        }
    }

    fn passed(&self, bytes: usize) {
        self.packets.increment(1);
        self.bytes.increment(bytes as u64);
    }

    fn count_dropped(&self, reason: &'static str) {
        let direction = self.direction;
        metrics::counter!("braid_gateway_tun_dropped_total", "direction" => direction, "reason" => reason)
            .increment(1);
    }
}

/// Why a tunnel has ended.
impl Packets {
    /// Opens the device, or creates it. Must be called within a Tokio runtime.
    pub async fn open(
        name: &str,
        routes: bool,
        tunnel: Tunnel,
        flows: Flows,
        warning: WarningHandle,
    ) -> Result<Self, TunError> {
        let device = TunDevice::open(name)?;
        device.set_up().await?;
        Ok(Self {
            tunnel,
            device,
            flows,
            routes,
            warning,
            counters: ["up", "down"].map(DirectionCounters::new),
            announced: Arc::default(),
            own: watch::Sender::default(),
        })
    }

    /// Addresses of the device.
    pub fn own(&self) -> watch::Receiver<Vec<IpAddr>> {
        self.own.subscribe()
    }

    /// Destinations that the proxy allows to packets.
    pub fn announced(&self) -> Arc<RwLock<IpRanges>> {
        self.announced.clone()
    }

    pub async fn run(self, shutdown: Shutdown) {
        let mut installed = Installed::default();
        tokio::select! {
            () = self.carry_for_ever(&mut installed) => {}
            () = shutdown.requested() => {}
        }
        // An operator's device stays, in its former state.
        self.apply(&mut installed, &IpGate::default()).await;
        metrics::gauge!("braid_gateway_tun_up").set(0.0);
    }

    async fn carry_for_ever(&self, installed: &mut Installed) {
        let mut backoff = Backoff::for_reconnect();
        loop {
            let start = tokio::time::Instant::now();
            let ended = match self
                .while_dropping(self.tunnel.open_ip(Urgency::Bulk))
                .await
            {
                Ok(tunnel) => self.carry(tunnel, installed).await,
                Err(error) => error.into(),
            };
            metrics::gauge!("braid_gateway_tun_up").set(0.0);
            tracing::info!(device = self.device.name(), %ended, "no IP tunnel");
            self.warn(&ended);
            if start.elapsed() > SETTLED_AFTER {
                backoff.reset();
            }
            // The next session accepts the request at once.
            if !matches!(ended, Ended::Tunnel(TunnelEnded::Session)) {
                self.while_dropping(backoff.wait()).await;
            }
        }
    }

    /// Drops packets until the future is done.
    async fn while_dropping<T>(&self, until: impl Future<Output = T>) -> T {
        let mut buffer = vec![0; READ_BYTES_MAX];
        let dropping = async {
            loop {
                let Some(mut packets) = self.read(&mut buffer).await else {
                    continue;
                };
                while packets.next().is_some() {
                    self.counters[0].count_dropped("no_tunnel");
                }
            }
        };
        tokio::select! {
            it = until => it,
            () = dropping => unreachable!("reads for ever"),
        }
    }

    async fn carry(&self, tunnel: IpTunnel, installed: &mut Installed) -> Ended {
        let gate = RwLock::new(IpGate::default());
        let flows = Mutex::new(PacketFlows::new(self.flows.clone()));
        let ended = tokio::select! {
            ended = self.agree(&tunnel, &gate, installed) => ended,
            ended = self.bring(&tunnel, &gate, &flows) => ended.into(),
            ended = self.fetch(&tunnel, &gate, &flows) => ended.into(),
            never = self.follow_size(&tunnel) => match never {},
            never = packet_flows::end_quiet_flows(&flows) => match never {},
        };
        ended
    }

    /// Keeps the device's MTU at the size that the paths carry; never returns. Between two tunnels
    /// the MTU stays.
    async fn follow_size(&self, tunnel: &IpTunnel) -> Infallible {
        let mut size = tunnel.packet_size();
        while size.changed().await.is_ok() {
            let size = *size.borrow_and_update();
            if let Some(size) = size {
                self.device.set_mtu(size).await;
            }
        }
        // The tunnel has ended, and says so elsewhere.
        std::future::pending().await
    }

    /// Asks for an address, and applies the proxy's answers.
    async fn agree(
        &self,
        tunnel: &IpTunnel,
        gate: &RwLock<IpGate>,
        installed: &mut Installed,
    ) -> Ended {
        let questions = QUESTIONS.into_iter().filter_map(|(request_id, any)| {
            let any: IpPrefix = any.parse().ok()?;
            let same = |had: &&IpPrefix| had.network().is_ipv4() == any.network().is_ipv4();
            let had = installed.addresses.iter().find(same);
            let prefix = had.copied().unwrap_or(any);
            Some(IpAddressEntry { request_id, prefix })
        });
        let asked = IpCapsule::AddressRequest(questions.collect());
        if let Err(ended) = tunnel.say(&asked).await {
            return ended.into();
        }
        let mut known = IpGate::default();
        let mut complaint = None;
        loop {
            let patience = match (&complaint, known.owner.is_empty()) {
                (_, true) => AGREED_WITHIN,
                (Some(_), false) => AGAIN_AFTER,
                (None, false) => Duration::MAX,
            };
            match tokio::time::timeout(patience, tunnel.hear()).await {
                Ok(Ok(IpCapsule::AddressAssign(given))) => {
                    let given = given.into_iter().map(|entry| entry.prefix);
                    known.owner = given.filter(|it| !it.network().is_unspecified()).collect();
                    if known.owner.is_empty() {
                        return Ended::Full;
                    }
                }
                Ok(Ok(IpCapsule::RouteAdvertisement(routes))) => {
                    known.routes = routes.into_iter().collect();
                    *self.announced.write() = known.routes.clone();
                }
                // A gateway assigns no addresses.
                Ok(Ok(IpCapsule::AddressRequest(_))) => continue,
                Ok(Err(ended)) => return ended.into(),
                Err(_) if known.owner.is_empty() => return Ended::NoAddress,
                // A failed setting may succeed now.
                Err(_) => {}
            }
            *gate.write() = known.clone();
            if known.owner.is_empty() {
                continue;
            }
            let before = complaint;
            complaint = self.apply(installed, &known).await;
            metrics::gauge!("braid_gateway_tun_up").set(1.0);
            if complaint.is_some() && complaint == before {
                continue;
            }
            self.report_state(&known, installed, complaint.clone());
        }
    }

    fn report_state(&self, known: &IpGate, installed: &Installed, complaint: Option<String>) {
        let (device, routes) = (self.device.name(), installed.routes.len());
        let owner: Vec<String> = known.owner.iter().map(IpPrefix::to_string).collect();
        let addresses = owner.join(", ");
        match &complaint {
            Some(complaint) => {
                tracing::warn!(
                    device,
                    addresses,
                    routes,
                    complaint,
                    "IP tunnel, but the device is not set up as wanted"
                );
            }
            None => tracing::info!(device, addresses, routes, "IP tunnel"),
        }
        self.warning.set(complaint.map(|says| {
            Warning {
                says,
                to_do:
                    "give the gateway NET_ADMIN, or configure the device and its routes yourself"
                        .to_owned(),
            }
        }));
    }

    /// From programs to the proxy.
    async fn bring(
        &self,
        tunnel: &IpTunnel,
        gate: &RwLock<IpGate>,
        flows: &Mutex<PacketFlows>,
    ) -> TunnelEnded {
        let mut buffer = vec![0; READ_BYTES_MAX];
        loop {
            let Some(mut packets) = self.read(&mut buffer).await else {
                continue;
            };
            while let Some(packet) = packets.next() {
                self.bring_packet(packet, tunnel, gate, flows).await;
            }
        }
    }

    async fn bring_packet(
        &self,
        packet: &[u8],
        tunnel: &IpTunnel,
        gate: &RwLock<IpGate>,
        flows: &Mutex<PacketFlows>,
    ) {
        let counters = &self.counters[0];
        let passes = gate.read().leaving(packet);
        let read = match passes {
            Ok(read) => read,
            Err(error) => return counters.count_dropped(error.label()),
        };
        let flow = PacketFlow::to(&read, packet);
        let (passage, is_news) = flows.lock().note(Instant::now(), flow);
        if is_news {
            // Its first packet already takes no access that the rules forbid.
            self.tunnel.obeyed().await;
        }
        if passage == Passage::None {
            return counters.count_dropped("steering");
        }
        if let Some(answer) = tunnel.too_big(packet) {
            self.device.send(&answer);
            return counters.count_dropped("too_big");
        }
        // The tunnel counts packets that it drops for lack of room.
        let sent = match passage == Passage::Twice {
            true => tunnel.send_copied(packet),
            false => tunnel.send(packet),
        };
        if sent {
            counters.passed(packet.len());
        }
    }

    /// From the proxy to programs.
    async fn fetch(
        &self,
        tunnel: &IpTunnel,
        gate: &RwLock<IpGate>,
        flows: &Mutex<PacketFlows>,
    ) -> TunnelEnded {
        let counters = &self.counters[1];
        let mut packets = Vec::new();
        loop {
            packets.clear();
            if let Err(ended) = tunnel.receive_many(&mut packets).await {
                return ended;
            }
            packets.retain(|packet| {
                let passes = gate.read().arriving(packet);
                match &passes {
                    Ok(read) => {
                        // The packet has come already; the rules see its flow all the same.
                        let flow = PacketFlow::from(read, packet);
                        flows.lock().note(Instant::now(), flow);
                    }
                    Err(error) => counters.count_dropped(error.label()),
                }
                passes.is_ok()
            });
            self.device
                .send_all(&packets, |packet, accepted| match accepted {
                    true => counters.passed(packet.len()),
                    false => counters.count_dropped("device"),
                });
        }
    }

    async fn read<'a>(&self, buffer: &'a mut [u8]) -> Option<Received<'a>> {
        let device = &self.device;
        device
            .receive_or_warn(buffer, "gateway", &self.warning)
            .await
    }

    /// Gives the device the addresses and routes of `gate` and removes the former ones. Returns the
    /// failures, if there are any.
    async fn apply(&self, installed: &mut Installed, gate: &IpGate) -> Option<String> {
        let addresses: BTreeSet<IpPrefix> = gate.owner.iter().copied().collect();
        let (routes, mut complaint) = match self.routes {
            true => self.wanted_routes(gate),
            false => (BTreeSet::new(), None),
        };
        let mut note = |done: Result<(), TunError>| {
            if let Err(error) = &done {
                complaint.get_or_insert_with(|| error.to_string());
            }
            done.is_ok()
        };
        // Before their addresses, without which the kernel drops them.
        for old in installed.routes.difference(&routes) {
            note(self.device.remove_route(*old).await);
        }
        installed.routes.retain(|route| routes.contains(route));
        for old in installed.addresses.difference(&addresses) {
            note(
                self.device
                    .remove_address(old.network(), old.length())
                    .await,
            );
            // The kernel has removed the routes that used the address.
            installed
                .routes
                .retain(|route| route.network().is_ipv4() != old.network().is_ipv4());
        }
        installed.addresses.retain(|had| addresses.contains(had));
        for new in &addresses {
            if !installed.addresses.contains(new)
                && note(self.device.add_address(new.network(), new.length()).await)
            {
                installed.addresses.insert(*new);
            }
        }
        let own = installed.addresses.iter().map(IpPrefix::network).collect();
        self.own.send_if_modified(|known: &mut Vec<IpAddr>| {
            let changed = *known != own;
            *known = own;
            changed
        });
        for new in &routes {
            let Some(source) = source_of(gate, new) else {
                continue;
            };
            if !installed.routes.contains(new) && note(self.device.add_route(*new, source).await) {
                installed.routes.insert(*new);
            }
        }
        complaint
    }

    /// The routes to set, or the reason for none.
    fn wanted_routes(&self, gate: &IpGate) -> (BTreeSet<IpPrefix>, Option<String>) {
        let ranges = gate.routes.as_slice().iter();
        let routes: BTreeSet<IpPrefix> = ranges
            .flat_map(IpRange::prefixes)
            .filter(|route| source_of(gate, route).is_some())
            .take(ROUTES_MAX + 1)
            .collect();
        match routes.len() > ROUTES_MAX {
            true => {
                let says =
                    format!("the proxy advertises more than {ROUTES_MAX} routes, so none is set");
                (BTreeSet::new(), Some(says))
            }
            false => (routes, None),
        }
    }

    fn warn(&self, ended: &Ended) {
        if let Some(to_do) = ended.to_do() {
            self.warning.set(Some(Warning {
                says: format!("no IP for {}: {ended}", self.device.name()),
                to_do: to_do.to_owned(),
            }));
        }
    }
}

/// The gateway's address that a route uses as source.
fn source_of(gate: &IpGate, route: &IpPrefix) -> Option<IpAddr> {
    let mut addresses = gate.owner.iter().map(IpPrefix::network);
    addresses.find(|address| address.is_ipv4() == route.network().is_ipv4())
}
