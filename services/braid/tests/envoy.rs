//! The real Envoy with the shipped configuration, in front of the separate processes.
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
use std::time::{Duration, Instant};

use contracts::vitals::ingest_service_client::IngestServiceClient;
use contracts::vitals::{Metric, Sample, UploadRequest, UploadResponse, sample};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use service_kit::grpc;
use service_kit::tls::{Identity, IdentityFiles, PeerId, renewal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use envoy::{Envoy, braid, prepare};
use program::{PATIENCE, eventually, http, rows, run};
use separate::{NOUNS, Separate};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// All services, with Envoy between proxy and services.
fn all(dir: &Path, devices: &[String]) -> Option<(Separate, Envoy)> {
    let binary = envoy::binary()?;
    let mut separate = prepare(dir, devices);
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
            contracts::now_us(),
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

    // A rolling restart: streams get a GOAWAY, and the gateway has to find the next Envoy by
    // itself.
    envoy.drain();
    send(separate.sensors(), "sensor-1", 100..200);
    envoy.restart();
    eventually("two hundred", || stored() == (200, 200));
    // The same without a goodbye.
    envoy.kill();
    send(separate.sensors(), "sensor-1", 200..300);
    envoy.restart();
    eventually("three hundred", || stored() == (300, 300));

    // Forwarded requests are in the access log, with the gateway's identity.
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

/// One sample of gw-1's device, offered with a header that names gw-1.
async fn offer(url: &str, identity: &Identity) -> Result<UploadResponse, Status> {
    let (_open, mut answers) = begin(url, identity).await?;
    let answer = answers.message().await?;
    answer.ok_or_else(|| Status::internal("no answer"))
}

/// The same with a stream that stays open until the sender is dropped.
async fn begin(
    url: &str,
    identity: &Identity,
) -> Result<(mpsc::Sender<UploadRequest>, Streaming<UploadResponse>), Status> {
    let unreachable = |error: &dyn std::fmt::Display| Status::unavailable(error.to_string());
    let channel = grpc::channel(url, Some(identity)).map_err(|error| unreachable(&error))?;
    let mut sample = Sample {
        device: "sensor-1".into(),
        sequence: 1_000_000,
        metric: Metric::HeartRate.into(),
        device_time_us: contracts::now_us(),
        gateway_time_us: contracts::now_us(),
        reading: Some(sample::Reading::Value(70.0)),
        ..Sample::default()
    };
    vitals::fill_defaults(&mut sample);
    let upload = UploadRequest {
        position: 1,
        samples: vec![sample],
        ..UploadRequest::default()
    };
    let (open, uploads) = mpsc::channel(1);
    let _ = open.send(upload).await;
    let mut request = Request::new(ReceiverStream::new(uploads));
    let claim = "By=x;Hash=y;URI=spiffe://braid/tenant/default/gateway/gw-1";
    request
        .metadata_mut()
        .insert("x-forwarded-client-cert", claim.parse().unwrap());
    let answers = IngestServiceClient::new(channel).upload(request).await?;
    Ok((open, answers.into_inner()))
}

#[tokio::test]
async fn no_gateway_can_act_as_another() {
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
    // Another gateway that claims to be gw-1 counts as itself on either way. The device is worn at
    // gw-1, so readings by gw-2 go into quarantine.
    for url in [&by_envoy, &direct] {
        let answer = offer(url, &identity("gw-2")).await.unwrap();
        assert!(answer.rejections.is_empty(), "{url}: {answer:?}");
    }
    let data = separate.data.to_str().unwrap();
    eventually("both readings are kept apart", || {
        let (_, listed, _) = run(&["quarantine", "list", "--json", "--data", data]);
        listed.contains("gw-2") && listed.contains("other-gateway")
    });
    assert_eq!(rows(&separate.data, "sensor-%"), (1, 1));
    // A service that is neither front nor gateway is refused: by Envoy's TLS, and by ingest itself.
    let refused = offer(&by_envoy, &identity("dashboard")).await.unwrap_err();
    assert_ne!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    assert!(
        !envoy.log().contains("service/dashboard"),
        "{}",
        envoy.log()
    );
    let refused = offer(&direct, &identity("dashboard")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    // The owner itself is admitted, through Envoy and directly.
    for url in [&by_envoy, &direct] {
        let answer = offer(url, &identity("gw-1")).await.unwrap();
        assert!(answer.rejections.is_empty(), "{url}: {answer:?}");
    }
    // The same sample twice.
    eventually("the owner's sample", || {
        rows(&separate.data, "sensor-%").0 == 2
    });
}

/// An identity of the service proxy, issued with the key of the authority for gateways in `folder`.
fn forge(folder: &Path, ca: &Path, dir: &Path) -> IdentityFiles {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let key = KeyPair::from_pem(&read("gateways.key")).unwrap();
    let thief = Issuer::from_ca_cert_pem(&read("gateways.pem"), key).unwrap();
    let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
    let name = PeerId::service("proxy").to_string();
    params.subject_alt_names = vec![SanType::URI(name.as_str().try_into().unwrap())];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let forged = IdentityFiles {
        ca: ca.to_owned(),
        ..IdentityFiles::in_dir(dir, "forged")
    };
    std::fs::write(&forged.key, key.serialize_pem()).unwrap();
    let certificate = params.signed_by(&key, &thief).unwrap();
    std::fs::write(&forged.cert, certificate.pem()).unwrap();
    forged
}

#[tokio::test]
async fn a_revoked_gateway_is_refused_behind_envoy_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let Some(binary) = envoy::binary() else {
        return;
    };
    let mut separate = prepare(dir.path(), &["sensor-1".to_owned()]);
    let data = separate.data.clone();
    let identities = data.join("identities");
    let folder = separate.authority_folder();
    let authority = folder.to_str().unwrap().to_owned();
    let envoy = Envoy::start(&binary, dir.path(), &separate);
    separate.front = Some(envoy.devices);
    separate.start("ingest");
    separate.start_with("dashboard", &[&format!("--authority={authority}")]);
    let identity = |name: &str| Identity::load(&IdentityFiles::in_dir(&identities, name)).unwrap();
    let url = format!("https://{}", envoy.devices);
    let first = identity("gw-1");
    // Until ingest is up and Envoy has noticed it.
    let deadline = Instant::now() + PATIENCE;
    let (_open, mut answers) = loop {
        match begin(&url, &first).await {
            Ok(begun) => break begun,
            Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}"),
        }
        assert!(Instant::now() < deadline, "never reached");
        tokio::time::sleep(PAUSE).await;
    };
    assert!(answers.message().await.unwrap().is_some());

    let signed = ["--by", "Eve Operator", "--reason", "stolen"];
    braid(
        &[&["gateways", "revoke", "gw-1"], &signed[..]].concat(),
        &data,
    );
    let revoked = Instant::now();
    // The open stream ends with a reason.
    let ended = tokio::time::timeout(PATIENCE, async {
        loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a reason"),
                Err(status) => break status,
            }
        }
    });
    let ended = ended.await.unwrap();
    println!("the stream ended {:?} after the command", revoked.elapsed());
    assert_eq!(ended.code(), tonic::Code::PermissionDenied, "{ended:?}");
    let refused = offer(&url, &first).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");
    // Other gateways are not affected.
    offer(&url, &identity("gw-2")).await.unwrap();

    // A certificate by a new token is admitted; the old one stays refused. Both have the same
    // identity at Envoy, so the fingerprint decides.
    let enrol = ["gateways", "enrol", "gw-1", "--authority", &authority];
    let token = braid(&[&enrol, &signed[..]].concat(), &data);
    let request = renewal::Request::new().unwrap();
    let body = serde_json::json!({"token": token, "request": request.request_pem}).to_string();
    let mut given = String::new();
    eventually("a certificate through Envoy", || {
        let args = ["-H", "content-type: application/json", "-d", &body];
        let (status, answer) = envoy.ask("/api/gateways/enrol", &args);
        given = answer;
        status == 200
    });
    let given: serde_json::Value = serde_json::from_str(&given).unwrap();
    let files = IdentityFiles {
        cert: dir.path().join("new.pem"),
        key: dir.path().join("new.key"),
        ca: identities.join("ca.pem"),
    };
    let certificate = given["certificate"].as_str().unwrap();
    request.install(certificate, &files).unwrap();
    let second = Identity::load(&files).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while let Err(status) = offer(&url, &second).await {
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status:?}");
        assert!(Instant::now() < deadline, "never let in");
        tokio::time::sleep(PAUSE).await;
    }
    let refused = offer(&url, &first).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused:?}");

    // A thief of the dashboard's issuing key can name a service that Envoy admits, but no service
    // trusts it.
    let forged = forge(&folder, &identities.join("ca.pem"), dir.path());
    let heard = "that of the service proxy";
    let refused = offer(&url, &Identity::load(&forged).unwrap()).await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("403 Forbidden"), "{refused:?}");
    assert!(!refused.message().contains(heard), "{refused:?}");
    let refused = offer(&url, &identity("proxy")).await.unwrap_err();
    assert!(refused.message().contains(heard), "{refused:?}");
}
