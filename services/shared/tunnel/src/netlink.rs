//! Follows the kernel's devices, addresses and routes over netlink, and gives the tunnel the
//! networks that `access` chooses.
//!
//! The kernel drops notices when a reader is too slow, and reports that; then the whole list is
//! read again. The kernel's buffer bounds waiting notices, and they are read at once.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, TryStreamExt, channel::mpsc::UnboundedReceiver};
use rtnetlink::{
    Handle, MulticastGroup, new_connection, new_multicast_connection,
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
        link::{LinkAttribute, LinkFlags, LinkMessage},
        route::RouteType,
    },
    sys,
};

use crate::{
    access::{Access, AccessRule, Action, Binding, Fact},
    client::Tunnel,
    interfaces::Interface,
    mptcp_endpoints::Endpoints,
    proxy_address::Addresses,
};

/// Notices read before actions are taken, so that a burst is one change.
const NOTICES_MAX: usize = 256;

/// Age of a network at which MPTCP gets it. The kernel tries a subflow once, and gives up if a
/// router cannot send back yet.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error("no netlink socket: {0}")]
    Socket(#[from] io::Error),
    #[error("the kernel's list of devices: {0}")]
    List(#[from] rtnetlink::Error),
    #[error("the netlink socket was closed")]
    Closed,
}

/// All addresses of this machine.
pub async fn local_addresses() -> Result<Vec<IpAddr>, FollowError> {
    let (connection, handle, _) = new_connection()?;
    let listing = async {
        let mut found = Vec::new();
        let mut listed = handle.address().get().execute();
        while let Some(message) = listed.try_next().await? {
            found.extend(address(&message));
        }
        Ok(found)
    };
    tokio::select! {
        listed = listing => listed,
        () = connection => Err(FollowError::Closed),
    }
}

type Notices = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, sys::SocketAddr)>;

impl Tunnel {
    /// Adds and removes access networks by these rules as the kernel's state changes, until the
    /// tunnel is closed. Networks of other names are untouched. Belongs to the network namespace in
    /// which it is first polled.
    pub async fn follow(&self, rules: Vec<AccessRule>) -> Result<(), FollowError> {
        let (connection, handle, notices) = new_multicast_connection(&[
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ])?;
        let follower = Follower {
            tunnel: self.clone(),
            handle,
            notices,
            access: Access::new(rules),
            settling: BTreeMap::new(),
            endpoints: self
                .may_fall_back()
                .then(Endpoints::open)
                .and_then(|opened| {
                    opened
                        .inspect_err(
                            |error| tracing::debug!(%error, "no MPTCP for access networks"),
                        )
                        .ok()
                }),
        };
        tokio::select! {
            () = connection => Err(FollowError::Closed),
            ended = follower.run() => ended,
            () = self.closed() => Ok(()),
        }
    }
}

struct Follower {
    tunnel: Tunnel,
    handle: Handle,
    notices: Notices,
    access: Access,
    /// Networks that MPTCP has not got yet, and the time at which it gets them.
    settling: BTreeMap<String, (Instant, Binding)>,
    /// `None` if the kernel has no MPTCP, or this process has no right to it.
    endpoints: Option<Endpoints>,
}

impl Follower {
    async fn run(mut self) -> Result<(), FollowError> {
        let mut proxy = self.tunnel.proxy().watch();
        let at_first = *proxy.borrow_and_update();
        self.access.learn(at_first.into());
        self.list().await?;
        loop {
            self.act();
            self.add_settled(Instant::now());
            let settled_at = self.settling.values().map(|(at, _)| *at);
            let retry_at = settled_at.chain(self.access.next_deadline()).min();
            let retry = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let notice = tokio::select! {
                notice = self.notices.next() => notice.ok_or(FollowError::Closed)?,
                Ok(()) = proxy.changed() => {
                    let now_at = *proxy.borrow_and_update();
                    self.access.learn(now_at.into());
                    continue;
                }
                () = retry => continue,
            };
            let mut overrun = self.take(notice.0);
            for _ in 0..NOTICES_MAX {
                let Some(Some(notice)) = self.notices.next().now_or_never() else {
                    break;
                };
                overrun |= self.take(notice.0);
            }
            if overrun {
                tracing::debug!("netlink notices were lost; reading the list again");
                self.list().await?;
            }
        }
    }

    /// Returns whether notices were lost.
    fn take(&mut self, notice: NetlinkMessage<RouteNetlinkMessage>) -> bool {
        match notice.payload {
            NetlinkPayload::Overrun(_) => return true,
            NetlinkPayload::InnerMessage(message) => {
                for fact in facts(message) {
                    self.access.learn(fact);
                }
            }
            _ => {}
        }
        false
    }

    async fn list(&mut self) -> Result<(), FollowError> {
        self.access.learn(Fact::List);
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            for fact in facts(RouteNetlinkMessage::NewLink(link)) {
                self.access.learn(fact);
            }
        }
        let mut addresses = self.handle.address().get().execute();
        while let Some(address) = addresses.try_next().await? {
            for fact in facts(RouteNetlinkMessage::NewAddress(address)) {
                self.access.learn(fact);
            }
        }
        self.access.learn(Fact::Complete);
        Ok(())
    }

    fn act(&mut self) {
        while let Some(action) = self.access.poll(Instant::now()) {
            let proxy = self.tunnel.proxy().current();
            match action {
                Action::Attach { name, binding } => {
                    let works = match self.attach(&name, &binding, proxy) {
                        Ok(()) => {
                            let settled_at = Instant::now() + SETTLED_AFTER;
                            self.settling.insert(name.clone(), (settled_at, binding));
                            true
                        }
                        Err(error) => {
                            tracing::info!(name, %error, "access network not usable yet");
                            self.detach(&name);
                            false
                        }
                    };
                    self.access.done(Instant::now(), &name, works);
                }
                Action::Check { name, binding } => {
                    let works = leads_to(&binding, proxy);
                    if let Err(error) = &works {
                        tracing::info!(name, %error, "access network lost its route to the proxy");
                        self.detach(&name);
                    }
                    self.access.done(Instant::now(), &name, works.is_ok());
                }
                Action::Detach { name } => {
                    tracing::info!(name, "access network gone");
                    self.detach(&name);
                }
            }
        }
    }

    fn detach(&mut self, name: &str) {
        self.tunnel.detach(name);
        self.settling.remove(name);
        self.set_mptcp_endpoint(name, None);
    }

    fn add_settled(&mut self, now: Instant) {
        let due = self.settling.extract_if(.., |_, (at, _)| *at <= now);
        let due: Vec<(String, (Instant, Binding))> = due.collect();
        for (name, (_, binding)) in due {
            self.set_mptcp_endpoint(&name, Some(&binding));
        }
    }

    /// An endpoint that cannot be set costs a subflow and nothing else.
    fn set_mptcp_endpoint(&mut self, name: &str, binding: Option<&Binding>) {
        let Some(endpoints) = &mut self.endpoints else {
            return;
        };
        let result = match binding {
            Some(binding) => {
                let device = binding.device.as_deref();
                let index = device.and_then(|device| self.access.device_index(device));
                endpoints.add(name, binding.local_ip, index)
            }
            None => endpoints.remove(name),
        };
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::info!(
                    "no right to register access networks with the kernel's MPTCP: without UDP, one network carries all (ip mptcp endpoint)"
                );
                self.endpoints = None;
            }
            Err(error) => {
                tracing::info!(name, %error, "the kernel's MPTCP refuses the access network")
            }
        }
    }

    fn attach(&self, name: &str, binding: &Binding, proxy: Addresses) -> io::Result<()> {
        leads_to(binding, proxy)?;
        let interface = Interface::bind(name, binding.local_ip, binding.device.as_deref())?;
        self.tunnel.attach(interface).map_err(io::Error::other)?;
        tracing::info!(
            name,
            local_ip = %binding.local_ip,
            device = binding.device,
            "access network there"
        );
        Ok(())
    }
}

/// Whether the kernel has a route to the proxy from there; sends no packet.
fn leads_to(binding: &Binding, proxy: Addresses) -> io::Result<()> {
    if proxy.canonical().is_none() {
        return Ok(());
    }
    let proxy = proxy
        .of_family(binding.local_ip.is_ipv6())
        .ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = crate::interfaces::bind_socket(binding.local_ip, binding.device.as_deref())?;
    socket.connect(&proxy.into())
}

impl From<Addresses> for Fact {
    fn from(proxy: Addresses) -> Self {
        Self::Proxy {
            v4: proxy.v4.is_some(),
            v6: proxy.v6.is_some(),
        }
    }
}

fn facts(message: RouteNetlinkMessage) -> Vec<Fact> {
    match message {
        // A bridge reports its ports with the same message.
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link)
            if link.header.interface_family != AddressFamily::Unspec =>
        {
            Vec::new()
        }
        RouteNetlinkMessage::NewLink(link) => device(&link).into_iter().collect(),
        RouteNetlinkMessage::DelLink(link) => vec![Fact::DeviceGone {
            index: link.header.index,
        }],
        RouteNetlinkMessage::NewAddress(message) => {
            let not_yet = AddressHeaderFlags::Tentative
                | AddressHeaderFlags::Dadfailed
                | AddressHeaderFlags::Deprecated;
            let usable = !message.header.flags.intersects(not_yet);
            let index = message.header.index;
            let ip = address(&message).into_iter();
            ip.map(|ip| Fact::Address { index, ip, usable }).collect()
        }
        RouteNetlinkMessage::DelAddress(message) => {
            let index = message.header.index;
            let ip = address(&message).into_iter();
            ip.map(|ip| Fact::AddressGone { index, ip }).collect()
        }
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)
            if route.header.kind == RouteType::Unicast =>
        {
            vec![Fact::Routes]
        }
        _ => Vec::new(),
    }
}

fn device(link: &LinkMessage) -> Option<Fact> {
    let name = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })?;
    // "Running" means that no login to the radio network is pending.
    let up = LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running;
    Some(Fact::Device {
        index: link.header.index,
        name,
        up: link.header.flags.contains(up),
    })
}

/// On a point-to-point link the attribute "local" holds the local address, and "address" the
/// peer's.
fn address(message: &AddressMessage) -> Option<IpAddr> {
    let attributes = message.attributes.iter();
    let local = attributes.clone().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        attributes.clone().find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}
