//! The documents of one kind that are in force although one of them cannot be read. A medium has
//! damaged its row, or a newer version has put content that this version does not know. No other
//! document is affected, and the fault is reported until the document is put again.

use std::fmt;

use contracts::alerts::Document;

use crate::{DocumentsStore, QueryError, Scope, StoredDocument, notices::until};

/// Versions before one that cannot be read in which one that can be is looked for; then what is
/// wider holds.
const EARLIER_MAX: usize = 8;
/// Damaged ones that a warning names; of more it says how many.
const NAMED_MAX: usize = 3;

/// The fallback where the newest version cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// The newest one before it that can be.
    Earlier,
    /// Nothing: a version before may have let something happen that it was put to end.
    Nothing,
}

/// A document in force, and what was made of its body.
#[derive(Debug)]
pub struct InForce<T> {
    pub documents: Vec<(Document, T)>,
    pub damaged: Vec<Damaged>,
}

/// A newest version that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    pub kind: String,
    pub tenant: String,
    pub subject: String,
    pub version: u32,
    pub reason: String,
    /// The version that holds for it.
    pub instead: Option<u32>,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damaged {
            kind,
            tenant,
            subject,
            version,
            reason,
            ..
        } = self;
        write!(
            f,
            "version {version} of {kind} {subject} of tenant {tenant} cannot be read ({reason}); "
        )?;
        match self.instead {
            Some(version) => write!(f, "version {version} holds for it"),
            None => f.write_str("it does not hold"),
        }
    }
}

/// Documents of all tenants. `read` decodes a document, or returns why it cannot.
pub async fn in_force<T>(
    store: &(impl DocumentsStore + ?Sized),
    kind: &str,
    now_us: i64,
    otherwise: Otherwise,
    read: impl Fn(&Document) -> Result<T, String>,
) -> Result<InForce<T>, QueryError> {
    let read = |stored: StoredDocument| -> Result<(Document, T), String> {
        let document = stored.document?;
        let made = read(&document)?;
        Ok((document, made))
    };
    let mut found = InForce {
        documents: Vec::new(),
        damaged: Vec::new(),
    };
    for stored in store
        .stored_documents(&Scope::Service, kind, now_us)
        .await?
    {
        let (tenant, subject, version) = (
            stored.tenant.clone(),
            stored.subject.clone(),
            stored.version,
        );
        let reason = match read(stored) {
            Ok(document) => {
                found.documents.push(document);
                continue;
            }
            Err(reason) => reason,
        };
        let mut instead = None;
        if otherwise == Otherwise::Earlier {
            let scope = Scope::tenant(&tenant);
            let history = store.stored_history(&scope, kind, &subject, EARLIER_MAX + 1);
            let earlier = history.await?.into_iter();
            instead = earlier
                .filter(|stored| stored.version < version)
                .find_map(|stored| read(stored).ok())
                // One that was over would be so again.
                .filter(|(document, _)| until(document.until_us) > now_us);
        }
        found.damaged.push(Damaged {
            kind: kind.to_owned(),
            tenant,
            subject,
            version,
            reason,
            instead: instead.as_ref().map(|(document, _)| document.version),
        });
        found.documents.extend(instead);
    }
    Ok(found)
}

/// Faults that were reported already.
#[derive(Debug, Default)]
pub struct Reported(Vec<Damaged>);

impl Reported {
    /// Logs each fault once, and counts them. Returns their text for people, if there are any.
    /// `reader` goes on without the documents.
    pub fn report(&mut self, reader: &'static str, damaged: Vec<Damaged>) -> Option<String> {
        for damaged in damaged.iter().filter(|it| !self.0.contains(it)) {
            tracing::error!(tenant = damaged.tenant, "{damaged}");
        }
        metrics::gauge!("braid_store_unreadable_documents", "reader" => reader)
            .set(damaged.len() as f64);
        self.0 = damaged;
        let named = self.0.iter().take(NAMED_MAX).map(Damaged::to_string);
        let mut reasons = named.collect::<Vec<_>>();
        if self.0.len() > NAMED_MAX {
            reasons.push(format!("and {} more", self.0.len() - NAMED_MAX));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Advice for a document that cannot be read.
pub const PUT_ANEW: &str = "put it anew (`braid rules put`, `braid catalogue put`, `braid alerts team put`, `braid alerts silence`), with a program no older than the one \
     it was put with; look after the store's disk";
