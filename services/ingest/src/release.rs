//! Publishes entries that were kept apart, once a person has assigned them. They take the way of
//! all others, as a backfill.
//!
//! A second release has no further effect: consumers leave out what they have, by (device, stream,
//! sequence).

use std::{sync::Arc, time::Duration};

use bus::Bus;
use clocks::TOLERATED_US;
use contracts::vitals::{Quarantined, quarantined::Entry};
use service_kit::Context;
use store::{QuarantineEntry, QueryError, Store};
use vitals::attribution::{When, attribute};

use crate::{
    admission::GatewayId,
    register::Register,
    to_bus::{Lane, Lanes, NotPublished, Records},
};

/// An engine that does not answer for so long is away.
const PATIENCE: Duration = Duration::from_secs(60);
/// The wearer of a device is asked for once in a run.
const REGISTER_REFRESH: Duration = Duration::from_secs(3600);

/// The patient to whom the entries go.
#[derive(Debug, Clone)]
pub enum To {
    Patient(String),
    /// The patient who wore the device at the time, by the register as it is now.
    Wearer,
}

/// The result for one page.
#[derive(Debug, Default)]
pub struct Released {
    /// Published: these may be removed from the quarantine.
    pub keys: Vec<i64>,
    /// Still of no patient, with the reason.
    pub left: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum NotReleased {
    #[error(transparent)]
    Register(#[from] QueryError),
    #[error("the bus does not take it: {0}; a repetition is safe")]
    Bus(String),
}

pub struct Release {
    register: Register,
    lanes: Lanes,
}

impl Release {
    pub fn new(bus: &Arc<dyn Bus>, store: Arc<dyn Store>) -> Release {
        Release {
            register: Register::new(store, REGISTER_REFRESH),
            lanes: Lanes::start(bus, &Context::new("release")),
        }
    }

    /// Returns when the bus holds the released entries.
    pub async fn release(
        &self,
        page: Vec<QuarantineEntry>,
        to: &To,
    ) -> Result<Released, NotReleased> {
        let mut released = Released::default();
        let (mut urgent, mut bulk) = (Records::new(), Records::new());
        for QuarantineEntry {
            key,
            mut quarantined,
        } in page
        {
            if let Err(why) = convert(&mut quarantined) {
                released.left.push(why);
                continue;
            }
            let patient = match to {
                To::Patient(patient) => Ok(patient.clone()),
                To::Wearer => self.wearer(&quarantined).await?,
            };
            match patient {
                Ok(patient) => {
                    add(quarantined, patient, &mut urgent, &mut bulk);
                    released.keys.push(key);
                }
                Err(why) => released.left.push(why),
            }
        }
        for (lane, records) in [(Lane::Alerts, urgent), (Lane::Bulk, bulk)] {
            if records.is_empty() {
                continue;
            }
            let published = async { self.lanes.publish(lane, records).await.await };
            let published = tokio::time::timeout(PATIENCE, published).await;
            let refused = match published {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(NotPublished::Refused(reason)))) => reason,
                Ok(Ok(Err(NotPublished::Ending)) | Err(_)) => "the lane has ended".to_owned(),
                Err(_) => format!("no answer within {PATIENCE:?}"),
            };
            return Err(NotReleased::Bus(refused));
        }
        Ok(released)
    }

    async fn wearer(&self, it: &Quarantined) -> Result<Result<String, String>, QueryError> {
        let gateway = GatewayId {
            tenant: it.tenant.clone(),
            id: it.gateway.clone(),
        };
        let Some((device, from_us, to_us)) = event(it) else {
            return Ok(Err("the entry is empty".to_owned()));
        };
        let known = self.register.device(device, &gateway).await?;
        let when = When {
            from_us,
            to_us,
            // The error of the gateway's clock is no longer known.
            doubt_us: TOLERATED_US,
        };
        let interval = attribute(known.intervals(&gateway), &it.gateway, when);
        let wearer = match interval {
            Ok(interval) => interval.patient.clone(),
            Err(why) => return Ok(Err(format!("{device}: {why}"))),
        };
        Ok(match named(it) {
            "" => Ok(wearer),
            patient if patient == wearer => Ok(wearer),
            patient => Err(format!(
                "{device}: names patient {patient}, and {wearer} wore it by the register; name the patient"
            )),
        })
    }
}

/// Converts a reading of a metric that was unknown when it arrived.
fn convert(it: &mut Quarantined) -> Result<(), String> {
    let Some(Entry::Sample(sample)) = &mut it.entry else {
        return Ok(());
    };
    if vitals::entry(sample.metric()).is_none() {
        let (metric, stream) = (sample.metric, &sample.stream);
        return Err(format!(
            "metric {metric} of stream {stream} is in no catalogue"
        ));
    }
    vitals::validate_reading(sample).map_err(|invalid| invalid.to_string())?;
    vitals::convert(sample);
    Ok(())
}

/// The device and the time of the entry.
fn event(it: &Quarantined) -> Option<(&str, i64, i64)> {
    Some(match it.entry.as_ref()? {
        Entry::Sample(it) => (&it.device, it.device_time_us, it.device_time_us),
        Entry::Gap(it) => (
            &it.device,
            it.from_time_us,
            it.to_time_us.max(it.from_time_us),
        ),
        Entry::Alert(it) => (&it.device, it.time_us, it.time_us),
    })
}

/// The patient whom the entry itself names.
fn named(it: &Quarantined) -> &str {
    match &it.entry {
        Some(Entry::Sample(it)) => &it.patient,
        Some(Entry::Gap(it)) => &it.patient,
        Some(Entry::Alert(it)) => &it.patient,
        None => "",
    }
}

fn add(it: Quarantined, patient: String, urgent: &mut Records, bulk: &mut Records) {
    match it.entry {
        Some(Entry::Sample(mut sample)) => {
            sample.patient.clone_from(&patient);
            // It arrives now, so alerting treats it as a backfill.
            sample.ingest_time_us = contracts::now_us();
            bulk.entry(patient).or_default().samples.push(sample);
        }
        Some(Entry::Gap(mut gap)) => {
            gap.patient.clone_from(&patient);
            bulk.entry(patient).or_default().gaps.push(gap);
        }
        Some(Entry::Alert(mut alert)) => {
            alert.patient.clone_from(&patient);
            alert.ingest_time_us = contracts::now_us();
            urgent.entry(patient).or_default().alerts.push(alert);
        }
        None => {}
    }
}
