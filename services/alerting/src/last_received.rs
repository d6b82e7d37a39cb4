//! When this member last received each metric of each device, by its monotonic clock.
//!
//! A reading on the bus shows that the device sends, before the store has it. So no silence begins.
//! It ends none, because a gateway sends a reading again if no answer came. The copy arrives later
//! than the reading, and another member of alerting may not receive it. The store knows copies.
//!
//! Two cases are exceptions, because the store does not show such readings:
//! - Another sensor of the same patient measures the same. The store has one newest value of a
//!   metric.
//! - The sensor's clock was set back. The stored row does not change until the old time is reached
//!   again. Readings that go on for a while are then a sign of life.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use clocks::CheckedClock;
use contracts::vitals::VitalsRecord;
use parking_lot::Mutex;

use crate::{
    signs_of_life::{Sign, clocks_differ_us},
    silence_watch::Arrival,
};

/// Device metrics remembered, about 150 bytes each. Beyond it all are dropped, and the stored
/// arrival times alone count.
const HEARD_MAX: usize = 200_000;

pub(crate) struct LastReceived {
    readings: Mutex<HashMap<(String, i32), Reading>>,
    /// An older arrival at ingest belongs to a backlog of the bus and is no sign of life. A silence
    /// begins only `silent_after` after the newest reading, so no reading from before it counts
    /// even if clocks differ by as much as this.
    present_us: i64,
    silent_after_us: i64,
}

struct Reading {
    stream: String,
    /// The highest of the stream. A reading that is not above is a copy, or older.
    sequence: u64,
    /// When this member received it, by the monotonic clock.
    at_us: i64,
    /// Since when readings of the stream have come without a long pause, by the monotonic clock.
    going_us: i64,
    /// Its arrival at ingest.
    ingest_time_us: i64,
    device_time_us: i64,
}

impl Reading {
    fn sign(&self, now_us: i64, monotonic_us: i64) -> Sign {
        let age_us = monotonic_us.saturating_sub(self.at_us).max(0);
        Sign {
            at_us: now_us.saturating_sub(age_us),
            stored_us: self.ingest_time_us,
            seen_us: self.at_us,
            came_us: Some(self.at_us),
        }
    }
}

impl LastReceived {
    /// `None`: no silence is judged.
    pub(crate) fn new(silent_after_us: Option<i64>) -> LastReceived {
        let silent_after_us = silent_after_us.unwrap_or(i64::MAX);
        LastReceived {
            readings: Mutex::default(),
            present_us: clocks_differ_us(silent_after_us),
            silent_after_us,
        }
    }

    /// The publication time also serves the clock check as a witness. Another process published it,
    /// on Kafka another machine.
    pub(crate) fn note(
        &self,
        newest_us: Option<i64>,
        records: &[(u32, String, VitalsRecord)],
        clock: &CheckedClock,
    ) {
        if let Some(newest_us) = newest_us {
            clock.witness(newest_us);
        }
        let mut heard = self.readings.lock();
        let at_us = clock.monotonic_us();
        for sample in records.iter().flat_map(|(_, _, record)| &record.samples) {
            if !clock.is_present(sample.ingest_time_us, self.present_us) {
                continue;
            }
            let key = (sample.device.clone(), sample.metric);
            let before = heard.get(&key).filter(|it| it.stream == sample.stream);
            if before.is_some_and(|it| sample.sequence <= it.sequence) {
                continue;
            }
            let going_us = before
                .filter(|it| at_us.saturating_sub(it.at_us) <= self.silent_after_us)
                .map_or(at_us, |it| it.going_us);
            if heard.len() >= HEARD_MAX {
                heard.clear();
            }
            let reading = Reading {
                stream: sample.stream.clone(),
                sequence: sample.sequence,
                at_us,
                going_us,
                ingest_time_us: sample.ingest_time_us,
                device_time_us: sample.device_time_us,
            };
            heard.insert(key, reading);
        }
    }

    /// Moves signs of life forward to when this member last received the device.
    pub(crate) fn move_forward(&self, arrivals: &mut [Arrival], now_us: i64, monotonic_us: i64) {
        let heard = self.readings.lock();
        for row in arrivals {
            let key = (row.device.clone(), i32::from(row.metric));
            let Some(reading) = heard.get(&key) else {
                continue;
            };
            let sign = reading.sign(now_us, monotonic_us);
            let is_back = reading.device_time_us < row.time_us
                && reading.at_us.saturating_sub(reading.going_us) >= self.present_us;
            row.sign = row.sign.or(if is_back { sign } else { sign.age() });
        }
    }

    /// The newest reading of each of these devices that this member received. The store keeps one
    /// newest value of a patient's metric, so it may show another sensor of the patient.
    pub(crate) fn of_devices(
        &self,
        devices: &BTreeSet<String>,
        now_us: i64,
        monotonic_us: i64,
    ) -> BTreeMap<String, (i32, Sign)> {
        let mut newest: BTreeMap<String, (i32, Sign)> = BTreeMap::new();
        if devices.is_empty() {
            return newest;
        }
        for ((device, metric), reading) in self.readings.lock().iter() {
            if devices.contains(device) {
                let sign = reading.sign(now_us, monotonic_us);
                let there = newest.entry(device.clone()).or_insert((*metric, sign));
                if sign.seen_us > there.1.seen_us {
                    *there = (*metric, sign);
                }
            }
        }
        newest
    }
}
