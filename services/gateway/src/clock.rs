//! The gateway's clock, beside the machine's uptime and the core's clock.
//!
//! A gateway whose clock has no battery starts in the past, at worst in 1970. It dates readings by
//! that until a network sets the time. Other clocks have a wrong zone, or step. So the journal
//! stores with each entry the uptime, which cannot be set, and the difference to the core's clock
//! if it is known. Ingest corrects the times with them; here the times stay as they were taken.
//! Readings get a time that no step of the clock disturbs: [`SteadyClock`].

mod steady;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use clocks::Arrivals;
use contracts::vitals::{EdgeAlert, Sample, UploadRequest};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use service_kit::{Shutdown, Warning, WarningHandle};

pub use steady::SteadyClock;

const SECOND_US: i64 = 1_000_000;
/// 1 January 2026. A clock that was ever set shows no earlier time.
const SET_US: i64 = 1_767_225_600 * SECOND_US;
/// Difference to the core's clock that is worth a warning; ingest corrects larger ones.
const WARN_US: i64 = clocks::TOLERATED_US;
/// Interval of looks at the clock while it is not set.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// The readings of the clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Since the Unix epoch, by the clock that can be set.
    pub wall_us: i64,
    /// Since the machine was started.
    pub uptime_us: i64,
    /// Number of the machine's start; 0 if unknown.
    pub boot: u32,
}

/// Tests replace it by wrong clocks.
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

    /// The time at which a sample was taken.
    pub fn of_sample(sample: &Sample) -> Moment {
        Moment {
            wall_us: sample.gateway_time_us,
            uptime_us: sample.gateway_uptime_us,
            boot: sample.gateway_boot,
        }
    }

    /// The time at which an alert was raised.
    pub fn of_alert(alert: &EdgeAlert) -> Moment {
        Moment {
            wall_us: alert.gateway_time_us,
            uptime_us: alert.gateway_uptime_us,
            boot: alert.gateway_boot,
        }
    }

    /// Whether the clock may have been set since the machine was started.
    pub fn is_set(self) -> bool {
        is_set(self.wall_us)
    }

    /// Stamps an upload with this time.
    pub fn stamp(self, upload: UploadRequest) -> UploadRequest {
        UploadRequest {
            sent_time_us: self.wall_us,
            sent_uptime_us: self.uptime_us,
            sent_boot: self.boot,
            ..upload
        }
    }
}

/// The core's clock, from its answers. An answer was sent before it arrives, so each gives a lower
/// bound.
#[derive(Debug, Default)]
pub struct CoreClock(Mutex<Arrivals>);

impl CoreClock {
    /// An answer of the core arrives that left at `core_us` by its clock; 0 without that time.
    pub fn on_answer(&self, core_us: i64, now: Moment) {
        if core_us > 0 {
            self.0.lock().observe(core_us, now.uptime_us);
        }
    }

    /// `None`: no answer of the core has come since the gateway's start.
    pub fn now_us(&self, now: Moment) -> Option<i64> {
        self.0.lock().now_us(now.uptime_us)
    }

    /// Time by which the gateway's clock is behind; negative if it is ahead.
    pub fn behind_us(&self, now: Moment) -> Option<i64> {
        Some(self.now_us(now)?.saturating_sub(now.wall_us))
    }
}

/// Whether a clock with this reading was ever set.
pub fn is_set(wall_us: i64) -> bool {
    wall_us >= SET_US
}

/// Warns while the clock is not set, or far from the core's.
pub async fn watch(clock: Clock, core: Arc<CoreClock>, warning: WarningHandle, shutdown: Shutdown) {
    let mut said = None;
    loop {
        let now = clock();
        let is_off = core
            .behind_us(now)
            .is_some_and(|behind_us| behind_us.saturating_abs() > WARN_US);
        let kind = (!now.is_set(), is_off);
        let current = warning_of(now, core.behind_us(now));
        if said != Some(kind) {
            if let Some(warning) = &current {
                tracing::warn!("{}", warning.says);
            }
            said = Some(kind);
        }
        warning.set(current);
        tokio::select! {
            () = tokio::time::sleep(LOOK_EACH) => {}
            () = shutdown.requested() => return,
        }
    }
}

fn warning_of(now: Moment, behind_us: Option<i64>) -> Option<Warning> {
    let says = if !now.is_set() {
        "the clock was never set, so no certificate is valid; samples are stored here".to_owned()
    } else {
        let behind_us = behind_us.filter(|behind_us| behind_us.saturating_abs() > WARN_US)?;
        let seconds = behind_us.unsigned_abs() / 1_000_000;
        let direction = if behind_us > 0 { "behind" } else { "ahead of" };
        format!(
            "the clock is {seconds} s {direction} the core's; the core corrects the times of readings"
        )
    };
    Some(Warning {
        says,
        to_do: "configure a time server (NTP) on the machine, or set its clock".to_owned(),
    })
}

fn boot() -> u32 {
    match std::fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) => crc32fast::hash(&id).max(1),
        Err(error) => {
            tracing::warn!(%error, "this machine has no boot id, so times of samples before its clock is set stay uncorrected");
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

    /// `behind_us`: time by which the clock is behind.
    fn moment(true_us: i64, behind_us: i64) -> Moment {
        Moment {
            wall_us: true_us - behind_us,
            uptime_us: true_us - TRUE_US + HOUR,
            boot: 7,
        }
    }

    #[test]
    fn an_upload_contains_both_clocks_and_leaves_entries_unchanged() {
        let (taken, now) = (moment(TRUE_US, HOUR), moment(TRUE_US + HOUR, 0));
        let sample = Sample {
            device_time_us: taken.wall_us,
            gateway_time_us: taken.wall_us,
            gateway_uptime_us: taken.uptime_us,
            gateway_boot: taken.boot,
            ..Sample::default()
        };
        let upload = now.stamp(UploadRequest {
            samples: vec![sample.clone()],
            ..UploadRequest::default()
        });
        assert_eq!(upload.samples, [sample]);
        let sent = (upload.sent_time_us, upload.sent_uptime_us, upload.sent_boot);
        assert_eq!(sent, (now.wall_us, now.uptime_us, 7));
    }

    #[test]
    fn the_core_clock_comes_from_its_answers_whatever_the_own_clock_shows() {
        let core = CoreClock::default();
        assert_eq!(core.behind_us(moment(TRUE_US, 0)), None);
        core.on_answer(0, moment(TRUE_US, 0));
        assert_eq!(core.behind_us(moment(TRUE_US, 0)), None, "it does not say");
        core.on_answer(TRUE_US - S / 10, moment(TRUE_US, 0));
        for behind_us in [0, HOUR, -HOUR] {
            let now = moment(TRUE_US + 60 * S, behind_us);
            let known_us = core.behind_us(now).unwrap();
            assert!((behind_us - known_us).abs() <= S / 10, "{known_us}");
            let says = warning_of(now, Some(known_us)).map(|warning| warning.says);
            assert_eq!(says.is_some(), behind_us != 0, "{says:?}");
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
        let watching = tokio::spawn(watch(
            clock,
            Arc::default(),
            health.warning("clock"),
            shutdown.clone(),
        ));
        tokio::time::sleep(LOOK_EACH / 2).await;
        let warnings = health.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].1.says.contains("never set"), "{warnings:?}");
        IS_SET.store(true, Ordering::Relaxed);
        let ended = async {
            while !health.warnings().is_empty() {
                tokio::time::sleep(LOOK_EACH / 10).await;
            }
        };
        tokio::time::timeout(LOOK_EACH * 20, ended).await.unwrap();
        shutdown.request();
        watching.await.unwrap();
    }

    #[test]
    fn each_start_of_the_machine_has_another_number() {
        let (first, second) = (Moment::now(), Moment::now());
        assert!(first.is_set());
        assert!(first.boot != 0 && first.boot == second.boot);
        assert!(0 < first.uptime_us && first.uptime_us <= second.uptime_us);
    }
}
