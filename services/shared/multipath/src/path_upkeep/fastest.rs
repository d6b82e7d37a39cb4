//! Choice of the path for application-limited data: acknowledgements above all, and vitals. It is
//! the path with the shortest round trip among those with room.
//!
//! A receiver acknowledges every second packet over one path: 66 bytes for two packets of 1,472. A
//! narrow link is filled by acknowledgements alone, however short its round trip is while empty.
//! The full queue then delays all acknowledgements, and even with it the link may remain the
//! quickest. The received rate of a path therefore bounds its use: a sender fills all paths, so a
//! path that brings little carries little.

use std::time::{Duration, Instant};

use noq_proto::PathId;

/// Minimum time between two changes; a quicker path must gain an eighth and a millisecond.
const DWELL: Duration = Duration::from_millis(500);
/// Datagrams within [`RECENTLY`] on all paths from which on acknowledgements need room: 2.4 Mbit/s.
const FILLING_DATAGRAMS: f64 = 200.0;
/// A path that brings less than this part of all datagrams is left. At a forty-fifth,
/// acknowledgements fill a symmetric link.
const LEFT_BELOW: f64 = 1.0 / 40.0;
/// Part above which the path may be chosen again; the gap avoids oscillation, because each change
/// moves the round trips of all paths.
const CHOSEN_FROM: f64 = 1.0 / 28.0;
const RECENTLY: Duration = Duration::from_secs(1);

/// Datagrams received on a path.
#[derive(Debug, Default)]
pub(super) struct Brought {
    so_far: u64,
    /// Approximate number within [`RECENTLY`].
    recently: f64,
    noted_at: Option<Instant>,
}

impl Brought {
    pub(super) fn note(&mut self, now: Instant, so_far: u64) {
        let before = self.noted_at.replace(now).unwrap_or(now);
        let passed = now
            .saturating_duration_since(before)
            .div_duration_f64(RECENTLY);
        let new = so_far.saturating_sub(self.so_far);
        self.recently = self.recently * (1.0 - passed).max(0.0) + new as f64;
        self.so_far = self.so_far.max(so_far);
    }

    pub(super) fn recently(&self) -> f64 {
        self.recently
    }

    /// The same, where nothing may have been noted for a while.
    pub(super) fn recently_at(&self, now: Instant) -> f64 {
        let noted_at = self.noted_at.unwrap_or(now);
        let passed = now.saturating_duration_since(noted_at);
        self.recently * (1.0 - passed.div_duration_f64(RECENTLY)).max(0.0)
    }
}

/// A living path with a measured round trip.
#[derive(Debug, Clone, Copy)]
pub(super) struct Living {
    pub path: PathId,
    pub rtt: Duration,
    /// Datagrams, [`Brought::recently`].
    pub brought: f64,
}

#[derive(Debug, Clone, Copy)]
struct Chosen {
    path: PathId,
    since: Instant,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fastest(Option<Chosen>);

impl Fastest {
    pub(super) fn get(&self) -> Option<PathId> {
        self.0.map(|chosen| chosen.path)
    }

    pub(super) fn forget(&mut self, path: PathId) {
        self.0.take_if(|chosen| chosen.path == path);
    }

    pub(super) fn choose(&mut self, now: Instant, living: impl Iterator<Item = Living> + Clone) {
        let all: f64 = living.clone().map(|it| it.brought).sum();
        let is_narrow =
            |it: &Living, part: f64| all >= FILLING_DATAGRAMS && it.brought < all * part;
        let current = self.0.and_then(|chosen| {
            let living = living.clone().find(|it| it.path == chosen.path)?;
            Some((living, chosen.since))
        });
        // None with 28 and more equal paths; the choice then stays.
        let wide = living.filter(|it| !is_narrow(it, CHOSEN_FROM));
        let Some(best) = wide.min_by_key(|it| (it.rtt, it.path)) else {
            return;
        };
        if let Some((current, since)) = current {
            let gain = (best.rtt / 8).max(Duration::from_millis(1));
            let is_better = best.rtt + gain < current.rtt || is_narrow(&current, LEFT_BELOW);
            if best.path == current.path || !is_better || now < since + DWELL {
                return;
            }
        }
        self.0 = Some(Chosen {
            path: best.path,
            since: now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NARROW: PathId = PathId::ZERO;

    /// Two paths for this number of rounds of 100 ms, the first one quicker; `brings` are datagrams
    /// a round. Returns the choice after each round.
    fn run(fastest: &mut Fastest, start: Instant, brings: [u64; 2], rounds: u32) -> Vec<PathId> {
        let mut brought = [Brought::default(), Brought::default()];
        let chosen = (1..=rounds).map(|round| {
            let now = start + MS * 100 * round;
            for (brought, brings) in brought.iter_mut().zip(brings) {
                brought.note(now, brings * u64::from(round));
            }
            let paths = [
                (NARROW, 20, &brought[0]),
                (PathId::from(1u8), 90, &brought[1]),
            ];
            let living = paths.map(|(path, rtt, brought)| Living {
                path,
                rtt: MS * rtt,
                brought: brought.recently(),
            });
            fastest.choose(now, living.into_iter());
            fastest.get().unwrap()
        });
        chosen.collect()
    }

    #[test]
    fn a_narrow_path_is_left_while_much_arrives_and_taken_again_afterwards() {
        let wide = PathId::from(1u8);
        let start = Instant::now();
        let mut fastest = Fastest::default();
        assert_eq!(run(&mut fastest, start, [8, 800], 20), [wide; 20]);
        // A thirtieth changes nothing.
        let later = start + MS * 2_000;
        assert_eq!(run(&mut fastest, later, [27, 800], 20), [wide; 20]);
        let later = start + MS * 4_000;
        assert_eq!(run(&mut fastest, later, [1, 10], 20), [NARROW; 20]);
        let later = start + MS * 6_000;
        assert_eq!(run(&mut fastest, later, [27, 800], 20), [NARROW; 20]);
        let later = start + MS * 8_000;
        assert_eq!(run(&mut fastest, later, [10, 800], 20), [wide; 20]);
    }

    #[test]
    fn what_was_brought_is_forgotten_after_a_second() {
        let start = Instant::now();
        let mut brought = Brought::default();
        brought.note(start, 1_000);
        assert_eq!(brought.recently(), 1_000.0);
        brought.note(start + MS * 500, 1_000);
        assert_eq!(brought.recently(), 500.0);
        // A count that decreases, as for another connection, adds nothing.
        brought.note(start + MS * 500, 0);
        assert_eq!(brought.recently(), 500.0);
        brought.note(start + MS * 1_600, 1_010);
        assert_eq!(brought.recently(), 10.0);
    }
}
