//! The rules and their engine from outside: one program, so that it is linked once.
#![allow(clippy::unwrap_used)]

mod change;
mod determinism;
mod engine;
mod frozen;
mod merge;
