//! Virtual network pieces and fakes for tests. No service uses them in production.

pub mod disk;
pub mod emulated_link;
mod engine;
pub mod kafka;
pub mod link;
pub mod netns;
pub mod oidc;
pub mod ports;
pub mod sources;
pub mod timescale_server;
mod transfer;

pub use engine::missing;
pub use transfer::{DEADLINE, noise, udp_echo, within, write_until_blocked};
