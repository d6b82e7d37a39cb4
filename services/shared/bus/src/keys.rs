//! Rules of both engines: the partition of a key, the size of a record, and refusals.

use std::collections::BTreeMap;

use crate::{PUBLISH_RECORDS_MAX, PublishError, RECORD_BYTES_MAX, Record, SubscribeError};

/// FNV-1a, so that every process, version and engine agrees. Then MurmurHash3's finaliser: without
/// it, names that differ in their last letter, such as `patient-1` to `patient-9`, share one
/// partition.
pub fn partition_of(key: &str, partitions: u32) -> u32 {
    let mut hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^= hash >> 33;
    u32::try_from(hash % u64::from(partitions.max(1))).unwrap_or(0)
}

/// Names that are tried for each partition by [`keys_of_partitions`]. A partition that none of them
/// falls into is left out; for 8 partitions that is one case in e^256.
const TRIED_FOR_EACH: u32 = 256;

/// One key for each partition: the first of `name`, `name.0`, `name.1` and so on that falls into
/// it.
pub fn keys_of_partitions(name: &str, partitions: u32) -> BTreeMap<u32, String> {
    let numbered = (0..partitions.saturating_mul(TRIED_FOR_EACH)).map(|n| format!("{name}.{n}"));
    let mut keys = BTreeMap::new();
    for key in std::iter::once(name.to_owned()).chain(numbered) {
        keys.entry(partition_of(&key, partitions)).or_insert(key);
        if u32::try_from(keys.len()).is_ok_and(|found| found >= partitions) {
            break;
        }
    }
    keys
}

/// The bytes that count against [`crate::RECORD_BYTES_MAX`].
pub fn bytes_of(record: &Record) -> usize {
    record.key.len()
        + record.value.len()
        + record
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum::<usize>()
}

/// The bytes of one `publish` call, unless it is refused.
pub fn check_limits(records: &[Record]) -> Result<usize, PublishError> {
    if records.len() > PUBLISH_RECORDS_MAX {
        return Err(PublishError::TooMany {
            records: records.len(),
        });
    }
    records.iter().try_fold(0, |sum, record| {
        let bytes = bytes_of(record);
        if bytes > RECORD_BYTES_MAX {
            return Err(PublishError::TooLarge { bytes });
        }
        Ok(sum + bytes)
    })
}

pub fn check_group_name(group: &str) -> Result<(), SubscribeError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if group.is_empty() || group.len() > 100 || !group.chars().all(legal) {
        return Err(SubscribeError::GroupName(group.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_of_a_key_never_changes() {
        // These values never change: stored records, and alerting's state per partition, depend on
        // them.
        let known = [("ada", 8), ("patient-7", 8), ("", 8), ("gw-1", 4)];
        assert_eq!(
            known.map(|(key, partitions)| partition_of(key, partitions)),
            [1, 7, 6, 1]
        );
    }

    #[test]
    fn every_partition_has_a_key_of_its_own() {
        for partitions in [1, 2, 8, 100, 1000] {
            let keys = keys_of_partitions("canary", partitions);
            assert_eq!(keys.len(), partitions as usize);
            for (partition, key) in &keys {
                assert_eq!(partition_of(key, partitions), *partition);
            }
            let own = partition_of("canary", partitions);
            assert_eq!(keys[&own], "canary");
        }
    }

    #[test]
    fn numbered_patients_are_spread_evenly() {
        let mut patients = [0; 8];
        for number in 0..1000 {
            let partition = partition_of(&format!("patient-{number}"), 8);
            patients[usize::try_from(partition).unwrap_or(0)] += 1;
        }
        assert!(
            patients.iter().all(|n| (90..160).contains(n)),
            "{patients:?}"
        );
    }
}
