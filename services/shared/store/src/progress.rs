use async_trait::async_trait;
use bus::{Log, Topic};

use crate::error::{ClaimError, QueryError};

/// Right of one member to write the rows of one partition, until another member claims it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub group: String,
    pub topic: Topic,
    pub partition: u32,
    /// Rises by 1 with every claim of (group, topic, partition).
    pub epoch: u64,
    /// Offset of the first record whose effect is not stored. `None`: the group never stored any;
    /// begin at the oldest record.
    pub next_offset: Option<u64>,
    /// This claim found another log than the stored position is of, and dropped the position.
    pub gap: Option<LogGap>,
}

impl Claim {
    pub fn progress(&self, next_offset: u64) -> Progress {
        Progress {
            group: self.group.clone(),
            topic: self.topic,
            partition: self.partition,
            epoch: self.epoch,
            next_offset,
            read_us: None,
        }
    }
}

/// Records that a group may never get: its position was of a log that is gone. Kept until
/// [`LOG_GAPS_MAX`] newer ones of the same partition came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogGap {
    pub group: String,
    pub topic: Topic,
    pub partition: u32,
    /// When the bus had taken the last record that is known to be done. `None`: it is not known.
    pub from_us: Option<i64>,
    /// When the other log was found.
    pub to_us: i64,
}

/// Gaps that are kept of one partition and group. Older ones are removed.
pub const LOG_GAPS_MAX: u32 = 16;

/// A position counts for the log that it names. A position without a name was stored before
/// positions had one, and is of this log unless it is behind the end.
pub(crate) fn is_of_another_log(named: &str, next_offset: Option<u64>, log: &Log) -> bool {
    let is_behind_the_end = next_offset
        .zip(log.next)
        .is_some_and(|(next, end)| next > end);
    (!named.is_empty() && named != log.identity) || is_behind_the_end
}

/// Written in the same transaction as the rows that come from the records before `next_offset`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub group: String,
    pub topic: Topic,
    pub partition: u32,
    pub epoch: u64,
    pub next_offset: u64,
    /// When the bus took a record of the batch in hand. `None`: it is not known, and the stored
    /// time stays.
    pub read_us: Option<i64>,
}

#[async_trait]
pub trait ProgressStore: Send + Sync {
    /// Takes the partition for the caller: every earlier claim of it is fenced from here on. A
    /// position of another log than `log` is dropped, and a [`LogGap`] is kept in its place.
    async fn claim(
        &self,
        group: &str,
        topic: Topic,
        partition: u32,
        log: &Log,
    ) -> Result<Claim, ClaimError>;

    /// `(partition, next_offset)` of each partition whose progress the group stored.
    async fn progress(&self, group: &str, topic: Topic) -> Result<Vec<(u32, u64)>, QueryError>;

    /// Gaps of all groups that were found at `since_us` or later, the oldest first.
    async fn log_gaps(&self, since_us: i64) -> Result<Vec<LogGap>, QueryError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store of an older version, and a log that its positions do not name.
    #[test]
    fn a_position_without_a_name_is_adopted_unless_it_is_behind_the_end() {
        let log = |next| Log {
            identity: "one".to_owned(),
            next,
        };
        let another = |named: &str, position, next| is_of_another_log(named, position, &log(next));
        assert!(!another("", None, Some(0)), "a new group");
        assert!(!another("", Some(7), Some(7)) && !another("one", Some(7), Some(7)));
        assert!(another("", Some(8), Some(7)) && another("one", Some(8), Some(7)));
        assert!(another("two", Some(1), Some(7)) && another("two", None, Some(7)));
        // The leader is away: only the name counts.
        assert!(!another("", Some(8), None) && !another("one", Some(8), None));
        assert!(another("two", Some(8), None));
    }
}
