//! Readings that the register attributes to no patient: kept apart, whole, until a person assigns
//! or discards them. They do not expire. Ingest bounds them, for each gateway and in all, before it
//! acknowledges.

use async_trait::async_trait;
use contracts::vitals::{Quarantined, quarantined::Entry};
use prost::Message;

use crate::{
    AuditEntry, Scope,
    error::{QueryError, WriteError},
};

/// Cases in one answer; those that came last.
pub const CASES_LISTED_MAX: usize = 1000;

/// Entries of one gateway and device that are kept apart for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineCase {
    pub tenant: String,
    pub gateway: String,
    pub device: String,
    /// Kind as in [`Quarantined`].
    pub kind: String,
    pub entries: u64,
    pub bytes: u64,
    /// Event times of the first and the last entry.
    pub first_us: i64,
    pub last_us: i64,
    /// When the last one came.
    pub arrived_us: i64,
}

/// How much is kept apart in scope, whatever a list has room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuarantineTotals {
    pub cases: u64,
    pub entries: u64,
}

/// Readings of one gateway that are kept apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuarantineFill {
    pub tenant: String,
    pub gateway: String,
    pub entries: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuarantineQuery {
    pub device: String,
    /// `None`: of every gateway.
    pub gateway: Option<String>,
    /// Event time, from inclusive, until exclusive.
    pub from_us: i64,
    pub until_us: i64,
    /// Only behind this key: for the next page.
    pub after: i64,
    pub limit: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct QuarantineEntry {
    /// Unique; rises with every entry.
    pub key: i64,
    pub quarantined: Quarantined,
}

#[async_trait]
pub trait QuarantineStore: Send + Sync {
    async fn quarantine_cases(&self, scope: &Scope) -> Result<Vec<QuarantineCase>, QueryError>;
    async fn quarantine_totals(&self, scope: &Scope) -> Result<QuarantineTotals, QueryError>;
    /// Those of all tenants, by gateway.
    async fn quarantine_fill(&self) -> Result<Vec<QuarantineFill>, QueryError>;
    /// In order of their keys.
    async fn quarantined(
        &self,
        scope: &Scope,
        query: &QuarantineQuery,
    ) -> Result<Vec<QuarantineEntry>, QueryError>;
    /// Takes these entries out, with the audit row that says what became of them; returns how many
    /// were there.
    async fn settle_quarantined(
        &self,
        scope: &Scope,
        keys: Vec<i64>,
        audit: AuditEntry,
    ) -> Result<u64, WriteError>;
}

/// Columns of an entry.
pub(crate) struct Columns {
    pub device: String,
    /// Unique within gateway and device: the same upload again is the same entry.
    pub identity: String,
    pub time_us: i64,
    pub payload: Vec<u8>,
}

impl Columns {
    /// `Invalid`: it has no entry.
    pub(crate) fn of(quarantined: &Quarantined) -> Result<Columns, WriteError> {
        let (device, identity, time_us) = match &quarantined.entry {
            Some(Entry::Sample(it)) => (
                &it.device,
                format!("sample/{}/{}", it.stream, it.sequence),
                it.device_time_us,
            ),
            Some(Entry::Gap(it)) => (
                &it.device,
                format!(
                    "gap/{}/{}-{}",
                    it.stream, it.first_sequence, it.last_sequence
                ),
                it.from_time_us,
            ),
            // A gateway that lost its journal counts from 1 again.
            Some(Entry::Alert(it)) => (
                &it.device,
                format!("alert/{}/{}/{}", it.rule, it.sequence, it.time_us),
                it.time_us,
            ),
            None => {
                return Err(WriteError::Invalid(
                    "what is to be kept apart has no entry".to_owned(),
                ));
            }
        };
        Ok(Columns {
            device: device.clone(),
            identity,
            time_us,
            payload: quarantined.encode_to_vec(),
        })
    }
}
