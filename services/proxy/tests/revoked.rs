//! What a certificate that is out of force can still do to the gateway that it was of: nothing.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bench::{Proxy, authority_of, fast};
use contracts::policy::{
    GetPolicyRequest, GetPolicyResponse, ListRevocationsRequest, ListRevocationsResponse,
    RevokedGateway,
    policy_service_server::{PolicyService, PolicyServiceServer},
};
use parking_lot::Mutex;
use service_kit::tls::{Identity, renewal};
use testkit::{DEADLINE, udp_echo, within};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tunnel::Urgency;

/// Between two questions of the same datagram, of which the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

#[derive(Clone, Default)]
struct Office {
    revoked: Arc<Mutex<Vec<RevokedGateway>>>,
    /// What the proxy knows.
    known: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl PolicyService for Office {
    async fn get_policy(
        &self,
        _: Request<GetPolicyRequest>,
    ) -> Result<Response<GetPolicyResponse>, Status> {
        Err(Status::not_found("no policy"))
    }

    async fn list_revocations(
        &self,
        request: Request<ListRevocationsRequest>,
    ) -> Result<Response<ListRevocationsResponse>, Status> {
        let known = request.into_inner().version;
        self.known.store(known, Ordering::Relaxed);
        let gateways = self.revoked.lock().clone();
        let version = gateways.len() as u64;
        Ok(Response::new(ListRevocationsResponse {
            version,
            unchanged: version == known,
            gateways,
        }))
    }
}

#[tokio::test]
async fn who_has_the_old_certificate_ends_no_session_of_the_new_one() {
    let to = udp_echo().await;
    let office = Office::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(PolicyServiceServer::new(office.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    let proxy = Proxy::start(&[
        "--allow",
        &to.to_string(),
        "--path-telemetry",
        &url,
        "--sessions-per-device-max",
        "1",
    ])
    .await;
    let old = proxy.gateway();
    let files = proxy.renewed();
    let new = renewal::fingerprint(&std::fs::read_to_string(&files.cert).unwrap()).unwrap();
    office.revoked.lock().push(RevokedGateway {
        tenant: "acme".to_owned(),
        gateway: "gw-1".to_owned(),
        excepted: vec![new.to_string()],
    });
    within(async {
        while office.known.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    })
    .await;

    let own = proxy.tunnel(&Identity::load(&files).unwrap(), &fast(), DEADLINE);
    // Of datagrams: nothing resumes it, so it ends with its session.
    let to = authority_of(to);
    let udp = within(own.open_udp(&to, Urgency::Prompt)).await.unwrap();
    let thief = proxy.tunnel(&old, &fast(), Duration::from_secs(2));
    within(thief.open_udp(&to, Urgency::Prompt))
        .await
        .unwrap_err();
    within(async {
        loop {
            udp.send(b"still here");
            let answer = tokio::time::timeout(AGAIN_AFTER, udp.receive()).await;
            if let Ok(answer) = answer {
                assert_eq!(answer.unwrap(), "still here");
                return;
            }
        }
    })
    .await;
    thief.close().await;
    own.close().await;
    proxy.stop().await;
}
