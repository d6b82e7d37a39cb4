//! A request of a sensor and its outcome.

use std::{collections::HashSet, net::IpAddr};

use contracts::vitals::Sample;
use tokio::time::Instant;
use tracing::Span;
use vitals::Invalid;

use crate::{
    clock::Moment,
    journal::{AppendError, StageError},
};

/// Samples of one request; a larger request is refused as a whole.
pub const SAMPLES_PER_REQUEST_MAX: usize = 10_000;

/// The reason for refusing a device that the core has not registered here.
pub const NOT_REGISTERED: &str = "is not registered at this gateway";

/// Why a sample was refused. Sending it again does not help unless the text says so.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Journal(StageError),
}

impl Refused {
    /// The sensor's number has another reading already.
    pub fn is_contradiction(&self) -> bool {
        matches!(self, Self::Journal(StageError::Contradicts { .. }))
    }

    /// Field, reason and example, for answers in JSON.
    pub fn parts(&self) -> (&'static str, String, String) {
        match self {
            Self::Invalid(invalid) => (
                invalid.field,
                invalid.reason.clone(),
                invalid.example.clone(),
            ),
            Self::Journal(error @ (StageError::TooManyStreams | StageError::TooManyOfAddress)) => {
                ("stream", error.to_string(), "heart-rate".to_owned())
            }
            Self::Journal(error @ StageError::Contradicts { number, .. }) => {
                let next = number.saturating_add(1).to_string();
                ("sensor_sequence", error.to_string(), next)
            }
            Self::Journal(error) => ("sample", error.to_string(), "a waveform of 1 s".to_owned()),
        }
    }
}

/// No sample of the request is certain to be stored; a retry is safe for samples with a
/// `sensor_sequence`.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{0} samples in one request, at most {SAMPLES_PER_REQUEST_MAX} are taken")]
    TooMany(usize),
    #[error("too many requests wait for the journal; try again later")]
    Busy,
    #[error("the journal cannot store the alerts of these samples: {0}")]
    Alerts(String),
    #[error(transparent)]
    Journal(AppendError),
    #[error("the core has revoked this gateway: it takes no readings")]
    Revoked,
}

#[derive(Debug, Default)]
pub struct Recorded {
    /// Samples that the journal holds, including repeated ones.
    pub accepted: usize,
    /// Index in the request, and the reason.
    pub refused: Vec<(usize, Refused)>,
    /// Indices of accepted samples whose device nobody wears any more: the core keeps them apart
    /// until a person assigns them.
    pub apart: Vec<usize>,
}

/// Whether to wait while the journal's queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Wait,
    Refuse,
}

/// Time, sender and trace of the samples of a request.
pub(super) struct Arrival {
    /// With the time that the samples get.
    pub(super) at: Moment,
    /// Time of the clock, which a sensor may use.
    pub(super) clock_us: i64,
    pub(super) from: Option<IpAddr>,
    pub(super) traceparent: Option<String>,
    pub(super) patience: Patience,
}

/// A request whose samples of known devices are stored.
pub enum Begun {
    Done(Recorded),
    /// With samples of devices that the core may be about to report.
    Late(Box<Late>),
}

pub struct Late {
    /// With their indices in the request.
    pub(super) samples: Vec<(usize, Sample)>,
    pub(super) devices: HashSet<String>,
    /// End of the wait for the devices.
    pub(super) until: Option<Instant>,
    pub(super) arrival: Arrival,
    pub(super) recorded: Recorded,
    pub(super) span: Span,
}

impl Late {
    pub fn has(&self, device: &str) -> bool {
        self.devices.contains(device)
    }
}
