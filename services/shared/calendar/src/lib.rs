//! Time zones by name, and the days and times of their local clocks. The caller passes times; no
//! clock is read.

mod zone;

pub use zone::Zone;
