//! Two namespaces and a TUN device at either end of every path between them.
//!
//! ```text
//!   client namespace                              server namespace
//!   wan0 10.71.0.2 ---- emulator: to server -----> wan0 10.71.0.1
//!                  <--- emulator: to client ------               lo 10.71.255.1, the server's
//!   wan1 10.71.1.2 ---- ...                        wan1 10.71.1.1
//! ```
//!
//! The client has a route to the server over each device. A socket takes the one of the device that
//! it is bound to, or of its source address, as a phone's would. One that is bound to neither takes
//! the first device.

use std::io;
use std::net::Ipv4Addr;

use tun_rs::{DeviceBuilder, SyncDevice};

use super::namespace::{Namespace, NamespaceError};
use crate::address::INTERFACES_MAX;
use crate::packet::LINK_MTU_BYTES;
use crate::scenario::Buffers;

/// The server's address, reached over every path.
pub const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 71, 255, 1);
/// Packets that a device holds until the emulator reads them. The link's own queue is the
/// emulator's; this one must never be it.
const DEVICE_QUEUE_PACKETS: u32 = 20_000;
/// Number of the client's first routing table of its own.
const TABLE_FIRST: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error("cannot make a TUN device (is /dev/net/tun there?)")]
    Device(#[source] io::Error),
    #[error("cannot limit the buffers of TCP")]
    Setting(#[source] io::Error),
    #[error("give between 1 and {INTERFACES_MAX} paths")]
    Paths,
}

/// Port of the first bulk flow beside an application; packets of these ports are not the measured
/// connection's.
pub const COMPETITOR_PORT: u16 = 5300;
/// Bytes of a TCP buffer at its beginning, where its limit is not lower.
const TCP_BUFFER_FIRST_BYTES: u64 = 131_072;
const TCP_BUFFER_MIN_BYTES: u64 = 4_096;

const IPV6_OF_NEW_DEVICES: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";

/// The client's address on a path.
pub fn client_ip(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 71, path as u8, 2)
}

/// The server's address on a path, which no route of another path leads to.
pub fn server_ip(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 71, path as u8, 1)
}

pub fn device_name(path: usize) -> String {
    format!("wan{path}")
}

/// The devices of one path.
pub struct Ends {
    pub client: SyncDevice,
    pub server: SyncDevice,
}

pub struct Network {
    pub client: Namespace,
    pub server: Namespace,
}

impl Network {
    /// Namespaces, addresses, routes and the paths' devices, which belong to the emulator.
    pub fn new(paths: usize) -> Result<(Self, Vec<Ends>), NetworkError> {
        if paths == 0 || paths > INTERFACES_MAX {
            return Err(NetworkError::Paths);
        }
        let client = Namespace::new("client")?;
        let server = Namespace::new("server")?;
        for namespace in [&client, &server] {
            without_ipv6(namespace)?;
        }
        server.ip(&["addr", "add", &format!("{SERVER_IP}/32"), "dev", "lo"])?;
        let mut ends = Vec::new();
        for path in 0..paths {
            ends.push(Ends {
                client: device(&client, path)?,
                server: device(&server, path)?,
            });
            let name = device_name(path);
            let ip = client_ip(path).to_string();
            let service_ip = SERVER_IP.to_string();
            let table = (TABLE_FIRST + path).to_string();
            client.ip(&["addr", "add", &format!("{ip}/24"), "dev", &name])?;
            server.ip(&[
                "addr",
                "add",
                &format!("{}/24", server_ip(path)),
                "dev",
                &name,
            ])?;
            for place in ["metric", "table"] {
                client.ip(&[
                    "route",
                    "add",
                    &service_ip,
                    "dev",
                    &name,
                    "src",
                    &ip,
                    place,
                    &table,
                ])?;
            }
            client.ip(&["rule", "add", "from", &ip, "lookup", &table])?;
        }
        Ok((Self { client, server }, ends))
    }

    /// Limits the buffers of every TCP and MPTCP socket.
    pub fn limit_buffers(&self, buffers: Buffers) -> Result<(), NetworkError> {
        for namespace in [&self.client, &self.server] {
            for (name, most) in [
                ("tcp_wmem", buffers.send_bytes),
                ("tcp_rmem", buffers.receive_bytes),
            ] {
                let least = TCP_BUFFER_MIN_BYTES.min(most);
                let first = TCP_BUFFER_FIRST_BYTES.min(most);
                let file = format!("/proc/sys/net/ipv4/{name}");
                namespace
                    .run(|| std::fs::write(file, format!("{least} {first} {most}")))?
                    .map_err(NetworkError::Setting)?;
            }
        }
        Ok(())
    }

    /// Lets MPTCP use every path of the client.
    pub fn allow_mptcp(&self, paths: usize) -> Result<(), NamespaceError> {
        let most = INTERFACES_MAX.to_string();
        for namespace in [&self.client, &self.server] {
            namespace.ip(&["mptcp", "limits", "set", "subflow", &most])?;
        }
        for path in 0..paths {
            let ip = client_ip(path).to_string();
            let name = device_name(path);
            self.client
                .ip(&["mptcp", "endpoint", "add", &ip, "dev", &name, "subflow"])?;
        }
        Ok(())
    }
}

/// Devices that are made later get no IPv6. The kernel's own questions about it would be counted as
/// traffic of the paths, which have IPv4 alone.
fn without_ipv6(namespace: &Namespace) -> Result<(), NetworkError> {
    let written = namespace.run(|| std::fs::write(IPV6_OF_NEW_DEVICES, "1"))?;
    match written {
        // A kernel without IPv6.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(NetworkError::Device),
    }
}

fn device(namespace: &Namespace, path: usize) -> Result<SyncDevice, NetworkError> {
    namespace
        .run(|| {
            let device = DeviceBuilder::new()
                .name(device_name(path))
                .mtu(LINK_MTU_BYTES as u16)
                .tx_queue_len(DEVICE_QUEUE_PACKETS)
                .enable(true)
                .build_sync()?;
            device.set_nonblocking(true)?;
            Ok(device)
        })?
        .map_err(NetworkError::Device)
}
