//! Batches of a courier: entries of the journal as one upload, and the bounds of the latest ones.

use std::collections::VecDeque;

use contracts::vitals::UploadRequest;

use super::sender::Generation;
use crate::journal::{Chunk, Disk, Entry, Reader};

/// Batches whose bounds are remembered: more than three links have in flight.
const CUTS_MAX: usize = 64;
/// An upload stops growing at this size; with the largest entry on top it stays below gRPC's 4 MiB.
const BATCH_BYTES_MAX: usize = 256 << 10;

pub(super) async fn read<D: Disk>(
    reader: &Reader<D>,
    from: u64,
    entries_max: usize,
) -> std::io::Result<Chunk> {
    if let Some(chunk) = reader.recent(from, entries_max, BATCH_BYTES_MAX) {
        return Ok(chunk);
    }
    let reader = reader.clone();
    tokio::task::spawn_blocking(move || reader.read(from, entries_max, BATCH_BYTES_MAX))
        .await
        .map_err(std::io::Error::other)?
}

/// The upload of these entries.
pub(super) fn upload_request(chunk: Chunk) -> UploadRequest {
    let mut request = UploadRequest {
        position: chunk.next,
        ..UploadRequest::default()
    };
    for (_, entry) in chunk.entries {
        match entry {
            Entry::Sample(sample) => request.samples.push(sample),
            Entry::Alert(alert) => request.alerts.push(alert),
            // A damaged segment of the alerts' own journal has no device. It was logged when it was
            // found.
            Entry::Gaps(gaps) => request
                .gaps
                .extend(gaps.into_iter().filter(|gap| !gap.device.is_empty())),
        }
    }
    request
}

/// Beginning and end of the latest batches.
#[derive(Default)]
pub(super) struct Cuts(VecDeque<(Generation, u64, u64)>);

impl Cuts {
    pub(super) fn note(&mut self, generation: Generation, from: u64, end: u64) {
        if self.0.len() >= CUTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((generation, from, end));
    }

    pub(super) fn start_of(&self, generation: Generation, end: u64) -> Option<u64> {
        let wanted =
            |cut: &&(Generation, u64, u64)| cut.0 == generation && cut.2 == end && cut.1 < end;
        self.0.iter().rev().find(wanted).map(|cut| cut.1)
    }
}
