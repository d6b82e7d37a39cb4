//! The disk of a gateway: encrypted, destroyed by a wipe and by a revocation, and refused without
//! its key.

use std::path::{Path, PathBuf};

use tunnel::TunnelEvent;

use super::{
    beside::call,
    fake_ingest::FakeIngest,
    under_test::{Gateway, config_at, line, until},
};
use crate::{rejected, wipe};

const DEVICE: &str = "the-belt-of-ada";

/// All files below, without those of the reserve.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

fn names_device(folder: &Path) -> Vec<PathBuf> {
    let mut found = files(folder);
    found.retain(|file| {
        let bytes = std::fs::read(file).unwrap();
        bytes
            .windows(DEVICE.len())
            .any(|it| it == DEVICE.as_bytes())
    });
    found
}

async fn post(gateway: &Gateway, value: f64) -> u16 {
    gateway.post(&line(DEVICE, value)).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_person_is_readable_and_a_wipe_says_what_it_destroys() {
    let directory = tempfile::tempdir().unwrap();
    let (ingest, data) = (FakeIngest::default(), directory.path());
    let running = ingest.start().await;
    ingest.got.lock().refused_device = DEVICE.into();
    let gateway = Gateway::start(data, running.address, None).await;
    // One is refused by ingest, and raises an alert; the later ones wait.
    assert_eq!(post(&gateway, 190.0).await, 200);
    let config = config_at(data);
    let letters = || rejected(&config).unwrap().0;
    until("it is refused", &ingest, |_| letters().contains(DEVICE)).await;
    ingest.got.lock().silent = true;
    for _ in 0..3 {
        assert_eq!(post(&gateway, 72.0).await, 200);
    }
    let busy = wipe(&config, true).unwrap_err().to_string();
    assert!(busy.contains("in use by another gateway"), "{busy}");
    gateway.stop().await;
    assert_eq!(names_device(data), Vec::<PathBuf>::new());

    // Without its key the gateway does not start, and throws nothing away.
    let (key, aside) = (data.join("journal.key"), data.join("aside"));
    std::fs::rename(&key, &aside).unwrap();
    let refused = config.open_keys().unwrap_err().to_string();
    assert!(refused.contains("put the key back"), "{refused}");
    std::fs::rename(&aside, &key).unwrap();

    let would = wipe(&config, false).unwrap().to_string();
    assert!(
        would.contains("the journal of vitals: 3 not sent"),
        "{would}"
    );
    assert!(would.contains("rejected.jsonl: 1 samples"), "{would}");
    let done = wipe(&config, true).unwrap().to_string();
    assert_eq!(
        done.replace("destroyed in", "this would be destroyed in"),
        would
    );
    let left = files(&data.join("journal"));
    let is_data = |file: &&PathBuf| !file.ends_with("lock") && !file.ends_with("reserve");
    assert_eq!(left.iter().find(is_data), None);
    assert!(!key.exists() && !data.join("rejected.jsonl").exists());

    // It begins anew, above its earlier sequences.
    ingest.got.lock().refused_device.clear();
    let last = ingest.got.lock().samples.keys().map(|it| it.2).max();
    let gateway = Gateway::start(data, running.address, None).await;
    ingest.got.lock().silent = false;
    assert_eq!(post(&gateway, 72.0).await, 200);
    until("it arrives", &ingest, |got| {
        got.samples.keys().map(|it| it.2).max() > last
    })
    .await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_destroys_key_and_journal_until_there_is_another_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let (ingest, data) = (FakeIngest::default(), directory.path());
    let running = ingest.start().await;
    let certificate = data.join("gw.pem");
    std::fs::write(&certificate, "the first").unwrap();
    let start = || {
        Gateway::start_with(data, running.address, None, |config| {
            config.identity.cert.clone_from(&certificate);
        })
    };
    ingest.got.lock().silent = true;
    let gateway = start().await;
    for _ in 0..3 {
        assert_eq!(post(&gateway, 72.0).await, 200);
    }
    let said = |gateway: &Gateway| {
        let failing = gateway.context.health().failing();
        let of_revocation = failing.into_iter().find(|it| it.0 == "revocation");
        of_revocation.map_or(String::new(), |it| it.1)
    };
    assert_eq!(said(&gateway), "");
    ingest.got.lock().revoked = true;
    let lost = TunnelEvent::SessionDown {
        session: 1,
        reason: "timed out".into(),
    };
    gateway.events.send(lost).unwrap();
    until("key and journal are destroyed", &ingest, |_| {
        said(&gateway).contains("3 entries that had not been sent")
    })
    .await;
    let key = data.join("journal.key");
    let segments = || {
        let mut found = files(&data.join("journal/vitals"));
        found.retain(|file| file.extension().is_some());
        found
    };
    assert!(!key.exists() && segments().is_empty(), "{:?}", segments());
    assert_eq!(post(&gateway, 72.0).await, 503);
    let (status, state) = call(&gateway, "", "GET /v1/state", "").await;
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!((status, &state["watched"]), (200, &"revoked".into()));
    assert_eq!(state["values"], serde_json::json!([]));
    assert_eq!(call(&gateway, "", "GET /v1/alerts", "").await.0, 410);
    gateway.stop().await;

    // The revoked certificate takes no readings after a restart either.
    let gateway = start().await;
    assert_eq!(post(&gateway, 72.0).await, 503);
    until("it says so", &ingest, |_| {
        said(&gateway).contains("revoked")
    })
    .await;
    gateway.stop().await;

    {
        let mut got = ingest.got.lock();
        (got.revoked, got.silent) = (false, false);
    }
    std::fs::write(&certificate, "the second").unwrap();
    let gateway = start().await;
    assert_eq!(post(&gateway, 73.0).await, 200);
    until("it arrives", &ingest, |got| got.samples.len() == 1).await;
    assert_eq!(said(&gateway), "");
    gateway.stop().await;
}
