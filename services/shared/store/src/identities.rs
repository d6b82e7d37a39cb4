//! Gateways' certificates as documents: issued certificates, tokens that obtain one, and
//! revocations.
//!
//! A version of a document is put once, so of two concurrent uses of a token one succeeds. Rows
//! stay, with author, reason and time.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use service_kit::tls::{Fingerprint, PeerId, Revocations};
use tokio::sync::watch;

use crate::{QueryError, Scope, Store};

/// Kinds of documents.
pub const ENROLMENT: &str = "enrolment";
pub const CERTIFICATE: &str = "certificate";
pub const REVOCATION: &str = "revocation";

/// How often it is looked for new revocations: a certificate is out of force within this and the
/// time of a question to the store.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The subject is the token's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolment {
    pub gateway: String,
    /// Hash of the token's secret, in hex.
    pub secret_sha256: String,
    /// Hash of the public key that used the token, in hex. The same key gets its certificate again,
    /// since an answer may be lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_sha256: Option<String>,
}

/// The subject is the gateway; a version for each certificate that was issued to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    pub fingerprint: String,
}

/// The subject is the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Author, reason and time of the revocation. Later versions, which only add exceptions, keep
    /// it.
    #[serde(default)]
    pub by: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub at_us: i64,
    /// Fingerprints of certificates that the gateway got afterwards; newest first.
    pub excepted: Vec<String>,
}

/// Every revocation in force, of all tenants.
pub async fn revocations(store: &dyn Store) -> Result<Revocations, QueryError> {
    let documents = store
        .documents(&Scope::Service, REVOCATION, i64::MIN)
        .await?;
    documents
        .into_iter()
        .map(|document| {
            let body: Revocation = serde_json::from_str(&document.body)
                .map_err(|error| QueryError::Unreadable(format!("a revocation: {error}")))?;
            let excepted = body.excepted.iter();
            let excepted = excepted.filter_map(|text| Fingerprint::from_hex(text));
            let id = PeerId::gateway(document.tenant, document.subject);
            Ok((id, excepted.collect()))
        })
        .collect()
}

/// The state that [`follow_revocations`] has read.
#[derive(Debug, Clone, Default)]
pub struct Followed {
    /// Rises with every change of any document; 0: not read yet.
    pub version: u64,
    pub revocations: Arc<Revocations>,
}

/// Keeps the revocations in step with the store until `end`. While the store does not answer, the
/// last ones stay in force.
pub async fn follow_revocations(
    store: Arc<dyn Store>,
    to: watch::Sender<Followed>,
    end: impl Future<Output = ()>,
) {
    let mut end = std::pin::pin!(end);
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut seen = None;
    loop {
        tokio::select! {
            () = end.as_mut() => return,
            _ = tick.tick() => {}
        }
        match look(&*store, seen).await {
            Ok(None) => {}
            Ok(Some(followed)) => {
                seen = Some(followed.version);
                metrics::gauge!("braid_identity_revoked_gateways")
                    .set(followed.revocations.len() as f64);
                to.send_replace(followed);
            }
            Err(error) => tracing::warn!(%error, "revocations could not be read"),
        }
    }
}

/// Ends once the peer's certificate is out of force, which it may be from the start.
pub async fn until_revoked(
    mut followed: watch::Receiver<Followed>,
    id: Option<PeerId>,
    certificate: Option<Fingerprint>,
) {
    let refused = |followed: &Followed| {
        id.as_ref()
            .is_some_and(|id| followed.revocations.refuses(id, certificate.as_ref()))
    };
    if followed.wait_for(refused).await.is_err() {
        // The follower has ended, because the service ends.
        std::future::pending::<()>().await;
    }
}

/// `None`: nothing was put since.
async fn look(store: &dyn Store, seen: Option<u64>) -> Result<Option<Followed>, QueryError> {
    // Asked for first: what is put in between is read twice rather than never.
    let version = store.newest_document().await?.saturating_add(1);
    if seen == Some(version) {
        return Ok(None);
    }
    let revocations = Arc::new(revocations(store).await?);
    Ok(Some(Followed {
        version,
        revocations,
    }))
}
