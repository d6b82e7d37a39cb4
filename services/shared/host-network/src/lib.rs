//! The host's network, as Braid uses it: devices and addresses (netlink), a TUN device, NAT and
//! redirection (nftables), and the endpoints of the kernel's MPTCP.

mod dns_redirect;
mod masquerade;
mod mptcp_endpoints;
mod netlink_monitor;
mod netlink_wire;
mod nftables;
mod tcp_redirect;
mod tun;

pub use dns_redirect::{Asked, DnsRedirect, QuerySocket};
pub use masquerade::{MasqueradeError, masquerade};
pub use mptcp_endpoints::Endpoints;
pub use netlink_monitor::{NetlinkError, NetlinkMonitor, NetworkFact, local_addresses};
pub use tcp_redirect::{TcpRedirect, original_destination, reset};
pub use tun::{READ_BYTES_MAX, Received, TunDevice, TunError, is_device};
