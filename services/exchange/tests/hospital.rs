//! The hospital's feed, by an interface engine of HAPI over TLS. Stays, refused messages, refused
//! peers, and the observations that the hospital gets.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, EmbeddedBus, EmbeddedOptions, Event, Topic};
use contracts::patients::{Patient, PatientStatus};
use contracts::vitals::{Metric, Sample, sample::Reading};
use exchange::{Config, Feed, Message, Patients};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use service_kit::Context;
use store::{Scope, SqliteStore, Store, VitalsBatch};
use testkit::{ports, sources};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Longest run of the client, which starts a Java machine.
const CLIENT_WITHIN: Duration = Duration::from_secs(60);

struct Hospital {
    dir: tempfile::TempDir,
    address: SocketAddr,
    store: Arc<dyn Store>,
    bus: Arc<dyn Bus>,
    context: Context,
    running: tokio::task::JoinHandle<()>,
}

/// An authority `NAME-ca.pem`, and a certificate of it, `NAME.pem` with `NAME.key`.
fn certificates(dir: &Path, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = own.signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join(format!("{name}-ca.pem")), ca.pem()).unwrap();
    std::fs::write(dir.join(format!("{name}.pem")), own.pem()).unwrap();
    std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

impl Hospital {
    async fn start(observations: Option<u16>) -> Hospital {
        let dir = tempfile::tempdir().unwrap();
        for name in ["braid", "engine", "stranger"] {
            certificates(dir.path(), name);
        }
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path()).unwrap());
        let opened = EmbeddedBus::open(dir.path(), EmbeddedOptions::default());
        let bus: Arc<dyn Bus> = Arc::new(opened.unwrap());
        let address = ports::reserve().unwrap();
        let config = Config {
            listen: address,
            feed: Feed {
                hospital_cert: Some(dir.path().join("braid.pem")),
                hospital_key: Some(dir.path().join("braid.key")),
                hospital_ca: Some(dir.path().join("engine-ca.pem")),
                observations_to: observations.map(|port| format!("localhost:{port}")),
                observations_every_s: 1,
            },
            tenant: "default".to_owned(),
        };
        let context = Context::new("exchange");
        let run = exchange::run(
            config,
            Arc::clone(&bus),
            Arc::clone(&store),
            context.clone(),
        );
        let running = tokio::spawn(async move { run.await.unwrap() });
        Hospital {
            dir,
            address,
            store,
            bus,
            context,
            running,
        }
    }

    /// Sends messages of these bodies by HAPI, with the certificate of this name. Returns what the
    /// client printed, a line for each message.
    async fn send(&self, name: &str, messages: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let mut text = String::new();
        for (number, (event, body)) in messages.iter().enumerate() {
            text.push_str(&format!(
                "MSH|^~\\&|KIS|HOSP|BRAID|WARD|20261129140000||ADT^{event}|M{number}|P|2.5.1\n{body}\n\n"
            ));
        }
        let file = |name: String| self.dir.path().join(name).display().to_string();
        let files = [
            file(format!("{name}.pem")),
            file(format!("{name}.key")),
            file("braid-ca.pem".to_owned()),
        ];
        let port = self.address.port().to_string();
        let sending = tokio::task::spawn_blocking(move || {
            let mut client = Command::new(engine())
                .args(["send", "localhost", &port])
                .args(files)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            client
                .stdin
                .take()
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            client.wait_with_output().unwrap()
        });
        let output = tokio::time::timeout(CLIENT_WITHIN, sending)
            .await
            .unwrap()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said.lines().map(str::to_owned).collect());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    async fn patient(&self, id: &str) -> Patient {
        let scope = Scope::tenant("default");
        self.store
            .patient_record(&scope, id)
            .await
            .unwrap()
            .unwrap()
    }

    async fn end(self) {
        self.context.shutdown().request();
        tokio::time::timeout(Duration::from_secs(10), self.running)
            .await
            .unwrap()
            .unwrap();
    }
}

fn engine() -> PathBuf {
    sources::file("infra/hospital/engine.sh").unwrap()
}

/// False with a message on a machine without HAPI and Java.
fn has_engine() -> bool {
    let here = Command::new(engine()).arg("here").status().unwrap();
    here.success() || {
        testkit::missing("HAPI", "infra/dev/need.sh hapi installs it");
        false
    }
}

const PID: &str = "PID|1||4711^^^HOSP^MR||Example^Ada||19400131|F|||||||de";
const PV1: &str = "PV1|1|I|4W^12^B^North";

#[tokio::test(flavor = "multi_thread")]
async fn a_stay_from_admission_to_discharge_by_the_hospitals_feed() {
    if !has_engine() {
        return;
    }
    let hospital = Hospital::start(None).await;
    let admission = format!("EVN|A01|20261129140000\n{PID}\n{PV1}");
    let moved = format!("{PID}\nPV1|1|I|5E^1^A^North");
    let renamed = format!("{}\nPV1|1|I|5E^1^A^North", PID.replace("Example", "Sample"));
    let said = hospital
        .send(
            "engine",
            &[
                ("A01^ADT_A01", &admission),
                ("A01^ADT_A01", &admission),
                ("A02^ADT_A02", &moved),
                ("A08^ADT_A01", &renamed),
                ("A03^ADT_A03", &moved),
                ("A13^ADT_A01", &moved),
                (
                    "A02^ADT_A02",
                    "PID|1||99^^^HOSP^MR||Nobody^Known\nPV1|1|I|4W^1^A",
                ),
                (
                    "A60^ADT_A60",
                    "EVN|A60|20261129140000\nPID|1||4711^^^HOSP^MR||Sample^Ada",
                ),
            ],
        )
        .await
        .unwrap();
    let codes: Vec<&str> = said.iter().map(|line| &line[..2]).collect();
    assert_eq!(
        codes,
        ["AA", "AA", "AA", "AA", "AA", "AA", "AE", "AR"],
        "{said:?}"
    );
    assert!(said[6].contains("A01"), "{said:?}");
    let patient = hospital.patient("HOSP:4711").await;
    assert_eq!(patient.name, "Ada Sample");
    assert_eq!(patient.status(), PatientStatus::Admitted);
    assert_eq!(patient.place.unwrap().ward, "5E");
    // Admission, move, correction, discharge, reinstatement; the second admission changed nothing.
    assert_eq!(patient.revision, 5);

    // Refused messages wait in the dead letters, and are taken once their cause is gone.
    let letters = letters(&*hospital.bus).await;
    assert_eq!(letters.len(), 2, "{letters:?}");
    let refused = Message::parse(letters[0].as_bytes()).unwrap();
    let patients = Patients::new(Arc::clone(&hospital.store), "default");
    exchange::take(&patients, &refused).await.unwrap_err();
    let admit = letters[0].replace("ADT^A02^ADT_A02", "ADT^A01^ADT_A01");
    let admit = Message::parse(admit.as_bytes()).unwrap();
    assert_eq!(exchange::take(&patients, &admit).await.unwrap(), 1);
    assert_eq!(
        exchange::take(&patients, &refused).await.unwrap(),
        0,
        "it lies there already"
    );

    let merge = "PID|1||4711^^^HOSP^MR||Sample^Ada\nMRG|99^^^HOSP^MR";
    let said = hospital
        .send("engine", &[("A40^ADT_A39", merge)])
        .await
        .unwrap();
    assert!(said[0].starts_with("AA"), "{said:?}");
    assert_eq!(hospital.patient("HOSP:99").await.merged_into, "HOSP:4711");
    hospital.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_another_authority_or_without_tls_is_not_heard() {
    if !has_engine() {
        return;
    }
    let hospital = Hospital::start(None).await;
    let admission = format!("{PID}\n{PV1}");
    let refused = hospital
        .send("stranger", &[("A01^ADT_A01", &admission)])
        .await;
    assert!(refused.is_err(), "{refused:?}");
    let mut plain = tokio::net::TcpStream::connect(hospital.address)
        .await
        .unwrap();
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    plain.write_all(b"\x0bMSH|^~\\&|KIS\x1c\r").await.unwrap();
    let mut answer = Vec::new();
    // The end of the connection may be a reset.
    let _ = testkit::within(plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"\x0b"), "{answer:?}");
    let scope = Scope::tenant("default");
    let found = hospital
        .store
        .patient_record(&scope, "HOSP:4711")
        .await
        .unwrap();
    assert!(found.is_none());
    hospital.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hospital_gets_the_newest_readings_of_its_patients_once() {
    if !has_engine() {
        return;
    }
    let port = ports::reserve().unwrap().port();
    let hospital = Hospital::start(Some(port)).await;
    let admission = format!("{PID}\n{PV1}");
    let said = hospital
        .send("engine", &[("A01^ADT_A01", &admission)])
        .await
        .unwrap();
    assert!(said[0].starts_with("AA"), "{said:?}");
    let reading = |sequence: u64, value: f64| Sample {
        patient: "HOSP:4711".to_owned(),
        device: "belt-1".to_owned(),
        gateway: "gw-1".to_owned(),
        stream: "heart-rate".to_owned(),
        sequence,
        metric: Metric::HeartRate.into(),
        device_time_us: contracts::now_us(),
        ingest_time_us: contracts::now_us(),
        reading: Some(Reading::Value(value)),
        ..Sample::default()
    };
    let store = |sample: Sample| {
        let batch = VitalsBatch {
            samples: vec![sample],
            ..VitalsBatch::default()
        };
        hospital.store.write_vitals(Arc::new(batch), Vec::new())
    };
    store(reading(1, 71.5)).await.unwrap();
    // The interface engine comes up later, and gets the newest value then.
    let file = |name: &str| hospital.dir.path().join(name).display().to_string();
    let mut receiving = tokio::process::Command::new(engine())
        .args(["receive", &port.to_string()])
        .args([file("engine.pem"), file("engine.key"), file("braid-ca.pem")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(receiving.stdout.take().unwrap()).lines();
    let mut line = async || {
        let line = tokio::time::timeout(CLIENT_WITHIN, lines.next_line()).await;
        line.unwrap().unwrap().unwrap()
    };
    assert_eq!(line().await, "listening");
    assert_eq!(line().await, "4711 8867-4 71.5 /min");
    store(reading(2, 80.0)).await.unwrap();
    assert_eq!(line().await, "4711 8867-4 80 /min");
    drop(receiving.stdin.take());
    receiving.wait().await.unwrap();
    hospital.end().await;
}

/// Contents of the dead letters, in their order.
async fn letters(bus: &dyn Bus) -> Vec<String> {
    let mut reader = bus.read_back(Topic::DeadLetters).await.unwrap();
    let mut found = Vec::new();
    while reader.lag().await.unwrap() > 0 {
        if let Event::Batch(batch) = testkit::within(reader.next(100)).await.unwrap() {
            found.extend(
                batch
                    .iter()
                    .map(|it| String::from_utf8(it.value.to_vec()).unwrap()),
            );
        }
    }
    found
}
