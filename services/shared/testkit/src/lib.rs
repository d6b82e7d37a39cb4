//! Virtual network pieces and fakes for tests: nothing in here runs in production.

pub mod disk;
pub mod emulated_link;
pub mod kafka;
pub mod link;
pub mod timescale_server;
