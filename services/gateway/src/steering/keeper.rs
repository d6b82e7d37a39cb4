//! Writes the bytes of the month down. A slow disk delays no schedule: one write at a time runs
//! beside the loop of steering.

use std::time::Instant;

use tokio::task::JoinHandle;

use super::usage::Usage;

pub(super) struct Keeper {
    kept_at: Instant,
    writing: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            kept_at: now,
            writing: None,
        }
    }

    pub(super) fn keep(&mut self, usage: &mut Usage, now: Instant) {
        let is_writing = (self.writing.as_ref()).is_some_and(|writing| !writing.is_finished());
        if is_writing || !usage.is_due(now.saturating_duration_since(self.kept_at)) {
            return;
        }
        self.kept_at = now;
        usage.has_been_kept();
        self.writing = Some(write(usage.clone()));
    }

    pub(super) async fn keep_last(self, usage: Usage) {
        if let Some(writing) = self.writing {
            // Fails only with the runtime.
            let _ = writing.await;
        }
        let _ = write(usage).await;
    }
}

fn write(usage: Usage) -> JoinHandle<()> {
    tokio::task::spawn_blocking(move || {
        if let Err(error) = usage.write() {
            tracing::warn!(%error, "the bytes of the month are not written");
        }
    })
}
