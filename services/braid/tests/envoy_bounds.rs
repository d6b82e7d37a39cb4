//! Unauthenticated clients fill the bounds of the real Envoy. Envoy stays within its container's
//! memory, devices upload, and people see the page.
#![allow(clippy::unwrap_used)]

#[path = "support/envoy.rs"]
mod envoy;
#[path = "support/frames.rs"]
mod frames;
#[path = "support/program.rs"]
mod program;
#[path = "support/separate.rs"]
mod separate;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use service_kit::tls::authority::LocalAuthority;
use service_kit::tls::{Identity, PeerId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use envoy::{Envoy, prepare};
use frames::{frame, headers, literal, settings};
use program::{PATIENCE, eventually, http, rows};
use separate::NOUNS;

/// Connections to the page's listener, fewer than its bound, so that people can connect.
const UNAUTHENTICATED: usize = 490;
/// Its bound for people is 500.
const CROWD: usize = 20;
/// More than its bound of one connection.
const REQUESTS: u32 = 40;
/// Tabs of one browser that watch, on one connection.
const TABS: u32 = 18;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Memory of Envoy's container in the shipped configuration.
fn container_bytes() -> u64 {
    let compose = fs::read_to_string(root().join("compose/front.yml")).unwrap();
    let (_, envoy) = compose.split_once("\n  envoy:\n").unwrap();
    let (_, limit) = envoy.split_once("mem_limit: ").unwrap();
    let megabytes: u64 = limit.split('m').next().unwrap().parse().unwrap();
    megabytes << 20
}

/// Requests of the largest size, whose answers are never read.
fn unread() -> Vec<u8> {
    let mut said = settings(0);
    let mut asked = headers("GET", "/");
    for n in 0..40 {
        asked.extend(literal(&format!("x-{n}"), &"a".repeat(270)));
    }
    for n in 0..REQUESTS {
        // END_STREAM, END_HEADERS
        said.extend(frame(1, 5, 1 + 2 * n, &asked));
    }
    said
}

/// Counts the streams that have received data, until `wanted` have.
async fn streams_with_data(stream: &mut TlsStream<TcpStream>, wanted: usize) -> usize {
    let mut found = BTreeSet::new();
    let reading = async {
        while found.len() < wanted {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, _, id @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            stream.read_exact(&mut payload).await.unwrap();
            if kind == 0 && !payload.is_empty() {
                found.insert(u32::from_be_bytes(id));
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, reading).await;
    found.len()
}

/// One connection with a Watch for each tab.
async fn watch(envoy: &Envoy, tls: Arc<rustls::ClientConfig>, token: &str) -> TlsStream<TcpStream> {
    let mut stream = envoy.connect_as_person(tls).await.unwrap();
    let mut said = settings(1 << 20);
    // WINDOW_UPDATE of the connection.
    said.extend(frame(8, 0, 0, &(1_u32 << 30).to_be_bytes()));
    let (name, value) = token.split_once(": ").unwrap();
    let asked = [
        headers("POST", "/braid.query.v1.QueryService/Watch"),
        literal("content-type", "application/grpc-web+proto"),
        literal(name, value),
    ]
    .concat();
    for n in 0..TABS {
        said.extend(frame(1, 4, 1 + 2 * n, &asked));
        said.extend(frame(0, 1, 1 + 2 * n, &[0; 5]));
    }
    stream.write_all(&said).await.unwrap();
    stream
}

fn send(to: std::net::SocketAddr, numbers: std::ops::Range<u64>) {
    let mut batch = String::new();
    for number in numbers {
        writeln!(
            batch,
            "{{\"device\":\"sensor-1\",\"metric\":\"heart-rate\",\"value\":{},\"device_time_us\":{},\"sensor_sequence\":{}}}",
            60 + number % 40,
            contracts::now_us(),
            number + 1,
        )
        .unwrap();
    }
    eventually("the gateway takes samples", || {
        http(to, "POST", "/v1/samples", "", &batch).is_ok_and(|(status, _)| status == 200)
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_clients_at_their_bounds_stop_neither_envoy_nor_uploads_nor_live_pages() {
    let dir = tempfile::tempdir().unwrap();
    let Some(binary) = envoy::binary() else {
        return;
    };
    let mut separate = prepare(dir.path(), &["sensor-1".to_owned()]);
    let envoy = Envoy::start(&binary, dir.path(), &separate);
    separate.front = Some(envoy.devices);
    for noun in NOUNS {
        separate.start(noun);
    }
    let stored = || rows(&separate.data, "sensor-%");
    send(separate.sensors(), 0..100);
    eventually("the first hundred", || stored() == (100, 100));
    eventually("Envoy finds the dashboard ready", || {
        envoy.ready("dashboard") == 1
    });
    let token = envoy.sign_in(&separate.data);
    let authority = LocalAuthority::open_or_create(&separate.data.join("identities")).unwrap();
    let anybody = authority
        .issue(&PeerId::gateway("t", "anybody"), &[])
        .unwrap();
    let tls = Identity::load(&anybody).unwrap().client_config(&[b"h2"]);
    let mut person = watch(&envoy, Arc::clone(&tls), &token).await;
    let live = streams_with_data(&mut person, TABS as usize).await;
    assert_eq!(live, TABS as usize, "tabs that are live");

    let unread = unread();
    let mut clients = Vec::new();
    for _ in 0..UNAUTHENTICATED {
        let mut stream = envoy.connect_as_person(Arc::clone(&tls)).await.unwrap();
        // A client whose connection is closed for its requests can do no more.
        let _ = stream.write_all(&unread).await;
        clients.push(stream);
    }
    let limit = container_bytes();
    let within = |when: &str| {
        let peak = envoy.memory_peak();
        println!("{when}: {} of {} MiB", peak >> 20, limit >> 20);
        assert!(
            peak < limit / 10 * 9,
            "{when}: {} of {} MiB",
            peak >> 20,
            limit >> 20
        );
    };
    eventually("the unauthenticated clients have asked", || {
        envoy.stat("http.people.downstream_rq_http2_total") >= UNAUTHENTICATED as u64 * 20
    });
    within("clients that do not read");

    // Meanwhile devices upload, signed-in people get answers, and their tabs get updates.
    send(separate.sensors(), 100..200);
    eventually("two hundred", || stored() == (200, 200));
    let ask = |path: &str| {
        let file = dir.path().join("empty-message");
        fs::write(&file, [0; 5]).unwrap();
        let body = format!("@{}", file.display());
        let kind = "content-type: application/grpc-web+proto";
        let args = ["-H", &token, "-H", kind, "--data-binary", &body];
        envoy.ask(path, &args).0
    };
    assert_eq!(ask("/braid.query.v1.QueryService/ListPatients"), 200);
    let live = streams_with_data(&mut person, TABS as usize).await;
    assert_eq!(
        live, TABS as usize,
        "tabs that are live beside unauthenticated clients"
    );

    // Silent connections are accepted up to the bound.
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(envoy.connect_as_person(Arc::clone(&tls)).await);
    }
    let let_in = crowd.iter().filter(|stream| stream.is_ok()).count();
    assert!(
        let_in < CROWD,
        "all of {CROWD} beyond {UNAUTHENTICATED} are let in"
    );
    eventually("the refused are counted", || {
        envoy.stat("listener.people.downstream_cx_overflow") > 0
    });
    within("clients at their bound");
    send(separate.sensors(), 200..300);
    eventually("three hundred", || stored() == (300, 300));

    serves_metrics_alone(&envoy);

    // Connections that do not read are closed in time.
    eventually("all of them are forgotten", || {
        envoy.stat("http.people.downstream_rq_active") <= u64::from(TABS)
    });
    drop((clients, crowd));
    tokio::time::timeout(Duration::from_secs(10), person.shutdown())
        .await
        .unwrap()
        .unwrap();
}

/// Prometheus gets the metrics, and its listener serves nothing else.
fn serves_metrics_alone(envoy: &Envoy) {
    let metrics = || http(envoy.metrics, "GET", "/metrics", "", "").unwrap();
    let (status, said) = metrics();
    assert_eq!(status, 200, "{said}");
    for name in asked_of_envoy() {
        // All listeners together have refused no connection.
        if name != "envoy_listener_downstream_global_cx_overflow" {
            let line = |line: &str| line.starts_with(&format!("{name}{{"));
            assert!(said.lines().any(line), "{name} is not in\n{said}");
        }
    }
    assert!(
        said.contains("envoy_listener_address=\"devices\""),
        "{said}"
    );
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/config_dump"),
        ("GET", "/certs"),
        ("POST", "/metrics"),
        ("POST", "/quitquitquit"),
        ("GET", "/metrics/../config_dump"),
        ("GET", "/stats/prometheus"),
    ] {
        let (status, _) = http(envoy.metrics, method, path, "", "").unwrap();
        assert_eq!(status, 404, "{method} {path}");
    }
}

/// Metrics of Envoy in rules and dashboards.
fn asked_of_envoy() -> BTreeSet<String> {
    let rules = fs::read_to_string(root().join("infra/prometheus/rules.yml")).unwrap();
    let platform = root().join("infra/grafana/dashboards/platform.json");
    let platform = fs::read_to_string(platform).unwrap();
    let of = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| word.starts_with("envoy_"))
            // Labels.
            .filter(|word| {
                !matches!(
                    *word,
                    "envoy_listener_address"
                        | "envoy_http_conn_manager_prefix"
                        | "envoy_response_code_class"
                )
            })
            .map(str::to_owned)
            .collect()
    };
    let found = &of(&rules) | &of(&platform);
    assert!(found.len() > 4, "{found:?}");
    found
}
