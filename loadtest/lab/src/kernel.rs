//! Kernel time: the same scenarios over real sockets in two network namespaces, through a userspace
//! emulator of the same link model.
//!
//! ```text
//!   namespace "client"                  this process                     namespace "server"
//!   Tunnel, TCP, MPTCP -- TUN wan0 --> Emulator: link model --> TUN wan0 -- proxy, TCP, MPTCP
//!                      -- TUN wan1 -->                      --> TUN wan1 --
//! ```
//!
//! Kernel time covers TCP, MPTCP, socket buffers and real timers, which only a kernel has. Its runs
//! also verify the results of virtual time. A run is believed only when the machine kept up. The
//! emulator keeps how late it wrote each packet, the endpoints how late their timers fired.

pub(crate) mod application;
mod baseline;
mod bed;
mod budget;
mod command;
mod compare;
mod emulator;
#[cfg(test)]
mod emulator_tests;
pub(crate) mod exhibit;
mod identities;
mod inner;
mod lateness;
mod line;
mod mixed;
mod namespace;
mod network;
pub(crate) mod permission;
pub(crate) mod priority;
pub(crate) mod prober;
mod product;
mod speed;
mod transfer;
pub(crate) mod waiting;
mod yardstick;

pub use bed::{Kept, KernelError, KernelReport};
pub use command::KernelOptions;
pub use compare::{Comparison, believed, compare, scenarios};
pub use identities::Identities;
pub use namespace::{Namespace, NamespaceError, permitted};
pub use transfer::run;
