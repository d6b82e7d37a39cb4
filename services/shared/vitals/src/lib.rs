//! Knowledge about vital signs: the metrics, the plausible readings, the NEWS2 score, and the rules
//! that raise alerts.
//!
//! Pure: no clock, no socket, no random number. The gateway runs this code at the edge, and
//! alerting runs it in the core. So both reach the same conclusion from the same samples. Every
//! time is an event time in microseconds since the Unix epoch, passed in by the caller.

pub mod attribution;
pub mod cadence;
pub mod canary;
pub mod cases;
mod catalogue;
mod condition;
mod defaults;
mod edge;
mod engine;
mod episodes;
mod frozen;
mod machine;
mod memory;
pub mod news2;
mod past;
mod refusal;
pub mod rehearsal;
mod rule_document;
pub mod rules;
mod rules_in_force;
pub mod silence;
mod validate;
mod verdict;

/// Time after which a silent patient no longer counts as present. Time passes without readings only
/// up to here.
pub const PRESENT_US: i64 = 120_000_000;

pub use cadence::Cadence;
pub use catalogue::{
    ADDED_MAX, Accepted, Entry, Form, LANGUAGES, MetricDocument, MetricRhythm, MetricWord, Names,
    Reading, by_name, check_metric, entries, entry, name, take,
};
pub use condition::{Condition, Direction};
pub use contracts::vitals::{Metric, Priority, Sample};
pub use edge::edge_alert;
pub use engine::{Engine, Profile, RestoreError, Rhythm, STREAMS_MAX};
pub use machine::{Origin, episode_id};
pub use news2::Spo2Scale;
pub use refusal::{
    IDENTIFIER_BYTES_MAX, Invalid, PERSON_BYTES_MAX, validate_identifier, validate_person,
    validate_text,
};
pub use rule_document::{Extends, PUT_EXTENDS, RuleDocument, for_gateway};
pub use rules::{Rule, RuleSet};
pub use rules_in_force::{RulesInForce, TeamGroups};
pub use validate::{
    ClockBounds, TRACEPARENT_BYTES_MAX, WAVEFORM_VALUES_MAX, convert, fill_defaults, own_value,
    validate_reading, validate_time, validate_unit_stated,
};
