//! Emulated access links: the model of one direction, and a UDP socket behind two of them. `braid
//! up` demonstrates with them, and tests and the laboratory measure over them.

pub mod link;
mod socket;

pub use socket::{LinkControl, LinkSnapshot, emulate};
