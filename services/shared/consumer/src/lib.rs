//! The consumer of a topic whose effect is stored exactly once, and the tail of a topic.
//!
//! ```text
//! bus --subscribe--> batch --decode--> rows + progress --write--> store (one transaction)
//!                      |                     ^ halved, after a refusal
//!                      \--> dead letters: a record that cannot be read, or that the store refuses
//! ```
//!
//! A service gives a [`Sink`]: `decode` and `write`. This crate subscribes, claims partitions,
//! renews lost claims and commits offsets. It waits for engines that are away. It finds the one
//! record that the store refuses and buries it. [`work`] decides; it reads no clock and no socket.

mod account;
mod consume;
mod gaps;
mod halves;
mod sink;
mod tail;
pub mod work;

pub use consume::{Consumer, Setup};
pub use sink::{Answer, Away, Decoded, Done, Sink};
pub use tail::{Follower, tail};
