//! Redirection of TCP connections that are routed to a TUN device to a local port.
//!
//! A redirected connection ends at this machine, and its bytes continue as a stream over all paths.
//! As packets, one flow would have the rate of one path. [`original_destination`] returns the
//! address that the program asked for.
//!
//! ```text
//! table ip braid_tcp {
//!     chain local { type nat hook output priority dstnat;
//!         oifname "braid0" meta l4proto tcp redirect to :PORT }
//!     chain forwarded { type nat hook prerouting priority dstnat;
//!         fib daddr oifname "braid0" meta l4proto tcp redirect to :PORT } }
//! ```

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::nftables::{self, FAMILY_V4, FAMILY_V6, NatChain, OwnTable};

const TABLE: &[u8] = b"braid_tcp\0";
pub(crate) const HOOK_PREROUTING: u32 = 0;
pub(crate) const HOOK_OUTPUT: u32 = 3;
pub(crate) const PRIORITY_OF_DESTINATIONS: i32 = -100;
pub(crate) const TCP: u8 = 6;
/// Bound on connections that wait in the kernel; further ones are refused there.
const BACKLOG: i32 = 1_024;

/// Rules in force; dropping them removes their tables, and so does the end of the process.
#[derive(Debug)]
pub struct TcpRedirect {
    _tables: Vec<OwnTable>,
}

impl TcpRedirect {
    /// Redirects in the network namespace of the calling thread. Needs NET_ADMIN, and a kernel with
    /// nftables' `nat`, `redir` and `fib`.
    /// Returns the listeners of the redirected connections. Call within a Tokio runtime.
    pub fn start(device: &str) -> io::Result<(Self, Vec<TcpListener>)> {
        let mut listeners = vec![(FAMILY_V4, listen((Ipv4Addr::UNSPECIFIED, 0).into())?)];
        // A kernel without IPv6 has no connections of it.
        if let Ok(listener) = listen((Ipv6Addr::UNSPECIFIED, 0).into()) {
            listeners.push((FAMILY_V6, listener));
        }
        let mut tables = Vec::new();
        for (family, listener) in &listeners {
            let (family, port) = (*family, listener.local_addr()?.port());
            let chain = |name, hook, leads_to_device: Vec<u8>| NatChain {
                name,
                hook,
                priority: PRIORITY_OF_DESTINATIONS,
                rules: vec![
                    [
                        leads_to_device,
                        nftables::is_protocol(TCP),
                        nftables::redirects_to(port),
                    ]
                    .concat(),
                ],
            };
            let chains = [
                chain(b"local\0", HOOK_OUTPUT, nftables::leaves_by(device)),
                chain(b"forwarded\0", HOOK_PREROUTING, nftables::routed_to(device)),
            ];
            let table = OwnTable::open(family, TABLE)?;
            table.replace(&chains)?;
            tables.push(table);
        }
        let listeners = listeners.into_iter().map(|(_, listener)| listener);
        Ok((Self { _tables: tables }, listeners.collect()))
    }
}

pub(crate) fn listen(any: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(any), Type::STREAM, None)?;
    if any.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&any.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Closes a connection so that the program sees a reset.
pub fn reset(stream: TcpStream) {
    if let Err(error) = SockRef::from(&stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "a connection is closed without a reset");
    }
}

/// The destination of a connection before its redirection; none for a connection that was made to
/// this machine itself.
pub fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    let local = stream.local_addr().ok()?;
    let socket = SockRef::from(stream);
    let original = match local.ip() {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    let original = original.ok()?.as_socket()?;
    (original != local).then_some(original)
}
