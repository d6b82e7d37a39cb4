//! Follows the core's rules and the wearing intervals at this gateway, over the links for vitals.
//! Both are kept on disk, and in force from then on. The open alerts of high priority arrive here
//! as well. They are not kept: see [`crate::alarms`].
//!
//! One link follows at a time; when it is lost the next one follows. Rules are on disk before they
//! are in force, so a gateway that starts without a network uses them. A disk that does not answer
//! keeps them from being in force for `STALLED_AFTER`.

mod rules_file;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::{
    FollowRulesRequest, FollowRulesResponse, ingest_service_client::IngestServiceClient,
};
use parking_lot::Mutex;
use service_kit::{Backoff, Warning, WarningHandle};
use tokio::sync::{Semaphore, mpsc};
use tonic::{Code, Status, transport::Channel};

use crate::{
    alarms::Alarms,
    core_followed::CoreFollowed,
    intake::Intake,
    journal::Disk,
    rules_in_force::{Refused, RulesInForce},
};

pub use rules_file::RulesFile;
use rules_file::Storing;

/// Answers that wait for the disk; at the bound the core's next answer waits.
const ANSWERS_MAX: usize = 1;
/// Pause before a core that does not know the call, or cannot answer, is asked again; it may have
/// been upgraded.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Receives the core's answers from links. Clones are the same.
#[derive(Clone)]
pub struct Follower {
    turn: Arc<Semaphore>,
    answers: mpsc::Sender<FollowRulesResponse>,
    following: CoreFollowed,
    kept: KeptRules,
}

/// The core's rules that are in force and on disk. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct KeptRules(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// 0 for none since the start.
    digest: u64,
    /// Answers that are not taken yet.
    pending: usize,
}

impl KeptRules {
    /// Digest of the rules, or 0 while others are on their way.
    fn known(&self) -> u64 {
        let kept = self.0.lock();
        if kept.pending == 0 { kept.digest } else { 0 }
    }

    fn on_answer(&self) {
        self.0.lock().pending += 1;
    }

    /// An answer was taken. The digest changes unless it held alerts only.
    fn on_taken(&self, digest: Option<u64>) {
        let mut kept = self.0.lock();
        kept.pending = kept.pending.saturating_sub(1);
        kept.digest = digest.unwrap_or(kept.digest);
    }
}

impl Follower {
    pub fn new() -> (Follower, mpsc::Receiver<FollowRulesResponse>) {
        let (answers, taken) = mpsc::channel(ANSWERS_MAX);
        let turn = Arc::new(Semaphore::new(1));
        let follower = Follower {
            turn,
            answers,
            following: CoreFollowed::default(),
            kept: KeptRules::default(),
        };
        (follower, taken)
    }

    pub fn following(&self) -> CoreFollowed {
        self.following.clone()
    }

    pub fn kept(&self) -> KeptRules {
        self.kept.clone()
    }

    /// Follows over this link, once no other link does, until the link is lost or the receiver
    /// ends.
    pub async fn follow(&self, mut link: IngestServiceClient<Channel>) {
        let Ok(_turn) = self.turn.acquire().await else {
            return;
        };
        let mut backoff = Backoff::for_reconnect();
        // Also when the link, and with it this future, is dropped.
        let _off = Off(&self.following);
        loop {
            let request = FollowRulesRequest {
                takes_high_alerts: true,
                known_digest: self.kept.known(),
                takes_catalogue: true,
            };
            let status = match link.follow_rules(request).await {
                Ok(answers) => {
                    let mut answers = answers.into_inner();
                    loop {
                        match answers.message().await {
                            Ok(Some(answer)) => {
                                backoff.reset();
                                let Ok(place) = self.answers.reserve().await else {
                                    return;
                                };
                                self.kept.on_answer();
                                place.send(answer);
                                self.following.set(true);
                            }
                            Ok(None) => break Status::unavailable("ingest ended the stream"),
                            Err(status) => break status,
                        }
                    }
                }
                Err(status) => status,
            };
            self.following.set(false);
            tracing::debug!(%status, "the core's rules are not followed");
            match status.code() {
                Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange => {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                _ => backoff.wait().await,
            }
        }
    }
}

struct Off<'a>(&'a CoreFollowed);

impl Drop for Off<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Takes the core's answers until no link follows any more.
pub async fn keep<D: Disk, B: Disk>(
    mut answers: mpsc::Receiver<FollowRulesResponse>,
    mut in_force: RulesInForce,
    (file, kept): (RulesFile<B>, KeptRules),
    intake: Arc<Intake<D>>,
    alarms: Alarms,
    warning: WarningHandle,
) {
    let mut is_kept = true;
    let mut storing = Storing::default();
    while let Some(mut answer) = answers.recv().await {
        if let Some(alerts) = answer.high_alerts.take() {
            intake.open_alerts().on_core(&alerts);
            alarms.on_core(alerts, Instant::now());
        }
        if answer.only_high_alerts {
            kept.on_taken(None);
            continue;
        }
        let digest = answer.digest;
        let (next, refused) = in_force.take(answer);
        metrics::counter!("braid_gateway_rules_refused_total").increment(refused.len() as u64);
        for refused in &refused {
            tracing::error!("{refused}");
        }
        warning.set(warning_of(&refused));
        if next == in_force && is_kept {
            kept.on_taken(Some(digest));
            continue;
        }
        let stored = storing.store(&file, &next).await;
        is_kept = stored.is_ok();
        if let Err(error) = stored {
            // The rules are in force all the same: the next start may use older rules, but this run
            // must not.
            tracing::error!(%error, "the core's rules cannot be stored");
        }
        let versions: Vec<String> = next
            .versions()
            .map(|(subject, version)| format!("{subject} {version}"))
            .collect();
        tracing::info!(rules = versions.join(", "), "the core's rules are in force");
        metrics::counter!("braid_gateway_rules_taken_total").increment(1);
        intake.judge_by(next.clone());
        in_force = next;
        // Rules that are not on disk must come again.
        kept.on_taken(Some(if is_kept { digest } else { 0 }));
    }
}

fn warning_of(refused: &[Refused]) -> Option<Warning> {
    let first = refused.first()?;
    Some(Warning {
        says: match refused.len() {
            1 => first.to_string(),
            more => format!("{first}; and {} more", more - 1),
        },
        to_do: "put a rule set that `braid rules check` of the gateway's version accepts"
            .to_owned(),
    })
}

#[cfg(test)]
mod crash_tests;
