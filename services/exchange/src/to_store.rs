//! Makes the changes of a message in the store.

use std::sync::Arc;

use contracts::patients::{Change as PatientChange, Identifier, Patient};
use store::{Change, ChangePatientsError, QueryError, Scope, Store, WriteError};

use crate::adt::{Adt, AdtError};

/// Attempts where somebody else changes the record at the same time.
const ATTEMPTS_MAX: usize = 5;
/// The author of the changes.
const AUTHOR: &str = "hospital";

/// Why a message changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum NotStored {
    /// Again it would be refused again.
    #[error("{0}")]
    Refused(String),
    /// The store is away: the sender keeps the message.
    #[error("{0}")]
    Unavailable(String),
}

impl From<AdtError> for NotStored {
    fn from(error: AdtError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<QueryError> for NotStored {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Unavailable(_) => Self::Unavailable(error.to_string()),
            QueryError::Unreadable(_) => Self::Refused(error.to_string()),
        }
    }
}

#[derive(Clone)]
pub struct Patients {
    store: Arc<dyn Store>,
    tenant: String,
}

impl Patients {
    pub fn new(store: Arc<dyn Store>, tenant: &str) -> Patients {
        Patients {
            store,
            tenant: tenant.to_owned(),
        }
    }

    /// `of`: the message, for the audit log. Returns the number of changes.
    pub async fn take(&self, adt: &Adt, of: &str) -> Result<usize, NotStored> {
        let mut outdated = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match self.attempt(adt, of).await {
                Ok(count) => return Ok(count),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Outdated(reason)) => outdated = reason,
            }
        }
        Err(NotStored::Unavailable(outdated))
    }

    async fn attempt(&self, adt: &Adt, of: &str) -> Result<usize, Attempt> {
        let found = self.find(&adt.identifiers).await?;
        let old = self.find(&adt.merged).await?;
        let changes = adt.changes(found.as_ref(), old.as_ref())?;
        if let (None, Some(admission)) = (&found, changes.first().filter(|_| old.is_none())) {
            self.refuse_foreign(admission).await?;
        }
        for change in &changes {
            let by = Change {
                author: AUTHOR.to_owned(),
                reason: of.to_owned(),
                at_us: contracts::now_us(),
            };
            let made = self
                .store
                .change_patients(&self.tenant, std::slice::from_ref(change), &by);
            made.await?;
        }
        Ok(changes.len())
    }

    /// An id that somebody gave by hand may be anybody's.
    async fn refuse_foreign(&self, admission: &PatientChange) -> Result<(), NotStored> {
        let scope = Scope::tenant(&self.tenant);
        match self
            .store
            .patient_record(&scope, &admission.patient)
            .await?
        {
            None => Ok(()),
            Some(record) => Err(NotStored::Refused(format!(
                "patient {} exists without an identifier of PID-3: give the record the identifier, \
                 then replay the message",
                record.id
            ))),
        }
    }

    /// The patient who has one of the identifiers. A merged record stands for its successor.
    async fn find(&self, identifiers: &[Identifier]) -> Result<Option<Patient>, NotStored> {
        let scope = Scope::tenant(&self.tenant);
        let mut found: Option<Patient> = None;
        for identifier in identifiers {
            let owner = self.store.patient_of_identifier(&scope, identifier).await?;
            let Some(mut owner) = owner else { continue };
            if !owner.merged_into.is_empty() {
                let into = self
                    .store
                    .patient_record(&scope, &owner.merged_into)
                    .await?;
                owner = into.unwrap_or(owner);
            }
            match &found {
                Some(before) if before.id != owner.id => {
                    return Err(NotStored::Refused(format!(
                        "identifiers of two patients: {} and {}",
                        before.id, owner.id
                    )));
                }
                _ => found = Some(owner),
            }
        }
        Ok(found)
    }
}

/// How one attempt failed.
enum Attempt {
    /// Somebody changed the record meanwhile.
    Outdated(String),
    Failed(NotStored),
}

impl<E: Into<NotStored>> From<E> for Attempt {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl From<ChangePatientsError> for Attempt {
    fn from(error: ChangePatientsError) -> Self {
        let text = error.to_string();
        match error {
            ChangePatientsError::Refused {
                refusal: patients::Refusal::Outdated { .. },
                ..
            } => Self::Outdated(text),
            ChangePatientsError::Write(WriteError::Conflict(_)) => Self::Outdated(text),
            ChangePatientsError::Write(error) if error.is_retryable() => {
                Self::Failed(NotStored::Unavailable(text))
            }
            _ => Self::Failed(NotStored::Refused(text)),
        }
    }
}
