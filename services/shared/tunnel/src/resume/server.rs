//! The server's side: accepts new resumable tunnels, returns them to the peer with the token, and
//! resets those that are not resumed in time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use service_kit::tls::PeerId;

use super::{
    flow::{AttachRefused, Violation},
    header::{Attach, Attached, Token},
    ledger::Ledger,
    line::{Broken, Line, ResumableStream, TICK},
    table::{NotKept, ResumeLimits, Table},
};
use crate::http::stream::ConnectStream;

/// Time for which a detached tunnel without any received byte is kept: most likely its client never
/// got the answer and asked again.
const UNSEEN_MAX: Duration = Duration::from_secs(15);

/// The identity of a peer across changes of its certificate: the identity in the certificate, or
/// the certificate itself if that is unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Named(String),
    Certificate(Vec<u8>),
}

impl Peer {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        match PeerId::from_certificate(certificate) {
            Ok(id) => Self::Named(id.to_string()),
            Err(_) => Self::Certificate(certificate.to_vec()),
        }
    }
}

/// All resumable tunnels of a server.
#[derive(Clone)]
pub(crate) struct Kept {
    table: Arc<Mutex<Table<Peer, Arc<Line>>>>,
    detached_max: Duration,
}

/// A new tunnel without a carrying stream yet. Dropping it without one forgets the tunnel.
pub(crate) struct Entered {
    line: Arc<Line>,
    entry: TableEntry,
}

/// A tunnel that its peer resumes, or copies.
pub(crate) struct Found {
    line: Arc<Line>,
    attach: Attach,
    pub(crate) answer: Attached,
}

/// Why a tunnel is not resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotFound {
    #[error("no such tunnel of this peer")]
    Unknown,
    #[error("a later attachment was here first")]
    Stale,
    #[error("{0}")]
    Violation(Violation),
}

impl From<AttachRefused> for NotFound {
    fn from(refused: AttachRefused) -> Self {
        match refused {
            AttachRefused::Stale => Self::Stale,
            AttachRefused::Violation(violation) => Self::Violation(violation),
        }
    }
}

impl Kept {
    pub(crate) fn new(limits: ResumeLimits) -> Self {
        Self {
            table: Arc::new(Mutex::new(Table::new(limits))),
            detached_max: limits.detached_max,
        }
    }

    pub(crate) fn enter(&self, token: Token, peer: &Peer) -> Result<Entered, NotKept> {
        let make = |ledger: Ledger| Line::new(ledger, None, Instant::now());
        let line = self.table.lock().enter(token, peer.clone(), make)?;
        Ok(Entered {
            line,
            entry: TableEntry {
                kept: self.clone(),
                token,
            },
        })
    }

    pub(crate) fn attach(
        &self,
        token: Token,
        peer: &Peer,
        attach: Attach,
    ) -> Result<Found, NotFound> {
        let line = self
            .table
            .lock()
            .find(token, peer)
            .ok_or(NotFound::Unknown)?;
        if line.broken().is_some() {
            return Err(NotFound::Unknown);
        }
        let answer = match attach.is_copy {
            true => line.copy(attach)?,
            false => line.attach(attach, Instant::now())?,
        };
        Ok(Found {
            line,
            attach,
            answer,
        })
    }

    /// No session will come any more; see `Table::drain`.
    pub(crate) fn drain(&self) {
        let leaving = self.table.lock().drain();
        for line in leaving {
            line.fail(Broken::Expired);
        }
    }

    fn set_detached(&self, token: Token, detached: bool) {
        let leaving = {
            let mut table = self.table.lock();
            let leaving = if detached {
                table.detached(token)
            } else {
                table.carried(token);
                Vec::new()
            };
            metrics::gauge!("braid_tunnel_detached").set(table.detached_count() as f64);
            leaving
        };
        for line in leaving {
            line.fail(Broken::Crowded);
        }
    }
}

impl Entered {
    pub(crate) fn begin(self, wire: ConnectStream) -> ResumableStream {
        // Epoch zero belongs to the tunnel's beginning.
        self.line.install(wire, 0, Instant::now());
        tokio::spawn(accompany(self.line.clone(), self.entry));
        ResumableStream::new(self.line)
    }
}

impl Found {
    pub(crate) fn go_on(self, wire: ConnectStream) {
        let epoch = self.attach.epoch;
        if self.attach.is_copy {
            self.line.install_copy(wire, epoch);
            return;
        }
        let replayed = self.line.install(wire, epoch, Instant::now());
        super::line::count_resumed(replayed);
    }
}

/// A tunnel's entry in the table; dropping it removes the tunnel.
struct TableEntry {
    kept: Kept,
    token: Token,
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        self.kept.set_detached(self.token, false);
        self.kept.table.lock().leave(self.token);
    }
}

/// The companion of one tunnel; see `line`.
async fn accompany(line: Arc<Line>, entry: TableEntry) {
    let kept = entry.kept.clone();
    let mut counted = false;
    loop {
        let now = Instant::now();
        let look = line.look(now);
        if look.done {
            break;
        }
        let detached = !look.attached;
        if detached != counted {
            counted = detached;
            kept.set_detached(entry.token, detached);
        }
        let deadline = detached.then(|| {
            let max = if look.heard_ever {
                kept.detached_max
            } else {
                kept.detached_max.min(UNSEEN_MAX)
            };
            look.detached_at + max
        });
        if deadline.is_some_and(|deadline| deadline <= now) {
            // A tunnel that its application has left cannot lose data any more.
            if line.is_held() {
                metrics::counter!("braid_tunnel_resume_expired_total").increment(1);
            }
            tracing::debug!(token = ?entry.token, "a detached tunnel was not resumed");
            line.fail(Broken::Expired);
            break;
        }
        let wake = match deadline {
            Some(deadline) => Some(deadline),
            None => look.busy.then(|| now + TICK),
        };
        tokio::select! {
            () = line.notified() => {}
            () = until(wake) => {}
        }
    }
}

pub(super) async fn until(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
