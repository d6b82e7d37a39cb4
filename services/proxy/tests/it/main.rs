//! The proxy at its doors: one program, so that it is linked once.
#![allow(clippy::unwrap_used)]

#[path = "../support/bench.rs"]
mod bench;

mod own_addresses;
mod policy;
mod reports;
mod revoked;
mod udp;
