//! Slows down guessing: of tokens by address, and of passwords by account and address. Sans-IO: the
//! caller passes the time.
//!
//! A limit neither locks a person out nor lets a guesser through. Where the right secret was shown
//! before, the longest wait is short, and it never falls to nothing.

mod accounts;
mod table;
mod tokens;

pub use accounts::Attempts;
pub use tokens::{FREE, FREE_KNOWN, Guesses, WAIT_MAX};
