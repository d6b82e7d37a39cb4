//! Bytes that a gateway sends and receives in a month, as IP packets. Message sizes are those of
//! the encoder that ships. Pure: no clock, no file, no socket.
//!
//! `braid budget` prints the sum of the exchanges. The laboratory plays the same exchanges between
//! both ends of the transport, and a test compares.

mod exchanges;
mod messages;
mod month;

pub use exchanges::{Exchange, FRAMES_BYTES, Gateway};
pub use messages::{heart_mv, report_bytes, upload_bytes};
pub use month::{MONTH_S, Month};
