//! Which gateway calls, by its certificate, and until when it may.

use service_kit::{
    grpc::{Peer, calls::Calls},
    tls::PeerId,
};
use store::{Followed, until_revoked};
use tokio::sync::watch;
use tonic::{Extensions, Status};

use crate::admission::GatewayId;

/// The gateway that calls, and why its call ends, once it has to.
pub fn caller(
    extensions: &Extensions,
    revocations: &watch::Receiver<Followed>,
    calls: &Calls,
) -> Result<(GatewayId, impl Future<Output = Status> + Send + use<>), Status> {
    let peer = extensions.get::<Peer>();
    let (peer, certificate) = peer.map_or((None, None), |p| (p.id.clone(), p.certificate));
    let Some(peer) = peer else {
        return Err(Status::unauthenticated("no client certificate"));
    };
    let gateway = match &peer {
        PeerId::Gateway(gateway) => gateway.clone(),
        PeerId::Service { noun } => {
            return Err(Status::permission_denied(format!(
                "the certificate is that of the service {noun}; this needs a gateway's"
            )));
        }
    };
    let call = calls.enter(peer.clone());
    let revoked = until_revoked(revocations.clone(), Some(peer), certificate);
    let name = gateway.id.clone();
    let ended = async move {
        tokio::select! {
            biased;
            () = revoked => {
                metrics::counter!("braid_ingest_revoked_streams_total").increment(1);
                tracing::warn!(gateway = name, "stream of a revoked gateway ended");
                Status::permission_denied("the certificate is revoked")
            }
            () = call.gives_way() => Status::resource_exhausted("this gateway has newer calls, as many as it may have"),
        }
    };
    Ok((gateway, ended))
}
