//! Hashing of passwords in memory that is kept for the next hash.
//!
//! A hash takes 19 MiB, aligned. Allocated anew for each sign-in, such blocks fragment the heap: a
//! burst of sign-ins exhausted a container's memory. Kept, the blocks of two hashes at once are all
//! that is needed.

use argon2::password_hash::{Error, Output, ParamsString, PasswordHash, SaltString};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Hashes computed at once; each takes tens of milliseconds of a core. Further hashes wait.
const HASHES_MAX: usize = 2;
/// Longest salt of a hash in PHC format.
const SALT_BYTES_MAX: usize = 64;

static PLACES: Semaphore = Semaphore::const_new(HASHES_MAX);
/// Blocks for the next hashes, at most as many as there are places.
static LEFT: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

/// As large as the largest hash that used it.
#[derive(Default)]
pub(crate) struct Memory(Vec<Block>);

/// The result of `work`, computed outside of the runtime's threads. `None`: it was not computed.
pub(crate) async fn hashing<T: Send + 'static>(
    work: impl FnOnce(&mut Memory) -> T + Send + 'static,
) -> Option<T> {
    let place = PLACES.acquire().await.ok()?;
    let done = tokio::task::spawn_blocking(move || {
        // The work holds the place, because the caller may go away long before the work ends.
        let _place = place;
        let mut memory = LEFT.lock().pop().unwrap_or_default();
        let done = work(&mut memory);
        LEFT.lock().push(memory);
        done
    });
    done.await.ok()
}

impl Memory {
    /// In PHC format.
    pub(crate) fn hash(&mut self, password: &str, salt: &[u8]) -> Result<String, Error> {
        let (algorithm, version, params) =
            (Algorithm::default(), Version::default(), Params::default());
        let encoded = SaltString::encode_b64(salt)?;
        let output = self.compute(
            Argon2::new(algorithm, version, params.clone()),
            password,
            salt,
        )?;
        let hash = PasswordHash {
            algorithm: algorithm.ident(),
            version: Some(version.into()),
            params: ParamsString::try_from(&params)?,
            salt: Some(encoded.as_salt()),
            hash: Some(output),
        };
        Ok(hash.to_string())
    }

    /// Whether the hash in PHC format belongs to this password.
    pub(crate) fn verify(&mut self, password: &str, expected: &str) -> Result<bool, Error> {
        let expected = PasswordHash::new(expected)?;
        let algorithm = Algorithm::try_from(expected.algorithm)?;
        let version = expected
            .version
            .map_or(Ok(Version::default()), Version::try_from)?;
        let mut buffer = [0; SALT_BYTES_MAX];
        let salt = expected
            .salt
            .ok_or(Error::PhcStringField)?
            .decode_b64(&mut buffer)?;
        let argon2 = Argon2::new(algorithm, version, Params::try_from(&expected)?);
        // Outputs are compared in constant time.
        Ok(expected.hash == Some(self.compute(argon2, password, salt)?))
    }

    fn compute(&mut self, by: Argon2<'_>, password: &str, salt: &[u8]) -> Result<Output, Error> {
        let blocks = by.params().block_count();
        if self.0.len() < blocks {
            self.0.resize(blocks, Block::default());
        }
        let length = by
            .params()
            .output_len()
            .unwrap_or(Params::DEFAULT_OUTPUT_LEN);
        Output::init_with(length, |output| {
            let done = by.hash_password_into_with_memory(
                password.as_bytes(),
                salt,
                output,
                &mut self.0[..blocks],
            );
            Ok(done?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use argon2::{PasswordHasher, PasswordVerifier};

    #[test]
    fn agrees_with_the_library_in_memory_that_was_used_before() {
        let mut memory = Memory::default();
        let salt = [7; 16];
        for password in ["correct horse", "battery staple"] {
            let ours = memory.hash(password, &salt).unwrap();
            let encoded = SaltString::encode_b64(&salt).unwrap();
            let theirs = Argon2::default()
                .hash_password(password.as_bytes(), &encoded)
                .unwrap();
            assert_eq!(ours, theirs.to_string());
            assert!(
                Argon2::default()
                    .verify_password(password.as_bytes(), &PasswordHash::new(&ours).unwrap())
                    .is_ok()
            );
            assert!(memory.verify(password, &ours).unwrap());
            assert!(!memory.verify("wrong", &ours).unwrap());
        }
        assert!(memory.verify("wrong", "no hash").is_err());
    }
}
