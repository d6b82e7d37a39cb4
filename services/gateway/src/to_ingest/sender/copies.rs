//! Copies of entries without an acknowledgement, on links of their own.

use std::time::{Duration, Instant};

use super::{Command, Generation, Sender};

/// Entries without an acknowledgement beyond this number are a backlog, which is not copied.
pub(super) const COPIED_ENTRIES_MAX: u64 = 64;

/// Uploads with this freshness or a longer one are copied only while the sender is redundant. A
/// copy saves a round trip, which is little beside that age, for twice the data.
const COPIED_BELOW: Duration = Duration::from_millis(500);

/// A link for copies, and the position that it has reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copier {
    pub(super) generation: Generation,
    pub(super) copied: u64,
    /// Start of the copy that is being sent.
    pub(super) from: u64,
    /// It is from before a takeover, and is replaced by the next link that comes up.
    pub(super) old: bool,
}

impl Sender {
    pub(super) fn copier_of(&self, generation: Generation) -> Option<usize> {
        let mut copiers = self.copiers.iter();
        copiers.position(|copier| copier.generation == generation)
    }

    /// Whether no link for copies is missing, and none is old.
    pub(super) fn has_copiers(&self) -> bool {
        let fresh = self.copiers.iter().filter(|copier| !copier.old);
        fresh.count() >= self.limits.copies
    }

    /// The link is up, and takes the place and the number of an old one if there is any.
    pub(super) fn add_copier(&mut self, generation: Generation) {
        let copier = Copier {
            generation,
            copied: self.acknowledged,
            from: self.acknowledged,
            old: false,
        };
        match self.copiers.iter_mut().find(|copier| copier.old) {
            Some(old) => {
                let old = std::mem::replace(old, copier);
                self.closing.push_back(old.generation);
            }
            None => self.copiers.push(copier),
        }
    }

    pub(super) fn poll_copy(&mut self, now: Instant) -> Option<Command> {
        let (index, _) = self.copy_at().filter(|(_, at)| now >= *at)?;
        let copier = self.copiers.get_mut(index)?;
        copier.from = copier.copied.max(self.acknowledged);
        self.sending = true;
        Some(Command::Copy {
            generation: copier.generation,
            number: u8::try_from(index + 1).unwrap_or(u8::MAX),
            from: copier.from,
            until: self.next,
        })
    }

    /// The next link for copies and its time. Its oldest batch without a copy counts.
    pub(super) fn copy_at(&self) -> Option<(usize, Instant)> {
        let few = self.durable.saturating_sub(self.acknowledged) <= COPIED_ENTRIES_MAX;
        let fresh = self.redundant || self.limits.freshness < COPIED_BELOW;
        if !few || self.sending || !fresh {
            return None;
        }
        let after = match self.redundant {
            true => Duration::ZERO,
            false => self.usual.copy_after(),
        };
        let due = |copier: &Copier| {
            let mut batches = self.in_flight.iter();
            batches
                .find(|batch| batch.end > copier.copied)
                .map(|batch| batch.sent + after)
        };
        let each = self.copiers.iter().enumerate();
        let each = each.filter_map(|(index, copier)| Some((index, due(copier)?)));
        each.min_by_key(|(_, at)| *at)
    }
}
