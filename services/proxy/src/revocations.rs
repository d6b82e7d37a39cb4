//! The list of revoked gateways in force, in memory and on disk.

mod on_disk;

use std::sync::Arc;

use contracts::policy::RevokedGateway;
use service_kit::tls::{Fingerprint, PeerId, Revocations};

pub(crate) use on_disk::OnDisk;

/// The list of revoked gateways, as far as the proxy has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The proxy has just started: gateways wait.
    Waiting,
    /// No list came in time: gateways are refused.
    Unheard,
    /// The list in force, until another list replaces it.
    List(Arc<Revocations>),
}

impl Known {
    pub(crate) fn nobody() -> Self {
        Self::List(Arc::default())
    }

    /// Whether a peer with this certificate is revoked. Without a list no peer is revoked.
    pub(crate) fn refuses(&self, id: &PeerId, certificate: Option<&Fingerprint>) -> bool {
        match self {
            Self::List(list) => list.refuses(id, certificate),
            Self::Waiting | Self::Unheard => false,
        }
    }
}

/// The list from its form on the wire and on disk. An unreadable fingerprint is left out.
pub(crate) fn revocations(gateways: Vec<RevokedGateway>) -> Revocations {
    let entries = gateways.into_iter().map(|revoked| {
        let excepted = revoked.excepted.iter();
        let excepted = excepted.filter_map(|text| Fingerprint::from_hex(text));
        let id = PeerId::gateway(revoked.tenant, revoked.gateway);
        (id, excepted.collect())
    });
    entries.collect()
}
