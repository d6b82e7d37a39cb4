//! Redirection of queries for names to local ports. Redirected are queries
//! - that are routed to the TUN device, whatever name server they ask;
//! - that ask the configured resolver, whatever its route is;
//! - that ask an address of the TUN device.
//!
//! ```text
//! table ip braid_dns {
//!     chain local { type nat hook output priority dstnat - 1;
//!         oifname "braid0" meta l4proto udp th dport 53 redirect to :PORT
//!         ip daddr 10.8.0.53 meta l4proto udp th dport 53 redirect to :PORT ... }
//!     chain forwarded { type nat hook prerouting priority dstnat - 1; ... } }
//! ```
//!
//! The priority is before that of `tcp_redirect`, whose rules match TCP queries as well.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use noq::udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::{io::Interest, net::TcpListener};

use crate::{
    nftables::{self, FAMILY_V4, FAMILY_V6, NatChain, OwnTable},
    tcp_redirect::{HOOK_OUTPUT, HOOK_PREROUTING, PRIORITY_OF_DESTINATIONS, TCP, listen},
};

const TABLE: &[u8] = b"braid_dns\0";
const UDP: u8 = 17;
const PORT: u16 = 53;
/// Offset of the destination address in the header.
const DESTINATION_V4: u32 = 16;
const DESTINATION_V6: u32 = 24;
/// Addresses of the TUN device that are redirected; further ones are not.
const OWN_MAX: usize = 4;

/// Rules in force; dropping them removes their tables, and so does the end of the process.
#[derive(Debug)]
pub struct DnsRedirect {
    device: String,
    resolver: IpAddr,
    families: Vec<Family>,
}

#[derive(Debug)]
struct Family {
    number: u8,
    table: OwnTable,
    udp_port: u16,
    tcp_port: u16,
}

impl Family {
    fn is_of(&self, address: IpAddr) -> bool {
        (self.number == FAMILY_V4) == address.is_ipv4()
    }

    /// Binds a socket for each protocol.
    fn bind(number: u8) -> io::Result<(Self, QuerySocket, TcpListener)> {
        let any: IpAddr = match number {
            FAMILY_V4 => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (socket, listener) = (QuerySocket::bind(any)?, listen((any, 0).into())?);
        let family = Self {
            number,
            table: OwnTable::open(number, TABLE)?,
            udp_port: socket.io.local_addr()?.port(),
            tcp_port: listener.local_addr()?.port(),
        };
        Ok((family, socket, listener))
    }
}

impl DnsRedirect {
    /// Redirects in the network namespace of the calling thread. Needs NET_ADMIN, and a kernel with
    /// nftables' `nat`, `redir` and `fib`. Call within a Tokio runtime.
    pub fn start(
        device: &str,
        resolver: IpAddr,
    ) -> io::Result<(Self, Vec<QuerySocket>, Vec<TcpListener>)> {
        let (first, socket, listener) = Family::bind(FAMILY_V4)?;
        let (mut families, mut sockets, mut listeners) =
            (vec![first], vec![socket], vec![listener]);
        // A kernel without IPv6 has no queries of it.
        if let Ok((second, socket, listener)) = Family::bind(FAMILY_V6) {
            families.push(second);
            sockets.push(socket);
            listeners.push(listener);
        }
        let redirect = Self {
            device: device.to_owned(),
            resolver,
            families,
        };
        redirect.set_own(&[])?;
        Ok((redirect, sockets, listeners))
    }

    /// Redirects queries to these addresses of the device as well, instead of those before.
    pub fn set_own(&self, own: &[IpAddr]) -> io::Result<()> {
        for family in &self.families {
            let addresses = own.iter().take(OWN_MAX).chain([&self.resolver]);
            let addresses: Vec<Vec<u8>> = addresses
                .filter(|address| family.is_of(**address))
                .map(|address| is_to(*address))
                .collect();
            let chain = |name, hook, leads_to_device: Vec<u8>| {
                let matches = [vec![leads_to_device], addresses.clone()].concat();
                let rules = matches.iter().flat_map(|matched| {
                    [(UDP, family.udp_port), (TCP, family.tcp_port)].map(|(protocol, port)| {
                        [
                            matched.clone(),
                            nftables::is_protocol(protocol),
                            nftables::is_to_port(PORT),
                            nftables::redirects_to(port),
                        ]
                        .concat()
                    })
                });
                NatChain {
                    name,
                    hook,
                    priority: PRIORITY_OF_DESTINATIONS - 1,
                    rules: rules.collect(),
                }
            };
            let chains = [
                chain(b"local\0", HOOK_OUTPUT, nftables::leaves_by(&self.device)),
                chain(
                    b"forwarded\0",
                    HOOK_PREROUTING,
                    nftables::routed_to(&self.device),
                ),
            ];
            family.table.replace(&chains)?;
        }
        Ok(())
    }
}

/// `ip daddr ADDRESS`
fn is_to(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => {
            nftables::header_matches(DESTINATION_V4, &[0xff; 4], &address.octets())
        }
        IpAddr::V6(address) => {
            nftables::header_matches(DESTINATION_V6, &[0xff; 16], &address.octets())
        }
    }
}

/// A UDP socket that answers from the address that was asked: the kernel knows the redirected
/// exchange by it.
#[derive(Debug)]
pub struct QuerySocket {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
}

/// Datagrams of one sender in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    pub from: SocketAddr,
    /// The address that was asked.
    pub at: Option<IpAddr>,
    pub length: usize,
    /// Length of each datagram; the last one may be shorter.
    pub stride: usize,
}

impl QuerySocket {
    fn bind(any: IpAddr) -> io::Result<Self> {
        let at = SocketAddr::from((any, 0));
        let domain = socket2::Domain::for_address(at);
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
        if any.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&at.into())?;
        let socket = std::net::UdpSocket::from(socket);
        Ok(Self {
            state: UdpSocketState::new((&socket).into())?,
            io: tokio::net::UdpSocket::from_std(socket)?,
        })
    }

    /// The next datagrams, of at most the buffer's length. Cancel-safe.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<Asked> {
        let mut meta = [RecvMeta::default()];
        let receiving = || {
            let mut buffers = [IoSliceMut::new(buffer)];
            self.state.recv((&self.io).into(), &mut buffers, &mut meta)
        };
        self.io.async_io(Interest::READABLE, receiving).await?;
        let [meta] = meta;
        Ok(Asked {
            from: meta.addr,
            at: meta.dst_ip,
            length: meta.len,
            stride: meta.stride.max(1),
        })
    }

    /// Sends an answer from the address that was asked; an answer without room in the kernel is
    /// lost.
    pub fn answer(&self, to: SocketAddr, asked_at: Option<IpAddr>, bytes: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: bytes,
            segment_size: None,
            src_ip: asked_at,
        };
        self.io.try_io(Interest::WRITABLE, || {
            self.state.try_send((&self.io).into(), &transmit)
        })
    }
}
