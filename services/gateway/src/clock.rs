//! The gateway's clock, and what becomes of the times that it gave before it was set.
//!
//! A gateway whose clock has no battery starts somewhere in the past, at worst in 1970, and takes readings by that until a network
//! tells it the time. The journal therefore keeps the machine's uptime beside, which nobody sets: as an entry leaves, its times become what the
//! clock would have shown if it had been then as it is now. An entry of an earlier start of the machine keeps its times.

use std::{sync::OnceLock, time::Duration};

use clocks::ClockError;
use contracts::vitals::{EdgeAlert, Sample, UploadRequest};
use rustix::time::{ClockId, clock_gettime};
use service_kit::{Shutdown, Warning, WarningHandle};

const SECOND_US: i64 = 1_000_000;
/// 1 January 2026. No clock that was ever set shows an earlier time: there was no Braid.
const SET_US: i64 = 1_767_225_600 * SECOND_US;
/// Less is a clock that is kept right, not one that was set.
const STEP_US: i64 = 2 * SECOND_US;
/// While the clock is not set.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// What the clocks show at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Since the Unix epoch, by the clock that people and networks set.
    pub wall_us: i64,
    /// Since the machine was started.
    pub uptime_us: i64,
    /// Which start of the machine that was; 0: nobody knows.
    pub boot: u32,
}

/// Tests have wrong ones.
pub type Clock = fn() -> Moment;

impl Moment {
    pub fn now() -> Moment {
        static BOOT: OnceLock<u32> = OnceLock::new();
        let uptime = clock_gettime(ClockId::Boottime);
        Moment {
            wall_us: contracts::now_us(),
            uptime_us: uptime.tv_sec * SECOND_US + uptime.tv_nsec / 1000,
            boot: *BOOT.get_or_init(boot),
        }
    }

    /// When a sample was taken.
    pub fn of_sample(sample: &Sample) -> Moment {
        Moment {
            wall_us: sample.gateway_time_us,
            uptime_us: sample.gateway_uptime_us,
            boot: sample.gateway_boot,
        }
    }

    /// When an alert was raised.
    pub fn of_alert(alert: &EdgeAlert) -> Moment {
        Moment {
            wall_us: alert.gateway_time_us,
            uptime_us: alert.gateway_uptime_us,
            boot: alert.gateway_boot,
        }
    }

    /// Whether anybody can have set the clock since the machine was started.
    pub fn is_set(self) -> bool {
        is_set(self.wall_us)
    }

    /// Gives an upload that leaves now its time, and the entries in it theirs.
    pub fn stamp(self, mut upload: UploadRequest) -> UploadRequest {
        upload.sent_time_us = self.wall_us;
        for sample in &mut upload.samples {
            let taken = Moment::of_sample(sample);
            (sample.gateway_uptime_us, sample.gateway_boot) = (0, 0);
            if let Some(error) = self.error_of(taken) {
                let offset_us = error.of_event_us(sample.device_time_us, taken.wall_us);
                sample.device_time_us = sample.device_time_us.saturating_add(offset_us);
                sample.gateway_time_us = error.put_right_us(taken.wall_us);
            }
        }
        for alert in &mut upload.alerts {
            let taken = Moment::of_alert(alert);
            (alert.gateway_uptime_us, alert.gateway_boot) = (0, 0);
            if let Some(error) = self.error_of(taken) {
                error.put_right_alert(alert);
                alert.gateway_time_us = error.put_right_us(taken.wall_us);
            }
        }
        upload
    }

    /// What was wrong with the clock at an earlier moment of this start of the machine, by what it shows now. None: it was not set since.
    fn error_of(self, taken: Moment) -> Option<ClockError> {
        if taken.boot == 0 || taken.boot != self.boot {
            return None;
        }
        let went_us = self.wall_us.saturating_sub(taken.wall_us);
        let passed_us = self.uptime_us.saturating_sub(taken.uptime_us);
        let behind_us = went_us.saturating_sub(passed_us);
        // In whole seconds, so that the readings of one stream keep their distances.
        let seconds = behind_us
            .saturating_add(SECOND_US / 2)
            .div_euclid(SECOND_US);
        (behind_us.saturating_abs() >= STEP_US)
            .then(|| ClockError::behind(seconds.saturating_mul(SECOND_US)))
    }
}

/// Whether a clock that shows this was ever set.
pub fn is_set(wall_us: i64) -> bool {
    wall_us >= SET_US
}

/// Warns until the clock is set.
pub async fn watch(clock: Clock, warning: WarningHandle, shutdown: Shutdown) {
    let says = "the clock was never set, and no certificate is valid by it: what sensors send is kept here";
    if !clock().is_set() {
        tracing::warn!("{says}");
    }
    while !clock().is_set() {
        warning.set(Some(Warning {
            says: says.to_owned(),
            to_do: "let the machine ask a time server (NTP), or set its clock".to_owned(),
        }));
        tokio::select! {
            () = tokio::time::sleep(LOOK_EACH) => {}
            () = shutdown.requested() => return,
        }
    }
    warning.set(None);
}

fn boot() -> u32 {
    match std::fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) => crc32fast::hash(&id).max(1),
        Err(error) => {
            tracing::warn!(%error, "nothing tells the starts of this machine apart: what is taken before its clock is set keeps its time");
            0
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, Ordering};

    use service_kit::Health;

    use super::*;

    const S: i64 = SECOND_US;
    const HOUR: i64 = 3600 * S;
    const TRUE_US: i64 = 1_800_000_000 * S;

    /// `behind_us`: by which the clock is behind.
    fn moment(true_us: i64, behind_us: i64) -> Moment {
        Moment {
            wall_us: true_us - behind_us,
            uptime_us: true_us - TRUE_US + HOUR,
            boot: 7,
        }
    }

    fn sample(taken: Moment, device_time_us: i64) -> Sample {
        Sample {
            device_time_us,
            gateway_time_us: taken.wall_us,
            gateway_uptime_us: taken.uptime_us,
            gateway_boot: taken.boot,
            ..Sample::default()
        }
    }

    fn stamped(now: Moment, sample: Sample) -> Sample {
        let upload = UploadRequest {
            samples: vec![sample],
            ..UploadRequest::default()
        };
        let mut upload = now.stamp(upload);
        assert_eq!(upload.sent_time_us, now.wall_us);
        upload.samples.remove(0)
    }

    #[test]
    fn what_was_taken_before_the_clock_was_set_gets_its_time() {
        for behind_us in [TRUE_US - 20 * S, 60 * HOUR, 30 * S, -HOUR] {
            let taken = moment(TRUE_US, behind_us);
            let now = moment(TRUE_US + 2 * HOUR, 0);
            // Of a sensor without a clock, and of one with a right clock of its own.
            for device_time_us in [taken.wall_us, TRUE_US] {
                let sample = stamped(now, sample(taken, device_time_us));
                assert_eq!(sample.device_time_us, TRUE_US, "{behind_us}");
                assert_eq!(sample.gateway_time_us, TRUE_US);
                assert_eq!((sample.gateway_uptime_us, sample.gateway_boot), (0, 0));
            }
            let upload = UploadRequest {
                alerts: vec![EdgeAlert {
                    time_us: taken.wall_us - 3 * S,
                    gateway_time_us: taken.wall_us,
                    gateway_uptime_us: taken.uptime_us,
                    gateway_boot: taken.boot,
                    ..EdgeAlert::default()
                }],
                ..UploadRequest::default()
            };
            let expected = EdgeAlert {
                time_us: TRUE_US - 3 * S,
                gateway_time_us: TRUE_US,
                ..EdgeAlert::default()
            };
            assert_eq!(now.stamp(upload).alerts, [expected]);
        }
    }

    #[test]
    fn what_cannot_be_known_stays() {
        let now = moment(TRUE_US + 2 * HOUR, 0);
        let taken = moment(TRUE_US, 60 * HOUR);
        for (now, taken) in [
            (now, Moment { boot: 8, ..taken }),
            (Moment { boot: 0, ..now }, Moment { boot: 0, ..taken }),
            // A clock that is as it was, or only kept right.
            (moment(TRUE_US + 2 * HOUR, 60 * HOUR), taken),
            (moment(TRUE_US + 2 * HOUR, 60 * HOUR + S), taken),
        ] {
            let stamped = stamped(now, sample(taken, taken.wall_us));
            assert_eq!(stamped.device_time_us, taken.wall_us, "{now:?} {taken:?}");
            assert_eq!(stamped.gateway_time_us, taken.wall_us);
            assert_eq!((stamped.gateway_uptime_us, stamped.gateway_boot), (0, 0));
        }
    }

    #[tokio::test]
    async fn a_clock_that_was_never_set_is_a_warning_until_it_is() {
        static IS_SET: AtomicBool = AtomicBool::new(false);
        fn clock() -> Moment {
            let is_set = IS_SET.load(Ordering::Relaxed);
            moment(TRUE_US, if is_set { 0 } else { TRUE_US - 20 * S })
        }
        let health = Health::new();
        let shutdown = Shutdown::default();
        let watching = tokio::spawn(watch(clock, health.warning("clock"), shutdown));
        tokio::time::sleep(LOOK_EACH / 2).await;
        let warnings = health.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].1.says.contains("never set"), "{warnings:?}");
        IS_SET.store(true, Ordering::Relaxed);
        watching.await.unwrap();
        assert_eq!(health.warnings(), []);
    }

    #[test]
    fn the_machine_tells_its_starts_apart() {
        let (first, second) = (Moment::now(), Moment::now());
        assert!(first.is_set());
        assert!(first.boot != 0 && first.boot == second.boot);
        assert!(0 < first.uptime_us && first.uptime_us <= second.uptime_us);
    }
}
