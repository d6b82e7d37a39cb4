//! A map of the newest alerts. Pure.

use std::collections::{HashMap, VecDeque};

/// At most `max` alerts by the hash of their content; beyond it the oldest is forgotten.
pub(crate) struct Newest<V> {
    values: HashMap<u64, V>,
    in_order: VecDeque<u64>,
    max: usize,
}

impl<V> Newest<V> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            values: HashMap::new(),
            in_order: VecDeque::new(),
            max,
        }
    }

    pub(crate) fn get(&self, alert: u64) -> Option<&V> {
        self.values.get(&alert)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.values.len(), self.in_order.len());
        self.values.len()
    }

    /// A known alert keeps its age.
    pub(crate) fn enter(&mut self, alert: u64, value: V) {
        if self.values.insert(alert, value).is_some() {
            return;
        }
        self.in_order.push_back(alert);
        if self.in_order.len() > self.max
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_at_the_bound() {
        let mut newest = Newest::new(3);
        for alert in 0..10 {
            newest.enter(alert, alert * 2);
        }
        newest.enter(7, 0);
        assert_eq!(newest.len(), 3);
        let known = [6, 7, 9].map(|alert| newest.get(alert).copied());
        assert_eq!(known, [None, Some(0), Some(18)]);
        newest.enter(10, 20);
        assert_eq!(newest.get(7), None, "entered again, it is as old as before");
    }
}
