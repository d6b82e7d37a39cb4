//! Watches whether the certificate of an admitted session is still admitted: it is not revoked, and
//! the policy maps it to the same gateway.
//!
//! Session and tunnels are watched together: a resumable tunnel outlives its session. It would keep
//! its upstream connection for a revoked gateway. The certificate's next session could resume it as
//! another gateway.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use service_kit::tls::{Fingerprint, GatewayId, PeerId};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::{policy::Policy, revocations::Known};

/// Why a certificate is no longer admitted as its gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Withdrawn {
    #[error("the certificate is revoked")]
    Revoked,
    #[error("the policy no longer maps the certificate to a gateway")]
    Unmapped,
    #[error("the policy maps the certificate to another gateway")]
    Remapped,
}

impl Withdrawn {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Unmapped => "unmapped",
            Self::Remapped => "remapped",
        }
    }
}

/// The admission of one session. A clone belongs to each of its tunnels; the watch ends with the
/// last clone.
#[derive(Clone)]
pub(crate) struct Admission(watch::Receiver<Option<Withdrawn>>);

impl Admission {
    pub(crate) fn watch(
        policy: watch::Receiver<Arc<Policy>>,
        known: watch::Receiver<Known>,
        certificate: CertificateDer<'static>,
        gateway: GatewayId,
        tasks: &TaskTracker,
    ) -> Self {
        let (to, from) = watch::channel(None);
        tasks.spawn(async move {
            let withdrawn = tokio::select! {
                () = revoked(known, &gateway, Fingerprint::of(&certificate)) => Withdrawn::Revoked,
                withdrawn = mapped_otherwise(policy, &certificate, &gateway) => withdrawn,
                () = to.closed() => return,
            };
            to.send_replace(Some(withdrawn));
        });
        Self(from)
    }

    /// Returns the reason once the certificate is no longer admitted as the gateway.
    pub(crate) async fn withdrawn(&mut self) -> Withdrawn {
        if let Ok(withdrawn) = self.0.wait_for(Option::is_some).await
            && let Some(withdrawn) = *withdrawn
        {
            return withdrawn;
        }
        std::future::pending().await
    }
}

/// Ends once the gateway's certificate is revoked.
async fn revoked(mut known: watch::Receiver<Known>, gateway: &GatewayId, certificate: Fingerprint) {
    let id = PeerId::Gateway(gateway.clone());
    let refused = |known: &Known| known.refuses(&id, Some(&certificate));
    if known.wait_for(refused).await.is_err() {
        // The follower of revocations has ended, so no revocation can come.
        std::future::pending::<()>().await;
    }
}

/// Ends once the policy maps the certificate to no gateway, or to another one.
async fn mapped_otherwise(
    mut policy: watch::Receiver<Arc<Policy>>,
    certificate: &CertificateDer<'static>,
    gateway: &GatewayId,
) -> Withdrawn {
    let withdrawn_by = |policy: &Policy| match policy.identify(certificate) {
        Ok(mapped) if mapped == *gateway => None,
        Ok(_) => Some(Withdrawn::Remapped),
        Err(_) => Some(Withdrawn::Unmapped),
    };
    loop {
        let withdrawn = withdrawn_by(&policy.borrow_and_update());
        if let Some(withdrawn) = withdrawn {
            return withdrawn;
        }
        if policy.changed().await.is_err() {
            // The policy changes no more.
            return std::future::pending().await;
        }
    }
}
