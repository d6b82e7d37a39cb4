//! A model of the two ends of a journal, the sensors and the core.

use std::collections::{BTreeMap, BTreeSet};

use contracts::vitals::{EdgeAlert, Gap, Sample, sample::Reading};
use rand::{Rng, RngExt};

use crate::journal::{Entry, Limits, Overflow, StageError, Staged, log::Log, test_disk::TestDisk};

pub const STREAMS: [(&str, &str); 3] = [("d1", "heart-rate"), ("d1", "spo2"), ("d2", "heart-rate")];

pub fn limits(overflow: Overflow, bytes_max: u64) -> Limits {
    Limits {
        bytes_max,
        segment_bytes: 600,
        overflow,
    }
}

/// The samples that the sensors take for accepted, and those that the core has.
#[derive(Default)]
pub struct World {
    /// Unique values, by stream, that the journal has confirmed.
    pub accepted: BTreeMap<usize, BTreeSet<u64>>,
    /// Values sent but not confirmed: the sensors send them again after a restart.
    pub unconfirmed: Vec<Sample>,
    /// The core's samples: sequence to value, by (device, stream).
    pub received: BTreeMap<(String, String), BTreeMap<u64, u64>>,
    pub gaps: Vec<Gap>,
    pub alerts_accepted: u64,
    pub alerts_received: BTreeSet<u64>,
    pub next_value: u64,
}

impl World {
    /// A new sample with a unique value; the sensor numbers it so that it can repeat it.
    pub fn sample(&mut self, stream: usize) -> Sample {
        self.next_value += 1;
        let (device, name) = STREAMS[stream];
        Sample {
            device: device.into(),
            stream: name.into(),
            device_time_us: self.next_value as i64,
            reading: Some(Reading::Value(self.next_value as f64)),
            sensor_sequence: Some(self.next_value),
            ..Sample::default()
        }
    }

    pub fn deliver(&mut self, entry: Entry) {
        match entry {
            Entry::Sample(sample) => {
                let stream = self
                    .received
                    .entry((sample.device.clone(), sample.stream.clone()))
                    .or_default();
                let before = stream.insert(sample.sequence, value(&sample));
                assert!(
                    before.is_none_or(|before| before == value(&sample)),
                    "sequence {} of {} means two samples",
                    sample.sequence,
                    sample.stream
                );
            }
            Entry::Alert(alert) => {
                self.alerts_received.insert(alert.sequence);
            }
            Entry::Gaps(gaps) => self.gaps.extend(gaps),
        }
    }

    pub fn check(&self, gaps_allowed: bool) {
        assert!(gaps_allowed || self.gaps.is_empty(), "{:?}", self.gaps);
        for (n, (device, name)) in STREAMS.iter().enumerate() {
            let key = ((*device).to_owned(), (*name).to_owned());
            let empty = BTreeMap::new();
            let received = self.received.get(&key).unwrap_or(&empty);
            let values: BTreeSet<u64> = received.values().copied().collect();
            assert_eq!(
                values.len(),
                received.len(),
                "a sample of {key:?} has two sequences"
            );

            let mut known: BTreeSet<u64> = received.keys().copied().collect();
            let mut in_gaps = BTreeSet::new();
            for gap in self
                .gaps
                .iter()
                .filter(|gap| gap.device == *device && gap.stream == *name)
            {
                assert!(gap.first_sequence >= 1 && gap.first_sequence <= gap.last_sequence);
                in_gaps.extend(gap.first_sequence..=gap.last_sequence);
            }
            known.extend(&in_gaps);
            let last = known.last().copied().unwrap_or(0);
            assert_eq!(known.len() as u64, last, "holes in {key:?}: {known:?}");

            let accepted = self.accepted.get(&n).cloned().unwrap_or_default();
            let missing = accepted.difference(&values).count();
            assert!(
                missing
                    <= in_gaps
                        .difference(&received.keys().copied().collect())
                        .count(),
                "{missing} accepted samples of {key:?} are lost without a gap"
            );
        }
        let numbered = self.alerts_received.last().copied().unwrap_or(0);
        assert_eq!(
            self.alerts_received.len() as u64,
            numbered,
            "a hole in the alerts"
        );
        assert!(
            numbered >= self.alerts_accepted,
            "an accepted alert is lost"
        );
    }
}

pub fn value(sample: &Sample) -> u64 {
    match sample.reading {
        Some(Reading::Value(value)) => value as u64,
        _ => 0,
    }
}

pub fn stream_of(sample: &Sample) -> usize {
    STREAMS
        .iter()
        .position(|(device, stream)| sample.device == *device && sample.stream == *stream)
        .unwrap()
}

/// One batch of samples, possibly with an alert, as the writer would commit it.
pub fn batch(
    log: &mut Log<TestDisk>,
    world: &mut World,
    samples: Vec<Sample>,
    alert: bool,
) -> bool {
    let mut taken = Vec::new();
    for sample in samples {
        let mut staged = sample.clone();
        match log.stage_sample(&mut staged, None) {
            Ok(Staged::New { .. } | Staged::Retry) => taken.push(sample),
            Err(StageError::Full { .. }) => {}
            Err(_) => world.unconfirmed.push(sample),
        }
    }
    let alert = alert && {
        // At this clock numbers begin at 1, so that holes can be counted.
        log.stage_alert(&mut EdgeAlert {
            time_us: 1,
            ..EdgeAlert::default()
        })
        .is_ok()
    };
    if log.commit().is_ok() {
        for sample in taken {
            world
                .accepted
                .entry(stream_of(&sample))
                .or_default()
                .insert(value(&sample));
        }
        world.alerts_accepted += u64::from(alert);
        true
    } else {
        world.unconfirmed.extend(taken);
        false
    }
}

/// Reads from the head on, like the sender after a reconnect, and acknowledges a part.
pub fn deliver(log: &mut Log<TestDisk>, world: &mut World, rng: &mut impl Rng, everything: bool) {
    let reader = log.reader();
    let mut from = reader.head();
    loop {
        let entries_max = 1 + rng.random_range(0..20);
        // Memory and disk have the same entries.
        let recent = match rng.random_bool(0.5) {
            true => reader.recent(from, entries_max, 1 << 20),
            false => None,
        };
        let chunk = match recent.map_or_else(|| reader.read(from, entries_max, 1 << 20), Ok) {
            Ok(chunk) => chunk,
            Err(_) => return,
        };
        if chunk.entries.is_empty() {
            break;
        }
        for (position, entry) in chunk.entries {
            assert!(position >= from && position < chunk.next);
            world.deliver(entry);
        }
        from = chunk.next;
        if !everything && rng.random_bool(0.4) {
            break;
        }
    }
    if everything || rng.random_bool(0.7) {
        let _ = log.acknowledge(from);
    }
}
