//! How a courier sends each class of entries.

use std::time::Duration;

use tunnel::Urgency;

use super::sender::Limits;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `vitals` or `alerts`.
    pub class: &'static str,
    pub urgency: Urgency,
    pub limits: Limits,
}

impl Options {
    pub const VITALS: Self = Self {
        class: "vitals",
        urgency: Urgency::Prompt,
        limits: Limits {
            in_flight_max: 16,
            acknowledge_limit: Duration::from_secs(10),
            copies: 1,
            redundant: false,
            gather: Duration::from_millis(500),
            freshness: Duration::ZERO,
        },
    };
    pub const ALERTS: Self = Self {
        class: "alerts",
        urgency: Urgency::Urgent,
        limits: Limits {
            in_flight_max: 16,
            acknowledge_limit: Duration::from_secs(3),
            // Two of the four take each of two paths. So neither the loss of a packet nor the loss
            // of a path costs time, nor both together.
            copies: 3,
            redundant: true,
            gather: Duration::ZERO,
            freshness: Duration::ZERO,
        },
    };
}
