//! The plan of an operator's access networks: what they give to its patients, and what that costs.
//! A plan is a text; its outcome is data, with a text for people. Pure: no file is read and no
//! clock.

mod day;
mod file;
mod model;
mod text;

pub use file::{Access, Background, Group, Plan, Split, Traffic};
pub use model::{AccessOutcome, GroupOutcome, HourOutcome, Outcome, solve};
pub use text::{spans, text};
pub use toml_errors::FileError;

/// Payload that a packet of full size leaves of its bytes on the link.
pub const HEADER_SHARE: f64 = 0.958;

/// A plan to begin with.
pub const EXAMPLE: &str = include_str!("../three-networks.toml");
