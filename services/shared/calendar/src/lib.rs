//! Time zones by name, the days and times of their local clocks, and durations in words. The caller
//! passes times; no clock is read.

mod durations;
mod zone;

pub use durations::duration_text;
pub use zone::Zone;
