//! How long each signal has been missing while its device sends others, and the rhythm of the
//! signal. Sans-IO.
//!
//! Time counts only while the device is heard, and at most [`STEP_US_MAX`] between two of its
//! readings. So when a device that was cut off returns, and one signal arrives some rounds before
//! the others, none of them is missing. A signal of a device that sends more slowly is missed
//! later, at most by the rules' limit. All times are of this member's monotonic clock.
//!
//! This memory is lost with the process. A signal that stopped before is then missed by the rules'
//! limit, which needs no memory.

use std::collections::BTreeMap;

use vitals::{Cadence, cadence::SHORTEST_US};

use super::worn::Arrival;

/// Longest time between two readings of a device that counts.
const STEP_US_MAX: i64 = SHORTEST_US / 2;

/// By device and metric; as many as the newest round has.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    signals: BTreeMap<(String, i32), Signal>,
}

#[derive(Clone, Copy, Debug)]
struct Signal {
    cadence: Cadence,
    /// Its newest reading, and that of its device.
    seen_us: i64,
    device_us: i64,
    missing_us: i64,
}

impl Signals {
    /// Takes the arrivals of one round.
    pub(crate) fn look(&mut self, arrivals: &[Arrival]) {
        let mut devices: BTreeMap<&str, i64> = BTreeMap::new();
        for arrival in arrivals {
            let seen_us = devices.entry(&arrival.device).or_insert(i64::MIN);
            *seen_us = (*seen_us).max(arrival.sign.seen_us);
        }
        let mut known = std::mem::take(&mut self.signals);
        for arrival in arrivals.iter().filter(|arrival| !arrival.is_unheard()) {
            let key = (arrival.device.clone(), i32::from(arrival.metric));
            let seen_us = arrival.sign.seen_us;
            let device_us = devices.get(arrival.device.as_str()).copied();
            let device_us = device_us.unwrap_or(seen_us);
            let mut signal = known.remove(&key).unwrap_or(Signal {
                cadence: Cadence::default(),
                seen_us,
                device_us,
                missing_us: 0,
            });
            signal.cadence.learn(seen_us);
            if seen_us > signal.seen_us {
                (signal.seen_us, signal.missing_us) = (seen_us, 0);
            } else {
                let step_us = device_us.saturating_sub(signal.device_us);
                signal.missing_us += step_us.clamp(0, STEP_US_MAX);
            }
            signal.device_us = device_us;
            self.signals.insert(key, signal);
        }
    }

    /// Whether the signal is missing by its own rhythm.
    pub(super) fn is_overdue(&self, arrival: &Arrival, limit_us: i64) -> bool {
        let key = (arrival.device.clone(), i32::from(arrival.metric));
        let signal = self.signals.get(&key);
        signal.is_some_and(|it| it.missing_us > it.cadence.stale_after_us(limit_us))
    }
}
