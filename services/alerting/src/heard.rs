//! What this member has heard of each device's metrics, by its monotonic clock.
//!
//! The store keeps the newest reading by the time of its sensor. After the clock of a whole machine was set back that row does not
//! change until the time is reached again, although readings arrive. What this member hears of the bus shows that they do.

use std::collections::HashMap;

use clocks::CheckedClock;
use contracts::vitals::VitalsRecord;
use parking_lot::Mutex;
use store::LatestVital;

/// Devices' metrics remembered, 100 bytes each; beyond it all are forgotten, and only the store says what was heard.
const HEARD_MAX: usize = 200_000;
/// A reading that arrived at ingest longer ago is one of a backlog of the bus, and no sign of life.
const PRESENT_US: i64 = 30_000_000;

#[derive(Default)]
pub(crate) struct Heard(Mutex<HashMap<(String, i32), i64>>);

impl Heard {
    /// What was published by another process, on Kafka by another machine, is a witness for the clock, too.
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

    /// Moves arrival times forward to when this member heard the device last.
    pub(crate) fn move_forward(&self, latest: &mut [LatestVital], now_us: i64, monotonic_us: i64) {
        let heard = self.0.lock();
        for row in latest {
            let key = (row.device.clone(), i32::from(row.metric));
            if let Some(at_us) = heard.get(&key) {
                let heard_us = now_us.saturating_sub(monotonic_us.saturating_sub(*at_us).max(0));
                row.ingest_time_us = row.ingest_time_us.max(heard_us);
            }
        }
    }
}
