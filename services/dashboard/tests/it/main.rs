//! The dashboard at its doors: one program, so that it is linked once.
#![allow(clippy::unwrap_used)]

#[path = "../support/browser.rs"]
#[allow(dead_code, reason = "targets of their own use the rest")]
mod browser;
#[path = "../support/ward.rs"]
#[allow(dead_code, reason = "targets of their own use the rest")]
mod ward;

mod documents;
mod explain;
mod forged;
mod guessing;
mod kiosks;
mod lasting_sessions;
mod live_streams;
mod quarantine;
mod revoked_tokens;
mod serving;
mod sso;
mod tenants;
mod tokens;
mod unfinished;
