//! The core's rules on the disk.
//!
//! Invariant: one write at a time, so that older rules never replace newer ones. A write that does
//! not return is left to itself, and ends before the next one begins.

use std::io;

use contracts::vitals::FollowRulesResponse;
use prost::Message;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

use crate::{
    journal::{Disk, DiskFile, STALLED_AFTER},
    rules_in_force::RulesInForce,
    sealing::Unopened,
};

/// Bytes of the file; a larger file counts as damaged. A core sends at most 3 MiB.
const FILE_BYTES_MAX: usize = 8 << 20;
const FILE: &str = "rules";
const FILE_NEW: &str = "rules.new";

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the stored rules cannot be read: {0}")]
    Storage(#[from] io::Error),
    #[error("the stored rules are damaged")]
    Damaged,
}

/// The rules in force on disk, sealed: a checksum, and the answer that they come from.
#[derive(Clone)]
pub struct RulesFile<D>(pub D);

impl<D: Disk> RulesFile<D> {
    /// Returns empty rules if none were kept. Blocks on the disk.
    pub fn load(&self) -> Result<RulesInForce, LoadError> {
        if !self.0.list()?.iter().any(|name| name == FILE) {
            return Ok(RulesInForce::default());
        }
        let stored = self.0.read_at(FILE, 0, FILE_BYTES_MAX)?;
        let is_as_wanted = self.0.keys().is_as_wanted(&stored);
        let bytes = match self.0.keys().unseal(FILE, stored) {
            Err(Unopened::Damaged) => return Err(LoadError::Damaged),
            unsealed => unsealed.map_err(io::Error::from)?,
        };
        let (checksum, answer) = bytes.split_first_chunk().ok_or(LoadError::Damaged)?;
        if crc32fast::hash(answer) != u32::from_le_bytes(*checksum) {
            return Err(LoadError::Damaged);
        }
        let answer = FollowRulesResponse::decode(answer).map_err(|_| LoadError::Damaged)?;
        let (in_force, refused) = RulesInForce::default().take(answer);
        // Another version of this program stored them.
        for refused in refused {
            tracing::warn!("{refused}");
        }
        if !is_as_wanted && let Err(error) = self.store(&in_force) {
            tracing::warn!(%error, "the stored rules keep their former encryption");
        }
        Ok(in_force)
    }

    /// Atomic, and durable when it returns. Blocks on the disk.
    pub fn store(&self, in_force: &RulesInForce) -> io::Result<()> {
        let answer = in_force.to_answer().encode_to_vec();
        let checksum = crc32fast::hash(&answer).to_le_bytes();
        let bytes = [&checksum[..], &answer].concat();
        let mut file = self.0.create(FILE_NEW)?;
        file.append(&self.0.keys().seal(FILE, &bytes)?)?;
        file.sync()?;
        self.0.rename(FILE_NEW, FILE)?;
        self.0.sync_directory()
    }
}

/// Writes the rules.
#[derive(Default)]
pub(super) struct Storing {
    /// A write that did not return in time.
    under_way: Option<JoinHandle<io::Result<()>>>,
}

impl Storing {
    /// Returns once the rules are on disk, or after `STALLED_AFTER` with an error.
    pub(super) async fn store<D: Disk>(
        &mut self,
        file: &RulesFile<D>,
        rules: &RulesInForce,
    ) -> io::Result<()> {
        let stored = async {
            if let Some(before) = &mut self.under_way {
                // Its outcome was reported as an error already.
                let _ = before.await;
            }
            let (file, rules) = (file.clone(), rules.clone());
            let write = self
                .under_way
                .insert(spawn_blocking(move || file.store(&rules)));
            let written = write.await;
            self.under_way = None;
            written.map_err(io::Error::other).flatten()
        };
        let stored = timeout(STALLED_AFTER, stored).await;
        stored.unwrap_or_else(|_| {
            let reason = format!(
                "the disk has not answered for {} s",
                STALLED_AFTER.as_secs()
            );
            Err(io::Error::new(io::ErrorKind::TimedOut, reason))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{from_ingest::crash_tests::in_force, journal::test_disk::Stopping};

    #[tokio::test]
    async fn a_disk_that_stalls_holds_up_no_rules_and_gets_the_newest_last() {
        let disk = Stopping::new(1);
        let (file, mut storing) = (RulesFile(disk.clone()), Storing::default());
        storing.store(&file, &in_force(1)).await.unwrap();
        disk.stop(true);
        for version in [2, 3] {
            let refused = storing.store(&file, &in_force(version)).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
        }
        disk.stop(false);
        storing.store(&file, &in_force(4)).await.unwrap();
        assert_eq!(file.load().unwrap(), in_force(4));
    }
}
