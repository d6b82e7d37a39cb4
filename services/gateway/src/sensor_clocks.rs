//! Distinguishes a sensor whose clock was set back from one that sends stored readings. Sans-IO.
//!
//! Both send readings that are earlier than their stream's newest. Stored readings come as fast as
//! they can be sent, newest first or between new ones. After a clock was set back, only new
//! readings come, at the pace of measurement.

use std::collections::HashMap;

use contracts::vitals::Sample;

use crate::clock::Moment;

const SECOND_US: i64 = 1_000_000;
/// Readings behind the newest that progressed this long at the pace of time show that the clock was
/// set back.
const CERTAIN_AFTER_US: i64 = 20 * SECOND_US;
/// Tolerance of that pace: a sensor collects readings before it sends, and its radio takes time.
const SLACK_US: i64 = 6 * SECOND_US;
/// Streams remembered, 100 bytes each; at the bound all are forgotten, and a clock that was just
/// set back is detected later.
const STREAMS_MAX: usize = 10_000;

#[derive(Default)]
pub struct SensorClocks {
    /// By device and stream.
    streams: HashMap<(String, String), Stream>,
}

#[derive(Default)]
struct Stream {
    newest_us: i64,
    behind: Option<Behind>,
    steps: u64,
}

/// Readings since the newest, all earlier than it, each later than the one before.
struct Behind {
    /// Time of the first of them, and of its arrival.
    first_us: i64,
    uptime_us: i64,
    last_us: i64,
}

impl SensorClocks {
    /// Number of times that the clock of this reading was set back.
    pub fn steps(&mut self, sample: &Sample) -> u64 {
        let key = (sample.device.clone(), sample.stream.clone());
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&key) {
            self.streams.clear();
        }
        let stream = self.streams.entry(key).or_default();
        stream.take(sample.device_time_us, Moment::of_sample(sample).uptime_us);
        stream.steps
    }

    /// After a restart: the stream's newest reading, and how often its clock was set back before.
    pub fn restore(&mut self, device: &str, stream: &str, newest_us: i64, steps: u64) {
        if self.streams.len() >= STREAMS_MAX {
            return;
        }
        let key = (device.to_owned(), stream.to_owned());
        let stream = self.streams.entry(key).or_default();
        stream.newest_us = stream.newest_us.max(newest_us);
        stream.steps = stream.steps.max(steps);
    }
}

impl Stream {
    fn take(&mut self, time_us: i64, uptime_us: i64) {
        if time_us >= self.newest_us {
            self.newest_us = time_us;
            self.behind = None;
            return;
        }
        let goes_on = |behind: &&mut Behind| {
            let went_us = time_us.saturating_sub(behind.first_us);
            let passed_us = uptime_us - behind.uptime_us;
            time_us >= behind.last_us && went_us.abs_diff(passed_us) <= SLACK_US.unsigned_abs()
        };
        match self.behind.as_mut().filter(goes_on) {
            Some(behind) if uptime_us - behind.uptime_us >= CERTAIN_AFTER_US => {
                self.newest_us = time_us;
                self.behind = None;
                self.steps += 1;
            }
            Some(behind) => behind.last_us = time_us,
            None => {
                self.behind = Some(Behind {
                    first_us: time_us,
                    uptime_us,
                    last_us: time_us,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = SECOND_US;
    const HOUR: i64 = 3600 * S;
    /// By the sensor's clock, before any step.
    const T0: i64 = 1_800_000_000 * S;

    /// Steps after readings with these arrival seconds and times.
    fn steps(readings: impl IntoIterator<Item = (i64, i64)>) -> u64 {
        let mut clocks = SensorClocks::default();
        let of = |(second, device_time_us)| {
            clocks.steps(&Sample {
                device_time_us,
                gateway_uptime_us: second * S,
                ..Sample::default()
            })
        };
        readings.into_iter().map(of).last().unwrap_or_default()
    }

    fn live(seconds: std::ops::Range<i64>, off_us: i64) -> impl Iterator<Item = (i64, i64)> {
        seconds.map(move |second| (second, T0 + second * S + off_us))
    }

    #[test]
    fn each_step_back_of_a_clock_is_detected() {
        assert_eq!(steps(live(0..100, 0)), 0);
        assert_eq!(steps(live(0..100, 0).chain(live(100..120, -HOUR))), 0);
        let back = live(0..100, 0).chain(live(100..121, -HOUR));
        assert_eq!(steps(back), 1);
        let twice = live(0..100, 0).chain(live(100..200, -HOUR));
        assert_eq!(steps(twice.chain(live(200..300, -2 * HOUR))), 2);
        // A clock that is set forward, and a sensor that measures once a minute.
        assert_eq!(steps(live(0..100, 0).chain(live(100..200, HOUR))), 0);
        let seldom = live(0..100, 0).chain(live(100..400, -HOUR));
        assert_eq!(steps(seldom.step_by(60)), 1);
        // In groups of five, some of them repeated.
        let lots = live(100..150, -HOUR).map(|(second, us)| (second - second % 5 + 5, us));
        let lots = lots.flat_map(|reading| [reading; 2]);
        assert_eq!(steps(live(0..100, 0).chain(lots)), 1);
    }

    #[test]
    fn stored_readings_of_a_sensor_are_no_step() {
        let kept = |from: i64, to: i64| (from..to).map(|second| T0 - HOUR + second * S);
        // All at once, thirty a second, at twice the pace of time, and newest first.
        for a_second in [600, 30, 2] {
            let oldest_first = (0..)
                .zip(kept(0, 600))
                .map(|(n, us)| (100 + n / a_second, us));
            assert_eq!(steps(live(0..100, 0).chain(oldest_first)), 0, "{a_second}");
        }
        let newest_first = (100..).zip(kept(0, 600).rev());
        assert_eq!(steps(live(0..100, 0).chain(newest_first)), 0);
        let lots = (0..10)
            .rev()
            .flat_map(|lot| kept(lot * 60, lot * 60 + 60).map(move |us| (700 - lot * 60, us)));
        assert_eq!(steps(live(0..100, 0).chain(lots)), 0);
        // At the pace of their measurement, beside new readings.
        let both = live(100..200, 0).flat_map(|(second, us)| [(second, us - HOUR), (second, us)]);
        assert_eq!(steps(live(0..100, 0).chain(both)), 0);
    }

    #[test]
    fn nonsense_harms_nobody() {
        assert_eq!(
            steps([(0, i64::MAX), (1, i64::MIN), (20, 0), (40, i64::MAX - 1)]),
            0
        );
    }
}
