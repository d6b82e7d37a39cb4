//! Files of recorded drives.

use std::path::PathBuf;

use crate::scenario::ScenarioError;

/// The files themselves; of a folder those named `*.down`, in order.
pub fn trace_files(given: &[PathBuf]) -> Result<Vec<PathBuf>, ScenarioError> {
    let mut files = Vec::new();
    for path in given {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let read = |source| ScenarioError::Read {
            file: path.clone(),
            source,
        };
        let mut own = Vec::new();
        for entry in std::fs::read_dir(path).map_err(read)? {
            let file = entry.map_err(read)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "down")
            {
                own.push(file);
            }
        }
        own.sort();
        files.extend(own);
    }
    Ok(files)
}
