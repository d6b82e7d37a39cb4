//! A seeded chaos run over the separate-process shape: the six services, a real Kafka and a real
//! TimescaleDB, with overlapping faults.
//!
//! Everything follows from the seed and is computed before the start. [`readings`] gives the
//! readings of each sensor, and [`plan`] the target, kind and time of each fault. [`dues`] computes
//! the due alerts from the readings, without code of the rule engine: [`oracle`] those of
//! thresholds, [`falls`] falls, and [`news2`] scores. [`acknowledgements`] decides which alerts a
//! person acknowledges and judges reminders. [`silences`] judges silence from arrivals, and
//! [`verdict`] compares the final state with the expected one. [`proofs`] compares the system's own
//! proofs of completeness with what the sensors know. Those modules read no clock and open
//! no socket; [`run`] is the IO shell.

pub mod acknowledgements;
pub mod dues;
pub mod facts;
pub mod falls;
pub mod letters;
pub mod news2;
pub mod oracle;
pub mod plan;
pub mod proofs;
pub mod readings;
pub mod recovery;
pub mod report;
pub mod run;
pub mod scenario;
pub mod silences;
pub mod verdict;
