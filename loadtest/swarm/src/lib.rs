//! Virtual patients, and sensors that send their readings to a gateway.
//!
//! `patient` is pure: a seed, a profile and the time always give the same samples. `sensor` is the
//! thin shell that sends them.

pub mod patient;
pub mod sensor;

pub use patient::{Episode, Patient, Profile};
pub use sensor::Feed;
