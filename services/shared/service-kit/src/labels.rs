//! Labels of Prometheus series whose values come from peers, and so are bounded.

use std::collections::BTreeSet;

/// Values with a series of their own since the start; further ones share [`OTHER`].
const NAMES_MAX: usize = 64;
pub const OTHER: &str = "other";

/// The values of one label.
#[derive(Debug, Default)]
pub struct Labels(BTreeSet<String>);

impl Labels {
    pub fn of(&mut self, name: &str) -> String {
        if !self.0.contains(name) {
            if self.0.len() >= NAMES_MAX {
                return OTHER.to_owned();
            }
            self.0.insert(name.to_owned());
        }
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_a_bounded_number_of_series() {
        let mut labels = Labels::default();
        for number in 0..NAMES_MAX {
            let name = format!("wwan{number}");
            assert_eq!(labels.of(&name), name);
        }
        assert_eq!(labels.of("one-more"), OTHER);
        assert_eq!(labels.of("wwan3"), "wwan3");
    }
}
