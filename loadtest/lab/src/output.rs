//! Files of the report and of finished experiments.

use std::path::Path;

use crate::error::LabError;

/// Writes a file as a whole or not at all, with the folders above it.
pub(crate) fn write(file: &Path, bytes: &[u8]) -> Result<(), LabError> {
    let attempt = || {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = file.with_file_name(name);
        std::fs::write(&part, bytes)?;
        std::fs::rename(&part, file)
    };
    attempt().map_err(|source| LabError::Write {
        file: file.to_owned(),
        source,
    })
}
