//! Admits uploads a second time: kept uploads of newer gateways, once this version knows their
//! fields, and samples that were refused. They pass the admission of every upload in the name of
//! their gateway.
//!
//! The gateway's clock is judged by the time at which the upload first arrived. Entries that were
//! admitted the first time are left out by the store, by (device, stream, sequence).

use std::{sync::Arc, time::Duration};

use bus::Bus;
use contracts::vitals::{Sample, UploadRequest};
use prost::bytes::Bytes;
use service_kit::{Context, quota::Quota};
use store::{Followed, Store};
use tokio::sync::watch;
use tonic::Status;

pub use crate::admission::GatewayId;
use crate::{
    from_gateway::{
        Bounds, Gateways,
        newer::{self, Upload},
    },
    register::Register,
    to_bus::Lanes,
};

pub use crate::from_gateway::{
    Readmitted,
    newer::{GATEWAY, UPLOADS},
};

/// An engine that does not answer for so long is away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Refused samples that are readmitted at once; a caller with more goes on with the next.
pub const REFUSED_AT_ONCE_MAX: usize = 2_000;
/// The owner of a device is asked for once in a run.
const REGISTER_REFRESH: Duration = Duration::from_secs(3600);

/// An upload as it stands in the dead letters.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The letter's header [`GATEWAY`].
    pub gateway: String,
    pub whole: Bytes,
    pub arrived_us: i64,
}

#[derive(Debug, thiserror::Error)]
pub enum NotReadmitted {
    #[error("is not an upload: {0}")]
    NoUpload(String),
    #[error("has fields that this version does not know: it waits for a newer one")]
    StillNewer,
    #[error("{0}; a repetition is safe")]
    Failed(String),
}

pub struct Readmission {
    gateways: Gateways,
}

impl Readmission {
    pub fn new(bus: Arc<dyn Bus>, store: Arc<dyn Store>) -> Readmission {
        let context = Context::new("readmission");
        let register = Arc::new(Register::new(store, REGISTER_REFRESH));
        let lanes = Lanes::start(&bus, &context);
        // The upload was authorised when it first arrived. Later revocations do not matter.
        let revocations = watch::channel(Followed::default()).1;
        // There is no quota. The bounds of what is kept apart hold.
        let bounds = Bounds {
            quota: Quota::items(0, Duration::ZERO),
            alerts_per_s: 0,
            apart: Arc::default(),
        };
        Readmission {
            gateways: Gateways::new(register, bus, lanes, revocations, bounds, &context),
        }
    }

    /// The tenant and the gateway that the letter names.
    pub fn identity(kept: &Kept) -> Result<GatewayId, NotReadmitted> {
        newer::identity(&kept.gateway)
            .ok_or_else(|| NotReadmitted::NoUpload(format!("{:?} names no gateway", kept.gateway)))
    }

    pub async fn readmit(&self, kept: Kept) -> Result<Readmitted, NotReadmitted> {
        let gateway = Self::identity(&kept)?;
        let upload = Upload::decode(kept.whole)
            .map_err(|error| NotReadmitted::NoUpload(error.message().to_owned()))?;
        if upload.whole.is_some() {
            return Err(NotReadmitted::StillNewer);
        }
        self.admit(&gateway, upload.known, kept.arrived_us).await
    }

    /// Samples that were refused when the gateway uploaded them, at most [`REFUSED_AT_ONCE_MAX`].
    pub async fn readmit_refused(
        &self,
        gateway: &GatewayId,
        samples: Vec<Sample>,
    ) -> Result<Readmitted, NotReadmitted> {
        let upload = UploadRequest {
            samples,
            ..UploadRequest::default()
        };
        self.admit(gateway, upload, contracts::now_us()).await
    }

    async fn admit(
        &self,
        gateway: &GatewayId,
        upload: UploadRequest,
        arrived_us: i64,
    ) -> Result<Readmitted, NotReadmitted> {
        let readmission = self.gateways.readmit(gateway, upload, arrived_us);
        tokio::time::timeout(PATIENCE, readmission)
            .await
            .map_err(|_| NotReadmitted::Failed("the bus does not take it".to_owned()))?
            .map_err(|status: Status| NotReadmitted::Failed(status.message().to_owned()))
    }
}
