//! Changes of SpO2 scales as documents, so that a replay uses the scale of its time. The register
//! has the scale in force.

use contracts::alerts::Document;
use serde::{Deserialize, Serialize};

use crate::{Change, DocumentsStore, SPO2_SCALE, Scope, Spo2Scale, error::WriteError};

/// The body of a document of kind [`SPO2_SCALE`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ScaleBody {
    pub scale: i64,
    /// Scale before the change.
    pub before: i64,
}

/// Records a change of a patient's SpO2 scale, so that a replay can use the scale of its time.
pub async fn record_scale(
    store: &(impl DocumentsStore + ?Sized),
    tenant: &str,
    patient: &str,
    (before, scale): (Spo2Scale, Spo2Scale),
    change: &Change,
) -> Result<(), WriteError> {
    let scope = Scope::tenant(tenant);
    let newest = store.stored_history(&scope, SPO2_SCALE, patient, 1).await;
    let newest = newest.map_err(|error| WriteError::Unavailable(error.to_string()))?;
    let body = ScaleBody {
        scale: scale.number().into(),
        before: before.number().into(),
    };
    let document = Document {
        kind: SPO2_SCALE.to_owned(),
        tenant: tenant.to_owned(),
        subject: patient.to_owned(),
        version: newest.first().map_or(0, |it| it.version) + 1,
        author: change.author.clone(),
        reason: change.reason.clone(),
        at_us: change.at_us,
        // Two numbers: serialisation cannot fail.
        body: serde_json::to_string(&body).unwrap_or_default(),
        ..Document::default()
    };
    store.put_document(&document).await
}
