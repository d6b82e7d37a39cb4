//! Decides when people are told directly that alerts do not come through: once when it begins and
//! once when it is over. Sans-IO.

pub(crate) mod shared;

use std::time::{Duration, Instant};

use consumer_health::Moment;

/// Everything must be well for this time before an outage counts as over, so that a flapping outage
/// is one.
const WELL_FOR: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Post {
    Outage { since: Moment, says: Vec<String> },
    Recovered { since: Moment, until: Moment },
}

#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// The beginning, for people. `None`: all is well.
    open: Option<Moment>,
    well_since: Option<(Instant, Moment)>,
}

impl Outage {
    /// `troubles`: each current trouble and its beginning, the worst first.
    pub(crate) fn on_look(&mut self, troubles: &[(String, Moment)], now: Moment) -> Option<Post> {
        if let Some((_, since)) = troubles.iter().min_by_key(|(_, since)| since.at) {
            self.well_since = None;
            if self.open.is_some() {
                return None;
            }
            self.open = Some(*since);
            let says = troubles.iter().map(|(says, _)| says.clone()).collect();
            let since = *since;
            return Some(Post::Outage { since, says });
        }
        let since = self.open?;
        let (well_at, until) = *self.well_since.get_or_insert((now.at, now));
        if now.at.saturating_duration_since(well_at) < WELL_FOR {
            return None;
        }
        (self.open, self.well_since) = (None, None);
        Some(Post::Recovered { since, until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_post_at_the_beginning_and_one_when_all_has_been_well_for_long_enough() {
        let begun = Instant::now();
        let at = |second: u64| Moment {
            at: begun + Duration::from_secs(second),
            wall_us: 0,
        };
        let trouble = |says: &str, second| vec![(says.to_owned(), at(second))];
        let mut outage = Outage::default();
        assert_eq!(outage.on_look(&[], at(0)), None);
        let post = outage.on_look(&trouble("not judged", 5), at(20));
        let says = vec!["not judged".to_owned()];
        assert_eq!(post, Some(Post::Outage { since: at(5), says }));
        assert_eq!(outage.on_look(&trouble("another", 21), at(22)), None);
        // A moment without troubles does not end the outage.
        assert_eq!(outage.on_look(&[], at(23)), None);
        assert_eq!(outage.on_look(&trouble("again", 24), at(40)), None);
        assert_eq!(outage.on_look(&[], at(41)), None);
        assert_eq!(outage.on_look(&[], at(70)), None);
        let over = Post::Recovered {
            since: at(5),
            until: at(41),
        };
        assert_eq!(outage.on_look(&[], at(71)), Some(over));
        assert_eq!(outage.on_look(&[], at(72)), None, "once");
        let again = outage.on_look(&trouble("not judged", 80), at(95));
        assert!(matches!(again, Some(Post::Outage { .. })));
    }
}
