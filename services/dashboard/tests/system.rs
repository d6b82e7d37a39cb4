//! The page reports a failure of the installation without the help of alerting, and the recovery.
#![allow(clippy::unwrap_used)]

#[path = "support/browser.rs"]
#[allow(dead_code)]
mod browser;
#[path = "support/ward.rs"]
#[allow(dead_code)]
mod ward;

use std::sync::Arc;
use std::time::Duration;

use browser::{ANYWHERE, Client, client, cookie_of, within};
use bus::{Committed, Event, Topic};
use contracts::alerts::{Alert, AlertState};
use contracts::canary::NAME;
use contracts::query::{ListPatientsRequest, SystemWarning, WarningSeverity};
use store::{AlertsBatch, Claims, Role, VitalsBatch};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use ward::{Ward, heart_rate};

async fn warnings(client: &mut Client) -> Vec<SystemWarning> {
    let answer = client.list_patients(ListPatientsRequest {}).await.unwrap();
    answer.into_inner().warnings
}

async fn until_said(client: &mut Client, code: &str, is_said: bool) -> Option<SystemWarning> {
    let saying = async {
        loop {
            let found = warnings(client)
                .await
                .into_iter()
                .find(|it| it.code == code);
            if found.is_some() == is_said {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(code, saying).await
}

/// Stores the progress of a consumer that is up to date.
async fn catch_up(ward: &Ward, group: &str) {
    let claims = Claims::new(Arc::clone(&ward.bus), Arc::clone(&ward.store), group);
    for (partition, extent) in ward.bus.extents(Topic::Vitals).await.unwrap() {
        bus::StartAt::start(&*claims, Topic::Vitals, partition)
            .await
            .unwrap();
        let progress = claims.progress_to([(Topic::Vitals, partition, extent.next)]);
        let nothing = Arc::new(VitalsBatch::default());
        ward.store.write_vitals(nothing, progress).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_stands_still_is_a_banner_until_it_moves() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &["--canary-within-s", "0"]).await;
    ward.account("vera", Role::Viewer).await;
    ward.patient("p1", "Ada Berg", "default", "g1").await;
    let mut client = client(&ward, &cookie_of(&ward, "vera").await);
    assert_eq!(warnings(&mut client).await, []);
    let published_us = contracts::now_us();
    // No member judges and no member stores.
    ward.vitals(vec![heart_rate("p1", 1, 71.0)]).await;
    let judging = until_said(&mut client, "judging", true).await.unwrap();
    assert_eq!(judging.text, "Alerts are not being judged.");
    assert_eq!(judging.severity(), WarningSeverity::Critical);
    let seconds = (judging.since_us - published_us) / 1_000_000;
    assert!(
        (-1..10).contains(&seconds),
        "{seconds} s after it was published"
    );
    until_said(&mut client, "storing-vitals", true).await;
    let said = ward.context.health().warnings();
    assert!(said.iter().any(|(name, _)| *name == "judging"), "{said:?}");
    assert!(
        ward.context.health().is_ready(),
        "the page is where people read of it"
    );
    catch_up(&ward, "alerting").await;
    until_said(&mut client, "judging", false).await;
    let left = warnings(&mut client).await;
    assert!(
        left.iter().any(|it| it.code == "storing-vitals"),
        "{left:?}"
    );
    catch_up(&ward, "ingest-store").await;
    until_said(&mut client, "storing-vitals", false).await;
    ward.end().await;
}

/// Bodies of the requests at a receiver that refuses the first.
async fn receiver() -> (String, mpsc::Receiver<serde_json::Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/secret-token", listener.local_addr().unwrap());
    let (got, bodies) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut is_first = true;
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut reader = BufReader::new(&mut stream);
            let mut length = 0;
            let mut line = String::new();
            while reader.read_line(&mut line).await.unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).await.unwrap();
            let status = if is_first {
                "503 Later"
            } else {
                "204 No Content"
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            if !std::mem::replace(&mut is_first, false) {
                got.send(serde_json::from_slice(&body).unwrap())
                    .await
                    .unwrap();
            }
        }
    });
    (url, bodies)
}

/// Decides about notices as alerting does.
async fn decide(bus: Arc<dyn bus::Bus>) {
    let joined = bus.subscribe(Topic::Alerts, "alerting-people", Arc::new(Committed));
    let mut consumer = joined.await.unwrap();
    loop {
        if let Event::Batch(batch) = consumer.next(16).await.unwrap() {
            let done: Vec<_> = batch
                .iter()
                .map(|it| (it.partition, it.offset + 1))
                .collect();
            consumer.commit(&done).await.unwrap();
        }
    }
}

/// One half of the test alert, as alerting publishes it.
async fn canary(ward: &Ward, number: i64) {
    let now_us = contracts::now_us();
    let state = match number % 2 {
        0 => AlertState::Active,
        _ => AlertState::Resolved,
    };
    let alert = Alert {
        id: format!("canary-{}", number / 2),
        patient: NAME.to_owned(),
        rule: NAME.to_owned(),
        state: state.into(),
        since_us: now_us,
        changed_us: now_us,
        revision: u32::try_from(number % 2 + 1).unwrap(),
        ..Alert::default()
    };
    ward.alert(alert).await;
    // Published as the outbox of alerting does.
    let entries = ward.store.outbox(100).await.unwrap();
    let ids: Vec<u64> = entries.iter().map(|entry| entry.id).collect();
    ward.store.clear_outbox(&ids).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_canary_is_a_banner_and_one_post_until_it_comes_again() {
    let (url, mut posts) = receiver().await;
    let dir = tempfile::tempdir().unwrap();
    // Shorter than an installation may configure, because the alerts here come every half second.
    let flags = ["--canary-within-s", "5", "--canary-webhook", &url];
    let ward = Ward::start(dir.path(), ANYWHERE, &flags).await;
    tokio::spawn(decide(Arc::clone(&ward.bus)));
    ward.account("vera", Role::Viewer).await;
    let mut client = client(&ward, &cookie_of(&ward, "vera").await);
    let missing = until_said(&mut client, "canary", true).await.unwrap();
    assert_eq!(missing.severity(), WarningSeverity::Critical);
    let post = within("a post", posts.recv()).await.unwrap();
    assert_eq!(post["event"], "outage");
    assert_eq!(post["says"][0], missing.text);
    let health = ward.context.health();
    assert!(health.warnings().iter().any(|(name, _)| *name == "canary"));
    assert!(health.is_ready());

    let coming = async {
        for number in 0.. {
            canary(&ward, number).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let seen = async {
        until_said(&mut client, "canary", false).await;
        within("a second post", posts.recv()).await.unwrap()
    };
    let post = tokio::select! {
        () = coming => unreachable!("it comes without end"),
        post = seen => post,
    };
    assert_eq!(post["event"], "recovered");
    // The alert was on the bus and in the store, but on no list.
    let request = contracts::query::ListAlertsRequest {
        include_resolved: true,
        ..Default::default()
    };
    let alerts = client.list_alerts(request).await.unwrap().into_inner();
    assert_eq!(alerts.alerts, []);
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_post_an_outage_once() {
    let (url, mut posts) = receiver().await;
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--canary-within-s", "5", "--canary-webhook", &url];
    let first = Ward::start(dir.path(), ANYWHERE, &flags).await;
    let second = first.another(ANYWHERE, &flags).await;
    tokio::spawn(decide(Arc::clone(&first.bus)));
    for replica in [&first, &second] {
        let health = replica.context.health();
        let warned = async {
            while !health.warnings().iter().any(|(name, _)| *name == "canary") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        within("a warning", warned).await;
    }
    let post = within("a post", posts.recv()).await.unwrap();
    assert_eq!(post["event"], "outage");
    let coming = async {
        for number in 0.. {
            canary(&first, number).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let next = async { within("a second post", posts.recv()).await.unwrap() };
    let post = tokio::select! {
        () = coming => unreachable!("it comes without end"),
        post = next => post,
    };
    assert_eq!(
        post["event"], "recovered",
        "not the outage of the second replica"
    );
    assert!(posts.try_recv().is_err(), "a post too many");
    second.end().await;
    first.end().await;
}

/// A stored alert that is never published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_that_stands_still_is_a_banner_until_it_is_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &["--canary-within-s", "0"]).await;
    ward.account("vera", Role::Viewer).await;
    let mut client = client(&ward, &cookie_of(&ward, "vera").await);
    let alert = Alert {
        id: "one".to_owned(),
        patient: "p1".to_owned(),
        revision: 1,
        ..Alert::default()
    };
    let batch = AlertsBatch {
        transitions: vec![alert],
        states: Vec::new(),
    };
    ward.store.write_alerts(batch, Vec::new()).await.unwrap();
    until_said(&mut client, "publishing", true).await;
    let ids = ward.store.outbox(1).await.unwrap();
    ward.store.clear_outbox(&[ids[0].id]).await.unwrap();
    until_said(&mut client, "publishing", false).await;
    ward.end().await;
}
