//! The end of a gateway that the core has revoked. Its key and its data of people are destroyed,
//! and it takes no readings any more.
//!
//! Two ends tell it, and each has proven itself by a certificate of the gateway's authority. Ingest
//! ends a call with the status of a revoked certificate. The proxy closes a session with the same
//! words; it is the only one that a gateway hears which was switched off meanwhile. The record of
//! the destruction names the revoked certificate. A start with another certificate begins anew.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

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

/// Whether the core has revoked this gateway. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Revocation(Arc<watch::Sender<bool>>);

impl Revocation {
    pub fn new(is_heard: bool) -> Self {
        Self(Arc::new(watch::Sender::new(is_heard)))
    }

    pub fn is_heard(&self) -> bool {
        *self.0.borrow()
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
        let is_new = self
            .0
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
        let mut heard = self.revocation.0.subscribe();
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
    fn only_a_revocation_is_heard() {
        let heard = |tell: &dyn Fn(&Revocation)| {
            let revocation = Revocation::default();
            tell(&revocation);
            revocation.is_heard()
        };
        assert!(heard(&|it| it.on_status(&CallEnd::Revoked.into())));
        assert!(heard(
            &|it| it.on_session_end("closed by peer: the certificate is revoked")
        ));
        for status in [
            Status::from(CallEnd::GivesWay),
            Status::permission_denied("the certificate is that of the service proxy"),
            Status::unavailable("the certificate is revoked"),
        ] {
            assert!(!heard(&|it| it.on_status(&status)), "{status}");
        }
        for reason in [
            "timed out",
            "the policy no longer maps the certificate to a gateway",
            "the list of revoked gateways is not known: try again",
        ] {
            assert!(!heard(&|it| it.on_session_end(reason)), "{reason}");
        }
    }
}
