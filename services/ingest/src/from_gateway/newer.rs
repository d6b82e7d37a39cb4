//! Handles uploads of gateways that know more fields than this version. Known fields go their way.
//! The whole upload is kept byte by byte in the dead letters before it is acknowledged.

use std::sync::Arc;

use bus::{Bus, Record, Topic, dead_letter};
use contracts::vitals::UploadRequest;
use prost::Message;
use prost::bytes::Bytes;
use service_kit::{Backoff, Shutdown};
use tokio::sync::oneshot;
use tonic::Status;

use crate::admission::GatewayId;
use crate::to_bus::{NotPublished, Published};

/// Stands in place of a topic. Such letters hold unchecked words of a gateway, so they are never
/// replayed to a topic.
pub const UPLOADS: &str = "uploads";
/// Header: the gateway of the upload.
pub const GATEWAY: &str = "gateway";
const REASON: &str =
    "is an upload of a newer gateway: the known part was accepted, and the whole is kept here only";

/// The known fields, and the whole upload if it has more.
pub(crate) struct Upload {
    pub known: UploadRequest,
    pub whole: Option<Bytes>,
    /// Length as received.
    pub bytes: usize,
}

impl Upload {
    pub(crate) fn decode(whole: Bytes) -> Result<Upload, Status> {
        let bytes = whole.len();
        let known: UploadRequest = contracts::codec::decode(whole.clone())?;
        // Every known field is encoded as it was read, so missing bytes were unknown.
        let is_newer = known.encoded_len() < whole.len();
        Ok(Upload {
            known,
            whole: is_newer.then_some(whole),
            bytes,
        })
    }
}

/// The gateway that the header [`GATEWAY`] names.
pub(crate) fn identity(header: &str) -> Option<GatewayId> {
    let (tenant, id) = header.split_once('/')?;
    (!tenant.is_empty() && !id.is_empty()).then(|| GatewayId {
        tenant: tenant.to_owned(),
        id: id.to_owned(),
    })
}

/// Keeps an upload; the receiver resolves when the bus has it. A stream has no more of these in
/// progress than uploads.
pub(crate) fn keep(
    bus: &Arc<dyn Bus>,
    gateway: &GatewayId,
    whole: Bytes,
    shutdown: &Shutdown,
) -> Published {
    tracing::error!(
        gateway = gateway.id,
        "an upload of a newer gateway goes to the dead letters; upgrade this service"
    );
    metrics::counter!("braid_bus_dead_letters_total", "consumer" => "ingest").increment(1);
    let record = Record::new(gateway.id.clone(), whole)
        .header(dead_letter::REASON, REASON)
        .header(dead_letter::CONSUMER, "ingest")
        .header(dead_letter::TOPIC, UPLOADS)
        .header(GATEWAY, format!("{}/{}", gateway.tenant, gateway.id));
    let (done, kept) = oneshot::channel();
    let (bus, shutdown) = (Arc::clone(bus), shutdown.clone());
    tokio::spawn(async move {
        let mut backoff = Backoff::for_reconnect();
        let result = loop {
            match bus.publish(Topic::DeadLetters, vec![record.clone()]).await {
                Ok(()) => break Ok(()),
                Err(error) if !error.is_retryable() => {
                    break Err(NotPublished::Refused(error.to_string()));
                }
                Err(error) => tracing::warn!(%error, "the bus does not take a dead letter"),
            }
            tokio::select! {
                () = shutdown.requested() => break Err(NotPublished::Ending),
                () = backoff.wait() => {}
            }
        };
        // A stream that has ended no longer waits.
        let _ = done.send(result);
    });
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::vitals::{Gap, Sample, Waveform, sample::Reading};

    use super::*;

    fn upload() -> UploadRequest {
        UploadRequest {
            position: 7,
            samples: vec![Sample {
                device: "belt".into(),
                sensor_sequence: Some(0),
                reading: Some(Reading::Waveform(Waveform {
                    period_us: 4_000,
                    values: vec![0.0, 0.5],
                })),
                ..Sample::default()
            }],
            gaps: vec![Gap::default()],
            ..UploadRequest::default()
        }
    }

    #[test]
    fn what_is_known_to_the_last_field_is_not_kept_twice() {
        for known in [upload(), UploadRequest::default()] {
            let decoded = Upload::decode(known.encode_to_vec().into()).unwrap();
            assert_eq!(decoded.known, known);
            assert_eq!(decoded.whole, None);
        }
    }

    #[test]
    fn what_is_not_known_is_seen_at_every_depth() {
        // Field 200, a number.
        const MORE: [u8; 3] = [0xc0, 0x0c, 0x07];
        let field = |number: u8, inner: &[u8]| {
            [&[number << 3 | 2, inner.len() as u8], inner, &MORE[..]].concat()
        };
        let waveform = field(9, &[&[0x08, 0x05][..], &MORE].concat());
        for (number, inner) in [
            (2, [&[0x0a, 0x01, b'b'][..], &MORE].concat()),
            (2, waveform),
            (3, MORE.to_vec()),
            (4, MORE.to_vec()),
            (99 & 0x0f, Vec::new()),
        ] {
            let whole = Bytes::from(field(number, &inner));
            let decoded = Upload::decode(whole.clone()).unwrap();
            assert_eq!(decoded.whole, Some(whole), "in field {number}");
        }
    }
}
