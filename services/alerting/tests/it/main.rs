//! Alerting at its doors: one program, so that it is linked once.
#![allow(clippy::unwrap_used)]

#[path = "../support/hook.rs"]
mod hook;
#[path = "../support/peers.rs"]
mod peers;
#[path = "../support/stage.rs"]
mod stage;

mod alerting;
mod canary;
mod clock;
mod damage;
mod ending;
mod episodes;
mod merge;
mod nobody_told;
mod offsets;
mod people;
mod proven;
