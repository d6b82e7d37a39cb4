//! The host's network, as Braid uses it: devices and addresses (netlink), a TUN device, NAT and
//! redirection (nftables). Also the endpoints of the kernel's MPTCP, and the counters of TCP.

mod dns_redirect;
mod masquerade;
mod mptcp_endpoints;
mod netlink_monitor;
mod netlink_wire;
mod nftables;
mod tcp_redirect;
mod tcp_sockets;
mod tun;

pub use dns_redirect::{Asked, DnsRedirect, QuerySocket};
pub use masquerade::{MasqueradeError, masquerade};
pub use mptcp_endpoints::Endpoints;
pub use netlink_monitor::{NetlinkError, NetlinkMonitor, NetworkFact, local_addresses};
pub use tcp_redirect::{TcpRedirect, original_destination, reset};
pub use tcp_sockets::{TcpSocket, TcpSockets};
pub use tun::{READ_BYTES_MAX, Received, TunDevice, TunError, is_device};
