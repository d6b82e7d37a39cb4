//! What tests of transfers need: bytes to send, and the patience to wait for them.

use std::{future::Future, time::Duration};

use rand::{Rng, SeedableRng};

/// Generous, since CI machines are slow; nothing is measured by it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// What comes of `what`; a test that waits longer fails.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what)
        .await
        .expect("within the deadline")
}

/// Bytes that look like no other bytes of the same transfer.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rand_chacha::ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
