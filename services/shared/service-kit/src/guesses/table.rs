//! Failures by key, and keys that have shown the right secret. Both tables have a bound.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

/// Keys whose failures are remembered; at the bound the key with the oldest failure is forgotten.
pub(super) const KEYS_MAX: usize = 8_192;
/// Keys that have shown the right secret; at the bound the oldest is forgotten.
pub(super) const KNOWN_MAX: usize = 8_192;
/// Time without a failure after which a key starts anew.
pub(super) const FORGET: Duration = Duration::from_secs(900);

/// The cost of failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// Number of the first failure that costs a wait.
    pub from: u32,
    /// The wait after that failure; each further one doubles it.
    pub first: Duration,
    /// The longest wait.
    pub max: Duration,
}

#[derive(Debug)]
struct Failed {
    count: u32,
    last: Instant,
    until: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Failures<K>(HashMap<K, Failed>);

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Failures(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> Failures<K> {
    /// The time for which nothing of this key is checked.
    pub(super) fn wait(&self, key: &K, now: Instant) -> Duration {
        let until = self.0.get(key).and_then(|it| it.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    pub(super) fn count(&mut self, key: K, limit: Limit, now: Instant) {
        make_room(&mut self.0, &key, KEYS_MAX, |failed| failed.last);
        let failed = self.0.entry(key).or_insert(Failed {
            count: 0,
            last: now,
            until: None,
        });
        if now.saturating_duration_since(failed.last) > FORGET {
            failed.count = 0;
        }
        failed.count = failed.count.saturating_add(1);
        failed.last = now;
        if failed.count >= limit.from {
            let doublings = (failed.count - limit.from).min(16);
            failed.until = Some(now + (limit.first * (1 << doublings)).min(limit.max));
        }
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub(super) fn has(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }
}

/// Forgets the oldest entry of a full table, unless the key is in it.
fn make_room<K: Clone + Eq + Hash, V>(
    table: &mut HashMap<K, V>,
    key: &K,
    entries_max: usize,
    newest: impl Fn(&V) -> Instant,
) {
    if table.len() < entries_max || table.contains_key(key) {
        return;
    }
    let oldest = table.iter().min_by_key(|(_, it)| newest(it));
    if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
        table.remove(&oldest);
    }
}

/// Keys that have shown the right secret within a time.
#[derive(Debug)]
pub(super) struct Known<K> {
    lasts: Duration,
    shown: HashMap<K, Instant>,
}

impl<K: Clone + Eq + Hash> Known<K> {
    pub(super) fn lasting(lasts: Duration) -> Known<K> {
        Known {
            lasts,
            shown: HashMap::new(),
        }
    }

    pub(super) fn has(&self, key: &K, now: Instant) -> bool {
        let shown = self.shown.get(key);
        shown.is_some_and(|shown| now.saturating_duration_since(*shown) < self.lasts)
    }

    pub(super) fn enter(&mut self, key: K, now: Instant) {
        make_room(&mut self.shown, &key, KNOWN_MAX, |shown| *shown);
        self.shown.insert(key, now);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shown.len()
    }
}
