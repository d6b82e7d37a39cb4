//! Uploads the entries of the journals to ingest, and trims what ingest has acknowledged.
//!
//! Alerts and vitals use a connection each, in tunnel streams of their own, so that an alert never
//! waits behind vitals. `sender` decides, and `courier` acts on one `link` or several. Alerts that
//! the journal cannot take are sent by `from_memory`.

mod accounts;
mod batches;
mod courier;
mod dead_letters;
mod from_memory;
mod jitter;
mod link;
mod options;
mod overtaking;
mod race;
mod readiness;
mod sender;
mod trims;

pub use courier::Courier;
pub use dead_letters::{DeadLetters, read as read_letters, seal_old as seal_old_letters};
pub use from_memory::FromMemory;
pub use options::Options;
pub use sender::Limits;
