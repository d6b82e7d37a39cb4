//! The one way of every sample, gap and alert of an upload: the register, the gateway's clock,
//! admission, the quarantine, and duplicates.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clocks::{GatewayClock, Taken};
use contracts::vitals::{EdgeAlert, Gap, Quarantined, Sample, quarantined::Entry};
use parking_lot::Mutex;
use service_kit::names::{Bound, Named, Names};
use tonic::Status;
use vitals::attribution::When;

use crate::{
    admission::{
        Arrival, Concerned, GatewayId, Refusal, STREAMS_PER_DEVICE_MAX, admit_alert, admit_gap,
        admit_sample, doubt_us, settle_time,
    },
    apart::Apart,
    duplicates::Duplicates,
    register::{Device, Register, unknown},
};

/// Streams of one device in a day; samples of further streams are refused. A device has a stream
/// for each metric that it measures.
const STREAMS: Bound = Bound {
    names_max: STREAMS_PER_DEVICE_MAX,
    unused: Duration::from_secs(86_400),
};

/// When the entries arrived, and the clock of the gateway, when the gateway sends its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub arrival: Arrival,
    pub clock: Option<GatewayClock>,
}

/// An alert, and how it came: a repetition is recognised by that, independent of the clock.
#[derive(Debug)]
pub(crate) struct Alert {
    pub alert: EdgeAlert,
    pub came: EdgeAlert,
}

impl Alert {
    pub(crate) fn new(came: EdgeAlert) -> Alert {
        Alert {
            alert: came.clone(),
            came,
        }
    }
}

/// Differences between the kinds of entries.
pub(crate) trait Judge: Send + Sync + Sized {
    /// Corrects the time, where the question to the register depends on it.
    fn settle(&mut self, _: At) {}
    fn device(&self) -> &String;
    /// The patient and the time of an entry that names no device. `None`: it must name one.
    fn without_device(&self) -> Option<(&str, i64)> {
        None
    }
    /// The stream whose name the store would keep for good.
    fn stream(&self) -> Option<&String> {
        None
    }
    fn admit(
        &mut self,
        gateway: &GatewayId,
        concerned: &Concerned<'_>,
        at: At,
    ) -> Result<(), Refusal>;
    /// Whether the bus already holds the entry.
    fn is_held(&self, duplicates: &Duplicates) -> bool;
    fn into_entry(self) -> Entry;
}

/// The result for one entry.
#[derive(Debug)]
pub(crate) enum Judged<E> {
    Admitted(E),
    /// The bus already holds it.
    Held,
    /// The entry belongs to no patient and is kept apart.
    Apart,
    Refused(Refusal),
}

/// The entries of one kind of one upload.
pub(crate) struct Run<'a> {
    pub gateway: &'a GatewayId,
    pub at: At,
    /// Takes entries of no patient.
    pub apart: &'a mut Vec<Quarantined>,
    /// The core asked for the entries: what this process published may be lost.
    pub is_again: bool,
    /// Entries of one device come in runs.
    last: Option<(String, Arc<Device>)>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(gateway: &'a GatewayId, at: At, apart: &'a mut Vec<Quarantined>) -> Run<'a> {
        Run {
            gateway,
            at,
            apart,
            is_again: false,
            last: None,
        }
    }
}

pub(crate) struct Judging {
    register: Arc<Register>,
    duplicates: Arc<Mutex<Duplicates>>,
    /// By device.
    streams: Mutex<Names<String, String>>,
    apart: Arc<Apart>,
}

impl Judging {
    pub(crate) fn new(
        register: Arc<Register>,
        duplicates: Arc<Mutex<Duplicates>>,
        apart: Arc<Apart>,
    ) -> Judging {
        Judging {
            register,
            duplicates,
            streams: Mutex::new(Names::new(STREAMS)),
            apart,
        }
    }

    /// Fails while the register does not answer.
    pub(crate) async fn judge<E: Judge>(
        &self,
        run: &mut Run<'_>,
        mut entry: E,
    ) -> Result<Judged<E>, Status> {
        entry.settle(run.at);
        let device;
        let concerned = if let Some((patient, time_us)) = entry.without_device() {
            let cares = self.register.cares_for(run.gateway, patient, time_us);
            Concerned::Cares(cares.await.map_err(unknown)?)
        } else {
            device = self.device(run, entry.device()).await?;
            Concerned::Device(device.intervals(run.gateway))
        };
        let admitted = entry
            .admit(run.gateway, &concerned, run.at)
            .and_then(|()| self.admit_stream(&entry));
        if let Err(refusal) = admitted {
            let (now_us, entry) = (run.at.arrival.now_us, entry.into_entry());
            let kept = self
                .apart
                .keep(run.gateway, refusal, entry, now_us, run.apart);
            return Ok(kept.map_or_else(Judged::Refused, |()| Judged::Apart));
        }
        if !run.is_again && entry.is_held(&self.duplicates.lock()) {
            return Ok(Judged::Held);
        }
        Ok(Judged::Admitted(entry))
    }

    pub(crate) fn register(&self) -> &Register {
        &self.register
    }

    pub(crate) async fn device_of(
        &self,
        id: &str,
        gateway: &GatewayId,
    ) -> Result<Arc<Device>, Status> {
        self.register.device(id, gateway).await.map_err(unknown)
    }

    async fn device(&self, run: &mut Run<'_>, id: &str) -> Result<Arc<Device>, Status> {
        if let Some((last, device)) = &run.last
            && last == id
        {
            return Ok(Arc::clone(device));
        }
        let device = self.register.device(id, run.gateway).await;
        let device = device.map_err(unknown)?;
        run.last = Some((id.to_owned(), Arc::clone(&device)));
        Ok(device)
    }

    /// The gateway chooses the names of streams, and the store keeps each name for good.
    fn admit_stream(&self, entry: &impl Judge) -> Result<(), Refusal> {
        let Some(stream) = entry.stream() else {
            return Ok(());
        };
        let mut streams = self.streams.lock();
        match streams.enter(entry.device(), stream, Instant::now()) {
            Named::Known | Named::New | Named::Replaces => Ok(()),
            Named::Refused => Err(Refusal::too_many_streams(entry.device())),
        }
    }
}

/// Samples and gaps always name a device.
fn worn<'a>(concerned: &Concerned<'a>) -> &'a [vitals::attribution::Interval] {
    match concerned {
        Concerned::Device(worn) => worn,
        Concerned::Cares(_) => &[],
    }
}

impl Judge for Sample {
    fn device(&self) -> &String {
        &self.device
    }

    fn stream(&self) -> Option<&String> {
        Some(&self.stream)
    }

    fn admit(
        &mut self,
        gateway: &GatewayId,
        concerned: &Concerned<'_>,
        at: At,
    ) -> Result<(), Refusal> {
        admit_sample(self, gateway, worn(concerned), at.arrival, at.clock)
    }

    fn is_held(&self, duplicates: &Duplicates) -> bool {
        duplicates.has_sample(self)
    }

    fn into_entry(self) -> Entry {
        Entry::Sample(self)
    }
}

impl Judge for Gap {
    fn device(&self) -> &String {
        &self.device
    }

    fn admit(
        &mut self,
        gateway: &GatewayId,
        concerned: &Concerned<'_>,
        at: At,
    ) -> Result<(), Refusal> {
        admit_gap(self, gateway, worn(concerned), at.arrival.now_us, at.clock)
    }

    /// The store leaves out a gap that it has.
    fn is_held(&self, _: &Duplicates) -> bool {
        false
    }

    fn into_entry(self) -> Entry {
        Entry::Gap(self)
    }
}

impl Judge for Alert {
    fn settle(&mut self, at: At) {
        settle_time(&mut self.alert, at.arrival, at.clock);
    }

    fn device(&self) -> &String {
        &self.alert.device
    }

    fn without_device(&self) -> Option<(&str, i64)> {
        let alert = &self.alert;
        alert
            .device
            .is_empty()
            .then_some((alert.patient.as_str(), alert.time_us))
    }

    fn admit(
        &mut self,
        gateway: &GatewayId,
        concerned: &Concerned<'_>,
        at: At,
    ) -> Result<(), Refusal> {
        let doubt_us = doubt_us(at.clock, Taken::of_alert(&self.came));
        let when = When::at(self.alert.time_us, doubt_us);
        admit_alert(&mut self.alert, gateway, concerned, when)
    }

    fn is_held(&self, duplicates: &Duplicates) -> bool {
        duplicates.has_alert(&self.came)
    }

    fn into_entry(self) -> Entry {
        Entry::Alert(self.alert)
    }
}
