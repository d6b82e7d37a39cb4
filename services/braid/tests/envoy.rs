//! The real Envoy with the configuration that ships, in front of the separate processes.
#![allow(clippy::unwrap_used)]

#[path = "support/envoy.rs"]
mod envoy;
#[path = "support/program.rs"]
mod program;
#[path = "support/separate.rs"]
mod separate;

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use contracts::vitals::ingest_service_client::IngestServiceClient;
use contracts::vitals::{Metric, Sample, UploadRequest, UploadResponse, sample};
use service_kit::grpc;
use service_kit::tls::{Identity, IdentityFiles};
use tonic::{Request, Status};

use envoy::Envoy;
use program::{eventually, http, now_us, rows, run};
use separate::{NOUNS, Separate};

/// Everything, with Envoy between proxy and services.
fn all(dir: &Path, devices: &[String]) -> Option<(Separate, Envoy)> {
    let binary = envoy::binary()?;
    let mut separate = Separate::prepare(dir, devices, &[]);
    let data = separate.data.to_str().unwrap().to_owned();
    for who in [["service", "envoy"], ["gateway", "gw-2"]] {
        let (code, _, error) = run(&["identity", "issue", who[0], who[1], "--data", &data]);
        assert_eq!(code, 0, "{error}");
    }
    let envoy = Envoy::start(&binary, dir, &separate);
    separate.front = Some(envoy.devices);
    for noun in NOUNS {
        separate.start(noun);
    }
    Some((separate, envoy))
}

fn send(to: SocketAddr, device: &str, numbers: std::ops::Range<u64>) {
    let mut batch = String::new();
    for number in numbers {
        let value = 60 + number % 40;
        writeln!(
            batch,
            "{{\"device\":\"{device}\",\"metric\":\"heart-rate\",\"value\":{value},\"device_time_us\":{},\"sensor_sequence\":{}}}",
            now_us(),
            number + 1,
        )
        .unwrap();
    }
    eventually("the gateway takes samples", || {
        http(to, "POST", "/v1/samples", "", &batch).is_ok_and(|(status, _)| status == 200)
    });
}

#[test]
fn samples_pass_through_envoy_and_its_drain_and_restart_lose_none() {
    let dir = tempfile::tempdir().unwrap();
    let devices = ["sensor-1".to_owned()];
    let Some((separate, mut envoy)) = all(dir.path(), &devices) else {
        return;
    };
    let stored = || rows(&separate.data, "sensor-%");
    send(separate.sensors(), "sensor-1", 0..100);
    eventually("the first hundred", || stored() == (100, 100));

    // A rolling restart: streams get a GOAWAY, and the gateway has to find the next Envoy by itself.
    envoy.drain();
    send(separate.sensors(), "sensor-1", 100..200);
    envoy.restart();
    eventually("two hundred", || stored() == (200, 200));
    // And without a goodbye.
    envoy.kill();
    send(separate.sensors(), "sensor-1", 200..300);
    envoy.restart();
    eventually("three hundred", || stored() == (300, 300));

    // What was forwarded is in the access log, with the gateway's identity.
    eventually("an entry in the access log", || {
        let log = envoy.log();
        let mut entries = log
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        entries.any(|entry| {
            entry["peer"]
                .as_str()
                .is_some_and(|peer| peer.ends_with("/gateway/gw-1"))
        })
    });

    // The page over TLS at both ends.
    let page = envoy.get_page("/");
    assert!(page.contains("<html"), "{page}");
}

/// One sample of gw-1's device, offered by somebody who says to be gw-1.
async fn offer(url: &str, identity: &Identity) -> Result<UploadResponse, Status> {
    let unreachable = |error: &dyn std::fmt::Display| Status::unavailable(error.to_string());
    let channel = grpc::channel(url, Some(identity)).map_err(|error| unreachable(&error))?;
    let mut sample = Sample {
        device: "sensor-1".into(),
        sequence: 1_000_000,
        metric: Metric::HeartRate.into(),
        device_time_us: now_us(),
        gateway_time_us: now_us(),
        reading: Some(sample::Reading::Value(70.0)),
        ..Sample::default()
    };
    vitals::fill_defaults(&mut sample);
    let upload = UploadRequest {
        position: 1,
        samples: vec![sample],
        ..UploadRequest::default()
    };
    let mut request = Request::new(tokio_stream::iter([upload]));
    let claim = "By=x;Hash=y;URI=spiffe://braid/tenant/default/gateway/gw-1";
    request
        .metadata_mut()
        .insert("x-forwarded-client-cert", claim.parse().unwrap());
    let mut answers = IngestServiceClient::new(channel)
        .upload(request)
        .await?
        .into_inner();
    let answer = answers.message().await?;
    answer.ok_or_else(|| Status::internal("no answer"))
}

#[tokio::test]
async fn nobody_speaks_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let devices = ["sensor-1".to_owned()];
    let Some((separate, envoy)) = all(dir.path(), &devices) else {
        return;
    };
    let identities = separate.data.join("identities");
    let identity = |name: &str| Identity::load(&IdentityFiles::in_dir(&identities, name)).unwrap();
    send(separate.sensors(), "sensor-1", 0..1);
    eventually("the line is up", || {
        rows(&separate.data, "sensor-%") == (1, 1)
    });

    let by_envoy = format!("https://{}", envoy.devices);
    let direct = format!("https://{}", separate.ports.ingest);
    // Another gateway that claims to be gw-1 is heard as itself, on either way, and does not own the device.
    for url in [&by_envoy, &direct] {
        let answer = offer(url, &identity("gw-2")).await.unwrap();
        assert_eq!(answer.rejections.len(), 1, "{url}: {answer:?}");
    }
    // A service that is neither front nor gateway is turned away: by Envoy's TLS, by ingest itself.
    let refused = offer(&by_envoy, &identity("dashboard")).await.unwrap_err();
    assert_ne!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    assert!(
        !envoy.log().contains("service/dashboard"),
        "{}",
        envoy.log()
    );
    let refused = offer(&direct, &identity("dashboard")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    // The owner itself is taken, through Envoy and directly.
    for url in [&by_envoy, &direct] {
        let answer = offer(url, &identity("gw-1")).await.unwrap();
        assert!(answer.rejections.is_empty(), "{url}: {answer:?}");
    }
    // Twice the same sample.
    eventually("the owner's sample", || {
        rows(&separate.data, "sensor-%").0 == 2
    });
}
