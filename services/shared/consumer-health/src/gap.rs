//! Records that a group may never get, because the bus was lost and another one is in its place.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use bus::Topic;
use store::LogGap;

use crate::standing::Moment;

/// A gap is reported for this long after it was found, so that a look once a week is enough.
pub const SHOWN_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

pub const TO_DO: &str = "see infra/runbooks.md#busreplaced; it is shown for 7 days";

/// A gap that was found before this time is not reported.
pub fn shown_since(now_us: i64) -> i64 {
    let shown_us = i64::try_from(SHOWN_FOR.as_micros()).unwrap_or(i64::MAX);
    now_us.saturating_sub(shown_us)
}

/// One sentence for each group and topic. Partitions that were found together are named together.
pub fn sentences(gaps: &[LogGap]) -> Vec<String> {
    let mut of_group: BTreeMap<(&str, Topic), Vec<&LogGap>> = BTreeMap::new();
    for gap in gaps {
        let group = of_group.entry((&gap.group, gap.topic)).or_default();
        group.push(gap);
    }
    let of_group = of_group.into_iter();
    of_group
        .map(|((group, topic), gaps)| {
            let from_us = gaps.iter().filter_map(|gap| gap.from_us).min();
            let to_us = gaps.iter().map(|gap| gap.to_us).max().unwrap_or_default();
            let mut partitions: Vec<u32> = gaps.iter().map(|gap| gap.partition).collect();
            partitions.sort_unstable();
            partitions.dedup();
            let from = from_us.map_or_else(|| "an unknown time".to_owned(), utc);
            format!(
                "the bus is another one than before: records of {topic} that it had taken between {from} and {} may be missing (group {group}, partitions {})",
                utc(to_us),
                bus::listed(partitions)
            )
        })
        .collect()
}

fn utc(wall_us: i64) -> String {
    Moment {
        wall_us,
        at: Instant::now(),
    }
    .utc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_a_group_are_one_sentence() {
        let gap = |group: &str, partition, from_us| LogGap {
            group: group.to_owned(),
            topic: Topic::Vitals,
            partition,
            from_us,
            to_us: 1_764_000_060_000_000,
        };
        let gaps = [
            gap("ingest-store", 3, Some(1_764_000_000_000_000)),
            gap("ingest-store", 0, Some(1_764_000_030_000_000)),
            gap("ingest-store", 0, None),
            gap("alerting", 1, None),
        ];
        assert_eq!(
            sentences(&gaps),
            [
                "the bus is another one than before: records of vitals that it had taken between an unknown time and 2025-11-24T16:01:00Z may be missing (group alerting, partitions 1)",
                "the bus is another one than before: records of vitals that it had taken between 2025-11-24T16:00:00Z and 2025-11-24T16:01:00Z may be missing (group ingest-store, partitions 0, 3)",
            ]
        );
        assert!(sentences(&[]).is_empty());
    }
}
