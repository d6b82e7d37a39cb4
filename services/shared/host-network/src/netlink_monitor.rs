//! Devices, addresses and routes of the kernel, over netlink, as they change.
//!
//! The kernel drops notices when a reader is too slow, and reports that; then the whole list is
//! read again. The kernel's buffer bounds waiting notices, and they are read at once.

use std::{io, net::IpAddr};

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
use tokio::task::JoinHandle;

/// Notices read before actions are taken, so that a burst is one change.
const NOTICES_MAX: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("no netlink socket: {0}")]
    Socket(#[from] io::Error),
    #[error("the kernel's list of devices: {0}")]
    List(#[from] rtnetlink::Error),
    #[error("the netlink socket was closed")]
    Closed,
}

/// A fact about the kernel's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkFact {
    /// `up` means enabled and with a carrier.
    Device {
        index: u32,
        name: String,
        up: bool,
    },
    DeviceGone {
        index: u32,
    },
    /// `usable` means neither tentative nor deprecated.
    Address {
        index: u32,
        ip: IpAddr,
        usable: bool,
    },
    AddressGone {
        index: u32,
        ip: IpAddr,
    },
    /// A route was added or removed.
    Routes,
    /// A complete list follows, and ends with `Complete`.
    List,
    Complete,
}

/// All addresses of this machine.
pub async fn local_addresses() -> Result<Vec<IpAddr>, NetlinkError> {
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
        () = connection => Err(NetlinkError::Closed),
    }
}

type Notices = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, sys::SocketAddr)>;

/// Follows the network namespace in which it was opened.
pub struct NetlinkMonitor {
    handle: Handle,
    notices: Notices,
    connection: JoinHandle<()>,
    /// The list must be read before further notices count.
    unread: bool,
}

impl NetlinkMonitor {
    /// The first facts are a complete list. Must be called within a Tokio runtime.
    pub fn open() -> Result<Self, NetlinkError> {
        let (connection, handle, notices) = new_multicast_connection(&[
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ])?;
        Ok(Self {
            handle,
            notices,
            connection: tokio::spawn(connection),
            unread: true,
        })
    }

    /// Waits for changes. Cancel-safe: a list that was not read to its end is read again.
    pub async fn next(&mut self) -> Result<Vec<NetworkFact>, NetlinkError> {
        if self.unread {
            let list = self.list().await?;
            self.unread = false;
            return Ok(list);
        }
        let mut found = Vec::new();
        let notice = self.notices.next().await.ok_or(NetlinkError::Closed)?;
        self.take(notice.0, &mut found);
        for _ in 0..NOTICES_MAX {
            let Some(Some(notice)) = self.notices.next().now_or_never() else {
                break;
            };
            self.take(notice.0, &mut found);
        }
        Ok(found)
    }

    fn take(&mut self, notice: NetlinkMessage<RouteNetlinkMessage>, found: &mut Vec<NetworkFact>) {
        match notice.payload {
            NetlinkPayload::Overrun(_) => {
                tracing::debug!("netlink notices were lost; reading the list again");
                self.unread = true;
            }
            NetlinkPayload::InnerMessage(message) => found.extend(facts(message)),
            _ => {}
        }
    }

    async fn list(&self) -> Result<Vec<NetworkFact>, NetlinkError> {
        let mut found = vec![NetworkFact::List];
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            found.extend(facts(RouteNetlinkMessage::NewLink(link)));
        }
        let mut addresses = self.handle.address().get().execute();
        while let Some(address) = addresses.try_next().await? {
            found.extend(facts(RouteNetlinkMessage::NewAddress(address)));
        }
        found.push(NetworkFact::Complete);
        Ok(found)
    }
}

impl Drop for NetlinkMonitor {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn facts(message: RouteNetlinkMessage) -> Vec<NetworkFact> {
    match message {
        // A bridge reports its ports with the same message.
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link)
            if link.header.interface_family != AddressFamily::Unspec =>
        {
            Vec::new()
        }
        RouteNetlinkMessage::NewLink(link) => device(&link).into_iter().collect(),
        RouteNetlinkMessage::DelLink(link) => vec![NetworkFact::DeviceGone {
            index: link.header.index,
        }],
        RouteNetlinkMessage::NewAddress(message) => {
            let not_yet = AddressHeaderFlags::Tentative
                | AddressHeaderFlags::Dadfailed
                | AddressHeaderFlags::Deprecated;
            let usable = !message.header.flags.intersects(not_yet);
            let index = message.header.index;
            let ip = address(&message).into_iter();
            ip.map(|ip| NetworkFact::Address { index, ip, usable })
                .collect()
        }
        RouteNetlinkMessage::DelAddress(message) => {
            let index = message.header.index;
            let ip = address(&message).into_iter();
            ip.map(|ip| NetworkFact::AddressGone { index, ip })
                .collect()
        }
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)
            if route.header.kind == RouteType::Unicast =>
        {
            vec![NetworkFact::Routes]
        }
        _ => Vec::new(),
    }
}

fn device(link: &LinkMessage) -> Option<NetworkFact> {
    let name = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })?;
    // "Running" means that no login to the radio network is pending.
    let up = LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running;
    Some(NetworkFact::Device {
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
