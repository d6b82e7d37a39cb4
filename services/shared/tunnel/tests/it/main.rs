//! The tunnel without measured delays: one program, so that it is linked once.
#![allow(clippy::unwrap_used)]

#[path = "../support/bench.rs"]
mod bench;

mod foreign;
mod ip;
mod silent_clients;
mod streams;
