//! Virtual patients, and the sensors that bring their readings to a gateway.
//!
//! `patient` is pure: a seed, a profile and the time give the same samples wherever and however often it is asked. `sensor` is
//! the thin shell that sends them.

pub mod patient;
pub mod sensor;

pub use patient::{Episode, Patient, Profile};
pub use sensor::Feed;
