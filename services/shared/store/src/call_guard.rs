//! Ends long calls of peers that may not continue.

use service_kit::{
    grpc::calls::{CallEnd, Calls},
    tls::{Fingerprint, PeerId},
};
use tokio::sync::watch;

use crate::{Followed, until_revoked};

/// Watches the revocations, and counts the calls of each gateway. Clones count together.
#[derive(Clone)]
pub struct CallGuard {
    revocations: watch::Receiver<Followed>,
    calls: Calls,
}

impl CallGuard {
    pub fn new(revocations: watch::Receiver<Followed>) -> CallGuard {
        CallGuard {
            revocations,
            calls: Calls::default(),
        }
    }

    /// Counts a gateway's call from now on, until the future is dropped. The future ends once the
    /// call has to. Calls of services are not counted: their replicas share one name.
    pub fn enter(
        &self,
        id: Option<PeerId>,
        certificate: Option<Fingerprint>,
    ) -> impl Future<Output = CallEnd> + Send + use<> {
        let is_gateway = |id: &PeerId| matches!(id, PeerId::Gateway(_));
        let call = id.clone().filter(is_gateway);
        let call = call.map(|id| self.calls.enter(id));
        let revoked = until_revoked(self.revocations.clone(), id, certificate);
        async move {
            let gives_way = async {
                match &call {
                    Some(call) => call.gives_way().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = revoked => CallEnd::Revoked,
                () = gives_way => CallEnd::GivesWay,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_call_ends_when_its_gateway_is_revoked_and_no_other_does() {
        let (to, followed) = watch::channel(Followed::default());
        let guard = CallGuard::new(followed);
        let revoked = PeerId::gateway("t", "gw");
        let mut ended = Box::pin(guard.enter(Some(revoked.clone()), None));
        let mut other = Box::pin(guard.enter(Some(PeerId::gateway("u", "gw")), None));
        assert_eq!(ended.as_mut().now_or_never(), None);
        to.send_replace(Followed {
            version: 1,
            revocations: Arc::new([(revoked, Vec::new())].into_iter().collect()),
        });
        assert_eq!(ended.await, CallEnd::Revoked);
        assert_eq!(other.as_mut().now_or_never(), None);
    }

    #[tokio::test]
    async fn calls_of_a_gateway_have_a_bound_and_those_of_a_service_have_none() {
        let (_to, followed) = watch::channel(Followed::default());
        let guard = CallGuard::new(followed);
        let count = |id: PeerId| {
            let calls = (0..100).map(|_| Box::pin(guard.enter(Some(id.clone()), None)));
            let mut calls: Vec<_> = calls.collect();
            let ended = calls.iter_mut().map(|call| call.as_mut().now_or_never());
            let ended = ended.filter(|end| *end == Some(CallEnd::GivesWay));
            ended.count()
        };
        assert_eq!(count(PeerId::gateway("t", "gw")), 68);
        assert_eq!(count(PeerId::service("proxy")), 0);
    }
}
