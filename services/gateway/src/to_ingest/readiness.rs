//! Whether a courier can do its work: a link to ingest is up, and the journal can be read.

use std::io;

use service_kit::CheckHandle;

/// Why there is no batch to send.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// Safe to retry: nothing was given up.
    #[error("the journal cannot be read: {0}")]
    Failed(#[source] io::Error),
    #[error("the journal has no entry where it should have one")]
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct Readiness {
    pub(super) is_up: bool,
    /// Why entries that wait cannot be read.
    pub(super) unread: Option<String>,
    shown: Option<Result<(), String>>,
}

impl Readiness {
    /// Sets the check if it has changed.
    pub(super) fn show(&mut self, check: &CheckHandle) {
        let state = match (&self.unread, self.is_up) {
            (Some(reason), _) => Err(reason.clone()),
            (None, false) => Err("no connection to ingest".to_owned()),
            (None, true) => Ok(()),
        };
        if self.shown.as_ref() == Some(&state) {
            return;
        }
        match &state {
            Ok(()) => check.ok(),
            Err(reason) => check.failing(reason.clone()),
        }
        self.shown = Some(state);
    }
}
