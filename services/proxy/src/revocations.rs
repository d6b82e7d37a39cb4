//! Gateways that are turned away. Path-telemetry has the store and answers who they are; the proxy has none.
//!
//! Asked for every second; the answer to an unchanged list is empty. While path-telemetry does not answer, the last list stays in force. A
//! proxy that has just started has none: gateways wait for at most `--revocations-wait-ms`. Then the list that was kept on disk
//! (`--data-dir`) comes into force. Without one every gateway is refused, and tries again, until path-telemetry answers; `--admit-unheard`
//! lets them in instead, and ingest, which asks the store itself, is then the only one that refuses revoked gateways.

mod on_disk;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use contracts::policy::{
    ListRevocationsRequest, ListRevocationsResponse, RevokedGateway,
    policy_service_client::PolicyServiceClient,
};
use service_kit::{
    Shutdown, Warning, WarningHandle,
    tls::{Fingerprint, PeerId, Revocations},
};
use tokio::{sync::watch, time::MissedTickBehavior};
use tonic::transport::Channel;

use on_disk::OnDisk;

const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// An answer that has stayed away for so long is a warning.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// How old the time on disk, at which the list was last heard, may become.
const KEEP_EVERY: Duration = Duration::from_secs(60);

/// What is known of who is revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The proxy has just started: gateways wait.
    Waiting,
    /// Nothing was heard in time: gateways are refused.
    Unheard,
    /// In force until it is replaced.
    List(Arc<Revocations>),
}

impl Known {
    pub(crate) fn nobody() -> Self {
        Self::List(Arc::default())
    }

    /// Whether a peer with this certificate is revoked. Nobody is while nothing is known.
    pub(crate) fn refuses(&self, id: &PeerId, certificate: Option<&Fingerprint>) -> bool {
        match self {
            Self::List(list) => list.refuses(id, certificate),
            Self::Waiting | Self::Unheard => false,
        }
    }
}

pub(crate) struct Follower {
    pub(crate) channel: Channel,
    pub(crate) to: watch::Sender<Known>,
    /// Folder of the list; none: it is not kept.
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

    /// What holds if path-telemetry has not answered in time.
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
                "revoked gateways are let in (--admit-unheard)",
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
            tracing::warn!("path-telemetry has not said who is revoked: {says}");
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
        // A change of anything else is no news to the sessions.
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
            tracing::warn!(reason, "path-telemetry does not say who is revoked");
        }
        let silence = heard_at.elapsed();
        metrics::gauge!("braid_proxy_revocations_silence_seconds").set(silence.as_secs_f64());
        let says = match &*self.to.borrow() {
            Known::Waiting => return,
            Known::Unheard => {
                "path-telemetry has not said who is revoked: every gateway is refused"
            }
            Known::List(_) if silence >= STALE_AFTER => {
                "path-telemetry does not say who is revoked: the last list that was heard stays in force"
            }
            Known::List(_) => return,
        };
        self.warning.set(Some(Warning {
            says: says.to_owned(),
            to_do: "see whether path-telemetry runs and reads its store".to_owned(),
        }));
    }
}

fn revocations(gateways: Vec<RevokedGateway>) -> Revocations {
    let entries = gateways.into_iter().map(|revoked| {
        let excepted = revoked.excepted.iter();
        let excepted = excepted.filter_map(|text| Fingerprint::from_hex(text));
        let id = PeerId::gateway(revoked.tenant, revoked.gateway);
        (id, excepted.collect())
    });
    entries.collect()
}
