//! Answers of a gateway's policy: its keepalive, and the steering document of its tenant.

use std::{sync::Arc, time::Instant};

use contracts::policy::{
    GetPolicyRequest, GetPolicyResponse, ListRevocationsRequest, ListRevocationsResponse,
    policy_service_server::PolicyService,
};
use parking_lot::Mutex;
use service_kit::{grpc::Peer, tls::PeerId};
use store::Followed;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::{
    bounds::{Bounds, POLICIES_PER_S_MAX},
    estimate::Estimates,
    from_proxy,
    owners::Owners,
    steering::Documents,
};

pub(crate) struct Policies {
    estimates: Arc<Estimates>,
    allow: Vec<String>,
    owners: Owners,
    bounds: Arc<Mutex<Bounds>>,
    revocations: watch::Receiver<Followed>,
    steering: Documents,
}

impl Policies {
    pub(crate) fn new(
        estimates: Arc<Estimates>,
        allow: Vec<String>,
        owners: Owners,
        bounds: Arc<Mutex<Bounds>>,
        revocations: watch::Receiver<Followed>,
        steering: Documents,
    ) -> Policies {
        Policies {
            estimates,
            allow,
            owners,
            bounds,
            revocations,
            steering,
        }
    }
}

#[tonic::async_trait]
impl PolicyService for Policies {
    async fn get_policy(
        &self,
        request: Request<GetPolicyRequest>,
    ) -> Result<Response<GetPolicyResponse>, Status> {
        let asked = &request.get_ref().gateway;
        let peer = request.extensions().get::<Peer>();
        let tenant = match peer.and_then(|peer| peer.id.as_ref()) {
            Some(PeerId::Gateway(gateway))
                if gateway.id == *asked && !self.owners.is_anothers(gateway) =>
            {
                if !self.bounds.lock().may_ask(gateway, Instant::now()) {
                    return Err(Status::resource_exhausted(format!(
                        "more than {POLICIES_PER_S_MAX} questions a second"
                    )));
                }
                Some(gateway.tenant.as_str())
            }
            Some(PeerId::Service { noun }) if self.allow.contains(noun) => None,
            Some(id) => {
                return Err(Status::permission_denied(format!(
                    "{id} may not ask for the policy of another gateway"
                )));
            }
            None => return Err(Status::unauthenticated("a client certificate is needed")),
        };
        metrics::counter!("braid_path_telemetry_policies_total").increment(1);
        let mut policy = self.estimates.policy(asked);
        let held = request.get_ref().steering_version;
        if let Some((version, document)) =
            tenant.and_then(|it| self.steering.newest(it, asked, held))
        {
            policy.steering_version = version;
            policy.steering_document = document;
        }
        Ok(Response::new(policy))
    }

    async fn list_revocations(
        &self,
        request: Request<ListRevocationsRequest>,
    ) -> Result<Response<ListRevocationsResponse>, Status> {
        let followed = self.revocations.borrow().clone();
        from_proxy::revocations(&request, &self.allow, &followed).map(Response::new)
    }
}
