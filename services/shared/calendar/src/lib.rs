//! Time zones by name, the days and times of their local clocks, and durations in words. The caller
//! passes times; no clock is read.

mod durations;
mod rota;
mod zone;

pub use durations::duration_text;
pub use rota::{Rota, Shift, WEEK_MINUTES, WeekTime};
pub use zone::Zone;
