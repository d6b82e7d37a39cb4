//! Times as text, time zones by name, the days and times of their local clocks, and durations in
//! words. The caller passes times; no clock is read.

mod durations;
mod moment;
mod rota;
mod zone;

pub use durations::duration_text;
pub use moment::{day_of_month, parse_rfc3339_us, rfc3339, rfc3339_ms};
pub use rota::{Rota, Shift, WEEK_MINUTES, WeekTime};
pub use zone::Zone;
