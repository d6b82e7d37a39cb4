//! A request in two parts. Samples of known devices, and the alerts that they raise, do not wait
//! for the core; those of unknown devices are stored last.

use std::net::IpAddr;

use contracts::vitals::Sample;
use tracing::Instrument;

use super::{
    Intake,
    request::{Arrival, Begun, Late, Patience, RecordError, Recorded, SAMPLES_PER_REQUEST_MAX},
};
use crate::{clock::Moment, journal::Disk};

impl<D: Disk> Intake<D> {
    /// Returns once the samples of known devices are on disk. `is_late`: whether earlier samples of
    /// a device are late, so that these must not overtake them.
    pub async fn begin(
        &self,
        samples: Vec<Sample>,
        now: Moment,
        patience: Patience,
        (from, parent): (Option<IpAddr>, Option<&str>),
        is_late: impl Fn(&str) -> bool,
    ) -> Result<Begun, RecordError> {
        if samples.len() > SAMPLES_PER_REQUEST_MAX {
            return Err(RecordError::TooMany(samples.len()));
        }
        if self.revocation.is_heard() {
            return Err(RecordError::Revoked);
        }
        let span = tracing::info_span!("record", samples = samples.len());
        if let Some(parent) = parent {
            service_kit::telemetry::continue_trace(&span, parent);
        }
        let arrival = Arrival {
            at: self.named(now),
            clock_us: now.wall_us,
            from,
            traceparent: service_kit::telemetry::traceparent(&span),
            patience,
        };
        // All samples of a device are on the same side, so they keep their order.
        let devices = self.late_of(&samples, is_late);
        let (late, known): (Vec<_>, Vec<_>) = samples
            .into_iter()
            .enumerate()
            .partition(|(_, sample)| devices.contains(&sample.device));
        let until = self.wait_until(&devices);
        let mut recorded = Recorded::default();
        let stored = self.store(known.into_iter(), &arrival, &mut recorded);
        let stored = stored.instrument(span.clone()).await;
        recorded.refused.sort_by_key(|(index, _)| *index);
        if stored.is_err() || late.is_empty() {
            return count(stored.map(|()| recorded)).map(Begun::Done);
        }
        Ok(Begun::Late(Box::new(Late {
            samples: late,
            devices,
            until,
            arrival,
            recorded,
            span,
        })))
    }

    /// Stores the late samples, or refuses those of devices that are still unknown.
    pub async fn finish(&self, late: Late) -> Result<Recorded, RecordError> {
        let mut recorded = late.recorded;
        let samples = late.samples.into_iter();
        let stored = self.store(samples, &late.arrival, &mut recorded);
        let stored = stored.instrument(late.span).await;
        recorded.refused.sort_by_key(|(index, _)| *index);
        count(stored.map(|()| recorded))
    }
}

fn count(recorded: Result<Recorded, RecordError>) -> Result<Recorded, RecordError> {
    match &recorded {
        Ok(recorded) => {
            metrics::counter!("braid_gateway_samples_accepted_total")
                .increment(recorded.accepted as u64);
            metrics::counter!("braid_gateway_samples_refused_total")
                .increment(recorded.refused.len() as u64);
        }
        Err(error) => {
            metrics::counter!("braid_gateway_requests_failed_total").increment(1);
            tracing::debug!(%error, "samples could not be stored");
        }
    }
    recorded
}
