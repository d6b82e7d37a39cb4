//! Whether this process may run in kernel time.

use super::bed::KernelError;
use super::namespace::permitted;
use crate::error::LabError;

/// Why kernel time cannot run here, if it cannot; an error where it must.
pub(crate) fn refusal() -> Result<Option<String>, LabError> {
    match permitted() {
        Ok(()) => Ok(None),
        Err(error) if std::env::var_os("BRAID_REQUIRE_NETNS").is_none() => {
            Ok(Some(error.to_string()))
        }
        Err(error) => Err(KernelError::from(error).into()),
    }
}
