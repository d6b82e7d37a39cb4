//! The newest batches in clear, kept in memory: entries and their copies are uploaded from here,
//! without reading the disk.

use std::{collections::VecDeque, sync::Arc};

/// Bytes of all batches; at the bound the oldest batch is dropped, and its readers use the disk. A
/// courier that far behind has a backlog.
pub const BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
struct Batch {
    first: u64,
    /// Position after its last entry.
    end: u64,
    frames: Arc<[u8]>,
}

/// Oldest first. Positions between two batches may be on the disk alone.
#[derive(Debug, Default)]
pub struct Recent {
    batches: VecDeque<Batch>,
    bytes: usize,
}

impl Recent {
    /// Must be called with durable batches, in order.
    pub fn note(&mut self, first: u64, entries: usize, frames: &[u8]) {
        if entries == 0 {
            return;
        }
        self.bytes += frames.len();
        self.batches.push_back(Batch {
            first,
            end: first + entries as u64,
            frames: frames.into(),
        });
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.batches.pop_front()
        {
            self.bytes -= oldest.frames.len();
        }
    }

    /// The batch with the entry at `position`.
    pub fn holding(&self, position: u64) -> Option<Arc<[u8]>> {
        let at = self.batches.partition_point(|it| it.end <= position);
        let batch = self.batches.get(at)?;
        (batch.first <= position).then(|| Arc::clone(&batch.frames))
    }

    /// The batches with entries from `position` on, oldest first.
    pub fn since(&self, position: u64) -> Vec<Arc<[u8]>> {
        let at = self.batches.partition_point(|it| it.end <= position);
        let batches = self.batches.range(at..);
        batches.map(|batch| Arc::clone(&batch.frames)).collect()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_batches_are_found_by_position_and_the_oldest_are_dropped() {
        let mut recent = Recent::default();
        assert_eq!(recent.holding(0), None);
        recent.note(3, 2, b"ab");
        recent.note(5, 0, b"no entry");
        // Positions 5 and 6 begin another segment.
        recent.note(7, 1, b"c");
        let found = |recent: &Recent, position| recent.holding(position).map(|it| it.to_vec());
        let all: Vec<_> = (2..9).map(|position| found(&recent, position)).collect();
        let [ab, c] = [&b"ab"[..], b"c"].map(|frames| Some(frames.to_vec()));
        assert_eq!(all, [None, ab.clone(), ab, None, None, c.clone(), None]);
        recent.note(8, 1, &vec![0; BYTES_MAX - 1]);
        assert_eq!((found(&recent, 3), found(&recent, 7)), (None, c));
        recent.note(9, 1, &vec![0; BYTES_MAX + 1]);
        assert_eq!((found(&recent, 8), found(&recent, 9)), (None, None));
        assert_eq!(recent.bytes, 0);
    }
}
