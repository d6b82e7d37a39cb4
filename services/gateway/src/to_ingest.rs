//! The way to the core: what the journals hold goes to ingest, and what ingest acknowledges is trimmed.
//!
//! Alerts and vitals have a connection each, in a tunnel stream of their own, so that an alert waits behind nothing. `sender`
//! decides, `courier` does, over a `link` or several; `uplink` is where the tunnel comes in. Alerts that the
//! journal cannot take go `from_memory`.

mod courier;
mod dead_letters;
mod from_memory;
mod link;
mod sender;
mod trims;
mod uplink;

pub use courier::{Courier, Options};
pub use dead_letters::DeadLetters;
pub use from_memory::FromMemory;
pub use sender::{Command, Event, Limits, Sender};
pub use uplink::{Direct, Through, Uplink};
