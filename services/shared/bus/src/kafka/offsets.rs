//! The offsets that a cluster reports, and those that it leaves out.

use std::collections::BTreeMap;

use rdkafka::{Offset, TopicPartitionList, error::KafkaError};

use crate::ConsumeError;

/// A partition without an offset is absent: nothing was committed. A cluster in trouble answers for
/// some partitions only. One complaint fails the whole answer, because an unknown offset must
/// not pass for an absent one.
pub fn known_offsets(list: &TopicPartitionList) -> Result<BTreeMap<u32, u64>, KafkaError> {
    let mut known = BTreeMap::new();
    for element in list.elements() {
        element.error()?;
        let offset = match element.offset() {
            Offset::Offset(offset) => u64::try_from(offset).ok(),
            _ => None,
        };
        let partition = u32::try_from(element.partition()).ok();
        known.extend(partition.zip(offset));
    }
    Ok(known)
}

/// A partition that was begun without an offset would count as read and never be, and the library
/// would refuse to release it.
pub fn complete(starts: &BTreeMap<u32, u64>, partitions: &[u32]) -> Result<(), ConsumeError> {
    let missing = partitions.iter().filter(|p| !starts.contains_key(p));
    let missing: Vec<_> = missing.map(u32::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(ConsumeError::Unavailable(format!(
        "the cluster does not say where partitions {} begin",
        missing.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kafka::assignment::list;

    #[test]
    fn what_is_unknown_does_not_pass_for_what_was_never_committed() {
        let mut answer = list("vitals", &[0, 1]);
        answer
            .set_partition_offset("vitals", 0, Offset::Offset(7))
            .unwrap();
        let known = known_offsets(&answer).unwrap();
        assert_eq!(known, BTreeMap::from([(0, 7)]), "1 has no commit");
        assert!(complete(&known, &[0]).is_ok());
        let refused = complete(&known, &[0, 1]).unwrap_err();
        assert!(
            refused.to_string().contains("partitions 1 begin"),
            "{refused}"
        );
    }
}
