use async_trait::async_trait;
use contracts::alerts::Alert;

use crate::{
    Written,
    error::{QueryError, WriteError},
};

/// A subject that is silent: its open alert, and the newest arrivals when its silence began. The
/// arrivals are as the store has them, by the clock that stamped them. Only something later ends
/// the silence, whichever process looks, and however long that takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Silent {
    /// The newest revision.
    pub alert: Alert,
    /// Names what is silent. A subject has at most one open silence.
    pub subject: String,
    /// Arrival of the newest reading; [`i64::MIN`]: there was none.
    pub reading_us: i64,
    /// Time of the newest path report; [`i64::MIN`]: there was none.
    pub report_us: i64,
}

/// Silences that begin, and the last revisions of alerts whose silence ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SilentBatch {
    pub begun: Vec<Silent>,
    pub ended: Vec<Alert>,
}

impl SilentBatch {
    /// Ends come first, so that a subject may end one silence and begin the next.
    pub(crate) fn transitions(&self) -> Vec<Alert> {
        let begun = self.begun.iter().map(|silent| &silent.alert);
        self.ended.iter().chain(begun).cloned().collect()
    }
}

/// Silences of one page of [`SilentStore::silent_page`].
const SILENT_PAGE: usize = 1_000;

/// Some open silences, and the last of their subjects; `None`: there are no more.
pub type SilentPage = (Vec<Silent>, Option<String>);

/// Hands over every open silence, page by page.
pub async fn each_silent(
    store: &(impl SilentStore + ?Sized),
    mut take: impl FnMut(Silent) + Send,
) -> Result<(), QueryError> {
    let mut after = Some(String::new());
    while let Some(subject) = after {
        let (silent, next) = store.silent_page(&subject, SILENT_PAGE).await?;
        silent.into_iter().for_each(&mut take);
        after = next;
    }
    Ok(())
}

#[async_trait]
pub trait SilentStore: Send + Sync {
    /// Transitions, outbox entries and silences in one transaction. `Written` counts transitions.
    /// Fails with `Conflict` of alert ids if a revision exists with other content. It fails in
    /// the same way if the subject of a silence that begins has another open alert.
    async fn write_silent(&self, batch: SilentBatch) -> Result<Written, WriteError>;

    /// The `limit` open silences after the subject `after`, in order of subjects. A row that cannot
    /// be read is left out.
    async fn silent_page(&self, after: &str, limit: usize) -> Result<SilentPage, QueryError>;

    /// The present at the last look of any process that found nothing new, by the clock that it
    /// judged with.
    async fn silent_look_us(&self) -> Result<Option<i64>, QueryError>;

    /// The last writer counts.
    async fn note_silent_look(&self, at_us: i64) -> Result<(), WriteError>;
}
