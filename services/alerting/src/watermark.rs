//! How far event time has passed for one patient, so that the delay of a rule may end without a
//! reading. Sans-IO.
//!
//! The transit of a reading is the time from its event time to its judgement, including the
//! device's clock error. Event time has passed up to now minus the slowest recent transit, within
//! bounds. A reading from before is no longer expected.
//!
//! The next reading of a regular stream is expected one interval after the last. Until it comes,
//! time passes no further. So an outage neither raises nor ends an alert that later readings
//! contradict. Without a rhythm, as with spot checks, time passes by the clock. Then an alert may
//! differ from a replay.

use std::collections::BTreeMap;

use vitals::{PRESENT_US, Rhythm};

/// Shortest wait after the quickest reading of that time would have arrived. A reading each second
/// over a lost path still comes before.
pub(crate) const LATE_US_MIN: i64 = 2_000_000;
/// Longest such wait, so that an alert waits no longer for readings under way.
pub(crate) const LATE_US_MAX: i64 = 10_000_000;
/// Transits are remembered for one to two windows.
const WINDOW_US: i64 = 60_000_000;
/// Devices of one patient. Beyond it all are learned again.
const DEVICES_MAX: usize = 64;
/// Streams of one patient. Beyond it all are learned again.
const STREAMS_MAX: usize = 256;
/// A reading up to this much later than the previous interval keeps the rhythm.
const RHYTHM_TOLERANCE_US: i64 = 500_000;

#[derive(Clone, Debug, Default)]
pub(crate) struct Watermark {
    devices: BTreeMap<String, Device>,
    /// By device and stream.
    streams: BTreeMap<(String, String), Stream>,
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
struct Stream {
    /// Event time of the newest reading, and the own clock when it was judged.
    event_us: i64,
    heard_us: i64,
    /// Time between the newest two readings. `None`: only one reading so far.
    interval_us: Option<i64>,
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
    /// The watermark of a patient taken over at `now_us`, from the rhythms in the stored state.
    pub(crate) fn taken_over<'a>(
        rhythms: impl Iterator<Item = Rhythm<'a>>,
        now_us: i64,
    ) -> Watermark {
        let streams = rhythms.take(STREAMS_MAX).map(|rhythm| {
            let key = (rhythm.device.to_owned(), rhythm.stream.to_owned());
            let stream = Stream {
                event_us: rhythm.newest_us,
                heard_us: now_us,
                interval_us: Some(rhythm.interval_us),
            };
            (key, stream)
        });
        Watermark {
            devices: BTreeMap::new(),
            streams: streams.collect(),
            heard_us: now_us,
        }
    }

    /// A reading of `event_us` is judged at `now_us`.
    pub(crate) fn on_reading(&mut self, device: &str, stream: &str, event_us: i64, now_us: i64) {
        self.on_clock(now_us);
        self.heard_us = now_us;
        self.follow(device, stream, event_us, now_us);
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

    /// Event time that has passed by the clock, minus the slowest recent transit. `None`: no
    /// reading yet.
    pub(crate) fn clock_us(&self, now_us: i64) -> Option<i64> {
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
        // A device whose clock is ahead must not hurry the others.
        passed.min()
    }

    /// No reading from before this event time is expected. `None`: no reading yet.
    pub(crate) fn before_us(&self, now_us: i64) -> Option<i64> {
        let passed_us = self.clock_us(now_us)?;
        Some(self.held(passed_us, now_us))
    }

    /// `passed_us`, or the earlier time at which the next reading of a stream with a rhythm is due.
    pub(crate) fn held(&self, passed_us: i64, now_us: i64) -> i64 {
        // A stream that has ended delays the other rules only while the patient counts as present.
        let expected = self.streams.values().filter_map(|stream| {
            let is_present = now_us.saturating_sub(stream.heard_us) < PRESENT_US;
            let interval_us = stream.interval_us.filter(|_| is_present)?;
            let next_us = stream.event_us.saturating_add(interval_us);
            Some(next_us.saturating_add(RHYTHM_TOLERANCE_US))
        });
        expected.fold(passed_us, i64::min)
    }

    fn follow(&mut self, device: &str, stream: &str, event_us: i64, now_us: i64) {
        let key = (device.to_owned(), stream.to_owned());
        let mut interval_us = None;
        if let Some(known) = self.streams.get(&key) {
            let gap_us = event_us.saturating_sub(known.event_us);
            // A late or repeated reading. A larger step back is a step of the device's clock.
            if (-PRESENT_US..=0).contains(&gap_us) {
                return;
            }
            interval_us = (gap_us > 0).then_some(gap_us);
        } else if self.streams.len() >= STREAMS_MAX {
            self.streams.clear();
        }
        let newest = Stream {
            event_us,
            heard_us: now_us,
            interval_us,
        };
        self.streams.insert(key, newest);
    }

    /// Transits measured before the clock was set back are void.
    pub(crate) fn on_clock(&mut self, now_us: i64) {
        if now_us < self.heard_us {
            self.devices.clear();
            self.streams.clear();
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
        watermark.on_reading("belt", "stream-1", T0, T0 + S);
        let now_us = T0 + 20 * S;
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MIN));
        // A path was lost, so the reading is 5 s late.
        watermark.on_reading("belt", "stream-2", T0 + S, T0 + 7 * S);
        assert_eq!(watermark.before_us(now_us), Some(now_us - 6 * S));
        // A backlog of an hour does not hold up the rules for an hour.
        watermark.on_reading("belt", "stream-3", T0 - 3600 * S, T0 + 8 * S);
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MAX));
        // The backlog is forgotten after two windows.
        watermark.on_reading("belt", "stream-4", T0 + 99 * S, T0 + 100 * S);
        watermark.on_reading("belt", "stream-5", T0 + 199 * S, T0 + 200 * S);
        let now_us = T0 + 201 * S;
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MIN));
    }

    #[test]
    fn an_outage_of_a_stream_with_a_rhythm_lets_no_time_pass() {
        let mut watermark = Watermark::default();
        for second in 0..5 {
            let event_us = T0 + second * S;
            watermark.on_reading("belt", "pulse", event_us, event_us + S);
        }
        let expected_us = T0 + 5 * S + RHYTHM_TOLERANCE_US;
        let in_an_outage = T0 + 60 * S;
        assert_eq!(watermark.before_us(in_an_outage), Some(expected_us));
        // A repeated reading changes nothing, and the next reading lets time pass.
        watermark.on_reading("belt", "pulse", T0 + 2 * S, T0 + 61 * S);
        assert_eq!(watermark.before_us(T0 + 62 * S), Some(expected_us));
        watermark.on_reading("belt", "pulse", T0 + 5 * S, T0 + 63 * S);
        assert_eq!(watermark.before_us(T0 + 64 * S), Some(expected_us + S));
        // A stream that has ended delays the others for a bounded time.
        let long_after_us = T0 + 64 * S + PRESENT_US;
        watermark.on_reading("cuff", "systolic", long_after_us - S, long_after_us);
        let passed_us = watermark.before_us(long_after_us);
        assert!(passed_us.is_some_and(|passed_us| passed_us > expected_us + S));
    }

    #[test]
    fn a_spot_check_is_judged_by_the_clock() {
        let mut watermark = Watermark::default();
        watermark.on_reading("cuff", "pulse", T0 - 900 * S, T0 - 899 * S);
        watermark.on_reading("cuff", "pulse", T0, T0 + S);
        let now_us = T0 + 20 * S;
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MIN));
    }

    #[test]
    fn a_device_that_is_ahead_hurries_no_other() {
        let mut watermark = Watermark::default();
        watermark.on_reading("ahead", "stream-6", T0 + 3600 * S, T0 + S);
        watermark.on_reading("right", "stream-7", T0, T0 + S);
        let now_us = T0 + 10 * S;
        assert_eq!(watermark.before_us(now_us), Some(now_us - S - LATE_US_MIN));
        // The own clock is set back, so everything is learned again.
        watermark.on_clock(T0 - 3600 * S);
        assert_eq!(watermark.before_us(T0 - 3600 * S), None);
    }
}
