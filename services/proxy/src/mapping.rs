//! Watches whether the policy still maps the certificate of an admitted session to its gateway.
//!
//! Session and tunnels are watched together, since a resumable tunnel outlives its session. The
//! certificate's next session could resume the tunnel as another gateway.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use service_kit::tls::GatewayId;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::policy::Policy;

/// Why a certificate is no longer its gateway's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Withdrawn {
    #[error("the policy no longer maps the certificate to a gateway")]
    Unmapped,
    #[error("the policy maps the certificate to another gateway")]
    Remapped,
}

impl Withdrawn {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unmapped => "unmapped",
            Self::Remapped => "remapped",
        }
    }
}

/// The mapping of one session. A clone belongs to each of its tunnels; the watch ends with the last
/// clone.
#[derive(Clone)]
pub(crate) struct Mapping(watch::Receiver<Option<Withdrawn>>);

impl Mapping {
    pub(crate) fn watch(
        mut policy: watch::Receiver<Arc<Policy>>,
        certificate: CertificateDer<'static>,
        gateway: GatewayId,
        tasks: &TaskTracker,
    ) -> Self {
        let (to, from) = watch::channel(None);
        tasks.spawn(async move {
            let mut withdrawn = None;
            let is_withdrawn = |policy: &Arc<Policy>| {
                withdrawn = match policy.identify(&certificate) {
                    Ok(mapped) if mapped == gateway => None,
                    Ok(_) => Some(Withdrawn::Remapped),
                    Err(_) => Some(Withdrawn::Unmapped),
                };
                withdrawn.is_some()
            };
            // An error means that the policy changes no more.
            let changed = tokio::select! {
                changed = policy.wait_for(is_withdrawn) => changed.is_ok(),
                () = to.closed() => false,
            };
            if changed {
                to.send_replace(withdrawn);
            }
        });
        Self(from)
    }

    /// Returns the reason once the certificate is no longer the gateway's.
    pub(crate) async fn withdrawn(&mut self) -> Withdrawn {
        if let Ok(withdrawn) = self.0.wait_for(Option::is_some).await
            && let Some(withdrawn) = *withdrawn
        {
            return withdrawn;
        }
        std::future::pending().await
    }
}
