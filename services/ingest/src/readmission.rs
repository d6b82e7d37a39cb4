//! A second chance for kept uploads of newer gateways, once this version knows what they say: through the admission of every upload, as
//! the gateway that the dead letter names.
//!
//! Three things differ from an upload that comes now. The gateway's clock is judged by when the upload came then. A device that was
//! registered since may have been with somebody else, so what it says is refused unless whoever asks knows better. And what was let
//! in at the first time comes again: the store leaves it out, by (device, stream, sequence).

use std::{collections::HashSet, sync::Arc, time::Duration};

use bus::Bus;
use contracts::vitals::UploadRequest;
use prost::bytes::Bytes;
use service_kit::{Context, quota::Quota};
use store::{Followed, QueryError, Scope, Store};
use tokio::sync::watch;
use tonic::Status;

use crate::{
    admission::GatewayId,
    from_gateway::Gateways,
    newer::{self, Upload},
    register::Register,
    to_bus::Lanes,
};

pub use crate::newer::{GATEWAY, UPLOADS};

/// An engine that does not answer for so long is away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Who owns a device is asked once a run.
const REGISTER_REFRESH: Duration = Duration::from_secs(3600);

/// An upload as the dead letters have it.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The letter's header [`GATEWAY`].
    pub gateway: String,
    pub whole: Bytes,
    pub arrived_us: i64,
}

/// What went to the topic, and why the rest did not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Readmitted {
    pub samples: usize,
    pub alerts: usize,
    pub gaps: usize,
    pub refused: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum NotReadmitted {
    #[error("is no upload: {0}")]
    NoUpload(String),
    #[error("says more than this version knows, too: it waits for a newer one")]
    StillNewer,
    #[error("{0}; it can be tried again, nothing comes in twice")]
    Failed(String),
}

impl From<QueryError> for NotReadmitted {
    fn from(error: QueryError) -> NotReadmitted {
        NotReadmitted::Failed(error.to_string())
    }
}

pub struct Readmission {
    gateways: Gateways,
    store: Arc<dyn Store>,
}

impl Readmission {
    pub fn new(bus: Arc<dyn Bus>, store: Arc<dyn Store>) -> Readmission {
        let context = Context::new("readmission");
        let register = Arc::new(Register::new(Arc::clone(&store), REGISTER_REFRESH));
        let lanes = Lanes::start(&bus, &context);
        // It was let in when it came; what was revoked since is another matter.
        let revocations = watch::channel(Followed::default()).1;
        let no_quota = Quota::items(0, Duration::ZERO);
        Readmission {
            gateways: Gateways::new(register, bus, lanes, revocations, no_quota, 0, &context),
            store,
        }
    }

    /// The tenant and the gateway that the letter names.
    pub fn identity(kept: &Kept) -> Result<GatewayId, NotReadmitted> {
        newer::identity(&kept.gateway)
            .ok_or_else(|| NotReadmitted::NoUpload(format!("{:?} names no gateway", kept.gateway)))
    }

    /// `same_patients`: devices that were registered since are with the people with whom they were.
    pub async fn readmit(
        &self,
        kept: Kept,
        same_patients: bool,
    ) -> Result<Readmitted, NotReadmitted> {
        let gateway = Self::identity(&kept)?;
        let upload = Upload::decode(kept.whole)
            .map_err(|error| NotReadmitted::NoUpload(error.message().to_owned()))?;
        if upload.whole.is_some() {
            return Err(NotReadmitted::StillNewer);
        }
        let mut known = upload.known;
        let refused = if same_patients {
            Vec::new()
        } else {
            self.leave_out_registered_since(&mut known, kept.arrived_us)
                .await?
        };
        let readmission = self.gateways.readmit(&gateway, known, kept.arrived_us);
        let mut readmitted = tokio::time::timeout(PATIENCE, readmission)
            .await
            .map_err(|_| NotReadmitted::Failed("the bus does not take it".to_owned()))?
            .map_err(|status: Status| NotReadmitted::Failed(status.message().to_owned()))?;
        readmitted.refused.extend(refused);
        Ok(readmitted)
    }

    async fn leave_out_registered_since(
        &self,
        upload: &mut UploadRequest,
        arrived_us: i64,
    ) -> Result<Vec<String>, NotReadmitted> {
        let samples = upload.samples.iter().map(|sample| &sample.device);
        let alerts = upload.alerts.iter().map(|alert| &alert.device);
        let gaps = upload.gaps.iter().map(|gap| &gap.device);
        let devices: HashSet<&String> = samples.chain(alerts).chain(gaps).collect();
        let mut since = HashSet::new();
        for device in devices {
            let entry = self.store.device(&Scope::Service, device).await?;
            if entry.is_some_and(|entry| entry.registered_us > arrived_us) {
                since.insert(device.clone());
            }
        }
        upload.samples.retain(|it| !since.contains(&it.device));
        upload.alerts.retain(|it| !since.contains(&it.device));
        upload.gaps.retain(|it| !since.contains(&it.device));
        let why = "was registered after this came and may have been with somebody else";
        Ok(since
            .into_iter()
            .map(|device| format!("device {device} {why}"))
            .collect())
    }
}
