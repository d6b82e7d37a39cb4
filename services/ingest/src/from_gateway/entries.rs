//! Judges samples and gaps of an upload one by one: they go on, are kept apart, or are refused.

use std::{sync::Arc, time::Instant};

use clocks::GatewayClock;
use contracts::vitals::{Gap, Rejection, Sample, quarantined::Entry};
use service_kit::names::Named;
use tonic::Status;

use super::{Shared, refuse, unknown};
use crate::{
    admission::{Arrival, GatewayId, Refusal, admit_gap, admit_sample},
    answers::Pending,
    register::Device,
    to_bus::Records,
};

impl Shared {
    async fn device(&self, id: &str, gateway: &GatewayId) -> Result<Arc<Device>, Status> {
        self.register.device(id, gateway).await.map_err(unknown)
    }

    pub(super) async fn admit_gaps(
        &self,
        gateway: &GatewayId,
        gaps: Vec<Gap>,
        (arrived_us, clock): (i64, Option<GatewayClock>),
        bulk: &mut Records,
        pending: &mut Pending,
    ) -> Result<(), Status> {
        for mut gap in gaps {
            let device = self.device(&gap.device, gateway).await?;
            let worn = device.intervals(gateway);
            match admit_gap(&mut gap, gateway, worn, arrived_us, clock) {
                Ok(()) => {
                    metrics::counter!("braid_ingest_gaps_total").increment(1);
                    bulk.entry(gap.patient.clone()).or_default().gaps.push(gap);
                    pending.gaps += 1;
                }
                Err(refusal) => {
                    let (entry, kept) = (Entry::Gap(gap), &mut pending.apart);
                    let kept = self.apart.keep(gateway, refusal, entry, arrived_us, kept);
                    if let Err(refusal) = kept {
                        pending.refused.push(refuse("gap", gateway, refusal));
                    }
                }
            }
        }
        Ok(())
    }

    /// Names of streams are the gateway's to choose, and the store keeps each for good.
    fn admit_stream(&self, sample: &Sample) -> Result<(), Refusal> {
        let mut streams = self.streams.lock();
        match streams.enter(&sample.device, &sample.stream, Instant::now()) {
            Named::Known | Named::New | Named::Replaces => Ok(()),
            Named::Refused => Err(Refusal::too_many_streams(&sample.device)),
        }
    }

    pub(super) async fn admit_samples(
        &self,
        gateway: &GatewayId,
        samples: Vec<Sample>,
        (arrival, clock): (Arrival, Option<GatewayClock>),
        bulk: &mut Records,
        pending: &mut Pending,
    ) -> Result<(), Status> {
        // Uploads come in runs of one device.
        let mut last: Option<(String, Arc<Device>)> = None;
        let mut duplicates = 0;
        for (index, mut sample) in (0_u32..).zip(samples) {
            let device = match &last {
                Some((id, device)) if *id == sample.device => Arc::clone(device),
                _ => {
                    let device = self.device(&sample.device, gateway).await?;
                    last = Some((sample.device.clone(), Arc::clone(&device)));
                    device
                }
            };
            let worn = device.intervals(gateway);
            let admitted = admit_sample(&mut sample, gateway, worn, arrival, clock)
                .and_then(|()| self.admit_stream(&sample));
            if let Err(refusal) = admitted {
                let (entry, kept) = (Entry::Sample(sample), &mut pending.apart);
                let Err(refusal) = self
                    .apart
                    .keep(gateway, refusal, entry, arrival.now_us, kept)
                else {
                    pending.apart_samples.push(index);
                    continue;
                };
                metrics::counter!("braid_ingest_rejected_samples_total", "reason" => refusal.kind)
                    .increment(1);
                let reason = refusal.reason;
                pending.rejections.push(Rejection { index, reason });
                continue;
            }
            if self.duplicates.lock().has_sample(&sample) {
                duplicates += 1;
                continue;
            }
            pending.samples.push((
                index,
                sample.device.clone(),
                sample.stream.clone(),
                sample.sequence,
            ));
            match bulk.get_mut(&sample.patient) {
                Some(record) => record.samples.push(sample),
                None => {
                    let key = sample.patient.clone();
                    bulk.entry(key).or_default().samples.push(sample);
                }
            }
        }
        metrics::counter!("braid_ingest_samples_total").increment(pending.samples.len() as u64);
        if duplicates > 0 {
            metrics::counter!("braid_ingest_duplicates_total", "kind" => "sample")
                .increment(duplicates);
        }
        Ok(())
    }
}
