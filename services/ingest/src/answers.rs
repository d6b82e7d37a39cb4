//! The second half of a stream: waits for the lanes in the order of the uploads, and acknowledges.

use clocks::CheckedClock;
use contracts::vitals::{Quarantined, Rejection, SequenceRange, UploadResponse};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Status;

use crate::{
    alerts::{Admitted, Answers},
    duplicates::Duplicates,
    to_bus::{NotPublished, Published, answer_of},
};

/// The reason for a sample that no broker will ever take. The details are only logged, because a
/// gateway may be in anybody's hands.
const REFUSED_BY_BUS: &str = "the bus refuses the upload; the log of ingest has the reason";

/// An upload on its way to the bus.
#[derive(Default)]
pub(crate) struct Pending {
    pub position: u64,
    pub rejections: Vec<Rejection>,
    pub published: Vec<Published>,
    /// Samples to remember once the bus holds them: index in the request, device, stream and
    /// sequence.
    pub samples: Vec<(u32, String, String, u64)>,
    /// Alerts that were passed to the bus at once.
    pub alerts: usize,
    /// Alerts that wait for the gateway's quota or for a copy, until they are being published.
    pub waiting: Vec<Admitted>,
    pub gaps: usize,
    /// The gateway has sent no compact samples on this stream.
    pub says_takes_compact: bool,
    /// The gateway has sent no ledger on this stream.
    pub says_takes_ledgers: bool,
    /// Samples that the gateway is to send again.
    pub missing: Vec<SequenceRange>,
    /// Entries of no patient, until their lane takes them; their number, and the places of the
    /// samples in the request.
    pub apart: Vec<Quarantined>,
    pub apart_count: usize,
    pub apart_samples: Vec<u32>,
    /// Reasons of refused alerts and gaps, which the protocol cannot refuse by index.
    pub refused: Vec<String>,
}

/// Answers each upload once the bus holds all of it, in order.
pub(crate) async fn acknowledge(
    duplicates: &Mutex<Duplicates>,
    clock: &CheckedClock,
    mut waiting: mpsc::Receiver<Pending>,
    answers: &Answers,
) -> Result<(), Status> {
    while let Some(mut pending) = waiting.recv().await {
        for published in std::mem::take(&mut pending.published) {
            match answer_of(published).await {
                Ok(()) => {}
                Err(NotPublished::Ending) => {
                    return Err(Status::unavailable("ingest ends; send again"));
                }
                // A repetition would fail again, so the sample is returned to people at the
                // gateway.
                Err(NotPublished::Refused(reason)) => {
                    tracing::error!(reason, "the bus refuses an upload");
                    let refused = std::mem::take(&mut pending.samples);
                    let refused = refused.into_iter().map(|(index, ..)| index);
                    let apart = std::mem::take(&mut pending.apart_samples);
                    let rejections = refused.chain(apart).map(|index| Rejection {
                        index,
                        reason: REFUSED_BY_BUS.to_owned(),
                    });
                    pending.rejections.extend(rejections);
                }
            }
        }
        {
            let mut duplicates = duplicates.lock();
            for (_, device, stream, sequence) in &pending.samples {
                duplicates.enter_sample(device, stream, *sequence);
            }
        }
        let answer = UploadResponse {
            position: pending.position,
            rejections: pending.rejections,
            core_time_us: clock.now_us(),
            takes_compact: pending.says_takes_compact,
            takes_ledgers: pending.says_takes_ledgers,
            missing: pending.missing,
        };
        if answers.send(Ok(answer)).await.is_err() {
            // The gateway is gone. It repeats what was not acknowledged.
            return Ok(());
        }
    }
    Ok(())
}
