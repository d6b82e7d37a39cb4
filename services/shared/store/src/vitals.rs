use std::sync::Arc;

use async_trait::async_trait;
use contracts::vitals::{Gap, Ledger, Metric, Quarantined, Sample};

use crate::{
    Progress, Scope,
    error::{QueryError, WriteError},
};

/// Rows from one or more records of the topic `vitals`, complete: patient, gateway and ingest time
/// are filled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VitalsBatch {
    pub samples: Vec<Sample>,
    pub gaps: Vec<Gap>,
    /// Readings of no patient, kept apart.
    pub quarantined: Vec<Quarantined>,
    /// Accounts of gateways. They replace earlier ones and are no rows of their own.
    pub ledgers: Vec<Ledger>,
}

impl VitalsBatch {
    pub(crate) fn len(&self) -> u64 {
        (self.samples.len() + self.gaps.len() + self.quarantined.len()) as u64
    }
}

/// The result of a write. `new + duplicate` is the number of rows given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    pub new: u64,
    pub duplicate: u64,
}

/// Times beyond this are in the future. A newest value with such a time was written while a clock
/// was ahead, so a value with a present time replaces it. Otherwise a silent device would go
/// unnoticed until the clock has caught up.
pub(crate) fn future_us() -> i64 {
    contracts::now_us().saturating_add(120_000_000)
}

/// The newest value of one metric of one patient, by device time.
#[derive(Debug, Clone, PartialEq)]
pub struct LatestVital {
    pub patient: String,
    pub metric: Metric,
    pub value: f64,
    pub device_time_us: i64,
    pub ingest_time_us: i64,
    pub device: String,
    pub gateway: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SeriesQuery {
    pub patient: String,
    /// Empty: all that have single values or waveforms in the stretch.
    pub metrics: Vec<Metric>,
    /// Device time, from inclusive, to exclusive.
    pub from_us: i64,
    pub to_us: i64,
    /// At most this many points a metric (at least 2). More are thinned so that the least and
    /// greatest value of each slice stay.
    pub points: usize,
}

/// Points of one metric in order of time. A waveform's readings come each with its own time.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesPoints {
    pub metric: Metric,
    pub times_us: Vec<i64>,
    pub values: Vec<f64>,
}

/// Patients of one page of [`VitalsStore::latest_vitals_page`].
pub(crate) const LATEST_PATIENTS_PAGE: usize = 500;

/// The newest values of some patients, and the last of these patients; `None`: there are no more.
pub type LatestVitalsPage = (Vec<LatestVital>, Option<String>);

/// Hands over the newest values of every patient in scope, page by page.
pub async fn each_latest_vital(
    store: &(impl VitalsStore + ?Sized),
    scope: &Scope,
    mut take: impl FnMut(LatestVital) + Send,
) -> Result<(), QueryError> {
    let mut after = Some(String::new());
    while let Some(patient) = after {
        let (values, next) = store
            .latest_vitals_page(scope, &patient, LATEST_PATIENTS_PAGE)
            .await?;
        values.into_iter().for_each(&mut take);
        after = next;
    }
    Ok(())
}

#[async_trait]
pub trait VitalsStore: Send + Sync {
    /// `batch` is shared because a caller keeps it for another try. Samples are unique by (device,
    /// stream, sequence).
    async fn write_vitals(
        &self,
        batch: Arc<VitalsBatch>,
        progress: Vec<Progress>,
    ) -> Result<Written, WriteError>;

    /// The newest value of each metric, of one patient or (`None`) of all in scope. Waveforms have
    /// none.
    async fn latest_vitals(
        &self,
        scope: &Scope,
        patient: Option<&str>,
    ) -> Result<Vec<LatestVital>, QueryError>;

    /// The same of the `patients` patients that follow `after`, in order of their ids.
    async fn latest_vitals_page(
        &self,
        scope: &Scope,
        after: &str,
        patients: usize,
    ) -> Result<LatestVitalsPage, QueryError>;

    /// Which of these devices have ever sent a reading that a patient has.
    async fn which_sent(&self, devices: &[String]) -> Result<Vec<String>, QueryError>;

    async fn series(
        &self,
        scope: &Scope,
        query: &SeriesQuery,
    ) -> Result<Vec<SeriesPoints>, QueryError>;

    /// Stored samples of one patient as they came, in order of device time, at most `limit`: for
    /// export, replay and tests.
    async fn samples(
        &self,
        scope: &Scope,
        patient: &str,
        from_us: i64,
        to_us: i64,
        limit: usize,
    ) -> Result<Vec<Sample>, QueryError>;

    /// Gaps that overlap the stretch.
    async fn gaps(
        &self,
        scope: &Scope,
        patient: &str,
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<Gap>, QueryError>;

    /// Samples and gap lengths stored of one stream: `(samples, highest sequence)`. A check that
    /// nothing is lost compares the two.
    async fn stream_count(&self, device: &str, stream: &str) -> Result<(u64, u64), QueryError>;
}
