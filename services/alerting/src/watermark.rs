//! How far event time has passed for one patient, so that the delay of a rule may end without a reading. Sans-IO.
//!
//! The transit of a reading is the time from its event time to its judgement, the error of the device's clock included. Event
//! time has passed up to now less the slowest transit of late, within bounds: a reading from before that is not expected any more.
//! One that comes even later is judged when it comes, and its alert may then differ from what a replay gives.

use std::collections::BTreeMap;

/// A delay ends at the earliest so long after the quickest reading of that time would have come: a reading each second, over a path that
/// is lost in between, still comes before it.
pub(crate) const LATE_US_MIN: i64 = 2_000_000;
/// And at the latest so long after it: an alert waits no longer for readings that are under way.
pub(crate) const LATE_US_MAX: i64 = 10_000_000;
/// Transits are remembered for one to two of these.
const WINDOW_US: i64 = 60_000_000;
/// Devices of one patient; past it all are learned anew.
const DEVICES_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Watermark {
    devices: BTreeMap<String, Device>,
    /// The own clock at the newest reading.
    heard_us: i64,
}

#[derive(Clone, Copy, Debug)]
struct Device {
    window: i64,
    current: Transits,
    previous: Option<Transits>,
}

#[derive(Clone, Copy, Debug)]
struct Transits {
    quickest_us: i64,
    slowest_us: i64,
}

impl Transits {
    fn with(self, other: Transits) -> Transits {
        Transits {
            quickest_us: self.quickest_us.min(other.quickest_us),
            slowest_us: self.slowest_us.max(other.slowest_us),
        }
    }
}

impl Watermark {
    /// A reading of `event_us` is judged at `now_us`.
    pub(crate) fn on_reading(&mut self, device: &str, event_us: i64, now_us: i64) {
        self.on_clock(now_us);
        self.heard_us = now_us;
        let transit_us = now_us.saturating_sub(event_us);
        let this = Transits {
            quickest_us: transit_us,
            slowest_us: transit_us,
        };
        let window = now_us.div_euclid(WINDOW_US);
        if let Some(device) = self.devices.get_mut(device) {
            if device.window == window {
                device.current = device.current.with(this);
            } else {
                let is_next = device.window + 1 == window;
                *device = Device {
                    window,
                    current: this,
                    previous: is_next.then_some(device.current),
                };
            }
            return;
        }
        if self.devices.len() >= DEVICES_MAX {
            self.devices.clear();
        }
        let new = Device {
            window,
            current: this,
            previous: None,
        };
        self.devices.insert(device.to_owned(), new);
    }

    /// No reading from before this event time is expected any more. `None`: nothing is known.
    pub(crate) fn before_us(&mut self, now_us: i64) -> Option<i64> {
        self.on_clock(now_us);
        let passed = self.devices.values().map(|device| {
            let transits = device
                .previous
                .map_or(device.current, |previous| device.current.with(previous));
            let late_us = transits.slowest_us.saturating_sub(transits.quickest_us);
            let late_us = late_us.clamp(LATE_US_MIN, LATE_US_MAX);
            now_us
                .saturating_sub(transits.quickest_us)
                .saturating_sub(late_us)
        });
        // A device whose clock is ahead says nothing about the others.
        passed.min()
    }

    /// Transits by a clock that was set back since say nothing.
    fn on_clock(&mut self, now_us: i64) {
        if now_us < self.heard_us {
            self.devices.clear();
            self.heard_us = now_us;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const S: i64 = 1_000_000;
    const T0: i64 = 1_800_000_000 * S;

    #[test]
    fn time_passes_behind_the_slowest_reading_of_late() {
        let mut watermark = Watermark::default();
        assert_eq!(watermark.before_us(T0), None);
        watermark.on_reading("belt", T0, T0 + S);
        let now_us = T0 + 20 * S;
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MIN));
        // A path was lost: the reading is 5 s late.
        watermark.on_reading("belt", T0 + S, T0 + 7 * S);
        assert_eq!(watermark.before_us(now_us), Some(now_us - 6 * S));
        // A backlog of an hour does not hold up the rules for an hour.
        watermark.on_reading("belt", T0 - 3600 * S, T0 + 8 * S);
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MAX));
        // It is forgotten after two windows.
        watermark.on_reading("belt", T0 + 99 * S, T0 + 100 * S);
        watermark.on_reading("belt", T0 + 199 * S, T0 + 200 * S);
        let now_us = T0 + 201 * S;
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MIN));
    }

    #[test]
    fn a_device_that_is_ahead_hurries_no_other() {
        let mut watermark = Watermark::default();
        watermark.on_reading("ahead", T0 + 3600 * S, T0 + S);
        watermark.on_reading("right", T0, T0 + S);
        let now_us = T0 + 10 * S;
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MIN));
        // The own clock is set back: everything is learned anew.
        assert_eq!(watermark.before_us(T0 - 3600 * S), None);
    }
}
