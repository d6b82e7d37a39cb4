//! The two journals of a gateway, opened with a health check each.

use std::time::Duration;

use service_kit::{CheckHandle, Context};
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    Config, RunError,
    journal::{self, Directory, Disk, Journal, Limits},
    reserve::Reserve,
    sealing::Keys,
};

/// Time between two looks whether the disk answers.
const LOOKED_EVERY: Duration = Duration::from_secs(1);

pub(crate) struct Journals {
    pub(crate) vitals: Journal<Directory>,
    pub(crate) alerts: Journal<Directory>,
    watches: [JoinHandle<()>; 2],
}

impl Journals {
    pub(super) async fn open(
        config: &Config,
        (reserve, keys): (&Reserve<Directory>, &Keys),
        context: &Context,
    ) -> Result<Self, RunError> {
        let open = |class, limits| {
            let keys = keys.for_folder(class);
            open_journal(config, class, limits, (reserve.clone(), keys), context)
        };
        let (vitals, vitals_watch) = open("vitals", config.vitals_limits()).await?;
        let (alerts, alerts_watch) = open("alerts", config.alerts_limits()).await?;
        Ok(Self {
            vitals,
            alerts,
            watches: [vitals_watch, alerts_watch],
        })
    }

    /// Another gateway may open the directories afterwards.
    pub(crate) async fn close(self) {
        self.alerts.close().await;
        self.vitals.close().await;
        for watch in self.watches {
            watch.abort();
            // A watch holds its journal until it has ended.
            let _ = watch.await;
        }
    }
}

/// Opens the journal of a class. The task that is returned reports its condition to the health
/// checks.
async fn open_journal(
    config: &Config,
    class: &'static str,
    limits: Limits,
    (reserve, keys): (Reserve<Directory>, Keys),
    context: &Context,
) -> Result<(Journal<Directory>, JoinHandle<()>), RunError> {
    let check = context.health().check(match class {
        "alerts" => "alerts-journal",
        _ => "vitals-journal",
    });
    let path = config.data_dir.join("journal").join(class);
    let options = journal::Options {
        class,
        limits,
        gather: config.gather(),
    };
    let (journal, summary) = tokio::task::spawn_blocking(move || {
        let seals = keys.seals();
        let failed = |source| RunError::Directory {
            path: path.display().to_string(),
            source,
        };
        let directory = Directory::open(&path, keys).map_err(failed)?;
        if seals {
            directory.set_barrier(true).map_err(failed)?;
        }
        let opened = reserve
            .opening(|| Journal::open(directory.clone(), options))
            .map_err(RunError::from)?;
        if !opened.0.reader().has_sealed() {
            directory.set_barrier(false).map_err(failed)?;
        }
        Ok::<_, RunError>(opened)
    })
    .await??;
    tracing::info!(
        class,
        segments = summary.segments,
        waiting = summary.waiting,
        "journal open"
    );
    if summary.damaged_segments > 0 {
        tracing::error!(
            class,
            segments = summary.damaged_segments,
            "the journal is damaged; lost samples are reported as gaps"
        );
    }
    let watch = tokio::spawn(watch(journal.clone(), check));
    Ok((journal, watch))
}

/// Reports the condition of the journal until it is closed.
pub(super) async fn watch<D: Disk>(journal: Journal<D>, check: CheckHandle) {
    let mut condition = journal.condition();
    loop {
        condition.mark_unchanged();
        match journal.trouble() {
            None => check.ok(),
            Some(reason) => check.failing(reason),
        }
        // A write that does not return changes nothing by itself.
        tokio::select! {
            changed = condition.changed() => if changed.is_err() {
                return;
            },
            () = sleep(LOOKED_EVERY) => {}
        }
    }
}

/// Waiting readings must not be readable by other users of this machine.
pub(super) fn keep_private(config: &Config) -> Result<(), RunError> {
    let refused = config.data_dir.join("rejected.jsonl");
    private_files::folder(&config.data_dir)
        .and_then(|()| private_files::folder(&config.data_dir.join("journal")))
        .and_then(|()| private_files::mend_file(&refused))
        .and_then(|()| private_files::mend_file(&refused.with_extension("jsonl.1")))
        .map_err(|source| RunError::Directory {
            path: config.data_dir.display().to_string(),
            source,
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;
    use crate::config::CommandLine;

    /// On one thread an aborted task ends only when the test waits for it.
    #[tokio::test]
    async fn closed_journals_can_be_opened_at_once() {
        let above = tempfile::tempdir().unwrap();
        let mut config = CommandLine::parse_from(["gateway"]).config;
        config.data_dir = above.path().to_path_buf();
        keep_private(&config).unwrap();
        let context = Context::new("gateway");
        let reserve =
            Reserve::open(Directory::open(&above.path().join("reserve"), Keys::none()).unwrap());
        let journals = Journals::open(&config, (&reserve, &Keys::none()), &context)
            .await
            .unwrap();
        journals.close().await;
        for class in ["vitals", "alerts"] {
            Directory::open(&above.path().join("journal").join(class), Keys::none()).unwrap();
        }
    }
}
