//! Divides a batch for two transactions at the same time.

use std::{cmp::Reverse, collections::BTreeMap};

use bus::Delivery;

/// Two parts without a common partition, about equal in records. Each partition keeps its order. A
/// batch of fewer records than `from` stays whole.
pub(crate) fn divide(deliveries: Vec<Delivery>, from: Option<usize>) -> [Vec<Delivery>; 2] {
    if from.is_none_or(|from| deliveries.len() < from) {
        return [deliveries, Vec::new()];
    }
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for delivery in &deliveries {
        *counts.entry(delivery.partition).or_default() += 1;
    }
    let mut partitions: Vec<(u32, usize)> = counts.into_iter().collect();
    partitions.sort_by_key(|(_, count)| Reverse(*count));
    let (mut firsts, mut of_first, mut of_second) = (Vec::new(), 0, 0);
    for (partition, count) in partitions {
        if of_first <= of_second {
            firsts.push(partition);
            of_first += count;
        } else {
            of_second += count;
        }
    }
    let (first, second) = deliveries
        .into_iter()
        .partition(|delivery| firsts.contains(&delivery.partition));
    [first, second]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(partition: u32, offset: u64) -> Delivery {
        Delivery {
            topic: bus::Topic::Vitals,
            partition,
            offset,
            key: String::new(),
            value: Default::default(),
            headers: Vec::new(),
            published_us: 0,
        }
    }

    #[test]
    fn the_parts_share_no_partition_and_keep_its_order() {
        let deliveries: Vec<Delivery> = (0..140_u64)
            .map(|n| delivery([0, 1, 0, 2, 0, 3][n as usize % 6], n))
            .collect();
        let [one, other] = divide(deliveries.clone(), Some(140));
        assert_eq!(one.len() + other.len(), deliveries.len());
        assert!(one.len().abs_diff(other.len()) <= deliveries.len() / 10);
        for (part, elsewhere) in [(&one, &other), (&other, &one)] {
            assert!(part.is_sorted_by_key(|delivery| delivery.offset));
            let is_elsewhere = |partition| elsewhere.iter().any(|it| it.partition == partition);
            assert!(!part.iter().any(|it| is_elsewhere(it.partition)));
        }
    }

    #[test]
    fn a_small_batch_and_a_single_partition_stay_whole() {
        let small: Vec<Delivery> = (0..4).map(|n| delivery(n, 0)).collect();
        assert!(divide(small.clone(), Some(5))[1].is_empty());
        assert!(divide(small.clone(), None)[1].is_empty());
        assert_eq!(divide(small, Some(4))[1].len(), 2);
        let single: Vec<Delivery> = (0..1000).map(|n| delivery(7, n)).collect();
        assert!(divide(single, Some(100))[1].is_empty());
    }
}
