//! Ingest at its doors: one program, so that it is linked once.
#![allow(clippy::unwrap_used)]

#[path = "../support/world.rs"]
#[allow(dead_code, reason = "targets of their own use the rest")]
mod world;

mod attribution;
mod health;
mod identity;
mod ingest;
mod proofs;
mod quota;
mod readmission;
mod rules;
