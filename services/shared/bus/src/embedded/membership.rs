//! Decides which member of a group reads which partition, without database and clock.
//!
//! The members share two tables: members with a beat that each raises while it lives, and leases,
//! one row for each held partition. Each member looks at the tables in turn (the database orders
//! them) and decides only for itself:
//!
//! - A member whose beat stood still for [`DEAD_AFTER`] by the observer's own clock, or whose
//!   process is gone, is dead. No clocks are compared, so a step of the wall clock has no effect.
//! - The n live members stand in order of their names, and there are P partitions. The quota of
//!   member r is P / n, and 1 more if r < P % n.
//! - A member above its quota returns its highest partitions. A member below its quota takes free
//!   partitions (without a lease, or with that of a dead member).
//!
//! The quotas add up to P, so every partition ends up with a member and nothing moves without need.

use std::{collections::BTreeMap, time::Duration};

/// A member that does not beat for this long has lost its partitions.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);

/// The rows of one (group, topic).
#[derive(Debug, Clone, Default)]
pub struct Tables {
    pub members: Vec<Member>,
    /// Partition to the member that holds it.
    pub leases: BTreeMap<u32, String>,
}

#[derive(Debug, Clone)]
pub struct Member {
    pub name: String,
    /// The process of the member.
    pub instance: String,
    pub beat: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Dead members, to be removed.
    pub bury: Vec<String>,
    /// Free partitions for this member.
    pub take: Vec<u32>,
    /// Partitions of this member that others should have.
    pub give: Vec<u32>,
}

/// The memory of one member between two looks.
#[derive(Debug, Default)]
pub struct View {
    /// The beat of each other member, and when it was first seen. Bounded by the members in the
    /// table.
    seen: BTreeMap<String, (u64, Duration)>,
}

impl View {
    /// `now` is of any monotonic clock; `gone` holds when the process of an instance has ended.
    pub fn look(
        &mut self,
        now: Duration,
        me: &str,
        partitions: u32,
        tables: &Tables,
        gone: impl Fn(&str) -> bool,
    ) -> Plan {
        let mut plan = Plan::default();
        let mut live: Vec<&str> = vec![me];
        self.seen
            .retain(|name, _| tables.members.iter().any(|m| m.name == *name));
        for member in tables.members.iter().filter(|m| m.name != me) {
            let seen = self
                .seen
                .entry(member.name.clone())
                .or_insert((member.beat, now));
            if seen.0 != member.beat {
                *seen = (member.beat, now);
            }
            if now.saturating_sub(seen.1) >= DEAD_AFTER || gone(&member.instance) {
                plan.bury.push(member.name.clone());
            } else {
                live.push(&member.name);
            }
        }
        live.sort_unstable();
        live.dedup();

        let count = u32::try_from(live.len()).unwrap_or(u32::MAX);
        let rank = live.iter().position(|name| *name == me).unwrap_or(0);
        let extra = usize::try_from(partitions % count).unwrap_or(0);
        let quota = usize::try_from(partitions / count).unwrap_or(0) + usize::from(rank < extra);

        let mine: Vec<u32> = tables
            .leases
            .iter()
            .filter(|(_, holder)| *holder == me)
            .map(|(partition, _)| *partition)
            .collect();
        if mine.len() > quota {
            plan.give = mine[quota..].to_vec();
        } else {
            plan.take = (0..partitions)
                .filter(|partition| {
                    tables
                        .leases
                        .get(partition)
                        .is_none_or(|holder| !live.contains(&holder.as_str()))
                })
                .take(quota - mine.len())
                .collect();
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// A few members that join, die and beat in random order over shared tables.
    struct Group {
        tables: Tables,
        views: BTreeMap<String, View>,
        now: Duration,
        partitions: u32,
    }

    impl Group {
        fn step(&mut self, me: &str) {
            let plan = self.views.get_mut(me).unwrap().look(
                self.now,
                me,
                self.partitions,
                &self.tables,
                |_| false,
            );
            if !self.tables.members.iter().any(|m| m.name == me) {
                self.tables.members.push(Member {
                    name: me.into(),
                    instance: me.into(),
                    beat: 0,
                });
            }
            for member in &mut self.tables.members {
                if member.name == me {
                    member.beat += 1;
                }
            }
            self.tables.members.retain(|m| !plan.bury.contains(&m.name));
            self.tables
                .leases
                .retain(|p, holder| !plan.bury.contains(holder) && !plan.give.contains(p));
            for partition in plan.take {
                assert!(
                    !self.tables.leases.contains_key(&partition),
                    "takes only what is free"
                );
                self.tables.leases.insert(partition, me.into());
            }
        }
    }

    #[test]
    fn every_partition_ends_with_exactly_one_live_member_and_shares_differ_by_one_at_most() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut group = Group {
                tables: Tables::default(),
                views: BTreeMap::new(),
                now: Duration::ZERO,
                partitions: random.random_range(1..20),
            };
            let mut joined = 0;
            for _ in 0..random.random_range(1..60) {
                match random.random_range(0..10) {
                    0..2 => {
                        joined += 1;
                        group.views.insert(
                            format!("m{:03}", random.random_range(0..1000)),
                            View::default(),
                        );
                    }
                    2 if !group.views.is_empty() => {
                        let name = group
                            .views
                            .keys()
                            .nth(random.random_range(0..group.views.len()))
                            .unwrap()
                            .clone();
                        group.views.remove(&name);
                    }
                    _ if !group.views.is_empty() => {
                        let name = group
                            .views
                            .keys()
                            .nth(random.random_range(0..group.views.len()))
                            .unwrap()
                            .clone();
                        group.step(&name);
                        group.now += Duration::from_millis(random.random_range(0..300));
                    }
                    _ => {}
                }
            }
            if joined == 0 || group.views.is_empty() {
                group.views.insert("last".into(), View::default());
            }
            let names: Vec<String> = group.views.keys().cloned().collect();
            for _ in 0..60 {
                for name in &names {
                    group.step(name);
                }
                group.now += Duration::from_millis(200);
            }
            assert_eq!(
                group.tables.leases.len(),
                group.partitions as usize,
                "seed {seed}: every partition is held"
            );
            let mut shares: BTreeMap<&str, usize> = names.iter().map(|n| (n.as_str(), 0)).collect();
            for holder in group.tables.leases.values() {
                *shares
                    .get_mut(holder.as_str())
                    .unwrap_or_else(|| panic!("seed {seed}: {holder} is dead")) += 1;
            }
            let (least, most) = (shares.values().min(), shares.values().max());
            assert!(
                most.unwrap() - least.unwrap() <= 1,
                "seed {seed}: {shares:?}"
            );
        }
    }

    #[test]
    fn a_member_of_a_dead_process_is_buried_at_once() {
        let tables = Tables {
            members: vec![Member {
                name: "a".into(),
                instance: "dead".into(),
                beat: 7,
            }],
            leases: BTreeMap::from([(0, "a".into()), (1, "a".into())]),
        };
        let mut view = View::default();
        let alive = view.look(Duration::ZERO, "b", 2, &tables, |_| false);
        assert_eq!(alive, Plan::default(), "waits for the holder to give");
        let plan = view.look(Duration::ZERO, "b", 2, &tables, |i| i == "dead");
        assert_eq!(plan.bury, ["a"]);
        assert_eq!(plan.take, [0, 1]);
    }
}
