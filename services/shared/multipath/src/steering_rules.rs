//! Steering rules: which flow takes which accesses, in which steering mode (TS 23.501, 5.32.8).
//!
//! A [`Document`] is data that people write (TOML) and machines carry (JSON). [`decide`] is one
//! pure function of the document, a flow, the accesses that are there and what is measured of them.
//! The scheduler, `braid steering explain`, the page and the lab call it.
//!
//! The modes are rows of a table ([`Shape`]). The scheduler knows ranks and weights, and no mode.
//! One session has one schedule for all its flows: [`schedule`] joins their decisions.

#[cfg(test)]
mod alert_tests;
mod check;
mod decide;
mod document;
mod explained;
mod flow;
mod groups;
#[cfg(test)]
mod property_tests;
mod schedule;
#[cfg(test)]
mod tests;

pub use check::DocumentError;
pub use decide::{Choice, Decision, Rank, Reason, Verdict, Why, decide};
pub use document::{
    AccessTerms, Cap, Document, GatewayTerms, Group, Kind, Match, Mode, Period, Protocol, Rule,
    Shape, SortedBy, Urgency, Used,
};
pub use flow::{AccessState, Flow, Measurement, Measurements};
pub use schedule::{PathSchedule, Schedule, schedule};
