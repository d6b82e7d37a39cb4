//! A TUN device, on which the kernel of this machine delivers and accepts packets.
//!
//! A process without NET_ADMIN can use a device that an operator created for its user (`ip tuntap
//! add mode tun user ...`). That device must be up and have its address.
//!
//! With offloads one read takes up to 64 KiB of a flow, and one write gives as much. The packets
//! between are of the flow's own size, with complete checksums. A device whose kernel has no
//! offloads takes and gives single packets.

mod joined;
mod received;
#[cfg(test)]
mod tests;
mod vnet;

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures::TryStreamExt;
use ip_packets::{IpPrefix, PACKET_BYTES_MIN};
use rtnetlink::{
    Handle, LinkUnspec, RouteMessageBuilder, new_connection,
    packet_route::{address::AddressHeaderFlags, link::LinkFlags},
};
use service_kit::{Warning, WarningHandle};
use tun_rs::{AsyncDevice, DeviceBuilder};

use joined::Joined;
pub use received::Received;

/// Largest packet that the kernel delivers in one piece until the paths' size is known. With the
/// headers of QUIC, UDP and IP it fits into one packet of most networks.
const TUN_MTU: u32 = PACKET_BYTES_MIN as u32;

/// Packets that wait in the kernel; at the bound the kernel drops the newest. They wait only while
/// the process does not run, so the bound covers its pauses: 100 ms at 100 Mbit/s. Packets that
/// find no path wait in the tunnel's own queue.
const WAITING_MAX: u32 = 1_000;

/// Room for a read of a device: the largest packet of IPv6, and the header before it.
pub const READ_BYTES_MAX: usize = 40 + vnet::PACKET_BYTES_MAX + vnet::HEADER_BYTES;

/// Pause after an error of the device: it is most likely gone, and comes back only with a restart.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The kernel's error for a missing right.
const EPERM: i32 = 1;
const EEXIST: i32 = 17;

/// The kernel's bound.
const NAME_BYTES_MAX: usize = 15;

/// Whether a device may have this name. The kernel would replace `%d` by a number.
pub fn is_device(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && name != "."
        && name != ".."
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"/:%*?".contains(&byte))
}

#[derive(Debug, thiserror::Error)]
pub enum TunError {
    #[error("the TUN device {name:?} can neither be opened nor created: {source}")]
    Open { name: String, source: io::Error },
    #[error("the TUN device {name:?} cannot be kept: {source}")]
    Keep { name: String, source: io::Error },
    #[error("the TUN device {name:?} is down, and this process may not set it up")]
    Down { name: String },
    #[error("the TUN device {name:?}: {what}: {source}")]
    Configure {
        name: String,
        what: String,
        source: rtnetlink::Error,
    },
    #[error(
        "the network {prefix} belongs to another device, so no packet for it goes to the TUN device {name:?}"
    )]
    Taken { name: String, prefix: IpPrefix },
    #[error("no netlink socket: {0}")]
    Netlink(io::Error),
}

impl TunError {
    /// Whether a right is missing, so that an operator can do it instead.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(EPERM)
    }

    fn is_there(&self) -> bool {
        self.code() == Some(EEXIST)
    }

    /// The kernel's error code.
    fn code(&self) -> Option<i32> {
        match self {
            Self::Configure { source, .. } => code_of(source),
            _ => None,
        }
    }
}

fn code_of(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
        _ => None,
    }
}

/// Whether the offloads include UDP, which Linux has since 6.2.
type WithUdp = bool;

/// Belongs to the network namespace in which it was opened.
pub struct TunDevice {
    device: AsyncDevice,
    name: String,
    index: u32,
    /// Whether the kernel cuts and joins packets of TCP, and of UDP too.
    offloads: Option<WithUdp>,
    /// Only the first of consecutive packets that the kernel refuses is logged.
    refuses: AtomicBool,
    /// This process has no right to set the MTU.
    has_fixed_mtu: AtomicBool,
}

impl TunDevice {
    /// Opens the device of that name, or creates it; a created device ends with this value. Must be
    /// called within a Tokio runtime.
    pub fn open(name: &str) -> Result<Self, TunError> {
        let device = match Self::open_as(name, true) {
            Err(without) => {
                let device = Self::open_as(name, false)?;
                tracing::info!(device = name, reason = %without, "no offloads: single packets");
                device
            }
            Ok(device) => device,
        };
        Ok(device)
    }

    /// The same without offloads.
    pub fn open_plain(name: &str) -> Result<Self, TunError> {
        Self::open_as(name, false)
    }

    fn open_as(name: &str, offloads: bool) -> Result<Self, TunError> {
        let at = |source| TunError::Open {
            name: name.to_owned(),
            source,
        };
        let built = DeviceBuilder::new().name(name).offload(offloads);
        let device = built.inherit_enable_state().build_async().map_err(at)?;
        let index = device.if_index().map_err(at)?;
        Ok(Self {
            offloads: device.tcp_gso().then(|| device.udp_gso()),
            device,
            name: name.to_owned(),
            index,
            refuses: AtomicBool::new(false),
            has_fixed_mtu: AtomicBool::new(false),
        })
    }

    /// Keeps the device beyond the end of this process. Then it has no owner: any process of the
    /// network namespace may open it, one at a time, without a right.
    pub fn keep(&self) -> Result<(), TunError> {
        self.device.persist().map_err(|source| TunError::Keep {
            name: self.name.clone(),
            source,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next packets from the kernel, with a buffer of [`READ_BYTES_MAX`]. Cancel-safe; for one
    /// reader at a time.
    pub async fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Received<'a>> {
        let length = self.device.recv(buffer).await?;
        let read = &mut buffer[..length];
        if self.offloads.is_none() {
            return Ok(Received::one(read));
        }
        Received::with_header(read).map_err(|malformed| {
            let kind = io::ErrorKind::InvalidData;
            io::Error::new(kind, malformed)
        })
    }

    /// The same with a `warning` of `service` while the device fails; `None`: try again.
    pub async fn receive_or_warn<'a>(
        &self,
        buffer: &'a mut [u8],
        service: &str,
        warning: &WarningHandle,
    ) -> Option<Received<'a>> {
        match self.receive(buffer).await {
            Ok(received) => Some(received),
            Err(error) => {
                tracing::error!(%error, device = self.name, "no packets from the device");
                warning.set(Some(Warning {
                    says: format!("no packets from the device {}: {error}", self.name),
                    to_do: format!("restart the {service}, which creates or opens the device"),
                }));
                tokio::time::sleep(READ_PAUSE).await;
                None
            }
        }
    }

    /// Gives the kernel a packet; returns whether it was accepted.
    pub fn send(&self, packet: &[u8]) -> bool {
        let sent = match self.offloads {
            None => self.device.try_send(packet),
            Some(_) => {
                let header = IoSlice::new(&[0; vnet::HEADER_BYTES]);
                let pieces = [header, IoSlice::new(packet)];
                self.device.try_send_vectored(&pieces)
            }
        };
        self.is_accepted(sent)
    }

    /// Gives the kernel packets, in this order, and reports for each whether it was accepted.
    pub fn send_all(&self, packets: &[Bytes], mut told: impl FnMut(&Bytes, bool)) {
        let Some(with_udp) = self.offloads else {
            return packets
                .iter()
                .for_each(|packet| told(packet, self.send(packet)));
        };
        let mut rest = packets;
        while let Some((joined, others)) = Joined::first_of(rest, with_udp) {
            let mut pieces = Vec::new();
            joined.pieces(&mut pieces);
            let accepted = self.is_accepted(self.device.try_send_vectored(&pieces));
            let packets = joined.packets().iter();
            packets.for_each(|packet| told(packet, accepted));
            rest = others;
        }
    }

    fn is_accepted(&self, sent: io::Result<usize>) -> bool {
        match sent {
            Ok(_) => {
                self.refuses.store(false, Ordering::Relaxed);
                true
            }
            Err(error) => {
                if !self.refuses.swap(true, Ordering::Relaxed) {
                    tracing::warn!(device = self.name, %error, "the kernel refuses packets");
                }
                false
            }
        }
    }

    /// Takes the device up with the MTU of a tunnel. Without the right, it has to be up already.
    pub async fn set_up(&self) -> Result<(), TunError> {
        let link = LinkUnspec::new_with_index(self.index)
            .mtu(TUN_MTU)
            .txqueuelen(WAITING_MAX)
            .up()
            .build();
        let set = self
            .ask("setting it up", async |handle| {
                handle.link().set(link.clone()).execute().await
            })
            .await;
        match set {
            Err(error) if error.is_forbidden() => self.check_up().await,
            set => set,
        }
    }

    /// Sets the largest packet that the kernel delivers in one piece. Without the right the MTU of
    /// the device's creator stays.
    pub async fn set_mtu(&self, bytes: u16) {
        if self.has_fixed_mtu.load(Ordering::Relaxed) {
            return;
        }
        let device = self.name();
        let link = LinkUnspec::new_with_index(self.index)
            .mtu(bytes.into())
            .build();
        let set = self.ask("setting its MTU", async |handle| {
            handle.link().set(link).execute().await
        });
        match set.await {
            Ok(()) => tracing::info!(device, bytes, "the MTU follows the paths"),
            Err(error) if error.is_forbidden() => {
                self.has_fixed_mtu.store(true, Ordering::Relaxed);
                tracing::info!(
                    device,
                    bytes,
                    "no right to set the MTU; larger packets are answered"
                );
            }
            Err(error) => tracing::warn!(%error, bytes, "the MTU stays"),
        }
    }

    async fn check_up(&self) -> Result<(), TunError> {
        let mut up = false;
        self.ask("looking at it", async |handle| {
            let mut found = handle.link().get().match_index(self.index).execute();
            while let Some(link) = found.try_next().await? {
                up |= link.header.flags.contains(LinkFlags::Up);
            }
            Ok(())
        })
        .await?;
        up.then_some(()).ok_or_else(|| TunError::Down {
            name: self.name.clone(),
        })
    }

    /// Adds an address with its prefix length; an address that exists already is no error.
    pub async fn add_address(&self, address: IpAddr, length: u8) -> Result<(), TunError> {
        let adding = async |handle: Handle| {
            let mut adding = handle.address().add(self.index, address, length);
            // No other host is on this link, so duplicates are impossible; and a route may use an
            // IPv6 address only after that check.
            adding.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            adding.execute().await
        };
        match self
            .ask(&format!("adding {address}/{length}"), adding)
            .await
        {
            Err(error) if error.is_there() => Ok(()),
            Err(error) if error.is_forbidden() && self.has_address(address).await? => Ok(()),
            added => added,
        }
    }

    async fn has_address(&self, address: IpAddr) -> Result<bool, TunError> {
        let mut found = false;
        self.ask("reading its addresses", async |handle| {
            let listed = handle.address().get().set_link_index_filter(self.index);
            let mut listed = listed.set_address_filter(address).execute();
            while listed.try_next().await?.is_some() {
                found = true;
            }
            Ok(())
        })
        .await?;
        Ok(found)
    }

    /// Removes an address, and the routes that use it.
    pub async fn remove_address(&self, address: IpAddr, length: u8) -> Result<(), TunError> {
        self.ask(&format!("removing {address}/{length}"), async |handle| {
            let listed = handle
                .address()
                .get()
                .set_link_index_filter(self.index)
                .set_address_filter(address)
                .set_prefix_length_filter(length);
            let mut listed = listed.execute();
            while let Some(message) = listed.try_next().await? {
                handle.address().del(message).execute().await?;
            }
            Ok(())
        })
        .await
    }

    /// Routes `prefix` to this device, with the source address `source`. An existing route of the
    /// device is replaced.
    pub async fn add_route(&self, prefix: IpPrefix, source: IpAddr) -> Result<(), TunError> {
        match self.try_add_route(prefix, source).await {
            Err(error) if error.is_there() => {
                let taken = |_| TunError::Taken {
                    name: self.name.clone(),
                    prefix,
                };
                self.remove_route(prefix).await.map_err(taken)?;
                self.try_add_route(prefix, source).await
            }
            added => added,
        }
    }

    async fn try_add_route(&self, prefix: IpPrefix, source: IpAddr) -> Result<(), TunError> {
        self.ask(&format!("a route to {prefix}"), async |handle| {
            let route = RouteMessageBuilder::<IpAddr>::new()
                .destination_prefix(prefix.network(), prefix.length())
                .map_err(|_| rtnetlink::Error::RequestFailed)?
                .pref_source(source)
                .map_err(|_| rtnetlink::Error::RequestFailed)?
                .output_interface(self.index)
                .build();
            handle.route().add(route).execute().await
        })
        .await
    }

    /// Only a route of this device is removed.
    pub async fn remove_route(&self, prefix: IpPrefix) -> Result<(), TunError> {
        self.ask(&format!("removing the route to {prefix}"), async |handle| {
            let route = RouteMessageBuilder::<IpAddr>::new()
                .destination_prefix(prefix.network(), prefix.length())
                .map_err(|_| rtnetlink::Error::RequestFailed)?
                .output_interface(self.index)
                .build();
            handle.route().del(route).execute().await
        })
        .await
    }

    async fn ask(
        &self,
        what: &str,
        ask: impl AsyncFnOnce(Handle) -> Result<(), rtnetlink::Error>,
    ) -> Result<(), TunError> {
        let (connection, handle, _) = new_connection().map_err(TunError::Netlink)?;
        let asked = tokio::select! {
            asked = ask(handle) => asked,
            // Ends only with the last handle.
            () = connection => Err(rtnetlink::Error::RequestFailed),
        };
        asked.map_err(|source| TunError::Configure {
            name: self.name.clone(),
            what: what.to_owned(),
            source,
        })
    }
}

impl std::fmt::Debug for TunDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
