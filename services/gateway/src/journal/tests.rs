//! Journals that crash, decay, forget and stall.

mod bad_sector;
mod crash;
mod decay;
mod forgets;
mod headers;
mod stalls;
mod two_ends;
