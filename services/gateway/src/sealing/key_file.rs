//! The gateway's key: a private file, made at the first start, and a systemd credential if there is
//! one.
//!
//! With a credential both are needed. So a stolen disk does not open the journal, and destroying
//! the file closes it for ever.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ring::rand::{SecureRandom, SystemRandom};

use super::{KEY_BYTES, Keys};

/// Name of the credential in `$CREDENTIALS_DIRECTORY`.
pub(crate) const CREDENTIAL: &str = "braid-gateway-journal-key";
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
/// Bytes of a credential; a shorter one could be guessed.
const CREDENTIAL_BYTES_MIN: usize = 16;
/// A longer credential or key file is none.
const FILE_BYTES_MAX: u64 = 4096;
/// Permission bits of everybody. A group may have been added by a volume's mount; its bits are
/// removed at the start.
const EVERYBODY: u32 = 0o007;

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("{path} can be read by every user of this machine (mode {mode:o})", path = path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} is no key of a journal: it needs one line of {} hexadecimal digits", 2 * KEY_BYTES, path = path.display())]
    Malformed { path: PathBuf },
    #[error("the credential {path} has {bytes} bytes, at least {CREDENTIAL_BYTES_MIN} are needed", path = path.display())]
    Short { path: PathBuf, bytes: usize },
    #[error(
        "{path} is missing, and the journal is encrypted with it: put the key back, or give up \
         what waits with `braid gateway wipe`", path = path.display()
    )]
    Missing { path: PathBuf },
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Where the key is.
#[derive(Clone, Debug)]
pub(crate) struct KeyFile {
    path: PathBuf,
    credential: Option<PathBuf>,
}

impl KeyFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        let folder = env::var_os(CREDENTIALS).map(PathBuf::from);
        let credential = folder.map(|folder| folder.join(CREDENTIAL));
        Self {
            path,
            credential: credential.filter(|it| it.exists()),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Refuses files that cannot be the key. A missing file is made by [`Self::open`].
    pub(crate) fn validate(&self) -> Result<(), KeyFileError> {
        if self.exists() {
            self.read()?;
        }
        self.read_credential().map(drop)
    }

    /// The keys, made if the file is missing. `is_needed`: what the disk has is sealed already.
    /// Blocks on the disk.
    pub(crate) fn open(&self, seals: bool, is_needed: bool) -> Result<Keys, KeyFileError> {
        if !self.exists() {
            if is_needed {
                let path = self.path.clone();
                return Err(KeyFileError::Missing { path });
            }
            if !seals {
                return Ok(Keys::none());
            }
            self.make()?;
        }
        private_files::mend_file(&self.path).map_err(|source| self.failed(&self.path, source))?;
        let credential = self.read_credential()?;
        Ok(Keys::new(&self.read()?, &credential, seals))
    }

    fn make(&self) -> Result<(), KeyFileError> {
        let mut key = [0; KEY_BYTES];
        let filled = SystemRandom::new().fill(&mut key);
        let filled = filled.map_err(|_| io::Error::other("the machine gives no random numbers"));
        let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        filled
            .and_then(|()| private_files::replace(&self.path, format!("{text}\n").as_bytes()))
            .map_err(|source| self.failed(&self.path, source))?;
        tracing::info!(path = %self.path.display(), "a key of the journal is made");
        Ok(())
    }

    fn read(&self) -> Result<[u8; KEY_BYTES], KeyFileError> {
        let malformed = || KeyFileError::Malformed {
            path: self.path.clone(),
        };
        let bytes = self.read_private(&self.path)?;
        let text = String::from_utf8(bytes).map_err(|_| malformed())?;
        let digits = text.trim_end().as_bytes();
        let (pairs, []) = digits.as_chunks::<2>() else {
            return Err(malformed());
        };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let bytes: Option<Vec<u8>> = pairs
            .iter()
            .map(|[high, low]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok())
            .collect();
        let key = bytes.and_then(|bytes| bytes.try_into().ok());
        key.ok_or_else(malformed)
    }

    /// Empty for none.
    fn read_credential(&self) -> Result<Vec<u8>, KeyFileError> {
        let Some(path) = &self.credential else {
            return Ok(Vec::new());
        };
        let bytes = self.read_private(path)?;
        if bytes.len() < CREDENTIAL_BYTES_MIN {
            return Err(KeyFileError::Short {
                path: path.clone(),
                bytes: bytes.len(),
            });
        }
        Ok(bytes)
    }

    fn read_private(&self, path: &Path) -> Result<Vec<u8>, KeyFileError> {
        let failed = |source| self.failed(path, source);
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & EVERYBODY != 0 {
            return Err(KeyFileError::Open {
                path: path.to_owned(),
                mode: mode & 0o777,
            });
        }
        let mut bytes = Vec::new();
        let read = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
        read.map_err(failed)?;
        Ok(bytes)
    }

    fn failed(&self, path: &Path, source: io::Error) -> KeyFileError {
        KeyFileError::Io {
            path: path.to_owned(),
            source,
        }
    }

    /// Overwrites the file and removes it. A flash disk may keep the old page until it erases it.
    /// Durable when it returns. Blocks on the disk.
    pub(super) fn destroy(&self) -> io::Result<()> {
        let length = match fs::metadata(&self.path) {
            Ok(found) => found.len().min(FILE_BYTES_MAX),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut file = OpenOptions::new().write(true).open(&self.path)?;
        let zeros = vec![0; usize::try_from(length).unwrap_or_default()];
        file.write_all(&zeros)?;
        file.sync_all()?;
        fs::remove_file(&self.path)?;
        let folder = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn the_key_is_made_once_private_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile {
            path: folder.path().join("key"),
            credential: None,
        };
        let missing = file.open(true, true).unwrap_err();
        assert!(missing.to_string().contains("put the key back"));
        let keys = file.open(true, false).unwrap();
        let mode = fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let sealed = keys.seal("rules", b"rules").unwrap();
        let unsealed = |file: &KeyFile| {
            file.open(true, true)
                .unwrap()
                .unseal("rules", sealed.clone())
        };
        assert_eq!(unsealed(&file), Ok(b"rules".to_vec()));
        // A part of the key that is not on the disk.
        let with = KeyFile {
            credential: Some(folder.path().join(CREDENTIAL)),
            ..file.clone()
        };
        private_files::replace(&folder.path().join(CREDENTIAL), b"too short").unwrap();
        assert!(matches!(with.validate(), Err(KeyFileError::Short { .. })));
        private_files::replace(&folder.path().join(CREDENTIAL), &[7; 32]).unwrap();
        with.validate().unwrap();
        assert!(unsealed(&with).is_err(), "both are needed");
        file.destroy().unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile {
            path: folder.path().join("key"),
            credential: None,
        };
        file.validate().unwrap();
        private_files::replace(&file.path, "ab".repeat(32).as_bytes()).unwrap();
        file.validate().unwrap();
        for mode in [0o604, 0o646] {
            fs::set_permissions(&file.path, Permissions::from_mode(mode)).unwrap();
            let refused = file.validate().unwrap_err().to_string();
            assert!(refused.contains("can be read by every user"), "{refused}");
        }
        fs::set_permissions(&file.path, Permissions::from_mode(0o660)).unwrap();
        file.open(true, true).unwrap();
        let mode = fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "as a volume's group had it");
        for text in ["", "abc", "zz", &"ab".repeat(31)] {
            private_files::replace(&file.path, text.as_bytes()).unwrap();
            let refused = file.validate();
            assert!(
                matches!(refused, Err(KeyFileError::Malformed { .. })),
                "{text}"
            );
        }
    }
}
