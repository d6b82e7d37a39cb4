//! The reports that a running proxy sends to path-telemetry.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    pin::Pin,
    time::Duration,
};

use crate::bench::{NAMES, Proxy, fast};
use contracts::paths::{
    End, PathReport, ReportRequest, ReportResponse,
    path_telemetry_service_server::{PathTelemetryService, PathTelemetryServiceServer},
};
use futures::{Stream, StreamExt, stream};
use testkit::{DEADLINE, within};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

struct Fake {
    heard: mpsc::Sender<Vec<PathReport>>,
}

#[tonic::async_trait]
impl PathTelemetryService for Fake {
    type ReportStream = Pin<Box<dyn Stream<Item = Result<ReportResponse, Status>> + Send>>;

    async fn report(
        &self,
        request: Request<Streaming<ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let state = (request.into_inner(), self.heard.clone(), 0);
        let responses = stream::unfold(state, |(mut requests, heard, accepted)| async move {
            let reports = requests.message().await.ok()??.reports;
            let accepted = accepted + reports.len() as u64;
            heard.send(reports).await.ok()?;
            Some((Ok(ReportResponse { accepted }), (requests, heard, accepted)))
        });
        Ok(Response::new(responses.boxed()))
    }
}

fn serve(listener: std::net::TcpListener, heard: mpsc::Sender<Vec<PathReport>>) {
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(PathTelemetryServiceServer::new(Fake { heard }))
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
}

#[tokio::test]
async fn every_path_is_reported_including_intervals_without_a_listener() {
    // The port is reserved, and no server accepts on it yet.
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = reserved.local_addr().unwrap();
    drop(reserved);
    let url = format!("http://{address}");
    // The list of revoked gateways is not known either.
    let unheard = ["--revocations-wait-ms", "0", "--admit-unheard"];
    let reporting = ["--path-telemetry", &url, "--report-interval-ms", "100"];
    let proxy = Proxy::start(&[&unheard[..], &reporting].concat()).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    assert!(within(tunnel.up()).await);
    within(async {
        // Long enough for several reports to wait.
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..10 {
            ticks.tick().await;
        }
    })
    .await;
    let (heard, mut hears) = mpsc::channel(64);
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    serve(listener, heard);

    let mut by_path: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    within(async {
        while by_path.len() < NAMES.len() || by_path.values().any(|seen| seen.len() < 12) {
            for report in hears.recv().await.unwrap() {
                assert_eq!(report.gateway, "gw-1");
                assert_eq!(report.end(), End::Proxy);
                assert_eq!(report.interval_ms, 100);
                assert!(report.remote_address.starts_with("127.0."));
                by_path
                    .entry(report.path)
                    .or_default()
                    .insert(report.sequence);
            }
        }
    })
    .await;
    assert_eq!(by_path.keys().collect::<Vec<_>>(), ["lte", "wifi"]);
    for seen in by_path.values() {
        // The sequence begins with the first report and has no gap.
        assert_eq!(seen.first(), Some(&1));
        assert_eq!(seen.last().copied(), Some(seen.len() as u64));
    }
    tunnel.close().await;
    proxy.stop().await;
}
