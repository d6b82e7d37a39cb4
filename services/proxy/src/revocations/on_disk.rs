//! The list of revoked gateways on disk, for a start without path-telemetry. The file is replaced
//! as a whole, and a damaged file counts as missing.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use contracts::policy::RevokedGateway;
use serde::{Deserialize, Serialize};

const NAME: &str = "revoked.json";
/// Bytes of the file; a larger file counts as damaged.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub(crate) struct OnDisk {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// When path-telemetry last confirmed the list.
    heard_unix_s: u64,
    gateways: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    tenant: String,
    gateway: String,
    excepted: Vec<String>,
}

impl OnDisk {
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// `None`: no list was kept, or the file cannot be read.
    pub(crate) async fn read(&self) -> Option<Vec<RevokedGateway>> {
        let path = self.folder.join(NAME);
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        match read.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(file) => {
                let heard_unix_s = file.heard_unix_s;
                tracing::info!(
                    heard_unix_s,
                    gateways = file.gateways.len(),
                    "revocations read from disk"
                );
                let gateways = file.gateways.into_iter().map(|entry| RevokedGateway {
                    tenant: entry.tenant,
                    gateway: entry.gateway,
                    excepted: entry.excepted,
                });
                Some(gateways.collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(%error, folder = %self.folder.display(), "the list of revoked gateways on disk cannot be read");
                None
            }
        }
    }

    /// If the list cannot be written, a warning is logged and the list before it stays.
    pub(crate) async fn write(&self, heard: SystemTime, gateways: &[RevokedGateway]) {
        let since = heard.duration_since(SystemTime::UNIX_EPOCH);
        let entries = gateways.iter().map(|revoked| Entry {
            tenant: revoked.tenant.clone(),
            gateway: revoked.gateway.clone(),
            excepted: revoked.excepted.clone(),
        });
        let file = File {
            heard_unix_s: since.map_or(0, |since| since.as_secs()),
            gateways: entries.collect(),
        };
        let folder = self.folder.clone();
        let written = tokio::task::spawn_blocking(move || write(&folder, &file)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, folder = %self.folder.display(), "the list of revoked gateways is not kept");
        }
    }
}

fn read(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.len() > BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn write(folder: &Path, file: &File) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    private_files::replace(&folder.join(NAME), &serde_json::to_vec(file)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_list_is_read_back_and_a_damaged_one_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let disk = OnDisk::in_folder(folder.path().join("proxy"));
        assert_eq!(disk.read().await, None);
        let list = vec![RevokedGateway {
            tenant: "acme".into(),
            gateway: "gw-1".into(),
            excepted: vec!["ab".repeat(32)],
        }];
        for list in [Vec::new(), list] {
            disk.write(SystemTime::now(), &list).await;
            assert_eq!(disk.read().await, Some(list));
        }
        let path = folder.path().join("proxy").join(NAME);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for damaged in ["", "{", "[]", r#"{"heard_unix_s": -1, "gateways": []}"#] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(disk.read().await, None, "{damaged}");
        }
    }
}
