use async_trait::async_trait;
use contracts::alerts::Document;
use prost::Message;

use crate::{
    Scope,
    error::{QueryError, WriteError, passed_over},
};

/// Kinds of documents that more than one service reads.
pub const RULES: &str = "rules";
pub const TEAM: &str = "team";
pub const SILENCE: &str = "silence";
/// The SpO2 scale of a patient, who is the subject. The register has the scale in force.
pub const SPO2_SCALE: &str = "spo2-scale";
/// Steering rules of a tenant's gateways.
pub const STEERING: &str = "steering";
/// Entries of the catalogue of metrics; the subject is the metric's key.
pub const CATALOGUE: &str = "catalogue";
/// The tenant of every entry of the catalogue: an installation has one catalogue. No tenant can
/// have this name.
pub const CATALOGUE_TENANT: &str = "*";

/// Documents in one answer to a tenant, and versions of one subject; of more it sees the first by
/// subject, or the newest. A service's own question for what is in force is not cut: rules that it
/// did not read would not hold.
pub const DOCUMENTS_MAX: usize = 10_000;

/// Bytes of the rules, the team or the silences that one tenant may have in force. Every member
/// reads them all into memory whenever one changes. A document beyond the bound is refused, unless
/// it is no larger than the version before it.
pub const DOCUMENTS_BYTES_MAX: u64 = 32 << 20;

/// The patient or group of a silence or a rule set, for the audit log; empty when it concerns no
/// single patient.
pub fn patient_of(kind: &str, subject: &str, body: &str) -> String {
    match kind {
        SILENCE => {
            let body: Option<serde_json::Value> = serde_json::from_str(body).ok();
            let patient = body.as_ref().and_then(|body| body["patient"].as_str());
            patient.unwrap_or_default().to_owned()
        }
        RULES => {
            let patient = subject.strip_prefix("patient:");
            patient.unwrap_or_default().to_owned()
        }
        SPO2_SCALE => subject.to_owned(),
        _ => String::new(),
    }
}

/// People's decisions about alerting. Services bound the documents that they put themselves.
pub(crate) fn is_bounded(document: &Document) -> bool {
    [RULES, TEAM, SILENCE, STEERING, CATALOGUE].contains(&document.kind.as_str())
}

/// `others` and `before`: bytes in force of the tenant's other subjects of the kind, and of this
/// one.
pub(crate) fn check_room(document: &Document, others: u64, before: u64) -> Result<(), String> {
    let own = document.encoded_len() as u64;
    let whole = others.saturating_add(own);
    if own <= before || whole <= DOCUMENTS_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "with it the tenant has {whole} bytes of {} in force, more than {DOCUMENTS_BYTES_MAX}; take back what nobody needs",
        document.kind
    ))
}

/// A version as a row has it. `document`: why it cannot be read, where a medium has damaged it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDocument {
    pub kind: String,
    pub tenant: String,
    pub subject: String,
    pub version: u32,
    pub document: Result<Document, String>,
}

impl StoredDocument {
    /// The content must match the key of its row: a damage in the tenant or subject would apply it
    /// to another patient.
    pub(crate) fn new(
        kind: String,
        tenant: String,
        subject: String,
        version: u32,
        payload: &[u8],
    ) -> StoredDocument {
        let document = match Document::decode(payload) {
            Err(error) => Err(error.to_string()),
            Ok(it)
                if (&it.kind, &it.tenant, &it.subject, it.version)
                    != (&kind, &tenant, &subject, version) =>
            {
                Err("it names another document than its row".to_owned())
            }
            Ok(document) => Ok(document),
        };
        StoredDocument {
            kind,
            tenant,
            subject,
            version,
            document,
        }
    }

    /// For a list that goes on without it.
    pub fn readable(self) -> Option<Document> {
        self.document
            .inspect_err(|error| passed_over("document", error))
            .ok()
    }

    /// For a history: the author of the next version has to know of this one.
    pub fn or_named(self) -> Document {
        self.document.unwrap_or_else(|error| Document {
            kind: self.kind,
            tenant: self.tenant,
            subject: self.subject,
            version: self.version,
            reason: format!("this version cannot be read: {error}"),
            ..Document::default()
        })
    }

    fn strict(self) -> Result<Document, QueryError> {
        let (subject, version) = (self.subject, self.version);
        let unreadable =
            |error| QueryError::Unreadable(format!("{subject} version {version}: {error}"));
        self.document.map_err(unreadable)
    }
}

/// People's decisions about alerting, version by version. Each row has author, time and reason, and
/// is never changed.
#[async_trait]
pub trait DocumentsStore: Send + Sync {
    /// `Conflict` with the subject when the version is not the one after the newest; `Invalid`
    /// beyond [`DOCUMENTS_BYTES_MAX`].
    async fn put_document(&self, document: &Document) -> Result<(), WriteError>;

    /// The newest version of each subject of the kind, when it is in force at `now_us`; by tenant
    /// and subject.
    async fn stored_documents(
        &self,
        scope: &Scope,
        kind: &str,
        now_us: i64,
    ) -> Result<Vec<StoredDocument>, QueryError>;

    /// At most `limit` versions, newest first.
    async fn stored_history(
        &self,
        scope: &Scope,
        kind: &str,
        subject: &str,
        limit: usize,
    ) -> Result<Vec<StoredDocument>, QueryError>;

    /// The same as [`Self::stored_documents`] of what must not be passed over, such as a
    /// revocation: one that cannot be read fails all.
    async fn documents(
        &self,
        scope: &Scope,
        kind: &str,
        now_us: i64,
    ) -> Result<Vec<Document>, QueryError> {
        let stored = self.stored_documents(scope, kind, now_us).await?;
        stored.into_iter().map(StoredDocument::strict).collect()
    }

    /// Every version, newest first; one that cannot be read fails all.
    async fn document_history(
        &self,
        scope: &Scope,
        kind: &str,
        subject: &str,
    ) -> Result<Vec<Document>, QueryError> {
        let stored = self.stored_history(scope, kind, subject, DOCUMENTS_MAX);
        let stored = stored.await?;
        stored.into_iter().map(StoredDocument::strict).collect()
    }

    /// Rises with every document put, by whomever: asks whether to look again.
    async fn newest_document(&self) -> Result<u64, QueryError>;
}
