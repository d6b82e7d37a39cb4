//! When this member last received each metric of each device, by its monotonic clock.
//!
//! The store keeps the newest reading by sensor time. If the clock of a machine is set back, that
//! row does not change until the old time is reached again. Readings that this member receives from
//! the bus show that the device still sends.

use std::collections::HashMap;

use clocks::CheckedClock;
use contracts::vitals::VitalsRecord;
use parking_lot::Mutex;

use crate::silence_watch::Arrival;

/// Device metrics remembered, about 100 bytes each. Beyond it all are dropped, and the stored
/// arrival times alone count.
const HEARD_MAX: usize = 200_000;
/// An older arrival at ingest belongs to a backlog of the bus and is no sign of life.
const PRESENT_US: i64 = 30_000_000;

#[derive(Default)]
pub(crate) struct Heard(Mutex<HashMap<(String, i32), i64>>);

impl Heard {
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
        let mut heard = self.0.lock();
        let at_us = clock.monotonic_us();
        for sample in records.iter().flat_map(|(_, _, record)| &record.samples) {
            if !clock.is_present(sample.ingest_time_us, PRESENT_US) {
                continue;
            }
            if heard.len() >= HEARD_MAX {
                heard.clear();
            }
            heard.insert((sample.device.clone(), sample.metric), at_us);
        }
    }

    /// Moves signs of life forward to when this member last received the device.
    pub(crate) fn move_forward(&self, arrivals: &mut [Arrival], now_us: i64, monotonic_us: i64) {
        let heard = self.0.lock();
        for row in arrivals {
            let key = (row.device.clone(), i32::from(row.metric));
            if let Some(at_us) = heard.get(&key) {
                let heard_us = now_us.saturating_sub(monotonic_us.saturating_sub(*at_us).max(0));
                row.sign.at_us = row.sign.at_us.max(heard_us);
                row.sign.seen_us = row.sign.seen_us.max(*at_us);
                row.sign.came_us = row.sign.came_us.max(Some(*at_us));
            }
        }
    }
}
