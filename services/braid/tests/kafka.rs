//! The services on a real Kafka: end to end while broker, ingest and alerting are killed. Also dead
//! letters and their replay, and a start with errors in the configuration.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/sensor.rs"]
mod sensor;
#[path = "support/separate.rs"]
mod separate;

use std::path::Path;
use std::time::Duration;

use bus::kafka::{OpenError, Tls};
use bus::{Bus, EmbeddedBus, EmbeddedOptions, KafkaBus, KafkaOptions, Record, Topic, dead_letter};
use contracts::vitals::{Metric, Sample, UploadRequest, sample::Reading};
use program::{PATIENCE, eventually, http, rows, run};
use prost::Message;
use sensor::{Sensors, pause};
use separate::{NOUNS, Separate};
use service_kit::tls::{IdentityFiles, PeerId, authority::LocalAuthority};
use testkit::kafka::Cluster;

/// Samples that must be stored after a failure before the next one.
const PROGRESS: u64 = 200;
const PREFIX: &str = "ward-";

fn flags(cluster: &Cluster) -> Vec<String> {
    vec![
        format!("--bus=kafka://{}/{PREFIX}", cluster.brokers()[0]),
        "--bus-replication=1".to_owned(),
        "--bus-in-sync-min=1".to_owned(),
    ]
}

/// A record that no consumer can decode.
fn poison() -> Record {
    Record::new("ada", &b"\xff\xff\xff\xff"[..])
}

/// Alerts about the patients that have reached the store.
fn alerts(data: &Path, patient: &str) -> u64 {
    let count = || {
        let connection = rusqlite::Connection::open(data.join("store.db"))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.query_row(
            "SELECT COUNT(*) FROM alerts WHERE patient = ?1",
            [patient],
            |row| row.get::<_, i64>(0),
        )
    };
    count().map_or(0, |count| count as u64)
}

#[test]
fn on_kafka_nothing_is_lost_or_doubled_and_an_alert_is_raised_while_broker_and_services_are_killed()
{
    let Some(mut cluster) = Cluster::start(1, "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let well: Vec<String> = (1..=4).map(|number| format!("sensor-{number}")).collect();
    let ill = vec!["sensor-ill".to_owned()];
    let all = [well.clone(), ill.clone()].concat();
    let mut separate = Separate::prepare(dir.path(), &all, &[]);
    separate.bus = flags(&cluster);
    for noun in NOUNS {
        separate.start(noun);
    }
    let data = separate.data.clone();
    let stored = || rows(&data, "sensor-%").0;
    let sensors = Sensors::start(separate.sensors(), &well, |number| 60 + number % 40);
    eventually("the first rows", || stored() > PROGRESS);

    cluster.kill(0);
    pause(Duration::from_secs(2));
    cluster.restart(0);
    let then = stored();
    eventually("rows after the broker was killed", || {
        stored() >= then + PROGRESS
    });

    let racing = Sensors::start(separate.sensors(), &ill, |_| 190);
    for noun in ["alerting", "ingest"] {
        separate.kill(noun);
        pause(Duration::from_millis(300));
        separate.start(noun);
        let then = stored();
        eventually(&format!("rows after {noun} was killed"), || {
            stored() >= then + PROGRESS
        });
    }
    eventually("an alert about a heart rate of 190", || {
        alerts(&data, "wearer-of-sensor-ill") > 0
    });
    let accepted = sensors.stop() + racing.stop();
    eventually(&format!("{accepted} accepted samples in the store"), || {
        stored() >= accepted
    });
    let (rows, readings) = rows(&data, "sensor-%");
    println!("accepted {accepted}, stored {rows} rows of {readings} different readings");
    assert_eq!((rows, readings), (accepted, accepted));
    for patient in &well {
        assert_eq!(
            alerts(&data, &format!("wearer-of-{patient}")),
            0,
            "{patient} is well"
        );
    }
    separate.assert_all_running();

    // Both consumers of vitals bury an unreadable record, and go on.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = KafkaOptions {
        prefix: PREFIX.to_owned(),
        replication: 1,
        in_sync_min: 1,
        ..KafkaOptions::new(cluster.brokers())
    };
    runtime.block_on(async {
        let bus = KafkaBus::open(options, |reason| println!("{reason}")).await;
        bus.unwrap()
            .publish(Topic::Vitals, vec![poison()])
            .await
            .unwrap();
    });
    let bus_flag = separate.bus[0].clone();
    let list = |more: &[&str]| {
        let args = [&["dead-letters", "list", "--json", &bus_flag], more].concat();
        let (code, text, error) = run(&args);
        assert_eq!(code, 0, "{error}");
        serde_json::from_str::<Vec<serde_json::Value>>(&text).unwrap()
    };
    eventually("two dead letters", || list(&[]).len() == 2);
    let of_ingest = list(&["--consumer", "ingest-store"]);
    let id = of_ingest[0]["id"].as_str().unwrap();
    let (code, text, error) = run(&["dead-letters", "replay", id, &bus_flag]);
    assert_eq!((code, text.trim()), (0, "1 of 1 replayed"), "{error}");
    // The record is still unreadable, so both bury it again.
    eventually("a replayed letter is struck, and two are new", || {
        list(&[]).len() == 3 && list(&["--all"]).len() == 4
    });
}

#[test]
fn dead_letters_of_the_embedded_bus_are_listed_shown_and_replayed_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let mut tail = bus.tail(Topic::Vitals).await.unwrap();
        bus.publish(Topic::Vitals, vec![poison()]).await.unwrap();
        let bus::Event::Batch(batch) = tail.next(1).await.unwrap() else {
            panic!("a tail has only batches")
        };
        let letter = dead_letter::record(&batch[0], "ingest-store", "no VitalsRecord: varint");
        bus.publish(Topic::DeadLetters, vec![letter]).await.unwrap();
    });
    let succeed = |args: &[&str]| {
        let (code, text, error) = run(&[&["dead-letters"], args, &["--data", data]].concat());
        assert_eq!(code, 0, "{args:?}: {error}");
        text
    };
    let listed = succeed(&["list", "--reason", "varint"]);
    assert!(
        listed.contains("ingest-store: no VitalsRecord: varint"),
        "{listed}"
    );
    let id = listed.split_whitespace().next().unwrap();
    let signed = [
        "--by",
        "Eve Operator",
        "--reason",
        "ingest cannot use it",
        "--data",
        data,
    ];
    let (code, text, _) = run(&["dead-letters", "show", id, "--data", data]);
    assert_eq!((code, &*text), (64, ""), "nobody's look");
    let (code, shown, error) = run(&[&["dead-letters", "show", id], &signed[..]].concat());
    assert_eq!(code, 0, "{error}");
    assert!(
        shown.contains("ff ff ff ff") && shown.contains("key       ada"),
        "{shown}"
    );
    let log = [
        "audit",
        "--by",
        "Ann Auditor",
        "--patient",
        "ada",
        "--hours",
        "24",
        "--data",
        data,
    ];
    let (_, log, error) = run(&log);
    for part in [
        "Eve Operator",
        "show dead letter",
        "ada",
        "vitals",
        "ingest cannot use it",
    ] {
        assert!(log.contains(part), "{part}: {log} {error}");
    }
    assert_eq!(
        succeed(&["replay", "--every", "--consumer", "nobody"]).trim(),
        "0 of 0 replayed"
    );
    assert_eq!(succeed(&["replay", "--every"]).trim(), "1 of 1 replayed");
    assert_eq!(succeed(&["replay", "--every"]).trim(), "0 of 0 replayed");
    assert!(succeed(&["list"]).contains("0 shown, 1 replayed before"));
    let (code, _, error) = run(&[&["dead-letters", "show", "0-999"], &signed[..]].concat());
    assert_eq!(code, 1);
    assert!(error.contains("no dead letter 0-999"), "{error}");
    let back = runtime.block_on(async {
        let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let mut reader = bus.read_back(Topic::Vitals).await.unwrap();
        match reader.next(10).await.unwrap() {
            bus::Event::Batch(batch) => batch,
            event => panic!("{event:?}"),
        }
    });
    assert_eq!(back.len(), 2, "the record and its replay");
    assert_eq!(
        (&back[0].key, &back[0].value),
        (&back[1].key, &back[1].value)
    );
    assert_eq!(back[1].headers, []);
}

/// The upload of a newer gateway as ingest stores it; this version can decode all of it.
fn kept_upload(device: &str) -> Record {
    let mut sample = Sample {
        device: device.into(),
        sequence: 1,
        metric: Metric::HeartRate.into(),
        device_time_us: contracts::now_us(),
        gateway_time_us: contracts::now_us(),
        reading: Some(Reading::Value(70.0)),
        ..Sample::default()
    };
    vitals::fill_defaults(&mut sample);
    let upload = UploadRequest {
        samples: vec![sample],
        ..UploadRequest::default()
    };
    Record::new("gw", upload.encode_to_vec())
        .header(dead_letter::REASON, "a newer gateway's")
        .header(dead_letter::CONSUMER, "ingest")
        .header(dead_letter::TOPIC, "uploads")
        .header("gateway", "default/gw")
}

#[test]
fn a_kept_upload_is_admitted_once_by_a_named_person() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let succeed = |args: &[&str]| {
        let (code, text, error) = run(&[args, &["--data", data]].concat());
        assert_eq!(code, 0, "{args:?}: {error}");
        text
    };
    let register = |device: &str| {
        let patient = format!("wearer-of-{device}");
        let names = [
            "--create",
            "--gateway",
            "gw",
            "--device",
            device,
            "--patient",
            &patient,
        ];
        succeed(&[&["register"], &names[..]].concat());
    };
    register("before");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
        for device in ["before", "since"] {
            let letter = vec![kept_upload(device)];
            bus.publish(Topic::DeadLetters, letter).await.unwrap();
        }
    });
    register("since");
    let signed = ["--by", "Eve Operator", "--reason", "ingest is upgraded"];
    let readmit = |more: &[&str]| {
        let args = [&["dead-letters", "readmit"], more, &signed].concat();
        succeed(&args)
    };
    let (code, _, _) = run(&["dead-letters", "readmit", "--every", "--data", data]);
    assert_eq!(code, 64, "nobody's decision");
    let text = readmit(&["--every"]);
    assert!(text.contains("1 samples, 0 alerts, 0 gaps admitted, 0 quarantined"));
    // The device had no wearer when the upload came.
    assert!(text.contains("0 samples, 0 alerts, 0 gaps admitted, 1 quarantined"));
    assert!(text.ends_with("2 of 2 completely admitted\n"), "{text}");
    assert!(readmit(&["--every"]).ends_with("0 of 0 completely admitted\n"));
    let log = succeed(&["audit", "--by", "Eve Operator", "--hours", "24"]);
    assert_eq!(log.matches("readmit upload").count(), 2, "{log}");
    assert!(log.contains("ingest is upgraded"), "{log}");
    let mut records: Vec<String> = runtime.block_on(async {
        let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let mut reader = bus.read_back(Topic::Vitals).await.unwrap();
        let mut records = Vec::new();
        while reader.lag().await.unwrap() > 0 {
            if let bus::Event::Batch(batch) = reader.next(10).await.unwrap() {
                records.extend(batch.into_iter().map(|it| it.key));
            }
        }
        records
    });
    records.sort_unstable();
    assert_eq!(records, ["gw", "wearer-of-before"]);
}

#[test]
fn a_service_that_cannot_start_reports_why_once_and_a_waiting_one_reports_for_what() {
    let Some(mut cluster) = Cluster::prepared(1, "") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut separate = Separate::prepare(dir.path(), &[], &[]);
    separate.bus = flags(&cluster);
    separate.start("ingest");
    let admin = separate.ports.admin("ingest");
    let waiting = format!("waiting for Kafka at {}", cluster.brokers()[0]);
    eventually("the wait is told", || {
        http(admin, "GET", "/readyz", "", "")
            .is_ok_and(|(status, body)| status == 503 && body.contains(&waiting))
    });
    cluster.start_all();
    eventually("ingest is ready", || {
        http(admin, "GET", "/readyz", "", "").is_ok_and(|(status, _)| status == 200)
    });
    separate.kill("ingest");

    // One broker cannot keep three copies.
    separate.bus = vec![format!("--bus=kafka://{}/three-", cluster.brokers()[0])];
    separate.start("alerting");
    let (code, log) = separate.failure("alerting");
    assert_eq!(code, Some(64), "{log}");
    assert!(
        log.contains("topic three-vitals cannot have 3 copies on 1 broker(s)")
            && log.contains("--bus-replication 1 --bus-in-sync-min 1"),
        "{log}"
    );
}

#[tokio::test]
async fn kafka_refuses_a_service_certified_by_the_authority_for_gateways() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (authority, out) = (path("authority"), path("out"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let make = ["secrets", "make", "--issuing=dashboard", "--for=kafka"];
    let places = [
        format!("--authority={}", text(&authority)),
        format!("--out={}", text(&out)),
    ];
    let others = ["--for=ingest", "--for=dashboard", &places[0], &places[1]];
    let (code, _, error) = run(&[&make[..], &others].concat());
    assert_eq!(code, 0, "{error}");
    let lines = |port: u16| {
        format!(
            "listeners=SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{}
advertised.listeners=SSL://127.0.0.1:{port}
listener.security.protocol.map=SSL:SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SSL
ssl.keystore.type=PEM
ssl.keystore.location={}
ssl.truststore.type=PEM
ssl.truststore.location={}
ssl.client.auth=required
ssl.enabled.protocols=TLSv1.3",
            port + 1000,
            text(&out.join("kafka/kafka.keystore.pem")),
            text(&out.join("kafka/ca.pem")),
        )
    };
    let Some(cluster) = Cluster::start_with(1, lines) else {
        return;
    };
    let stolen = path("stolen");
    std::fs::create_dir(&stolen).unwrap();
    for (from, to) in [("gateways.pem", "ca.pem"), ("gateways.key", "ca.key")] {
        std::fs::copy(out.join("dashboard").join(from), stolen.join(to)).unwrap();
    }
    let thief = LocalAuthority::open(&stolen).unwrap();
    let forged = thief.issue(&PeerId::service("ingest"), &[]).unwrap();
    let own = IdentityFiles::in_dir(&out.join("ingest"), "ingest");
    let options = |files: &IdentityFiles| KafkaOptions {
        replication: 1,
        in_sync_min: 1,
        tls: Some(Tls {
            ca: Some(own.ca.clone()),
            cert: Some(files.cert.clone()),
            key: Some(files.key.clone()),
        }),
        ..KafkaOptions::new(cluster.brokers())
    };
    let bus = KafkaBus::open(options(&own), |reason| println!("{reason}"));
    let bus = tokio::time::timeout(PATIENCE, bus).await.unwrap().unwrap();
    let published = bus.publish(Topic::Vitals, vec![poison()]).await;
    published.unwrap();

    let opening = KafkaBus::open(options(&forged), |reason| println!("{reason}"));
    let opened = tokio::time::timeout(PATIENCE, opening).await;
    match opened.expect("neither let in nor refused") {
        Err(OpenError::Tls { reason, .. }) => assert!(reason.contains("certificate"), "{reason}"),
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("a forged certificate is let in"),
    }

    // A command of a person may use the certificate of a service, and admits a stored upload.
    let data = text(&path("data"));
    let register = [
        "register",
        "--create",
        "--device=belt",
        "--gateway=gw",
        "--patient=ada",
    ];
    let (code, _, error) = run(&[&register[..], &["--data", &data]].concat());
    assert_eq!(code, 0, "{error}");
    let letter = vec![kept_upload("belt")];
    bus.publish(Topic::DeadLetters, letter).await.unwrap();
    let mut vitals = bus.tail(Topic::Vitals).await.unwrap();
    let flags = [
        format!("--data={data}"),
        format!("--bus=kafka+tls://{}", cluster.brokers()[0]),
        format!("--bus-ca={}", text(&own.ca)),
        format!("--bus-cert={}", text(&own.cert)),
        format!("--bus-key={}", text(&own.key)),
    ];
    let mut readmit = vec!["dead-letters", "readmit"];
    readmit.extend(["--every", "--by=Eve Operator", "--reason=upgraded"]);
    readmit.extend(flags.iter().map(String::as_str));
    let (code, text, error) = run(&readmit);
    assert_eq!(code, 0, "{error}");
    assert!(text.ends_with("1 of 1 completely admitted\n"), "{text}");
    let event = tokio::time::timeout(PATIENCE, vitals.next(10)).await;
    match event.unwrap().unwrap() {
        bus::Event::Batch(batch) => assert_eq!(batch[0].key, "ada"),
        event => panic!("a tail has only batches: {event:?}"),
    }
}
