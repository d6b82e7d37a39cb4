//! `braid doctor` on real engines: its findings, and its advice. It changes nothing.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;

use std::path::Path;
use std::sync::Arc;

use bus::{Bus, KafkaBus, KafkaOptions, Record, Topic};
use contracts::alerts::{Alert, AlertState};
use contracts::vitals::{Quarantined, Sample, quarantined::Entry};
use program::{run, run_with};
use service_kit::tls::PeerId;
use service_kit::tls::authority::LocalAuthority;
use store::{
    AlertsBatch, Claims, Store, TimescaleOptions, TimescaleStore, VitalsBatch, VitalsStore,
};
use testkit::kafka::Cluster;
use testkit::timescale_server::{PASSWORD, TimescaleServer};

/// Exit code and what was printed.
fn doctor(args: &[&str], password: &str) -> (i32, String) {
    let args = [&["doctor"], args].concat();
    let (code, out, err) = run_with(&args, &[("BRAID_STORE_PASSWORD", password)]);
    (code, out + &err)
}

fn has(text: &str, mark: &str, subject: &str, says: &str) {
    let start = format!("{mark}  {subject:<12}");
    let found = text
        .lines()
        .any(|line| line.starts_with(&start) && line.contains(says));
    assert!(found, "no `{mark} {subject}` with {says:?} in\n{text}");
}

#[test]
fn a_directory_that_was_mistyped_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let right = dir.path().join("data");
    let wrong = dir.path().join("dta");
    drop(bus::EmbeddedBus::open(&right, bus::EmbeddedOptions::default()).unwrap());
    drop(store::SqliteStore::open(&right).unwrap());
    let look = |data: &Path| {
        let data = data.to_str().unwrap();
        run(&["alerts", "silences", "--by", "Eve", "--data", data]).2
    };
    let begun = "a new, empty one is begun";
    assert!(!look(&right).contains(begun));
    let said = look(&wrong);
    assert!(said.contains(begun) && said.contains("/dta:"), "{said}");
    assert!(!look(&wrong).contains(begun), "once");
    // As `braid up` does.
    let data = [("BRAID_DATA", right.to_str().unwrap())];
    let (_, text, error) = run_with(&["doctor"], &data);
    has(&text, "ok  ", "store", "/data");
    assert!(!text.contains("there is no bus"), "{text}{error}");
}

#[test]
fn the_embedded_engines_are_looked_at_and_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let data: &Path = dir.path();
    let (bus, store) = (
        format!("--bus=sqlite:{}", data.display()),
        format!("--store=sqlite:{}", data.display()),
    );
    let (code, text) = doctor(&[&bus, &store], "");
    assert_eq!(code, 1, "{text}");
    has(&text, "FAIL", "store", "there is no store in");
    has(&text, "FAIL", "bus", "there is no bus in");
    assert_eq!(
        std::fs::read_dir(data).unwrap().count(),
        0,
        "nothing was made"
    );

    drop(bus::EmbeddedBus::open(data, bus::EmbeddedOptions::default()).unwrap());
    drop(store::SqliteStore::open(data).unwrap());
    let authority = LocalAuthority::open_or_create(&data.join("identities")).unwrap();
    let files = authority.issue(&PeerId::service("ingest"), &[]).unwrap();
    let (cert, key, ca) = (
        format!("--cert={}", files.cert.display()),
        format!("--key={}", files.key.display()),
        format!("--ca={}", files.ca.display()),
    );
    let (code, text) = doctor(&[&bus, &store, &cert, &key, &ca], "");
    assert_eq!(code, 0, "{text}");
    has(&text, "ok  ", "identity", "ingest");
    has(&text, "ok  ", "bus", "takes a write");
    has(&text, "ok  ", "dead letters", "none");

    // A service that is not there, half an identity, and the same as JSON.
    let (code, text) = doctor(&[&bus, &store, &cert, "--admin=127.0.0.1:1", "--json"], "");
    assert_eq!(code, 1, "{text}");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let failed: Vec<&str> = found
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["state"] == "failed")
        .map(|it| it["subject"].as_str().unwrap())
        .collect();
    assert_eq!(failed, ["identity", "127.0.0.1:1"]);
    let (code, out, _) = run(&["doctor", "--help"]);
    assert!(code == 0 && out.contains("Examples:"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_still_is_a_failure_until_it_moves() {
    let dir = tempfile::tempdir().unwrap();
    let bus = bus::EmbeddedBus::open(dir.path(), bus::EmbeddedOptions::default()).unwrap();
    let bus: Arc<dyn Bus> = Arc::new(bus);
    let store: Arc<dyn Store> = Arc::new(store::SqliteStore::open(dir.path()).unwrap());
    let data = dir.path().display().to_string();
    let look = async || {
        let data = format!("--data={data}");
        let looked = tokio::task::spawn_blocking(move || doctor(&[&data], ""));
        looked.await.unwrap()
    };
    let (code, text) = look().await;
    assert_eq!(code, 0, "{text}");
    has(
        &text,
        "ok  ",
        "alerting",
        "alerts are being judged: all that is there",
    );
    has(&text, "WARN", "canary", "no test alert is stored");

    bus.publish(Topic::Vitals, vec![Record::new("ada", "what")])
        .await
        .unwrap();
    let canary = |state: AlertState, revision, changed_us| AlertsBatch {
        transitions: vec![Alert {
            id: "canary".into(),
            patient: contracts::canary::NAME.into(),
            state: state.into(),
            revision,
            changed_us,
            ..Alert::default()
        }],
        ..AlertsBatch::default()
    };
    let old = canary(AlertState::Active, 1, contracts::now_us() - 600_000_000);
    store.write_alerts(old, Vec::new()).await.unwrap();
    let (code, text) = look().await;
    assert_eq!(code, 1, "{text}");
    has(
        &text,
        "FAIL",
        "alerting",
        "alerts are not being judged: 1 records wait in vitals",
    );
    has(&text, "FAIL", "alerting", "alerts do not leave the store");
    has(&text, "FAIL", "ingest", "readings are not being stored");
    has(
        &text,
        "ok  ",
        "path-telemetry",
        "path reports are being stored",
    );
    has(&text, "FAIL", "canary", "the last test alert is 6");

    for group in ["alerting", "ingest-store"] {
        let claims = Claims::new(Arc::clone(&bus), Arc::clone(&store), group);
        for (partition, extent) in bus.extents(Topic::Vitals).await.unwrap() {
            bus::StartAt::start(&*claims, Topic::Vitals, partition)
                .await
                .unwrap();
            let done = claims.progress_to([(Topic::Vitals, partition, extent.next)]);
            store.write_vitals(Arc::default(), done).await.unwrap();
        }
    }
    let new = canary(AlertState::Resolved, 2, contracts::now_us());
    store.write_alerts(new, Vec::new()).await.unwrap();
    let ids = store.outbox(10).await.unwrap();
    let ids: Vec<u64> = ids.iter().map(|entry| entry.id).collect();
    store.clear_outbox(&ids).await.unwrap();
    let (code, text) = look().await;
    assert_eq!(code, 0, "{text}");
    has(&text, "ok  ", "alerting", "alerts are being judged");
    has(&text, "ok  ", "canary", "the last test alert is ");

    // As if the bus had been another one before.
    let before = bus::Log {
        identity: "the former bus".to_owned(),
        next: None,
    };
    for log in [before, bus.log(Topic::Paths, 0).await.unwrap()] {
        let claimed = store.claim("path-telemetry-store", Topic::Paths, 0, &log);
        claimed.await.unwrap();
    }
    let (code, text) = look().await;
    assert_eq!(code, 0, "{text}");
    has(&text, "WARN", "bus", "the bus is another one than before");
}

#[test]
fn a_document_that_cannot_be_read_is_told_until_it_is_put_anew() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    drop(bus::EmbeddedBus::open(dir.path(), bus::EmbeddedOptions::default()).unwrap());
    let rules = dir.path().join("rules.json");
    std::fs::write(&rules, run(&["rules", "show"]).1).unwrap();
    let rules = rules.to_str().unwrap();
    let braid = |args: &[&str]| {
        let (code, out, err) = run(&[args, &["--data", data]].concat());
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    };
    let put = |subject: &str| {
        let why = ["--by", "Eve", "--reason", "test"];
        braid(&[&["rules", "put", rules, "--for", subject], &why[..]].concat())
    };
    braid(&["register", "patient", "ada", "--name", "Ada"]);
    put("patient:ada");
    put("patient:ada");
    put("default");
    has(&braid(&["doctor"]), "ok  ", "documents", "can be read");

    let rows = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    rows.execute_batch(
        "DROP TRIGGER documents_immutable;
         UPDATE documents SET payload = x'0a' WHERE version = 2",
    )
    .unwrap();
    let text = braid(&["doctor"]);
    let says = "version 2 of rules patient:ada of tenant default cannot be read";
    has(&text, "WARN", "documents", says);
    assert!(text.contains("version 1 holds for it") && text.contains("braid rules put"));
    let listed = braid(&["rules", "list", "--by", "Eve"]);
    assert!(listed.contains("default  version 1"), "{listed}");
    assert!(
        listed.contains("patient:ada  version 2  cannot be read"),
        "{listed}"
    );
    assert!(put("patient:ada").contains("version 3"));
    has(&braid(&["doctor"]), "ok  ", "documents", "can be read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timescaledb_is_told_apart_from_what_keeps_it_from_working() {
    let server = TimescaleServer::shared();
    let url = server.database().await;
    let dir = tempfile::tempdir().unwrap();
    let bus = format!("--bus=sqlite:{}", dir.path().display());
    let ask = move |url: String, password: &'static str, more: &'static [&'static str]| {
        let bus = bus.clone();
        tokio::task::spawn_blocking(move || {
            let store = format!("--store={url}");
            doctor(&[&[bus.as_str(), store.as_str()], more].concat(), password)
        })
    };

    let (code, text) = ask(url.clone(), PASSWORD, &[]).await.unwrap();
    assert_eq!(code, 1);
    has(&text, "FAIL", "store", "run `braid migrate`");

    TimescaleStore::migrate(&TimescaleOptions::new(&url, PASSWORD))
        .await
        .unwrap();
    let (_, text) = ask(url.clone(), PASSWORD, &[]).await.unwrap();
    has(&text, "ok  ", "store", "with TimescaleDB");
    has(&text, "ok  ", "clock", "from this machine's");
    has(&text, "ok  ", "quarantine", "belongs to a patient");
    let store = TimescaleStore::open(&TimescaleOptions::new(&url, PASSWORD)).await;
    let apart = Quarantined {
        tenant: store::DEFAULT_TENANT.into(),
        gateway: "gw".into(),
        entry: Some(Entry::Sample(Sample {
            device: "belt".into(),
            ..Sample::default()
        })),
        ..Quarantined::default()
    };
    let batch = VitalsBatch {
        quarantined: vec![apart],
        ..VitalsBatch::default()
    };
    let written = store.unwrap().write_vitals(batch.into(), Vec::new()).await;
    assert_eq!(written.unwrap().new, 1);
    let (_, text) = ask(url.clone(), PASSWORD, &[]).await.unwrap();
    has(
        &text,
        "WARN",
        "quarantine",
        "1 readings, gaps or alerts of 1 gateways",
    );

    let (_, text) = ask(url.clone(), "wrong", &[]).await.unwrap();
    has(&text, "FAIL", "store", "refuses the user or the password");
    let nowhere = "postgres://postgres@127.0.0.1:1/nowhere".to_owned();
    let (_, text) = ask(nowhere, PASSWORD, &[]).await.unwrap();
    has(&text, "FAIL", "store", "does not answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_is_told_apart_from_what_keeps_it_from_working() {
    let Some(mut cluster) = Cluster::start(1, "") else {
        return;
    };
    let url = format!("kafka://{}", cluster.brokers()[0]);
    let dir = tempfile::tempdir().unwrap();
    drop(store::SqliteStore::open(dir.path()).unwrap());
    let store = format!("--store=sqlite:{}", dir.path().display());
    let ask = move |more: &'static [&'static str]| {
        let (bus, store) = (format!("--bus={url}"), store.clone());
        tokio::task::spawn_blocking(move || {
            doctor(&[&[bus.as_str(), store.as_str()], more].concat(), "")
        })
    };
    const ONE_COPY: &[&str] = &["--bus-replication=1", "--bus-in-sync-min=1"];

    let (code, text) = ask(ONE_COPY).await.unwrap();
    assert_eq!(code, 1, "{text}");
    has(&text, "FAIL", "bus", "is missing");

    let options = KafkaOptions {
        replication: 1,
        in_sync_min: 1,
        ..KafkaOptions::new(cluster.brokers())
    };
    let bus = KafkaBus::open(options, |reason| println!("{reason}"))
        .await
        .unwrap();
    let (code, text) = ask(ONE_COPY).await.unwrap();
    assert_eq!(code, 0, "{text}");
    has(&text, "ok  ", "topics", "vitals");
    has(&text, "ok  ", "dead letters", "none");

    bus.publish(Topic::DeadLetters, vec![Record::new("ada", "what")])
        .await
        .unwrap();
    let (code, text) = ask(ONE_COPY).await.unwrap();
    assert_eq!(code, 0, "a warning is no failure: {text}");
    has(&text, "WARN", "dead letters", "1 records");

    // Topics with fewer copies than asked for.
    let (code, text) = ask(&[]).await.unwrap();
    assert_eq!(code, 1);
    has(&text, "FAIL", "bus", "");

    cluster.kill_all();
    let (code, text) = ask(ONE_COPY).await.unwrap();
    assert_eq!(code, 1);
    has(&text, "FAIL", "bus", "waiting for Kafka at");
}
