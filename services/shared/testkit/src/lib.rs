//! Engines, namespaces and fakes for tests and measurements. No service uses them.

pub mod command_lines;
pub mod disk;
mod engine;
pub mod kafka;
pub mod netns;
pub mod oidc;
pub mod ports;
pub mod sources;
pub mod timescale_server;
mod transfer;

pub use engine::missing;
pub use transfer::{DEADLINE, noise, udp_echo, within, write_until_blocked};
