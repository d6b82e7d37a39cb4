//! Leaves out what this process has already published: repetitions after a lost link, and alerts
//! that came over several paths.
//!
//! For each stream the last [`WINDOW`] sequences are remembered in a bit field, like a replay
//! window. Older sequences go on, because the store recognises them by (device, stream, sequence).
//! A sequence is entered only after the bus holds it, because a duplicate is acknowledged at once.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use contracts::vitals::{EdgeAlert, Sample};
use foldhash::fast::RandomState as QuickHash;
use prost::Message;

use crate::newest::Newest;

/// Sequences remembered for a stream: more than a gateway has in flight.
const WINDOW: u64 = 64 * WORDS as u64;
const WORDS: usize = 128;
/// Streams remembered, about 100 MiB. Beyond it all are forgotten, and for a moment only the store
/// finds duplicates.
const STREAMS_MAX: usize = 100_000;
/// Alerts remembered; beyond it the oldest is forgotten.
const ALERTS_MAX: usize = 10_000;

pub(crate) struct Duplicates {
    /// By device, then stream, so that a look-up needs no copy of a name.
    streams: HashMap<String, HashMap<String, Window, QuickHash>, QuickHash>,
    count: usize,
    alerts: Newest<()>,
    hash: RandomState,
}

impl Default for Duplicates {
    fn default() -> Self {
        Self {
            streams: HashMap::default(),
            count: 0,
            alerts: Newest::new(ALERTS_MAX),
            hash: RandomState::default(),
        }
    }
}

struct Window {
    highest: u64,
    /// Bit n is the sequence that is n modulo WINDOW.
    bits: Box<[u64; WORDS]>,
}

impl Duplicates {
    pub(crate) fn has_sample(&self, sample: &Sample) -> bool {
        self.streams
            .get(&sample.device)
            .and_then(|streams| streams.get(&sample.stream))
            .is_some_and(|window| window.has(sample.sequence))
    }

    pub(crate) fn enter_sample(&mut self, device: &str, stream: &str, sequence: u64) {
        let known = self.streams.get_mut(device);
        if let Some(window) = known.and_then(|streams| streams.get_mut(stream)) {
            return window.enter(sequence);
        }
        let mut window = Window {
            highest: 0,
            bits: Box::new([0; WORDS]),
        };
        window.enter(sequence);
        let streams = self.streams.entry(device.to_owned()).or_default();
        streams.insert(stream.to_owned(), window);
        self.count += 1;
        if self.count > STREAMS_MAX {
            self.streams.clear();
            self.count = 0;
        }
    }

    /// By content, because a gateway that lost its journal counts its alerts from 1 again.
    pub(crate) fn has_alert(&self, alert: &EdgeAlert) -> bool {
        self.alerts.get(self.alert_key(alert)).is_some()
    }

    pub(crate) fn enter_alert(&mut self, alert: &EdgeAlert) {
        self.alerts.enter(self.alert_key(alert), ());
    }

    pub(crate) fn alert_key(&self, alert: &EdgeAlert) -> u64 {
        self.hash.hash_one(alert.encode_to_vec())
    }
}

impl Window {
    fn has(&self, sequence: u64) -> bool {
        sequence <= self.highest
            && self.highest - sequence < WINDOW
            && self.bits[Self::word(sequence)] & Self::bit(sequence) != 0
    }

    fn enter(&mut self, sequence: u64) {
        if sequence > self.highest {
            // The places between belong to sequences that have left the window.
            let forget = (sequence - self.highest).min(WINDOW);
            for n in 1..=forget {
                let place = self.highest.wrapping_add(n);
                self.bits[Self::word(place)] &= !Self::bit(place);
            }
            if forget == WINDOW {
                self.bits.fill(0);
            }
            self.highest = sequence;
        } else if self.highest - sequence >= WINDOW {
            return;
        }
        self.bits[Self::word(sequence)] |= Self::bit(sequence);
    }

    fn word(sequence: u64) -> usize {
        // The value is below WORDS, so it fits.
        (sequence % WINDOW / 64) as usize
    }

    fn bit(sequence: u64) -> u64 {
        1 << (sequence % 64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    fn sample(sequence: u64) -> Sample {
        Sample {
            device: "d".into(),
            stream: "s".into(),
            sequence,
            ..Sample::default()
        }
    }

    #[test]
    fn knows_what_was_entered_within_the_window_and_nothing_else() {
        for seed in 0..50 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut duplicates = Duplicates::default();
            let mut entered = BTreeSet::new();
            let mut highest: u64 = 0;
            for _ in 0..2000 {
                let around: u64 = highest + random.random_range(0..40);
                let sequence = match random.random_range(0..100) {
                    0 => around + random.random_range(0..3 * WINDOW),
                    1..30 => around.saturating_sub(random.random_range(0..2 * WINDOW)),
                    _ => around,
                };
                if random.random_bool(0.7) {
                    duplicates.enter_sample("d", "s", sequence);
                    // A sequence that is too old for the window is not remembered.
                    if highest.saturating_sub(sequence) < WINDOW {
                        entered.insert(sequence);
                    }
                    highest = highest.max(sequence);
                }
                let known = entered.contains(&sequence) && highest - sequence < WINDOW;
                assert_eq!(
                    duplicates.has_sample(&sample(sequence)),
                    known,
                    "seed {seed}, {sequence} with {highest}"
                );
            }
            assert!(!entered.is_empty());
        }
    }

    #[test]
    fn an_alert_is_known_by_its_content() {
        let mut duplicates = Duplicates::default();
        let alert = EdgeAlert {
            gateway: "g".into(),
            sequence: 1,
            ..EdgeAlert::default()
        };
        assert!(!duplicates.has_alert(&alert));
        duplicates.enter_alert(&alert);
        assert!(duplicates.has_alert(&alert));
        let other = EdgeAlert {
            time_us: 7,
            ..alert.clone()
        };
        assert!(!duplicates.has_alert(&other));
        for sequence in 2..=ALERTS_MAX as u64 + 1 {
            duplicates.enter_alert(&EdgeAlert {
                sequence,
                ..alert.clone()
            });
        }
        assert!(!duplicates.has_alert(&alert), "the oldest is forgotten");
        assert_eq!(duplicates.alerts.len(), ALERTS_MAX);
    }
}
