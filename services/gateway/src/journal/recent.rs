//! The newest batches as they lie on the disk, kept in memory: what is uploaded as it comes, and its copy, is never read back from there.

use std::{collections::VecDeque, sync::Arc};

/// Of all batches together. Beyond it the oldest go, and who asks for them reads the disk: a courier that is so far behind has a backlog.
pub const BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
struct Batch {
    first: u64,
    /// Behind its last entry.
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
    /// To be called with what is durable, in order.
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

    /// The batch that has the entry at `position`.
    pub fn holding(&self, position: u64) -> Option<Arc<[u8]>> {
        let at = self.batches.partition_point(|it| it.end <= position);
        let batch = self.batches.get(at)?;
        (batch.first <= position).then(|| Arc::clone(&batch.frames))
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_batches_are_found_by_position_and_the_oldest_go() {
        let mut recent = Recent::default();
        assert_eq!(recent.holding(0), None);
        recent.note(3, 2, b"ab");
        recent.note(5, 0, b"no entry");
        // What is at 5 and 6 is the beginning of another segment.
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
