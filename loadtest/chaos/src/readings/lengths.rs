//! Lengths that all series share.

/// Distance in seconds of the shapes from the delays of their rule.
pub(super) const MARGIN_S: u32 = 2;
/// Seconds without an alert at the beginning of a series.
pub(super) const QUIET_FIRST_S: std::ops::Range<u32> = 3..20;
/// Share of the series that end with an open alert.
pub(super) const LEFT_OPEN: f64 = 0.3;
/// Shortest open alert at the end, and time without an alert before the end otherwise. Within that
/// time the score of the patient does not change either, so its delays have ended.
pub(super) const OPEN_S_MIN: u32 = 12;
pub(super) const QUIET_LAST_S: u32 = 8;
