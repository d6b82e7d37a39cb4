//! The end of a gateway that the core has revoked. Its key and its data of people are destroyed,
//! and it takes no readings any more.
//!
//! Two ends tell it, and each has proven itself by a certificate of the gateway's authority. Ingest
//! ends a call with the status of a revoked certificate. The proxy closes a session with the same
//! words; it is the only one that a gateway hears which was switched off meanwhile. One word is not
//! enough: for a second after a new enrolment a service may still refuse the new certificate. So
//! the words must go on for [`CERTAIN_AFTER`], without an answer of ingest. The record of the
//! destruction names the revoked certificate. A start with another certificate begins anew.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use ring::digest;
use service_kit::{CheckHandle, Shutdown, grpc::calls::CallEnd};
use tokio::{sync::watch, time::sleep};
use tonic::Status;

use crate::{
    RunError,
    carers::Newest,
    clock::Moment,
    journal::{Disk, Journal},
    sealing::{Keys, Places, Record},
};

/// Pause before a destruction that the disk refused is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Services look for new certificates and revocations once a second.
const CERTAIN_AFTER: Duration = match cfg!(test) {
    true => Duration::from_millis(200),
    false => Duration::from_secs(10),
};
/// Words with a longer pause between them are no repetition. A refused gateway tries again sooner.
const PAUSE_MAX: Duration = Duration::from_secs(180);

/// Whether the core has revoked this gateway. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Revocation {
    heard: Arc<watch::Sender<bool>>,
    words: Arc<Mutex<Words>>,
}

/// Words of ingest or the proxy that the certificate is revoked. Sans-IO.
#[derive(Debug, Default)]
struct Words {
    /// Times of the first word and of the last one, without an answer in between.
    said: Option<(Instant, Instant)>,
}

impl Words {
    /// True: it is certain.
    fn on_word(&mut self, now: Instant) -> bool {
        let first = match self.said {
            Some((first, last)) if now.saturating_duration_since(last) <= PAUSE_MAX => first,
            _ => now,
        };
        self.said = Some((first, now));
        now.saturating_duration_since(first) >= CERTAIN_AFTER
    }

    fn on_answer(&mut self) {
        self.said = None;
    }
}

impl Revocation {
    pub fn new(is_heard: bool) -> Self {
        Self {
            heard: Arc::new(watch::Sender::new(is_heard)),
            words: Arc::default(),
        }
    }

    /// Ingest has taken entries of this gateway.
    pub fn on_answer(&self) {
        self.words.lock().on_answer();
    }

    pub fn is_heard(&self) -> bool {
        *self.heard.borrow()
    }

    /// The status of an ended call to ingest.
    pub fn on_status(&self, status: &Status) {
        let revoked = Status::from(CallEnd::Revoked);
        if (status.code(), status.message()) == (revoked.code(), revoked.message()) {
            self.hear("ingest");
        }
    }

    /// The reason with which a session with the proxy was closed.
    pub fn on_session_end(&self, reason: &str) {
        if reason.contains(Status::from(CallEnd::Revoked).message()) {
            self.hear("the proxy");
        }
    }

    fn hear(&self, from: &'static str) {
        if !self.words.lock().on_word(Instant::now()) {
            tracing::warn!(from, "this certificate is said to be revoked");
            return;
        }
        let is_new = self
            .heard
            .send_if_modified(|heard| !std::mem::replace(heard, true));
        if is_new {
            tracing::error!(from, "the core has revoked this gateway");
        }
    }
}

/// The parts that a revocation destroys or empties.
pub(crate) struct Destroying<D: Disk> {
    pub(crate) revocation: Revocation,
    pub(crate) keys: Keys,
    pub(crate) places: Places,
    pub(crate) certificate: PathBuf,
    pub(crate) journals: [Journal<D>; 2],
    pub(crate) newest: Newest,
    pub(crate) check: CheckHandle,
}

impl<D: Disk> Destroying<D> {
    /// Waits for the revocation, then destroys, and tries again while the disk refuses.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let mut heard = self.revocation.heard.subscribe();
        let is_known = self.revocation.is_heard();
        if !is_known {
            self.check.ok();
            tokio::select! {
                _ = heard.wait_for(|heard| *heard) => {}
                () = shutdown.requested() => return,
            }
        }
        // From here on nothing is written or read any more.
        self.keys.forget();
        self.newest.clear();
        let waiting = self.journals.iter().map(Journal::waiting).sum();
        // An earlier life has said it.
        let unsent = (!is_known).then_some(waiting);
        let record = Record {
            at_us: Moment::now().wall_us,
            // It may have been renewed since the start.
            certificate: digest_of(&self.certificate),
            unsent,
        };
        metrics::counter!("braid_gateway_destroyed_entries_total").increment(waiting);
        loop {
            let (places, record) = (self.places.clone(), record.clone());
            let destroyed = tokio::task::spawn_blocking(move || places.destroy(&record)).await;
            let error = match destroyed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            let Some(error) = error else {
                break;
            };
            self.check.failing(format!(
                "the core has revoked this gateway, and its key cannot be destroyed: {error}"
            ));
            tracing::error!(error, "the key of a revoked gateway cannot be destroyed");
            tokio::select! {
                () = sleep(AGAIN_AFTER) => {}
                () = shutdown.requested() => return,
            }
        }
        tracing::error!(
            unsent,
            "its key and journal are destroyed; it takes no readings"
        );
        self.check.failing(says(unsent));
    }
}

fn says(unsent: Option<u64>) -> String {
    let lost = unsent.map_or(String::new(), |unsent| {
        format!(", with {unsent} entries that had not been sent")
    });
    format!(
        "the core has revoked this gateway: its key and journal are destroyed{lost}; to use it \
         again, make a token by `braid gateways enrol`, remove the file of --cert, and start it with \
         --enrol TOKEN"
    )
}

/// Completes a destruction that an earlier life began. True: the certificate in use is the one that
/// was revoked then. Blocks on the disk.
pub(crate) fn complete(places: &Places, certificate: &str) -> Result<bool, RunError> {
    let Some(record) = places.read_record() else {
        return Ok(false);
    };
    let failed = |source| RunError::Directory {
        path: places.data_dir.display().to_string(),
        source,
    };
    places.destroy(&record).map_err(failed)?;
    if !record.certificate.is_empty() && record.certificate == certificate {
        return Ok(true);
    }
    tracing::info!("what an earlier destruction left is removed; the gateway begins anew");
    places.remove_record().map_err(failed)?;
    Ok(false)
}

/// Empty without a certificate.
pub(crate) fn digest_of(certificate: &Path) -> String {
    let pem = fs::read(certificate).unwrap_or_default();
    if pem.is_empty() {
        return String::new();
    }
    let digest = digest::digest(&digest::SHA256, &pem);
    digest
        .as_ref()
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_revocation_is_a_word() {
        let is_said = |tell: &dyn Fn(&Revocation)| {
            let revocation = Revocation::default();
            tell(&revocation);
            revocation.words.lock().said.is_some()
        };
        assert!(is_said(&|it| it.on_status(&CallEnd::Revoked.into())));
        assert!(is_said(&|it| {
            it.on_session_end("closed by peer: the certificate is revoked (code 256)");
        }));
        for status in [
            Status::from(CallEnd::GivesWay),
            Status::permission_denied("the certificate is that of the service proxy"),
            Status::unavailable("the certificate is revoked"),
        ] {
            assert!(!is_said(&|it| it.on_status(&status)), "{status}");
        }
        for reason in [
            "timed out",
            "the policy no longer maps the certificate to a gateway",
            "the list of revoked gateways is not known: try again",
        ] {
            assert!(!is_said(&|it| it.on_session_end(reason)), "{reason}");
        }
    }

    #[test]
    fn a_word_is_certain_once_it_was_repeated_for_a_time_without_an_answer() {
        let start = Instant::now();
        let mut words = Words::default();
        assert!(!words.on_word(start));
        assert!(!words.on_word(start + CERTAIN_AFTER / 2));
        assert!(words.on_word(start + CERTAIN_AFTER));
        words.on_answer();
        let later = start + CERTAIN_AFTER * 2;
        assert!(
            !words.on_word(later),
            "a new certificate was let in between"
        );
        let much_later = later + PAUSE_MAX + Duration::from_secs(1);
        assert!(!words.on_word(much_later), "no repetition");
    }
}
