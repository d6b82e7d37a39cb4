//! Packets of gateways through one TUN device, which the kernel routes.
//!
//! ```text
//! IpTunnel of a gateway -- gate --> TUN device -> kernel (forwards, translates)
//!                       <-- gate, by address ---
//! ```
//!
//! Only packets from and to the assigned address pass, and only to the tenant's prefixes
//! (`ip_destinations`); other packets are dropped and counted. An address has one tunnel: a newer
//! tunnel of the same gateway takes it over. The tunnel is a link and no hop. The kernel at either
//! end decrements the hop limit, and answers packets that exceed the device's MTU.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use host_network::{READ_BYTES_MAX, TunDevice, TunError};
use ip_packets::{IpGate, IpPacket, IpPrefix, IpRanges, NotPassed, link_echo};
use parking_lot::{Mutex, RwLock};
use service_kit::{WarningHandle, tls::GatewayId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tunnel::{ConnectRequest, IpAddressEntry, IpCapsule, IpTunnel, StatusCode, TunnelEnded};

use super::{
    counted::{Open, count_connect},
    udp::DirectionCounters,
};
use crate::{ip_destinations::OWN_MAX, leases::Leases, policy::Policy};

/// The settings of IP.
pub(crate) struct IpSettings {
    pub(crate) tun: String,
    /// At most one of each version.
    pub(crate) pools: Vec<Leases>,
}

pub(crate) struct IpUpstream {
    device: TunDevice,
    policy: watch::Receiver<Arc<Policy>>,
    /// The proxy's address of the pool; it answers on the link with it.
    own_v6: Option<Ipv6Addr>,
    leases: Mutex<Vec<Leases>>,
    /// By assigned address; bounded by the leases.
    members: RwLock<HashMap<IpAddr, Arc<Member>>>,
    counters: [DirectionCounters; 2],
    /// The device's MTU, once it follows the paths of members.
    mtu: tokio::sync::Mutex<Option<u16>>,
}

/// The tunnel that owns an address.
struct Member {
    tunnel: Arc<IpTunnel>,
    gate: IpGate,
    /// Cancelled by a newer tunnel of the same gateway.
    replaced: CancellationToken,
}

impl IpUpstream {
    pub(crate) async fn open(
        settings: IpSettings,
        policy: watch::Receiver<Arc<Policy>>,
    ) -> Result<Arc<Self>, TunError> {
        let device = TunDevice::open(&settings.tun)?;
        device.set_up().await?;
        for pool in &settings.pools {
            let (own, length) = (pool.own(), pool.pool().length());
            match device.add_address(own, length).await {
                // Without the right to set an address, a route to the pool is enough.
                Err(error) if error.is_forbidden() => {
                    tracing::info!(device = settings.tun, %own, length, "no right to set the device's address; its creator must have set it");
                }
                added => added?,
            }
        }
        let own_v6 = settings.pools.iter().find_map(|pool| match pool.own() {
            IpAddr::V6(own) => Some(own),
            IpAddr::V4(_) => None,
        });
        Ok(Arc::new(Self {
            own_v6,
            device,
            policy,
            leases: Mutex::new(settings.pools),
            members: RwLock::default(),
            counters: ["up", "down"].map(DirectionCounters::of_packets),
            mtu: tokio::sync::Mutex::default(),
        }))
    }

    /// Hands packets of the device to the gateways; never returns.
    pub(crate) async fn hand_out(self: Arc<Self>, warning: WarningHandle) {
        let mut buffer = vec![0; READ_BYTES_MAX];
        loop {
            let received = self.device.receive_or_warn(&mut buffer, "proxy", &warning);
            let Some(mut packets) = received.await else {
                continue;
            };
            while let Some(packet) = packets.next() {
                self.hand(packet);
            }
        }
    }

    fn hand(&self, packet: &[u8]) {
        let to = match IpPacket::read(packet) {
            Ok(read) => read.destination,
            Err(malformed) => return count_dropped("down", malformed.label()),
        };
        let Some(member) = self.members.read().get(&to).cloned() else {
            return count_dropped("down", "unknown");
        };
        match member.gate.arriving(packet) {
            Ok(_) if let Some(answer) = member.tunnel.too_big(packet) => {
                self.device.send(&answer);
                count_dropped("down", "too_big");
            }
            // The tunnel counts packets that it drops for lack of room.
            Ok(_) => {
                if member.tunnel.send(packet) {
                    self.counters[1].passed(packet.len());
                }
            }
            Err(error) => count_dropped("down", error.label()),
        }
    }

    /// Serves one request to its end.
    pub(crate) async fn serve(self: &Arc<Self>, gateway: &GatewayId, request: ConnectRequest) {
        let id = &gateway.id;
        let Some(routes) = self.routes(gateway).await else {
            count_connect("unknown_addresses");
            return request.refuse(StatusCode::SERVICE_UNAVAILABLE).await;
        };
        if routes.is_empty() {
            tracing::info!(gateway = id, "IP refused: no destination is permitted");
            count_connect("forbidden");
            return request.refuse(StatusCode::FORBIDDEN).await;
        }
        match request.accept_ip().await {
            Ok(tunnel) => {
                let _open = Open::enter();
                let ended = self.carry(gateway, Arc::new(tunnel), routes).await;
                tracing::debug!(gateway = id, %ended, "IP tunnel ended");
            }
            Err(error) => tracing::debug!(gateway = id, %error, "the gateway went away"),
        }
    }

    /// Whether packets of the gateway may go to this address.
    pub(crate) async fn allows(&self, gateway: &GatewayId, address: IpAddr) -> bool {
        let routes = self.routes(gateway).await;
        routes.is_some_and(|routes| routes.contains(address))
    }

    /// The routes of a gateway. `None`, with a log line, if this machine's addresses cannot be
    /// read. A new address of this machine is cut out for later requests.
    async fn routes(&self, gateway: &GatewayId) -> Option<IpRanges> {
        let own = match host_network::local_addresses().await {
            Ok(own) => own,
            Err(error) => {
                tracing::error!(%error, "IP refused: the addresses of this machine are not known");
                return None;
            }
        };
        let routes = self.policy.borrow().routes(gateway, &own);
        if routes.is_none() {
            tracing::error!("IP refused: this machine has more than {OWN_MAX} public addresses");
        }
        routes
    }

    async fn carry(
        self: &Arc<Self>,
        gateway: &GatewayId,
        tunnel: Arc<IpTunnel>,
        routes: IpRanges,
    ) -> Ended {
        let advertised = IpCapsule::RouteAdvertisement(routes.as_slice().to_vec());
        if let Err(ended) = tunnel.say(&advertised).await {
            return ended.into();
        }
        let mut policy = self.policy.clone();
        let mut size = tunnel.packet_size();
        let replaced = CancellationToken::new();
        let mut held = Held {
            upstream: self.clone(),
            gateway: gateway.clone(),
            tunnel: tunnel.clone(),
            replaced: replaced.clone(),
            gate: IpGate {
                owner: Vec::new(),
                routes,
            },
            claimed: false,
        };
        let mut packets = Vec::new();
        loop {
            packets.clear();
            tokio::select! {
                received = tunnel.receive_many(&mut packets) => match received {
                    Ok(()) => self.take(&tunnel, &held.gate, &mut packets),
                    Err(ended) => return ended.into(),
                },
                heard = tunnel.hear() => match heard {
                    Ok(IpCapsule::AddressRequest(asked)) => {
                        let given = held.answer(&asked);
                        if let Err(ended) = tunnel.say(&IpCapsule::AddressAssign(given)).await {
                            return ended.into();
                        }
                    }
                    // Addresses and routes that a gateway offers are not used.
                    Ok(_) => {}
                    Err(ended) => return ended.into(),
                },
                () = replaced.cancelled() => return Ended::Replaced,
                Ok(()) = size.changed() => {
                    let own = *size.borrow_and_update();
                    self.follow_sizes(own).await;
                }
                Ok(()) = policy.changed() => {
                    // The gateway asks again, and gets its new routes.
                    if self.routes(gateway).await.as_ref() != Some(&held.gate.routes) {
                        return Ended::OtherRoutes;
                    }
                }
            }
        }
    }

    /// Keeps the device's MTU at the largest size of a tunnel; those of less answer for themselves.
    async fn follow_sizes(&self, changed: Option<u16>) {
        let mut mtu = self.mtu.lock().await;
        let sizes = |member: &Arc<Member>| *member.tunnel.packet_size().borrow();
        let others = self.members.read().values().filter_map(sizes).max();
        let largest = others.max(changed);
        if let Some(largest) = largest
            && *mtu != Some(largest)
        {
            self.device.set_mtu(largest).await;
            *mtu = Some(largest);
        }
    }

    fn take(&self, tunnel: &IpTunnel, gate: &IpGate, packets: &mut Vec<Bytes>) {
        packets.retain(|packet| {
            let answer = || link_echo(packet, self.own_v6?);
            match gate.leaving(packet) {
                Ok(_) => return true,
                // The packet's source was valid.
                Err(NotPassed::Destination) if let Some(answer) = answer() => {
                    tunnel.send(&answer);
                }
                Err(error) => count_dropped("up", error.label()),
            }
            false
        });
        self.device
            .send_all(packets, |packet, accepted| match accepted {
                true => self.counters[0].passed(packet.len()),
                false => count_dropped("up", "device"),
            });
    }

    /// A revoked gateway loses its addresses with the last of its tunnels.
    pub(crate) fn forget(&self, gateway: &GatewayId) {
        for leases in self.leases.lock().iter_mut() {
            leases.forget(gateway);
        }
        self.show_leases();
    }

    fn show_leases(&self) {
        let count: usize = self.leases.lock().iter().map(Leases::len).sum();
        metrics::gauge!("braid_proxy_ip_leases").set(count as f64);
    }
}

/// Reason of the end of a CONNECT-IP request.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Tunnel(#[from] TunnelEnded),
    #[error("a newer tunnel of the same gateway has its address")]
    Replaced,
    #[error("the policy has changed")]
    OtherRoutes,
}

/// The resources of one tunnel; dropping it returns them.
struct Held {
    upstream: Arc<IpUpstream>,
    gateway: GatewayId,
    tunnel: Arc<IpTunnel>,
    replaced: CancellationToken,
    gate: IpGate,
    claimed: bool,
}

impl Held {
    /// Answers each requested version with its one address, under the number of the first request
    /// for it. Further requests get the unspecified address, which is a refusal (RFC 9484, 4.7.1).
    fn answer(&mut self, asked: &[IpAddressEntry]) -> Vec<IpAddressEntry> {
        if !self.claimed {
            self.claim(asked);
        }
        let mut left = self.gate.owner.clone();
        let answer = asked.iter().map(|asked| {
            let wanted = asked.prefix.network();
            let own = left
                .iter()
                .position(|own| own.network().is_ipv4() == wanted.is_ipv4());
            let prefix = match own {
                Some(own) => left.swap_remove(own),
                None => IpPrefix::host(unspecified(wanted)),
            };
            IpAddressEntry {
                request_id: asked.request_id,
                prefix,
            }
        });
        let mut answer: Vec<IpAddressEntry> = answer.collect();
        // The capsule lists every assigned address.
        answer.extend(left.into_iter().map(|prefix| IpAddressEntry {
            request_id: 0,
            prefix,
        }));
        answer
    }

    fn claim(&mut self, asked: &[IpAddressEntry]) {
        self.claimed = true;
        for leases in self.upstream.leases.lock().iter_mut() {
            let is_v4 = leases.pool().network().is_ipv4();
            let mut wanted = asked.iter().map(|asked| asked.prefix.network());
            let wanted =
                wanted.find(|wanted| wanted.is_ipv4() == is_v4 && !wanted.is_unspecified());
            if let Some(address) = leases.claim(&self.gateway, wanted) {
                self.gate.owner.push(IpPrefix::host(address));
            }
        }
        self.upstream.show_leases();
        let member = Arc::new(Member {
            tunnel: self.tunnel.clone(),
            gate: self.gate.clone(),
            replaced: self.replaced.clone(),
        });
        let mut members = self.upstream.members.write();
        for own in &self.gate.owner {
            if let Some(before) = members.insert(own.network(), member.clone()) {
                before.replaced.cancel();
            }
        }
        if self.gate.owner.is_empty() {
            tracing::warn!(gateway = self.gateway.id, "all addresses are in use");
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.claimed {
            return;
        }
        let mut members = self.upstream.members.write();
        for own in &self.gate.owner {
            let address = own.network();
            let is_mine = |member: &Arc<Member>| Arc::ptr_eq(&member.tunnel, &self.tunnel);
            if members.get(&address).is_some_and(is_mine) {
                members.remove(&address);
            }
        }
        drop(members);
        for leases in self.upstream.leases.lock().iter_mut() {
            let pool = leases.pool();
            if self.gate.owner.iter().any(|own| pool.covers(own)) {
                leases.release(&self.gateway, Instant::now());
            }
        }
        self.upstream.show_leases();
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

fn count_dropped(direction: &'static str, reason: &'static str) {
    metrics::counter!("braid_proxy_ip_dropped_total", "direction" => direction, "reason" => reason)
        .increment(1);
}
