//! Acts that are final: revoked, removed or ended by hand. A restore must not undo them.
//!
//! The store has the acts in its tables, each written with the act. A list of them is kept beside
//! the backups, one JSON object a line. Lines are appended and never changed, so a list that misses
//! the newest acts is still right. `infra/backup/backup.py` writes the same lines.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Removal {
    /// An account was removed. One that was made later under its name stays.
    Account { subject: String, at_us: i64 },
    /// A wearing interval was removed, as if it had never been.
    Assignment {
        subject: String,
        from_us: i64,
        at_us: i64,
    },
    /// A wearing interval has ended.
    Ended {
        subject: String,
        from_us: i64,
        until_us: i64,
    },
    /// A patient was erased. The id is never used again.
    Patient { subject: String, at_us: i64 },
    /// A version of a gateway's revocation. `payload`: the stored document in hex.
    Revocation {
        tenant: String,
        subject: String,
        version: i64,
        until_us: i64,
        payload: String,
    },
}

#[derive(Debug, Error)]
pub enum RemovalsError {
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
    #[error("{path}, line {line}: {reason}; use the program that wrote it, or a newer one")]
    Unreadable {
        path: String,
        line: usize,
        reason: String,
    },
}

/// A missing file is an empty list. A last line without an end was cut short by a crash: its writer
/// appends it again.
pub fn read(path: &Path) -> Result<BTreeSet<Removal>, RemovalsError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(source) => return Err(of(path, source)),
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().enumerate();
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| RemovalsError::Unreadable {
                path: path.display().to_string(),
                line: number + 1,
                reason: error.to_string(),
            })
        })
        .collect()
}

/// Appends those that the list does not have. Durable when it returns the whole list.
pub fn append(
    path: &Path,
    found: impl IntoIterator<Item = Removal>,
) -> Result<BTreeSet<Removal>, RemovalsError> {
    let mut list = read(path)?;
    let mut lines = String::new();
    for removal in found {
        if !list.contains(&removal) {
            lines += &serde_json::to_string(&removal).map_err(|e| of(path, e.into()))?;
            lines.push('\n');
            list.insert(removal);
        }
    }
    let write = || -> io::Result<()> {
        let mut options = private_files::options();
        let file = options.append(true).create(true).open(path)?;
        let whole = fs::read(path)?;
        let whole = whole.iter().rposition(|byte| *byte == b'\n');
        file.set_len(whole.map_or(0, |end| end as u64 + 1))?;
        (&file).write_all(lines.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|source| of(path, source))?;
    Ok(list)
}

fn of(path: &Path, source: io::Error) -> RemovalsError {
    RemovalsError::Io {
        path: path.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_only_grows_and_survives_a_cut_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("removed.jsonl");
        let account = |subject: &str| Removal::Account {
            subject: subject.into(),
            at_us: 7,
        };
        append(&path, [account("eve"), account("bob")]).unwrap();
        append(&path, [account("eve")]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"kind\":\"account\",\"subject\":\"eve\",\"at_us\":7}\n{\"kind\":\"account\",\"subject\":\"bob\",\"at_us\":7}\n"
        );
        // An act that the store has forgotten since stays in the list.
        let list = append(&path, [account("ann")]).unwrap();
        assert_eq!(list.len(), 3);

        fs::write(&path, format!("{text}{{\"kind\":\"acc")).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2, "the cut line is not counted");
        assert_eq!(append(&path, [account("ann")]).unwrap().len(), 3);
        assert_eq!(read(&path).unwrap().len(), 3);
        fs::write(&path, format!("{text}{{\"kind\":\"tomorrow\"}}\n")).unwrap();
        let refused = read(&path).unwrap_err().to_string();
        assert!(refused.contains("removed.jsonl, line 3: "), "{refused}");
    }
}
