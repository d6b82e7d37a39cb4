//! A gateway whose certificate is stolen fills neither memory nor store, and harms no other
//! gateway.

#![allow(clippy::unwrap_used)]

#[path = "support/world.rs"]
#[allow(dead_code)]
mod world;

use std::time::Duration;

use contracts::paths::{
    End, PathReport, ReportRequest, path_telemetry_service_client::PathTelemetryServiceClient,
};
use service_kit::tls::PeerId;
use store::{PATHS_PER_GATEWAY_MAX, Scope};
use tonic::Code;
use world::{LIMIT, World, reports};

/// Reports under new names, as many as a gateway with two reports a second may send at once.
const SAVED: u64 = 1_200;

fn made_up(gateway: &str, end: End, from: u64, count: u64) -> Vec<PathReport> {
    let report = reports(end, "made-up", 0).remove(0);
    let numbered = |sequence: u64| PathReport {
        gateway: gateway.into(),
        tenant: "default".into(),
        path: format!("made-up-{sequence}"),
        session: sequence,
        sequence,
        ..report.clone()
    };
    (from..from + count).map(numbered).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ever_new_names_fill_neither_memory_nor_store_and_harm_no_other() {
    let world = World::start();
    let thief = PeerId::gateway("default", "thief");
    let honest = PeerId::gateway("default", "gateway-1");
    let proxy = PeerId::service("proxy");
    let mut client = PathTelemetryServiceClient::new(world.channel(&thief).await);
    let requests = (0..10).map(|n| ReportRequest {
        reports: made_up("thief", End::Gateway, 1 + n * SAVED / 2, SAVED / 2),
        sent_time_us: 0,
    });
    let flood = client.report(tokio_stream::iter(requests));
    let mut answers = flood.await.unwrap().into_inner();
    // The saved reports, and the request that overdrew the rate, are read; later requests are not.
    for taken in [SAVED / 2, SAVED, 3 * SAVED / 2] {
        let answer = tokio::time::timeout(LIMIT, answers.message()).await;
        assert_eq!(answer.unwrap().unwrap().unwrap().accepted, taken);
    }
    let waits = tokio::time::timeout(Duration::from_secs(2), answers.message());
    assert!(waits.await.is_err(), "it is read on");
    // A proxy reports on the thief and on others: only the reports on the thief are left out.
    let mut both = made_up("thief", End::Proxy, 1, 900);
    both.extend(reports(End::Proxy, "wifi", 0));
    assert_eq!(world.report(&proxy, both).await.unwrap(), 930);
    let own = reports(End::Gateway, "lte", 0);
    assert_eq!(world.report(&honest, own).await.unwrap(), 30);

    // The thief's paths at both ends.
    let of_thief = 2 * PATHS_PER_GATEWAY_MAX;
    let most = 60 + of_thief;
    let rows = world.rows(most).await;
    assert_eq!(rows.len(), most);
    let honest = rows.iter().filter(|row| row.gateway == "gateway-1");
    assert_eq!(honest.count(), 60);
    let all = world.store.latest_paths(&Scope::Service, None).await;
    assert_eq!(all.unwrap().len(), 2 + of_thief);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_too_many_bytes_is_not_decoded() {
    let world = World::start();
    let gateway = PeerId::gateway("default", "gateway-1");
    let mut large = reports(End::Gateway, "lte", 0);
    large[0].local_address = "x".repeat(600 << 10);
    let refused = world.report(&gateway, large).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}
