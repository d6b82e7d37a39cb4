//! Decisions by people on the command line, as documents of the store. Each version is signed, and
//! in the audit log before it is in force.

use alerting::documents::{self, RULES, SILENCE};
use contracts::alerts::Document;
use serde_json::{Value, json};
use store::{AuditEntry, STEERING, Scope, Store, StoredDocument, WriteError};
use tunnel::steering_rules;

use crate::audit::Asker;
use crate::process::{self, Failure};
use crate::signed::Signed;
use crate::tenancy::Tenancy;

/// Attempts to write a version while others write versions as well.
const ATTEMPTS_MAX: u32 = 5;

/// The next version of a document, checked.
pub async fn put(
    tenancy: &Tenancy,
    kind: &str,
    subject: &str,
    signed: &Signed,
    until_us: i64,
    body: &str,
) -> Result<Document, Failure> {
    put_changed(tenancy, kind, subject, signed, until_us, |_| {
        Ok(body.to_owned())
    })
    .await
}

/// The same, with a body that is made of the newest version, also when others change it meanwhile.
pub async fn put_changed(
    tenancy: &Tenancy,
    kind: &str,
    subject: &str,
    signed: &Signed,
    until_us: i64,
    body_of: impl Fn(Option<StoredDocument>) -> Result<String, Failure>,
) -> Result<Document, Failure> {
    let store = tenancy.store.open().await?;
    let scope = Scope::Tenant(tenancy.tenant.clone());
    let author = signed.by.who(&*store, &tenancy.tenant).await?;
    for _ in 0..ATTEMPTS_MAX {
        let newest = newest(&*store, &scope, kind, subject).await?;
        let version = newest.as_ref().map_or(0, |newest| newest.version) + 1;
        let body = body_of(newest)?;
        let document = Document {
            kind: kind.to_owned(),
            tenant: tenancy.tenant.clone(),
            subject: subject.to_owned(),
            version,
            author: author.clone(),
            reason: signed.reason.clone(),
            at_us: contracts::now_us(),
            until_us,
            body,
        };
        if put_version(&*store, &document).await? {
            return Ok(document);
        }
    }
    Err(Failure::other("other people keep changing it; try again"))
}

/// Puts one version, checked, and in the audit log before. False: others took its number.
pub async fn put_version(store: &dyn Store, document: &Document) -> Result<bool, Failure> {
    let (kind, subject) = (&document.kind, &document.subject);
    if kind == STEERING {
        documents::check_signed(document).map_err(Failure::other)?;
        check_steering(document)?;
    } else {
        documents::check(document).map_err(Failure::other)?;
        let known = documents::check_patient(store, document).await;
        known.map_err(Failure::other)?.map_err(Failure::other)?;
    }
    // As for decisions on the page, and before the action.
    let ends = kind == SILENCE && document.until_us <= document.at_us;
    let decided = AuditEntry {
        time_us: document.at_us,
        tenant: document.tenant.clone(),
        who: document.author.clone(),
        action: if ends { "end silence" } else { "put document" }.to_owned(),
        patient: store::patient_of(kind, subject, &document.body),
        detail: format!("by command line, {kind} {subject} {}", document.version),
    };
    let decided = store
        .append_audit(vec![decided.because(&document.reason)])
        .await;
    decided.map_err(Failure::other)?;
    match store.put_document(document).await {
        Ok(()) => Ok(true),
        Err(WriteError::Conflict(_)) => Ok(false),
        Err(error) => Err(Failure::other(error)),
    }
}

/// One version of a document, for a program: with an error if it cannot be read.
pub fn version_json(stored: &StoredDocument) -> Value {
    let mut shown = json!({"subject": stored.subject, "version": stored.version});
    match &stored.document {
        Ok(document) => {
            shown["at"] = process::when(document.at_us).into();
            shown["author"] = document.author.clone().into();
            shown["reason"] = document.reason.clone().into();
            // An empty body takes the document back.
            shown["body"] = serde_json::from_str(&document.body).unwrap_or_default();
        }
        Err(error) => shown["error"] = error.to_string().into(),
    }
    shown
}

async fn newest(
    store: &dyn Store,
    scope: &Scope,
    kind: &str,
    subject: &str,
) -> Result<Option<StoredDocument>, Failure> {
    // Also over an unreadable version.
    let history = store.stored_history(scope, kind, subject, 1).await;
    let history = history.map_err(Failure::other)?;
    Ok(history.into_iter().next())
}

/// The rule set of a subject that is in force.
pub async fn stored_rules(
    tenancy: &Tenancy,
    subject: &str,
    asker: &Asker,
) -> Result<String, Failure> {
    let store = tenancy.store.open().await?;
    asker.reads_rules(&*store, &tenancy.tenant, subject).await?;
    let scope = Scope::Tenant(tenancy.tenant.clone());
    let history = store.stored_history(&scope, RULES, subject, 1).await;
    let newest = history.map_err(Failure::other)?.into_iter().next();
    let newest = newest.map(|stored| (stored.version, stored.document));
    let newest = newest.map(|(version, document)| {
        let unreadable = |error| {
            Failure::other(format!(
                "version {version} of {subject} cannot be read: {error}"
            ))
        };
        document.map_err(unreadable)
    });
    match newest.transpose()? {
        Some(document) if !document.body.is_empty() => Ok(document.body),
        _ => Err(Failure::other(format!(
            "{subject} has no rules of its own in tenant {:?}",
            tenancy.tenant
        ))),
    }
}

/// Conditions on a stored document of steering.
fn check_steering(document: &Document) -> Result<(), Failure> {
    if document.body.is_empty() {
        return Ok(());
    }
    let checked = steering_rules::Document::from_json(&document.body, STEERING);
    checked.map(drop).map_err(Failure::other)
}
