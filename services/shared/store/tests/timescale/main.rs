//! TimescaleDB, without its failures: one program, so that one server is started.
#![allow(clippy::unwrap_used)]

#[path = "../support/timescale.rs"]
mod support;

mod documents;
mod panels;
mod rows;
mod suite;
