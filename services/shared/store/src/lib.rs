//! The store: vitals, alerts, paths, the register of sensors and patients, people and their audit
//! log.
//!
//! Two engines implement [`Store`]: [`sqlite`] (embedded, several processes on one data directory)
//! and [`timescale`]. Both keep these promises, which `conformance` checks:
//!
//! - A write is one transaction: rows, state and the consumer's [`Progress`], all or nothing,
//!   durable when it returns.
//! - Rows are unique by identity (vitals: device, stream, sequence). A second one is left out and
//!   counted, never an error.
//! - A [`Progress`] carries the epoch of its [`Claim`]. When a newer claim of the partition exists,
//!   the whole write fails with [`WriteError::Fenced`]. So a member that lost its partition without
//!   noticing cannot write.
//!
//! The trait is split by purpose: [`VitalsStore`], [`AlertsStore`], [`SilentStore`],
//! [`NoticesStore`], [`LedgersStore`], [`ProofsStore`], [`DocumentsStore`], [`PathsStore`],
//! [`Register`], [`QuarantineStore`], [`Accounts`], [`SessionsStore`], [`ProgressStore`],
//! [`PatientsStore`], [`Maintenance`]. Queries on behalf of people carry a [`Scope`], so that no
//! query can forget the tenant.

mod accounts;
mod alerts;
mod call_guard;
mod claims;
pub mod completeness;
#[cfg(feature = "conformance")]
pub mod conformance;
mod documents;
mod error;
mod identities;
mod in_force;
mod ledgers;
mod maintenance;
mod notices;
mod paths;
mod patients;
mod progress;
mod proofs;
mod quarantine;
mod register;
pub mod removals;
mod scales;
mod scope;
mod sessions;
mod silent;
pub mod sqlite;
mod thinning;
pub mod timescale;
mod vitals;

pub use accounts::{Account, Accounts, AuditEntry, AuditQuery, Role};
pub use alerts::{AlertsBatch, AlertsQuery, AlertsStore, OpenAlerts, OutboxEntry, RuleState};
pub use call_guard::CallGuard;
pub use claims::Claims;
pub use documents::{
    DOCUMENTS_BYTES_MAX, DOCUMENTS_MAX, DocumentsStore, RULES, SILENCE, SPO2_SCALE, STEERING,
    StoredDocument, TEAM, patient_of,
};
pub use error::{ClaimError, NotReady, QueryError, WriteError};
pub use identities::{
    CERTIFICATE, ENROLMENT, Enrolment, Followed, Issued, REVOCATION, Revocation,
    follow_revocations, revocations, until_revoked,
};
pub use in_force::{Damaged, InForce, Otherwise, PUT_ANEW, Reported, in_force};
pub use ledgers::{
    ASKED_MAX, ASKED_US, Asked, ISLANDS_MAX, Island, JournalSpan, LedgerRun, LedgersStore,
    SENSOR_JUMPS_MAX, SensorJump, StreamStored,
};
pub use maintenance::{Expire, Maintenance, Restore};
pub use notices::{
    EscalationTimer, NoticesBatch, NoticesStore, QueuedNotice, Take, TimerChange, alert_of_timer,
    timer_of,
};
pub use paths::{
    LatestPathKey, LatestPathsPage, PATHS_PER_GATEWAY_MAX, PathsQuery, PathsStore,
    each_latest_path, is_namesakes,
};
pub use patients::{
    ChangePatientsError, MERGED_MAX, PATIENT_CHANGES_MAX, PatientsStore, Stays, Watched,
};
pub use progress::{Claim, LOG_GAPS_MAX, LogGap, Progress, ProgressStore};
pub use proofs::{Proof, ProofsStore};
pub use quarantine::{
    CASES_LISTED_MAX, QuarantineCase, QuarantineEntry, QuarantineFill, QuarantineQuery,
    QuarantineStore, QuarantineTotals,
};
pub use register::{
    ASSIGN_LEAD_US, ASSIGNMENTS_LISTED_MAX, ASSIGNMENTS_PER_DEVICE_MAX, Assigned, Assignment,
    Change, DeviceEntry, GatewayEntry, Of, PatientEntry, PatientStatus, REGISTER_PAGE,
    REGISTER_TEXT_BYTES_MAX, Register, Spo2Scale, each_assignment_at,
};
pub use removals::Removal;
pub use scales::{ScaleBody, record_scale};
pub use scope::Scope;
pub use sessions::{
    KIOSK_RENEWAL_PAUSE_US, KIOSKS_PER_TENANT_MAX, SESSIONS_MAX, SESSIONS_PER_ACCOUNT_MAX,
    SessionKey, SessionKind, SessionsStore, StoredSession, TOKENS_PER_KIOSK_MAX,
};
pub use silent::{Silent, SilentBatch, SilentPage, SilentStore, each_silent};
pub use sqlite::{SqliteOptions, SqliteStore};
pub use thinning::Thinner;
pub use timescale::{TimescaleOptions, TimescaleStore};
pub use vitals::{
    LatestVital, LatestVitalsPage, SeriesPoints, SeriesQuery, VitalsBatch, VitalsStore, Written,
    each_latest_vital,
};

/// Everything a service may ask of the store.
pub trait Store:
    VitalsStore
    + LedgersStore
    + AlertsStore
    + SilentStore
    + NoticesStore
    + ProofsStore
    + DocumentsStore
    + PathsStore
    + Register
    + PatientsStore
    + QuarantineStore
    + Accounts
    + SessionsStore
    + ProgressStore
    + Maintenance
{
}

impl<T> Store for T where
    T: VitalsStore
        + LedgersStore
        + AlertsStore
        + SilentStore
        + NoticesStore
        + ProofsStore
        + DocumentsStore
        + PathsStore
        + Register
        + PatientsStore
        + PatientsStore
        + QuarantineStore
        + Accounts
        + SessionsStore
        + ProgressStore
        + Maintenance
{
}

/// Tenant of the embedded shape and of everything that names none.
pub const DEFAULT_TENANT: &str = "default";
