//! The list of revoked gateways, from path-telemetry. The proxy has no store of its own.
//!
//! The proxy asks every second, and the answer to an unchanged list is empty. While path-telemetry
//! does not answer, the last list stays in force.
//!
//! A proxy that has just started has no list. Gateways wait for at most `--revocations-wait-ms`;
//! then the list on disk (`--data-dir`) comes into force. Without a list on disk every gateway is
//! refused, and tries again, until path-telemetry answers. `--admit-unheard` admits them instead:
//! then only ingest, which reads the store itself, refuses revoked gateways.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use contracts::policy::{
    ListRevocationsRequest, ListRevocationsResponse, policy_service_client::PolicyServiceClient,
};
use service_kit::{Shutdown, Warning, WarningHandle};
use tokio::{sync::watch, time::MissedTickBehavior};
use tonic::transport::Channel;

use crate::revocations::{Known, OnDisk, revocations};

/// Interval of the questions for the list.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for an answer; then the question counts as unanswered.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Time without an answer after which health shows a warning.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// Interval at which the file on disk is written although the list is unchanged.
const KEEP_EVERY: Duration = Duration::from_secs(60);

pub(crate) struct Follower {
    pub(crate) channel: Channel,
    pub(crate) to: watch::Sender<Known>,
    /// Folder of the list on disk; `None`: the list is not kept.
    pub(crate) data: Option<PathBuf>,
    pub(crate) wait: Duration,
    pub(crate) admit_unheard: bool,
    pub(crate) warning: WarningHandle,
}

impl Follower {
    /// Runs until a shutdown is requested.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let disk = self.data.clone().map(OnDisk::in_folder);
        let ended = async {
            tokio::join!(self.ask(disk.clone()), self.decide(disk.clone()));
        };
        tokio::select! {
            () = shutdown.requested() => {}
            () = ended => {}
        }
    }

    /// Puts another list in force if path-telemetry has not answered in time.
    async fn decide(&self, disk: Option<OnDisk>) {
        tokio::time::sleep(self.wait).await;
        let kept = match disk {
            Some(disk) => disk.read().await,
            None => None,
        };
        let (known, says) = match kept {
            Some(kept) => (
                Known::List(Arc::new(revocations(kept))),
                "the list on disk is in force",
            ),
            None if self.admit_unheard => (
                Known::nobody(),
                "revoked gateways are admitted (--admit-unheard)",
            ),
            None => (Known::Unheard, "every gateway is refused"),
        };
        let is_first = self.to.send_if_modified(|now| {
            let waits = *now == Known::Waiting;
            if waits {
                *now = known;
            }
            waits
        });
        if is_first {
            tracing::warn!("path-telemetry has not sent the list of revoked gateways: {says}");
        }
    }

    async fn ask(&self, disk: Option<OnDisk>) {
        let mut client = PolicyServiceClient::new(self.channel.clone());
        let mut version = 0;
        let mut heard_at = Instant::now();
        let mut kept_at: Option<Instant> = None;
        let mut last = Vec::new();
        let mut is_away = false;
        let mut tick = tokio::time::interval(ASK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let asked = client.list_revocations(ListRevocationsRequest { version });
            let answer = match tokio::time::timeout(ANSWER_WITHIN, asked).await {
                Ok(Ok(answer)) => answer.into_inner(),
                Ok(Err(error)) => {
                    self.on_silence(&mut is_away, heard_at, error.message());
                    continue;
                }
                Err(_) => {
                    self.on_silence(&mut is_away, heard_at, "no answer");
                    continue;
                }
            };
            is_away = false;
            heard_at = Instant::now();
            self.on_heard();
            let is_news = !answer.unchanged;
            if is_news {
                version = answer.version;
                last = answer.gateways.clone();
                self.take(answer);
            }
            let is_due = kept_at.is_none_or(|at| at.elapsed() >= KEEP_EVERY);
            if let Some(disk) = disk.as_ref().filter(|_| is_news || is_due) {
                disk.write(SystemTime::now(), &last).await;
                kept_at = Some(Instant::now());
            }
        }
    }

    fn take(&self, answer: ListRevocationsResponse) {
        let list = revocations(answer.gateways);
        metrics::gauge!("braid_identity_revoked_gateways").set(list.len() as f64);
        // A new version with equal content does not wake the sessions.
        self.to.send_if_modified(|known| {
            let list = Known::List(Arc::new(list));
            let is_news = *known != list;
            *known = list;
            is_news
        });
    }

    fn on_heard(&self) {
        metrics::gauge!("braid_proxy_revocations_silence_seconds").set(0.0);
        self.warning.set(None);
    }

    fn on_silence(&self, is_away: &mut bool, heard_at: Instant, reason: &str) {
        if !std::mem::replace(is_away, true) {
            tracing::warn!(
                reason,
                "path-telemetry does not send the list of revoked gateways"
            );
        }
        let silence = heard_at.elapsed();
        metrics::gauge!("braid_proxy_revocations_silence_seconds").set(silence.as_secs_f64());
        let says = match &*self.to.borrow() {
            Known::Waiting => return,
            Known::Unheard => {
                "path-telemetry has not sent the list of revoked gateways: every gateway is refused"
            }
            Known::List(_) if silence >= STALE_AFTER => {
                "path-telemetry does not send the list of revoked gateways: the last list stays in force"
            }
            Known::List(_) => return,
        };
        self.warning.set(Some(Warning {
            says: says.to_owned(),
            to_do: "check that path-telemetry runs and reads its store".to_owned(),
        }));
    }
}
