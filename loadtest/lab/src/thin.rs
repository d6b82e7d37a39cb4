//! The messages of a gateway without bulk: uploads of vitals and reports that the server answers,
//! and an alert once.

mod application;

use std::time::Duration;

pub use application::ThinApplication;

/// Messages at one interval, each with an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regular {
    pub every: Duration,
    pub bytes: usize,
    pub answer_bytes: usize,
}

/// Messages of a gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Thin {
    pub flows: Vec<Regular>,
    /// Time from the connection to the alert, and its bytes.
    pub alert: Option<(Duration, u64)>,
}
