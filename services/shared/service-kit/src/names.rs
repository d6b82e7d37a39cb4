//! Names that a peer chooses, such as those of its paths: each owner has a bounded number of them.
//! Sans-IO.
//!
//! A name beyond the bound replaces the name that was unused for longest, if that name was unused
//! for [`Bound::unused`]. Otherwise the new name is refused. So a peer can neither fill a table
//! with names nor push out names in use.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// Owners that are remembered. At the bound, owners without a name in use are forgotten; if there
/// are none, all owners are forgotten and start anew.
const OWNERS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Names of one owner; at the bound a name is replaced or refused.
    pub names_max: usize,
    /// Time for which a name counts as in use after its last use.
    pub unused: Duration,
}

/// The result of entering a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Known,
    New,
    /// The name replaced another name that was no longer in use.
    Replaces,
    /// All names of the owner are in use.
    Refused,
}

#[derive(Debug)]
pub struct Names<K, N> {
    bound: Bound,
    owners: HashMap<K, HashMap<N, Instant>>,
}

impl<K: Clone + Eq + Hash, N: Clone + Eq + Hash> Names<K, N> {
    pub fn new(bound: Bound) -> Names<K, N> {
        Names {
            bound,
            owners: HashMap::new(),
        }
    }

    /// Records that the owner uses the name.
    pub fn enter(&mut self, owner: &K, name: &N, now: Instant) -> Named {
        let Bound { names_max, unused } = self.bound;
        if self.owners.len() >= OWNERS_MAX && !self.owners.contains_key(owner) {
            self.make_room(now);
        }
        if let Some(names) = self.owners.get_mut(owner)
            && let Some(used) = names.get_mut(name)
        {
            *used = now.max(*used);
            return Named::Known;
        }
        let names = self.owners.entry(owner.clone()).or_default();
        let mut named = Named::New;
        if names.len() >= names_max {
            let oldest = names.iter().min_by_key(|(_, used)| **used);
            let oldest = oldest.filter(|(_, used)| now.saturating_duration_since(**used) >= unused);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                return Named::Refused;
            };
            names.remove(&oldest);
            named = Named::Replaces;
        }
        names.insert(name.clone(), now);
        named
    }

    fn make_room(&mut self, now: Instant) {
        let unused = self.bound.unused;
        let in_use = |used: &Instant| now.saturating_duration_since(*used) < unused;
        self.owners.retain(|_, names| names.values().any(in_use));
        if self.owners.len() >= OWNERS_MAX {
            self.owners.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound {
        names_max: 3,
        unused: Duration::from_secs(600),
    };

    #[test]
    fn a_new_name_beyond_the_bound_replaces_only_one_that_is_not_in_use() {
        let mut names = Names::new(BOUND);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for name in ["wifi", "lte", "satellite"] {
            assert_eq!(names.enter(&"g", &name, start), Named::New);
        }
        assert_eq!(names.enter(&"g", &"made-up", at(1)), Named::Refused);
        assert_eq!(names.enter(&"other", &"made-up", at(1)), Named::New);
        assert_eq!(names.enter(&"g", &"wifi", at(599)), Named::Known);
        assert_eq!(names.enter(&"g", &"lte", at(599)), Named::Known);
        assert_eq!(names.enter(&"g", &"ethernet", at(600)), Named::Replaces);
        assert_eq!(names.enter(&"g", &"satellite", at(601)), Named::Refused);
        for name in ["wifi", "lte", "ethernet"] {
            assert_eq!(names.enter(&"g", &name, at(602)), Named::Known);
        }
    }

    #[test]
    fn owners_have_a_bound() {
        let mut names = Names::new(BOUND);
        let start = Instant::now();
        for owner in 0..OWNERS_MAX {
            names.enter(&owner, &"wifi", start);
        }
        let later = start + BOUND.unused;
        names.enter(&OWNERS_MAX, &"wifi", later);
        assert_eq!(names.owners.len(), 1, "no other had a name in use");
        for owner in 0..OWNERS_MAX {
            names.enter(&owner, &"wifi", later);
        }
        assert!(names.owners.len() <= OWNERS_MAX);
    }
}
