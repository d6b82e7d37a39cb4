//! `braid audit`: reads and changes by people. Reading the log is in the log.

use std::time::Duration;

use serde_json::json;
use store::{AuditEntry, AuditQuery, Change, Scope, Store};

use crate::process::{self, Failure};
use crate::signed::By;
use crate::tenancy::Tenancy;

/// Largest number of entries that are printed.
const LIMIT_MAX: usize = 100_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  braid audit --by \"Eve Operator\" --patient ada --hours 168")]
pub struct AuditCommand {
    #[command(flatten)]
    asker: Asker,
    /// Only entries about this patient.
    #[arg(long, value_name = "ID")]
    patient: Option<String>,
    /// Hours back from now.
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    hours: u32,
    /// Largest number of entries, the newest.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    limit: usize,
    /// Print JSON.
    #[arg(long, default_value_t = false)]
    json: bool,
    #[command(flatten)]
    tenancy: Tenancy,
}

/// The person who reads patients' data. The entry is in the log before any data is printed, as on
/// the page.
#[derive(Debug, Clone, clap::Args)]
pub struct Asker {
    #[command(flatten)]
    by: By,
    /// Reason, for the audit log.
    #[arg(long, value_name = "WHY", default_value = "")]
    reason: String,
}

impl Asker {
    /// A person without a reason.
    pub fn of(by: By) -> Asker {
        Asker {
            by,
            reason: String::new(),
        }
    }

    /// The person, for the log.
    pub async fn who(&self, store: &dyn Store, tenant: &str) -> Result<String, Failure> {
        self.by.who(store, tenant).await
    }

    /// Logs a reading of rules; `subject` is empty for several subjects.
    pub async fn reads_rules(
        &self,
        store: &dyn Store,
        tenant: &str,
        subject: &str,
    ) -> Result<(), Failure> {
        let patient = store::patient_of(store::RULES, subject, "");
        let detail = format!(", rules {subject}");
        self.reads(store, tenant, "read documents", &patient, detail)
            .await
    }

    /// Logs a reading of steering documents, which name no patient.
    pub async fn reads_steering(&self, store: &dyn Store, tenant: &str) -> Result<(), Failure> {
        let detail = ", steering".to_owned();
        self.reads(store, tenant, "read documents", "", detail)
            .await
    }

    /// Logs a change of one patient's entry in the register.
    pub async fn changes(
        &self,
        store: &dyn Store,
        tenant: &str,
        action: &str,
        patient: &str,
    ) -> Result<Change, Failure> {
        self.reads(store, tenant, action, patient, String::new())
            .await?;
        let reason = match self.reason.trim() {
            "" => action,
            reason => reason,
        };
        Ok(Change {
            author: self.by.who(store, tenant).await?,
            reason: reason.to_owned(),
            at_us: contracts::now_us(),
        })
    }

    /// Logs a look at data, or what is done at once after it. `patient` is empty for several
    /// patients.
    pub async fn reads(
        &self,
        store: &dyn Store,
        tenant: &str,
        action: &str,
        patient: &str,
        detail: String,
    ) -> Result<(), Failure> {
        let read = AuditEntry {
            time_us: contracts::now_us(),
            tenant: tenant.to_owned(),
            who: self.by.who(store, tenant).await?,
            action: action.to_owned(),
            patient: patient.to_owned(),
            detail: format!("by command line{detail}"),
        };
        let read = read.because(&self.reason);
        store.append_audit(vec![read]).await.map_err(Failure::other)
    }
}

impl AuditCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(self.on_store())?
    }

    async fn on_store(self) -> Result<(), Failure> {
        let store = self.tenancy.store.open().await?;
        let now_us = contracts::now_us();
        let back = Duration::from_secs(u64::from(self.hours) * 3_600);
        let back_us = i64::try_from(back.as_micros()).unwrap_or(i64::MAX);
        let patient = self.patient.as_deref().unwrap_or_default();
        let detail = format!(", the last {} h", self.hours);
        self.asker
            .reads(&*store, &self.tenancy.tenant, "read audit", patient, detail)
            .await?;
        let query = AuditQuery {
            patient: self.patient,
            from_us: now_us.saturating_sub(back_us),
            to_us: i64::MAX,
            limit: self.limit.clamp(1, LIMIT_MAX),
        };
        let entries = store
            .audit(&Scope::Tenant(self.tenancy.tenant), &query)
            .await;
        let entries = entries.map_err(Failure::other)?;
        if self.json {
            let listed: Vec<_> = entries.iter().map(as_json).collect();
            return process::json(&listed);
        }
        for entry in entries {
            let at = process::when(entry.time_us);
            let parts = [at, entry.who, entry.action, entry.patient, entry.detail];
            println!("{}", parts.join("  "));
        }
        Ok(())
    }
}

fn as_json(entry: &AuditEntry) -> serde_json::Value {
    json!({
        "at": process::when(entry.time_us),
        "by": entry.who,
        "action": entry.action,
        "patient": entry.patient,
        "detail": entry.detail,
    })
}
