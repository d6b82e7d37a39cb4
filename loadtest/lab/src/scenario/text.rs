//! The text of a file, within a bound.

use std::io::{self, Read};
use std::path::Path;

use super::error::ScenarioError;

/// Largest file of a scenario, and of a CSV trace.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 20;

/// The text of a regular file of at most so many bytes.
pub(crate) fn read_bounded(file: &Path, bytes_max: u64) -> Result<String, ScenarioError> {
    let read = || {
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(file)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut text = String::new();
        let mut bounded = std::fs::File::open(file)?.take(bytes_max + 1);
        if bounded.read_to_string(&mut text)? as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(text)
    };
    read().map_err(|source| ScenarioError::Read {
        file: file.to_owned(),
        source,
    })
}
