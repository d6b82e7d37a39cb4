//! A UDP socket of one access network, bound to its address and, if one is named, to its device.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
};

use multipath::Side;
use noq::AsyncUdpSocket;

use crate::sockets::udp;

/// Requested size of the kernel's buffers; the kernel limits it to `net.core.{r,w}mem_max`.
const SOCKET_BUFFER_BYTES: usize = 2 * 1024 * 1024;

/// An access network and the socket bound to it.
#[derive(Debug)]
pub struct Interface {
    /// Name of the access network: `wifi`, `lte`, ...
    pub name: String,
    /// Source address of its paths.
    pub local_ip: IpAddr,
    /// The device that its sockets are bound to.
    pub device: Option<String>,
    pub socket: Box<dyn AsyncUdpSocket>,
}

impl Interface {
    /// Binds a socket to `local_ip`, and to the device if one is named (`SO_BINDTODEVICE`, which
    /// makes routing rules unnecessary). Must be called within a Tokio runtime.
    pub fn bind(
        name: impl Into<String>,
        local_ip: IpAddr,
        device: Option<&str>,
    ) -> io::Result<Self> {
        let socket = bind_socket(local_ip, device)?;
        enlarge_buffers(&socket);
        Ok(Self {
            name: name.into(),
            local_ip,
            device: device.map(str::to_owned),
            socket: udp::wrap(socket.into(), Side::Client)?,
        })
    }
}

pub(crate) fn bind_socket(local_ip: IpAddr, device: Option<&str>) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(SocketAddr::new(local_ip, 0)),
        socket2::Type::DGRAM,
        Some(socket2::Protocol::UDP),
    )?;
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(local_ip, 0).into())?;
    Ok(socket)
}

/// The system's default holds some ninety packets, fewer than a sender's window. Without the right
/// to set more, the default remains.
pub fn enlarge_buffers(socket: &impl AsFd) {
    let socket = socket2::SockRef::from(socket);
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
}

/// Index of a device, as sockets that are bound to it show it.
pub(crate) fn device_index(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}
