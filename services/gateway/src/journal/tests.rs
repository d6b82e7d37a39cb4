//! Journals that crash, decay, forget and stall.

mod at_rest;
mod bad_sector;
mod crash;
mod decay;
mod forgets;
mod headers;
mod stalls;
mod two_ends;
