//! The laboratory in virtual time: one program, so that it is linked once.
#![allow(clippy::unwrap_used)]

mod bursts;
mod jitter;
mod mutated_scenarios;
mod report;
mod robust;
mod unequal_links;
mod virtual_time;
