//! Questions to the register about patients, and a round of them beside the judging.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use store::{PatientEntry, QueryError, Scope, Store};
use tokio::time::timeout;
use vitals::Profile;

/// Limit of one question about a known profile. Then the round ends, and the patient is asked for
/// again with the next expiry.
const REFRESH_LIMIT: Duration = Duration::from_secs(2);

/// The register, as judging asks it.
#[async_trait]
pub(super) trait Entries: Send + Sync {
    async fn entry(&self, key: &str) -> Result<Option<PatientEntry>, QueryError>;
}

#[async_trait]
impl Entries for Arc<dyn Store> {
    async fn entry(&self, key: &str) -> Result<Option<PatientEntry>, QueryError> {
        self.patient(&Scope::Service, key).await
    }
}

/// Result of one round of questions about known patients.
pub(super) struct Refreshed {
    pub(super) asked_us: i64,
    /// By patient. `None`: no answer.
    pub(super) answers: Vec<(String, Option<Judged>)>,
}

/// Asks one question at a time, because no alert waits for the answers. Ends early if the register
/// does not answer; patients not asked for come first in the next round.
pub(super) async fn refresh(
    register: Arc<dyn Entries>,
    keys: Vec<String>,
    asked_us: i64,
) -> Refreshed {
    let mut answers = Vec::new();
    for key in keys {
        match timeout(REFRESH_LIMIT, register.entry(&key)).await {
            Ok(Ok(entry)) => answers.push((key, Some(judged_as(entry)))),
            Ok(Err(error @ QueryError::Unreadable(_))) => {
                tracing::error!(patient = key, %error, "the register entry is unreadable; the known profile stays");
                answers.push((key, None));
            }
            Ok(Err(error)) => {
                tracing::warn!(patient = key, %error, "known profiles are refreshed later");
                break;
            }
            // Perhaps only this patient's query hangs. It must not be the first of each round.
            Err(_) => {
                tracing::warn!(
                    patient = key,
                    "the register does not answer; known profiles are refreshed later"
                );
                answers.push((key, None));
                break;
            }
        }
    }
    Refreshed { asked_us, answers }
}

/// How a patient's readings are judged.
#[derive(Clone, Debug, Default)]
pub(super) struct Judged {
    /// Empty: none.
    pub(super) tenant: String,
    pub(super) profile: Profile,
    /// They are not judged.
    pub(super) has_departed: bool,
}

/// An unregistered patient has no tenant and the first scale.
pub(super) fn judged_as(entry: Option<PatientEntry>) -> Judged {
    entry.map_or_else(Judged::default, |entry| Judged {
        has_departed: !entry.is_present(),
        profile: Profile {
            spo2_scale: entry.spo2_scale,
        },
        tenant: entry.tenant,
    })
}
