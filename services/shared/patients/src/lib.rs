//! Patients: the status of a stay, the checks of a record, and the likeness of names. Sans-IO: the
//! store, the dashboard and the command line decide by the same functions.

mod likeness;
mod record;
mod status;

pub use likeness::{LIKENESSES_MAX, likenesses};
pub use record::{
    CONSENTS_MAX, CONTACTS_MAX, IDENTIFIERS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX, check,
    check_place, place_text,
};
pub use status::{
    Effects, Planned, Refusal, Sensors, check_target, has_departed, name, operation_name, plan,
    status_name,
};

/// Words that the reason of an erasure may have. Its audit row stays for years, and free text could
/// hold health data.
pub const ERASURE_REASONS: [&str; 3] = ["requested", "retention", "mistake"];
