//! The key of what the gateway keeps.

use service_kit::ConfigError;

use super::Config;
use crate::{
    journal::Directory,
    sealing::{CREDENTIAL, KeyFile, KeyFileError, Keys, Places},
};

const KEY_FILE: &str = "journal.key";

impl Config {
    pub(crate) fn places(&self) -> Places {
        let key = self.journal_key.clone();
        Places {
            data_dir: self.data_dir.clone(),
            key: KeyFile::new(key.unwrap_or_else(|| self.data_dir.join(KEY_FILE))),
        }
    }

    /// The keys, made at the first start. Blocks on the disk.
    pub(crate) fn open_keys(&self) -> Result<Keys, KeyFileError> {
        let key = self.places().key;
        key.open(self.journal_encrypted, self.has_sealed())
    }

    /// The keys as they are, to read only. Blocks on the disk.
    pub(crate) fn existing_keys(&self) -> Result<Keys, KeyFileError> {
        self.places().key.open(false, self.has_sealed())
    }

    fn has_sealed(&self) -> bool {
        let journal = self.data_dir.join("journal");
        let has_barrier = |class| Directory::has_barrier(&journal.join(class));
        ["vitals", "alerts"].into_iter().any(has_barrier)
    }

    pub(super) fn validate_key(&self) -> Result<(), ConfigError> {
        let key = self.places().key;
        key.validate().map_err(ConfigError::from)
    }
}

impl From<KeyFileError> for ConfigError {
    fn from(error: KeyFileError) -> Self {
        let example = match &error {
            KeyFileError::Open { path, .. } => format!("chmod 600 {}", path.display()),
            KeyFileError::Short { .. } => {
                format!("LoadCredentialEncrypted={CREDENTIAL} of 32 random bytes")
            }
            _ => "--journal-key /var/lib/braid/journal.key".to_owned(),
        };
        ConfigError::new("journal_key", error.to_string(), example)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, os::unix::fs::PermissionsExt};

    use clap::Parser;

    use crate::config::CommandLine;

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_cure() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let path = key.to_str().unwrap();
        let refused = || {
            let config = CommandLine::parse_from(["gateway", "--journal-key", path]).config;
            config.validate_journal().err()
        };
        assert!(refused().is_none(), "it is made at the start");
        fs::write(&key, "ab".repeat(32)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let error = refused().unwrap();
        assert_eq!(error.field, "journal_key");
        assert_eq!(error.example, format!("chmod 600 {path}"));
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(refused().is_none());
    }
}
