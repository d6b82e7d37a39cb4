//! Drain of a gateway that had no network for 13 hours: how fast its backlog is stored, and how
//! long an alert takes meanwhile.
//!
//! The setup is that of `sensor`: a gateway behind two emulated access networks, and the core on
//! real engines. Both networks are cut while the sensor's readings of 13 hours are written, six a
//! second, each with its own time. When the networks return, live alerts follow until the last row
//! is stored.

use std::time::{Duration, Instant};

use contracts::vitals::{Sample, sample::Reading};
use service_kit::telemetry::metrics_handle;
use store::{Assignment, Change, PatientEntry, Register, VitalsStore};

use super::alerts::{Calls, receive, times_of};
use super::core::{Core, METRICS};
use super::end_to_end::usual;
use super::line::free_port;
use super::sensor::{GATEWAY, Home, ticks};
use crate::failure::{Failure, block_on};

/// Time without any network.
const AWAY: Duration = Duration::from_secs(13 * 3600);
/// Patients of the probes; each has one alert.
const PROBES_MAX: u32 = 2_000;
/// A drain that takes longer has failed: a tenth of the target's rate.
const LIMIT: Duration = Duration::from_secs(13 * 3600 / 5);
const BACKLOG: &str = "backlog";
const PER_REQUEST: usize = 600;

pub(super) struct Drained {
    /// Time of the backlog per time of the drain.
    pub(super) times_real_time: f64,
    /// From sensor to webhook, sorted.
    pub(super) alerts: Vec<Duration>,
}

pub(super) fn measure() -> Result<Drained, Failure> {
    let calls = Calls::default();
    let url = format!("http://{}/", receive(calls.clone())?);
    block_on(async {
        let mut core = Core::start().await?;
        let listen = free_port()?.to_string();
        core.serve("alerting", &["--listen", &listen, "--webhook", &url])
            .await?;
        core.register(GATEWAY, PROBES_MAX).await?;
        wears_the_backlog(&core).await?;
        metrics_handle();
        let mut home = Home::start(&mut core).await?;
        let first = [home.probe(0).await?];
        times_of(&calls, &first).await?;
        for link in &home.links {
            link.set_up(false);
        }
        let count = fill(&mut home).await?;
        eprintln!(
            "bench: {count} readings of {} h wait",
            AWAY.as_secs() / 3600
        );
        for link in &home.links {
            link.set_up(true);
        }
        let since = Instant::now();
        let mut probes = Vec::new();
        let mut tick = ticks();
        let mut drained = None;
        while drained.is_none() || probes.len() < 100 {
            tick.tick().await;
            let next = u32::try_from(probes.len()).unwrap_or(PROBES_MAX) + 1;
            if next < PROBES_MAX {
                probes.push(home.probe(next).await?);
            }
            if drained.is_none() && probes.len() % 20 == 0 && stored(&core).await? >= count {
                drained = Some(since.elapsed());
            }
            if since.elapsed() > LIMIT {
                return Err(Failure::other("the backlog was not stored in time"));
            }
        }
        let took = drained.unwrap_or_default();
        eprintln!("bench: stored after {:.1} s", took.as_secs_f64());
        Ok(Drained {
            times_real_time: AWAY.as_secs_f64() / took.as_secs_f64(),
            alerts: times_of(&calls, &probes).await?,
        })
    })?
}

/// The patient wore the sensor all the time.
async fn wears_the_backlog(core: &Core) -> Result<(), Failure> {
    let patient = PatientEntry {
        id: BACKLOG.to_owned(),
        tenant: store::DEFAULT_TENANT.to_owned(),
        name: BACKLOG.to_owned(),
        ..PatientEntry::default()
    };
    core.store()
        .put_patient(&patient)
        .await
        .map_err(Failure::other)?;
    let assignment = Assignment {
        device: BACKLOG.to_owned(),
        tenant: store::DEFAULT_TENANT.to_owned(),
        gateway: GATEWAY.to_owned(),
        patient: BACKLOG.to_owned(),
        from_us: i64::MIN,
        until_us: i64::MAX,
        entered: Change::by_program("a measurement"),
    };
    let assigned = core.store().assign(&assignment).await;
    assigned.map(drop).map_err(Failure::other)
}

/// Readings of the time away, oldest first; returns how many.
async fn fill(home: &mut Home) -> Result<u64, Failure> {
    let begin_us = contracts::now_us() - AWAY.as_micros() as i64;
    let mut samples = Vec::with_capacity(PER_REQUEST);
    let mut count = 0;
    for second in 0..AWAY.as_secs() {
        for (metric, _, unit) in METRICS {
            samples.push(Sample {
                device: BACKLOG.to_owned(),
                metric: metric.into(),
                unit: unit.to_owned(),
                device_time_us: begin_us + second.cast_signed() * 1_000_000,
                sensor_sequence: Some(second + 1),
                reading: Some(Reading::Value(usual(metric))),
                ..Sample::default()
            });
        }
        if samples.len() >= PER_REQUEST || second + 1 == AWAY.as_secs() {
            count += samples.len() as u64;
            home.send(std::mem::take(&mut samples)).await?;
        }
    }
    Ok(count)
}

async fn stored(core: &Core) -> Result<u64, Failure> {
    let mut sum = 0;
    for (_, stream, _) in METRICS {
        let (count, _) = core
            .store()
            .stream_count(BACKLOG, stream)
            .await
            .map_err(Failure::other)?;
        sum += count;
    }
    Ok(sum)
}
