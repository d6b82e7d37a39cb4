//! Seals what the gateway keeps about people on its disk: AES-256-GCM, a random key for each file,
//! wrapped under the gateway's one key.
//!
//! Each sealed piece is bound to its file and to its offset there. So a piece cannot be moved
//! within a file or into another one, and a file cannot take another name. An older copy of a whole
//! file cannot be told from the file. A file is written once and never in place, so no offset, and
//! no nonce, is used twice under a key.

mod destruction;
mod key_file;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf,
    rand::{SecureRandom, SystemRandom},
};

pub(crate) use destruction::{Places, REFUSED, Record};
pub(crate) use key_file::{CREDENTIAL, KeyFile, KeyFileError};

/// Bytes that a sealed piece has more than its content.
pub const TAG_BYTES: usize = 16;
const ID_BYTES: usize = 8;
const KEY_BYTES: usize = 32;
/// Bytes that a sealed file begins with: the id of the gateway's key, and the file's wrapped key.
pub const HEAD_BYTES: usize = ID_BYTES + NONCE_LEN + KEY_BYTES + TAG_BYTES;
/// Beginning of a sealed file that is no segment. In clear such a file begins with a checksum or a
/// small length.
const MAGIC: &[u8; 8] = b"braidAE1";
/// Bytes that such a file begins with: the magic, the head, and the head's checksum.
pub const BEGIN_BYTES: usize = MAGIC.len() + HEAD_BYTES + CHECKSUM_BYTES;
const CHECKSUM_BYTES: usize = 4;

/// A file may be whole, and cannot be opened. Nothing about it may be thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("it is encrypted, and this gateway has no key")]
    Missing,
    #[error("it is encrypted with another key")]
    Other,
    #[error("the key of this gateway's journal is destroyed")]
    Destroyed,
    #[error("the machine gives no random numbers")]
    NoRandom,
}

impl From<KeyError> for io::Error {
    fn from(error: KeyError) -> Self {
        io::Error::new(io::ErrorKind::PermissionDenied, error)
    }
}

/// Why a sealed file is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// It is not what was written.
    Damaged,
    Key(KeyError),
}

impl From<Unopened> for io::Error {
    fn from(error: Unopened) -> Self {
        match error {
            Unopened::Damaged => io::Error::new(
                io::ErrorKind::InvalidData,
                "its sealed content is not what was written",
            ),
            Unopened::Key(error) => error.into(),
        }
    }
}

/// The gateway's key, as one folder uses it. Clones are the same.
#[derive(Clone, Debug)]
pub struct Keys {
    ring: Arc<Keyring>,
    /// Binds files to their folder.
    folder: &'static str,
}

#[derive(Debug)]
struct Keyring {
    /// `None`: nothing is sealed, and nothing sealed can be opened.
    key: Option<GatewayKey>,
    /// Whether new files are sealed.
    seals: bool,
    is_destroyed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct GatewayKey {
    key: LessSafeKey,
    id: [u8; ID_BYTES],
}

struct IdLength;

impl hkdf::KeyType for IdLength {
    fn len(&self) -> usize {
        ID_BYTES
    }
}

impl Keys {
    /// Without a key.
    pub fn none() -> Self {
        Self::of(None, false)
    }

    /// `credential` is a part of the key that is not on the gateway's disk; empty for none.
    pub fn new(of_file: &[u8; KEY_BYTES], credential: &[u8], seals: bool) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, of_file).extract(credential);
        let mut id = [0; ID_BYTES];
        // Both lengths are far below the limit of HKDF.
        let named = root.expand(&[b"braid gateway key id"], IdLength);
        let id = named.and_then(|it| it.fill(&mut id)).map(|()| id);
        let wrapping = root.expand(&[b"braid gateway key"], &AES_256_GCM);
        let key = match (id, wrapping) {
            (Ok(id), Ok(key)) => Some(GatewayKey {
                key: LessSafeKey::new(UnboundKey::from(key)),
                id,
            }),
            _ => None,
        };
        Self::of(key, seals)
    }

    fn of(key: Option<GatewayKey>, seals: bool) -> Self {
        let ring = Keyring {
            key,
            seals,
            is_destroyed: Arc::default(),
        };
        Self {
            ring: Arc::new(ring),
            folder: "",
        }
    }

    #[must_use]
    pub fn for_folder(&self, folder: &'static str) -> Self {
        Self {
            ring: Arc::clone(&self.ring),
            folder,
        }
    }

    /// Nothing is sealed or opened any more by this process.
    pub fn forget(&self) {
        self.ring.is_destroyed.store(true, Ordering::Release);
    }

    pub fn seals(&self) -> bool {
        self.ring.seals && self.ring.key.is_some()
    }

    fn check(&self) -> Result<(), KeyError> {
        match self.ring.is_destroyed.load(Ordering::Acquire) {
            true => Err(KeyError::Destroyed),
            false => Ok(()),
        }
    }

    /// A key for a new file, and the head that its file needs. `None`: the file stays in clear.
    pub fn new_file(&self, name: &str) -> Result<Option<(FileKey, [u8; HEAD_BYTES])>, KeyError> {
        self.check()?;
        let Some(gateway) = self.ring.key.as_ref().filter(|_| self.ring.seals) else {
            return Ok(None);
        };
        let mut key = [0; KEY_BYTES];
        let mut nonce = [0; NONCE_LEN];
        let random = SystemRandom::new();
        let filled = random.fill(&mut key).and_then(|()| random.fill(&mut nonce));
        filled.map_err(|_| KeyError::NoRandom)?;
        let file = self.file_key(&key).ok_or(KeyError::NoRandom)?;
        let mut wrapped = key;
        let aad = Aad::from(self.bound_to(name));
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        let tag = gateway
            .key
            .seal_in_place_separate_tag(nonce_used, aad, &mut wrapped)
            .map_err(|_| KeyError::NoRandom)?;
        let mut head = [0; HEAD_BYTES];
        let (id, rest) = head.split_at_mut(ID_BYTES);
        id.copy_from_slice(&gateway.id);
        let (of_nonce, rest) = rest.split_at_mut(NONCE_LEN);
        of_nonce.copy_from_slice(&nonce);
        let (of_key, of_tag) = rest.split_at_mut(KEY_BYTES);
        of_key.copy_from_slice(&wrapped);
        of_tag.copy_from_slice(tag.as_ref());
        Ok(Some((file, head)))
    }

    pub fn open_file(&self, name: &str, head: &[u8]) -> Result<FileKey, Unopened> {
        self.check().map_err(Unopened::Key)?;
        let damaged = Unopened::Damaged;
        let (id, rest) = head.split_at_checked(ID_BYTES).ok_or(damaged)?;
        let (nonce, wrapped) = rest.split_at_checked(NONCE_LEN).ok_or(damaged)?;
        let gateway = self.ring.key.as_ref();
        let gateway = gateway.ok_or(Unopened::Key(KeyError::Missing))?;
        if id != gateway.id {
            return Err(Unopened::Key(KeyError::Other));
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged)?;
        let mut wrapped = wrapped.to_vec();
        let aad = Aad::from(self.bound_to(name));
        let opened = gateway.key.open_in_place(nonce, aad, &mut wrapped);
        let key = opened.map_err(|_| damaged)?;
        self.file_key(key).ok_or(damaged)
    }

    /// A wrapped key opens under this name alone, and so does the content of its file.
    fn bound_to(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.folder).into_bytes()
    }

    fn file_key(&self, key: &[u8]) -> Option<FileKey> {
        Some(FileKey {
            key: Arc::new(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?)),
            is_destroyed: Arc::clone(&self.ring.is_destroyed),
        })
    }

    /// The beginning of a new file that is no segment, and its key. `None`: the file stays in
    /// clear.
    pub fn begin(&self, name: &str) -> Result<Option<(FileKey, Vec<u8>)>, KeyError> {
        let new = self.new_file(name)?;
        Ok(new.map(|(key, head)| {
            let checksum = crc32fast::hash(&head).to_le_bytes();
            (key, [MAGIC, &head[..], &checksum].concat())
        }))
    }

    /// The key of a file that [`Self::begin`] began. `None`: the file is in clear.
    pub fn open_begun(&self, name: &str, bytes: &[u8]) -> Result<Option<FileKey>, Unopened> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Ok(None);
        };
        let damaged = Unopened::Damaged;
        let (head, rest) = rest.split_at_checked(HEAD_BYTES).ok_or(damaged)?;
        // Or a decayed id would look like another key.
        if !rest.starts_with(&crc32fast::hash(head).to_le_bytes()) {
            return Err(damaged);
        }
        self.open_file(name, head).map(Some)
    }

    /// A small file as a whole. Without a key the bytes stay as they are.
    pub fn seal(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, KeyError> {
        let Some((key, mut sealed)) = self.begin(name)? else {
            return Ok(bytes.to_vec());
        };
        sealed.extend_from_slice(bytes);
        key.seal(0, &[], &mut sealed, BEGIN_BYTES)?;
        Ok(sealed)
    }

    /// The content of a small file, also of one in clear.
    pub fn unseal(&self, name: &str, bytes: Vec<u8>) -> Result<Vec<u8>, Unopened> {
        let Some(key) = self.open_begun(name, &bytes)? else {
            return Ok(bytes);
        };
        let sealed = bytes.get(BEGIN_BYTES..).unwrap_or_default();
        key.open(0, &[], sealed).ok_or(Unopened::Damaged)
    }

    /// Whether these bytes are in the form in which they would be written now.
    pub fn is_as_wanted(&self, bytes: &[u8]) -> bool {
        Self::is_sealed(bytes) == self.seals()
    }

    pub fn is_sealed(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }
}

/// The key of one file. Clones are the same.
#[derive(Clone, Debug)]
pub struct FileKey {
    key: Arc<LessSafeKey>,
    is_destroyed: Arc<AtomicBool>,
}

impl FileKey {
    pub fn check(&self) -> Result<(), KeyError> {
        match self.is_destroyed.load(Ordering::Acquire) {
            true => Err(KeyError::Destroyed),
            false => Ok(()),
        }
    }

    /// Seals the end of `buffer` from `start` on, for the given offset of the file. `bound`:
    /// further bytes to which the content is bound.
    pub fn seal(
        &self,
        offset: u64,
        bound: &[u8],
        buffer: &mut Vec<u8>,
        start: usize,
    ) -> Result<(), KeyError> {
        self.check()?;
        let content = buffer.get_mut(start..).unwrap_or_default();
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce(offset), Aad::from(bound), content);
        // Fails only beyond 64 GiB.
        let tag = sealed.map_err(|_| KeyError::NoRandom)?;
        buffer.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// `None`: not what was sealed here.
    pub fn open(&self, offset: u64, bound: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        self.check().ok()?;
        let mut content = sealed.to_vec();
        let opened = self
            .key
            .open_in_place(nonce(offset), Aad::from(bound), &mut content);
        let length = opened.ok()?.len();
        content.truncate(length);
        Some(content)
    }
}

fn nonce(offset: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_piece_opens_only_in_its_place_of_its_file() {
        let keys = Keys::new(&[1; 32], b"", true).for_folder("vitals");
        let (key, head) = keys.new_file("a").unwrap().unwrap();
        let mut sealed = b"head".to_vec();
        sealed.extend_from_slice(b"reading");
        key.seal(70, b"kind", &mut sealed, 4).unwrap();
        let sealed = &sealed[4..];
        assert_ne!(&sealed[..7], b"reading");
        let again = keys.open_file("a", &head).unwrap();
        assert_eq!(again.open(70, b"kind", sealed), Some(b"reading".to_vec()));
        assert_eq!(again.open(71, b"kind", sealed), None, "another offset");
        assert_eq!(again.open(70, b"kinD", sealed), None, "another kind");
        let damaged = Some(Unopened::Damaged);
        let other_name = keys.open_file("b", &head);
        assert_eq!(other_name.err(), damaged, "another name");
        let other_folder = keys.for_folder("alerts").open_file("a", &head);
        assert_eq!(other_folder.err(), damaged, "another folder");
        for bit in ID_BYTES * 8..HEAD_BYTES * 8 {
            let mut flipped = head;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(keys.open_file("a", &flipped).err(), damaged, "bit {bit}");
        }
    }

    #[test]
    fn another_key_or_none_is_told_from_damage() {
        let keys = |file: u8, credential: &[u8]| Keys::new(&[file; 32], credential, true);
        let (_, head) = keys(1, b"c").new_file("a").unwrap().unwrap();
        let refused = |keys: Keys| keys.open_file("a", &head).err();
        assert_eq!(refused(keys(1, b"c")), None);
        let other = Some(Unopened::Key(KeyError::Other));
        assert_eq!([refused(keys(2, b"c")), refused(keys(1, b""))], [other; 2]);
        let missing = Some(Unopened::Key(KeyError::Missing));
        assert_eq!(refused(Keys::none()), missing);
    }

    #[test]
    fn small_files_are_sealed_and_those_in_clear_are_read() {
        let keys = Keys::new(&[1; 32], b"", true);
        let sealed = keys.seal("rules", b"crc and rules").unwrap();
        assert!(keys.is_as_wanted(&sealed) && !Keys::none().is_as_wanted(&sealed));
        let opened = keys.unseal("rules", sealed.clone());
        assert_eq!(opened, Ok(b"crc and rules".to_vec()));
        for at in MAGIC.len()..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            let damaged = keys.unseal("rules", damaged);
            assert_eq!(damaged, Err(Unopened::Damaged), "byte {at}");
        }
        let clear = b"1234 in clear".to_vec();
        assert_eq!(keys.unseal("rules", clear.clone()), Ok(clear));
        keys.forget();
        let destroyed = KeyError::Destroyed;
        let opened = keys.unseal("rules", sealed);
        assert_eq!(opened, Err(Unopened::Key(destroyed)));
        assert_eq!(keys.seal("rules", b""), Err(destroyed));
    }
}
