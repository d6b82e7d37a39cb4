//! Samples and gaps of an upload: judged one by one, and gathered for the bus.

use contracts::vitals::{Gap, Rejection, Sample};
use tonic::Status;

use super::Shared;
use crate::{
    admission::{GatewayId, refuse},
    answers::Pending,
    judging::{At, Judged, Run},
    to_bus::Records,
};

impl Shared {
    pub(super) async fn admit_gaps(
        &self,
        gateway: &GatewayId,
        gaps: Vec<Gap>,
        at: At,
        bulk: &mut Records,
        pending: &mut Pending,
    ) -> Result<(), Status> {
        let gaps = self.date_not_kept(gateway, gaps, at).await?;
        let mut run = Run::new(gateway, at, &mut pending.apart);
        for gap in gaps {
            match self.judging.judge(&mut run, gap).await? {
                Judged::Admitted(gap) => {
                    metrics::counter!("braid_ingest_gaps_total").increment(1);
                    bulk.entry(gap.patient.clone()).or_default().gaps.push(gap);
                    pending.gaps += 1;
                }
                Judged::Refused(refusal) => pending.refused.push(refuse("gap", gateway, refusal)),
                Judged::Apart | Judged::Held => {}
            }
        }
        Ok(())
    }

    pub(super) async fn admit_samples(
        &self,
        gateway: &GatewayId,
        (samples, is_again): (Vec<Sample>, bool),
        at: At,
        bulk: &mut Records,
        pending: &mut Pending,
    ) -> Result<(), Status> {
        let mut run = Run::new(gateway, at, &mut pending.apart);
        run.is_again = is_again;
        let mut duplicates = 0;
        for (index, sample) in (0_u32..).zip(samples) {
            let sample = match self.judging.judge(&mut run, sample).await? {
                Judged::Admitted(sample) => sample,
                Judged::Held => {
                    duplicates += 1;
                    continue;
                }
                Judged::Apart => {
                    pending.apart_samples.push(index);
                    continue;
                }
                Judged::Refused(refusal) => {
                    metrics::counter!("braid_ingest_rejected_samples_total", "reason" => refusal.kind)
                        .increment(1);
                    let reason = refusal.reason;
                    pending.rejections.push(Rejection { index, reason });
                    continue;
                }
            };
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
