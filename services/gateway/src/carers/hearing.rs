//! Whether the core hears this gateway. Sans-IO: takes looks at the journals and links.
//!
//! "Heard" needs evidence: both links to ingest stand, and ingest has acknowledged within
//! [`HEARD_WITHIN`] what waited for it. A link that is dead without a sign shows by entries that
//! wait.

use std::time::{Duration, Instant};

/// Time for an acknowledgement, beyond the time for which readings may gather.
pub const HEARD_WITHIN: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Yes,
    /// No path is up.
    NoNetwork,
    /// There is a network, and the core does not answer.
    NoAnswer,
}

/// The journals and links at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Entries that ingest has not acknowledged.
    pub waiting: u64,
    /// Entries that ingest has acknowledged, ever.
    pub acknowledged: u64,
    /// Both links to ingest stand.
    pub is_linked: bool,
    pub has_path: bool,
    /// Time for which readings may gather before their upload.
    pub freshness: Duration,
}

#[derive(Debug, Default)]
pub struct Hearing {
    acknowledged: u64,
    /// When nothing waited, or something was acknowledged.
    heard_at: Option<Instant>,
}

impl Hearing {
    pub fn on_look(&mut self, look: Look, now: Instant) -> Heard {
        let has_moved = look.acknowledged > self.acknowledged;
        self.acknowledged = look.acknowledged;
        let heard_at = *self.heard_at.get_or_insert(now);
        if look.waiting == 0 || has_moved {
            self.heard_at = Some(now);
        } else if now.saturating_duration_since(heard_at) > HEARD_WITHIN + look.freshness {
            return unheard(look);
        }
        match look.is_linked {
            true => Heard::Yes,
            false => unheard(look),
        }
    }
}

fn unheard(look: Look) -> Heard {
    match look.has_path {
        true => Heard::NoAnswer,
        false => Heard::NoNetwork,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_heard_while_ingest_acknowledges_within_the_rhythm() {
        let (mut hearing, start) = (Hearing::default(), Instant::now());
        let well = Look {
            is_linked: true,
            has_path: true,
            freshness: Duration::from_secs(1),
            ..Look::default()
        };
        let at = |second| start + Duration::from_secs(second);
        assert_eq!(hearing.on_look(well, at(0)), Heard::Yes);
        let waits = Look { waiting: 3, ..well };
        assert_eq!(hearing.on_look(waits, at(16)), Heard::Yes);
        assert_eq!(hearing.on_look(waits, at(17)), Heard::NoAnswer);
        let moved = Look {
            acknowledged: 1,
            ..waits
        };
        assert_eq!(hearing.on_look(moved, at(18)), Heard::Yes);
        assert_eq!(hearing.on_look(moved, at(34)), Heard::Yes);
        assert_eq!(hearing.on_look(moved, at(35)), Heard::NoAnswer);
    }

    #[test]
    fn without_a_link_nobody_hears_it_at_once() {
        let (mut hearing, now) = (Hearing::default(), Instant::now());
        let cut = Look::default();
        assert_eq!(hearing.on_look(cut, now), Heard::NoNetwork);
        let on = Look {
            has_path: true,
            ..cut
        };
        assert_eq!(hearing.on_look(on, now), Heard::NoAnswer);
    }
}
