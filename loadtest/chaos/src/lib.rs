//! A seeded chaos run over the separate-process shape: the six services, a real Kafka and a real TimescaleDB, while faults overlap.
//!
//! Everything that happens follows from the seed and is computed before anything starts: what each sensor measures and when
//! ([`readings`]), and which fault hits what, when and for how long ([`plan`]). Which alerts are due is computed from the readings by
//! [`oracle`], which shares no code with the rule engine. [`verdict`] compares what was found at the end with what had to be there.
//! Those modules read no clock and open no socket; [`run`] is the IO shell.

pub mod oracle;
pub mod plan;
pub mod readings;
pub mod report;
pub mod run;
pub mod scenario;
pub mod verdict;
