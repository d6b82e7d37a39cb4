//! Journals that crash, decay and forget.

mod bad_sector;
mod crash;
mod decay;
mod forgets;
mod headers;
mod two_ends;
