//! Alerting as a whole on the embedded bus and store: samples in; alerts in the store, on the topic
//! and at people.

use std::{sync::Arc, time::Duration};

use crate::stage::{LIMIT, S, World, pulses, readings, until};
use bus::{Consumer, Event, Record, Topic};
use contracts::{
    alerts::{
        AcknowledgeRequest, Alert, AlertState, ListAlertsRequest, WithdrawRequest,
        alerts_service_client::AlertsServiceClient,
    },
    vitals::{EdgeAlert, Metric, VitalsRecord},
};
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use prost::Message;
use service_kit::{Secret, tls::PeerId};
use store::{PatientEntry, Scope, Spo2Scale};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tonic::{Code, transport::Channel};

const SECRET: &str = "between us and the receiver";

/// Checks as a receiver does: the signature covers time and body, and the time is the present.
fn is_signed(signature: &str, body: &str) -> bool {
    let (at, signatures) = signature.split_once(',').unwrap();
    let at_s: i64 = at.strip_prefix("t=").unwrap().parse().unwrap();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(format!("{at_s}.{body}").as_bytes());
    let bytes = mac.finalize().into_bytes();
    let own: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (contracts::now_us() / S - at_s).abs() < 300
        && signatures.split(',').any(|it| it == format!("v1={own}"))
}

impl World {
    fn start(&self, webhook: Option<&str>) -> crate::stage::Running {
        self.start_with(|config| {
            config.people.webhook = webhook.map(Secret::new);
            config.people.webhook_token = Some(Secret::new("token-1"));
            config.people.webhook_secret = Some(Secret::new(SECRET));
            config.people.webhook_secret_next = Some(Secret::new("the next one, not yet known"));
        })
    }
}

type Calls = Arc<Mutex<Vec<(String, serde_json::Value)>>>;

/// A webhook receiver that fails the first `failures` calls with 503.
async fn receiver(mut failures: u32) -> (String, Calls) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let calls = Calls::default();
    let seen = Arc::clone(&calls);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            let (head, body) = loop {
                let mut chunk = [0; 4096];
                let read = stream.read(&mut chunk).await.unwrap();
                assert!(read > 0, "the call ends early");
                request.extend_from_slice(&chunk[..read]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else {
                    continue;
                };
                let header = |name: &str| {
                    head.lines()
                        .filter_map(|line| line.split_once(": "))
                        .find(|(own, _)| own.eq_ignore_ascii_case(name))
                        .map(|(_, value)| value.to_owned())
                };
                assert!(head.starts_with("POST /hook HTTP/1.1"));
                assert_eq!(header("authorization").as_deref(), Some("Bearer token-1"));
                let length: usize = header("content-length").unwrap().parse().unwrap();
                if body.len() >= length {
                    assert!(is_signed(&header("braid-signature").unwrap(), body));
                    break (header("idempotency-key").unwrap(), body.to_owned());
                }
            };
            let call: serde_json::Value = serde_json::from_str(&body).unwrap();
            let status = if call["kind"] == "heartbeat" {
                "204 No Content"
            } else if failures > 0 {
                failures -= 1;
                "503 Service Unavailable"
            } else {
                seen.lock().push((head, call));
                "204 No Content"
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (url, calls)
}

/// Only the dashboard may acknowledge, and only with a name. A second acknowledgement changes
/// nothing.
async fn acknowledge_as_only_the_dashboard_may(
    world: &World,
    running: &crate::stage::Running,
    client: &mut AlertsServiceClient<Channel>,
    raised: &Alert,
) {
    let request = AcknowledgeRequest {
        id: raised.id.clone(),
        by: "Ada".into(),
        note: "seen".into(),
    };
    for (peer, code) in [
        (PeerId::service("ingest"), Code::PermissionDenied),
        (
            PeerId::gateway("default", "gateway-1"),
            Code::PermissionDenied,
        ),
    ] {
        let mut client = world.client(running, &peer).await;
        let refused = client.acknowledge(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), code);
    }
    let nobody = AcknowledgeRequest {
        by: " ".into(),
        ..request.clone()
    };
    assert_eq!(
        client.acknowledge(nobody).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    let unknown = AcknowledgeRequest {
        id: "x".into(),
        ..request.clone()
    };
    assert_eq!(
        client.acknowledge(unknown).await.unwrap_err().code(),
        Code::NotFound
    );
    let acknowledged = client
        .acknowledge(request.clone())
        .await
        .unwrap()
        .into_inner()
        .alert
        .unwrap();
    assert_eq!(acknowledged.state(), AlertState::Acknowledged);
    assert_eq!(
        (acknowledged.revision, acknowledged.acknowledged_by.as_str()),
        (2, "Ada")
    );
    let withdraw = |by: &str| WithdrawRequest {
        id: raised.id.clone(),
        by: by.into(),
    };
    let refused = client.withdraw(withdraw("Bob")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let again = AcknowledgeRequest {
        by: "Bob".into(),
        ..request
    };
    let unchanged = client
        .acknowledge(again)
        .await
        .unwrap()
        .into_inner()
        .alert
        .unwrap();
    assert_eq!(unchanged, acknowledged);
}

/// Every transition is on the topic and at the receiver, once and in order, despite the failures.
async fn each_transition_is_published_once(id: &str, tail: &mut Box<dyn Consumer>, calls: &Calls) {
    let mut published = Vec::new();
    while published.len() < 3 {
        let event = tokio::time::timeout(LIMIT, tail.next(100))
            .await
            .unwrap()
            .unwrap();
        if let Event::Batch(deliveries) = event {
            let alerts = deliveries
                .into_iter()
                .map(|d| Alert::decode(d.value).unwrap());
            published.extend(
                alerts
                    .filter(|a| a.id == id)
                    .map(|a| (a.revision, a.state())),
            );
        }
    }
    use AlertState::{Acknowledged, Active, Resolved};
    assert_eq!(published, [(1, Active), (2, Acknowledged), (3, Resolved)]);
    let keys = || -> Vec<String> {
        let calls = calls.lock();
        let of_it = calls.iter().filter(|(_, body)| body["id"] == id);
        of_it.map(|(key, _)| key.clone()).collect()
    };
    until("three calls", || keys().len() >= 3).await;
    let expected: Vec<String> = (1..=3)
        .map(|revision| format!("{}/{revision}", id))
        .collect();
    assert_eq!(keys(), expected);
    let first = calls
        .lock()
        .iter()
        .find(|(key, _)| *key == expected[0])
        .unwrap()
        .1
        .clone();
    assert_eq!(first["priority"], "high");
    assert_eq!(first["metric"], "heart-rate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_from_the_first_reading_to_its_end() {
    let world = World::new();
    let (url, calls) = receiver(2).await;
    let mut tail = world.bus.tail(Topic::Alerts).await.unwrap();
    let running = world.start(Some(&url));
    let start = contracts::now_us() - 60 * S;
    world
        .publish("ann", pulses("ann", 1, start, &[150.0; 15]))
        .await;
    let raised = world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    assert_eq!(raised.since_us, start);
    assert_eq!(raised.changed_us, start + 10 * S);
    assert_eq!((raised.patient.as_str(), raised.revision), ("ann", 1));
    assert!(raised.recorded_us >= start && !raised.backfill);

    let mut client = world.client(&running, &PeerId::service("dashboard")).await;
    acknowledge_as_only_the_dashboard_may(&world, &running, &mut client, &raised).await;

    // The rules did not see the acknowledgement. Their next write conflicts with it, and the alert
    // ends without a latch.
    world
        .publish("ann", pulses("ann", 16, start + 15 * S, &[80.0; 15]))
        .await;
    let resolved = world
        .alert("heart-rate-very-high", AlertState::Resolved)
        .await;
    assert_eq!(
        (resolved.revision, resolved.acknowledged_by.as_str()),
        (3, "Ada")
    );
    let listed = client
        .list_alerts(ListAlertsRequest {
            patient: "ann".into(),
            include_resolved: true,
            limit: 0,
        })
        .await
        .unwrap()
        .into_inner()
        .alerts;
    assert!(listed.iter().any(|alert| alert.id == raised.id));

    each_transition_is_published_once(&raised.id, &mut tail, &calls).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_in_the_middle_changes_nothing() {
    let world = World::new();
    let start = contracts::now_us() - 60 * S;
    // Stopped before the delay is over, and again before the end of the episode.
    let parts: [&[f64]; 3] = [&[150.0; 6], &[150.0; 9], &[80.0; 15]];
    let mut sequence = 1;
    for (index, part) in parts.iter().enumerate() {
        let running = world.start(None);
        let from_us = start + (sequence as i64 - 1) * S;
        world
            .publish("ben", pulses("ben", sequence, from_us, part))
            .await;
        sequence += part.len() as u64;
        match index {
            0 => {
                let deadline = tokio::time::Instant::now() + LIMIT;
                while world
                    .store
                    .progress(alerting::GROUP, Topic::Vitals)
                    .await
                    .unwrap()
                    .is_empty()
                {
                    assert!(tokio::time::Instant::now() < deadline, "no progress");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let early = world.alerts().await;
                assert!(
                    early.iter().all(|alert| alert.rule == "news2-red"),
                    "{early:?}"
                );
            }
            1 => {
                let alert = world
                    .alert("heart-rate-very-high", AlertState::Active)
                    .await;
                assert_eq!((alert.since_us, alert.changed_us), (start, start + 10 * S));
            }
            _ => {
                world
                    .alert("heart-rate-very-high", AlertState::Latched)
                    .await;
            }
        }
        running.stop().await;
    }
    let alerts = world.alerts().await;
    let of_rule = alerts
        .iter()
        .filter(|alert| alert.rule == "heart-rate-very-high");
    assert_eq!(of_rule.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edge_and_core_are_one_alert_and_poison_stops_nothing() {
    let world = World::new();
    let mut letters = world.bus.tail(Topic::DeadLetters).await.unwrap();
    let running = world.start(None);
    let start = contracts::now_us() - 60 * S;
    let edge = EdgeAlert {
        gateway: "gateway-1".into(),
        device: "cat-belt".into(),
        rule: "heart-rate-very-high".into(),
        rule_version: 1,
        metric: Metric::HeartRate.into(),
        value: 150.0,
        time_us: start + 10 * S,
        priority: contracts::vitals::Priority::High.into(),
        ..EdgeAlert::default()
    };
    let alone = VitalsRecord {
        alerts: vec![edge],
        ..VitalsRecord::default()
    };
    world.publish("cat", alone.clone()).await;
    let first = world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    assert!(first.from_edge && !first.from_core);
    assert_eq!(first.patient, "cat");

    let poison = Record::new("cat", vec![0xff; 10]);
    world
        .bus
        .publish(Topic::Vitals, vec![poison])
        .await
        .unwrap();
    world.publish("cat", alone).await;
    world
        .publish("cat", pulses("cat", 1, start, &[150.0; 15]))
        .await;
    let deadline = tokio::time::Instant::now() + LIMIT;
    let both = loop {
        let alert = world
            .alert("heart-rate-very-high", AlertState::Active)
            .await;
        if alert.from_core {
            break alert;
        }
        assert!(tokio::time::Instant::now() < deadline, "{alert:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((both.id.clone(), both.revision), (first.id, 2));
    assert!(both.from_edge);
    let event = tokio::time::timeout(LIMIT, letters.next(10))
        .await
        .unwrap()
        .unwrap();
    let Event::Batch(letters) = event else {
        panic!("{event:?}");
    };
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].value.as_ref(), [0xff; 10]);
    running.stop().await;
}

/// The fall, or whatever it was, broke the sensor: no live reading follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_backlog_only_high_alerts_call_people_on_their_own() {
    let world = World::new();
    let (url, calls) = receiver(0).await;
    let running = world.start(Some(&url));
    let long_ago = contracts::now_us() - 7200 * S;
    let mut low = vec![88.0; 20];
    low.extend([97.0; 20]);
    let of_eve = readings(Metric::Spo2, "eve", 1, long_ago, &low);
    world.publish("eve", of_eve).await;
    let recorded = world.alert("spo2-low", AlertState::Resolved).await;
    assert!(recorded.backfill);
    let mut ended = vec![150.0; 15];
    ended.extend([80.0; 15]);
    world
        .publish("dan", pulses("dan", 1, long_ago, &ended))
        .await;
    let latched = world
        .alert("heart-rate-very-high", AlertState::Latched)
        .await;
    assert!(!latched.backfill);
    assert_eq!(latched.since_us, long_ago);
    until("dan's calls", || calls.lock().len() >= 2).await;
    let calls = calls.lock().clone();
    assert!(
        calls
            .iter()
            .all(|(_, body)| body["rule"] == "heart-rate-very-high"),
        "{calls:?}"
    );
    assert_eq!(calls[0].1["since_us"], long_ago);
    let late_s = calls[0].1["reported_late_s"].as_i64().unwrap();
    assert!((7100..7400).contains(&late_s), "{late_s}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clinicians_scale_decides() {
    let world = World::new();
    for (id, spo2_scale) in [("one", Spo2Scale::One), ("two", Spo2Scale::Two)] {
        let entry = PatientEntry {
            id: id.into(),
            tenant: store::DEFAULT_TENANT.into(),
            name: id.into(),
            spo2_scale,
            ..PatientEntry::default()
        };
        world.store.put_patient(&entry).await.unwrap();
    }
    let running = world.start(None);
    // 91 % is red on scale 1 and in the target range on scale 2.
    for patient in ["two", "one"] {
        let record = readings(
            Metric::Spo2,
            patient,
            1,
            contracts::now_us() - 30 * S,
            &[91.0; 20],
        );
        world.publish(patient, record).await;
    }
    let red = world.alert("news2-red", AlertState::Active).await;
    assert_eq!(red.patient, "one");
    // A later reading of the other patient raised its alert, so the earlier readings have been
    // judged.
    let flat = readings(Metric::Battery, "two", 1, contracts::now_us(), &[5.0]);
    world.publish("two", flat).await;
    world.alert("battery-low", AlertState::Active).await;
    let alerts = world.alerts().await;
    assert!(
        !alerts
            .iter()
            .any(|alert| alert.rule == "news2-red" && alert.patient == "two")
    );
    running.stop().await;
}

/// Members come and go while the episodes run. Each patient gets one alert with every transition
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_raise_each_alert_once() {
    const PATIENTS: usize = 12;
    let world = World::new();
    let start = contracts::now_us() - 120 * S;
    let phases: [&[f64]; 4] = [&[75.0; 5], &[150.0; 6], &[150.0; 9], &[75.0; 15]];
    let mut members = vec![world.start(None)];
    let mut sequence = 1;
    for (index, phase) in phases.iter().enumerate() {
        let from_us = start + (sequence as i64 - 1) * S;
        for patient in 0..PATIENTS {
            let name = format!("patient-{patient}");
            world
                .publish(&name, pulses(&name, sequence, from_us, phase))
                .await;
        }
        sequence += phase.len() as u64;
        match index {
            0 | 1 => members.push(world.start(None)),
            2 => members.remove(0).stop().await,
            _ => {}
        }
    }
    let deadline = tokio::time::Instant::now() + LIMIT;
    let of_rule = loop {
        let alerts = world.alerts().await;
        let of_rule: Vec<Alert> = alerts
            .into_iter()
            .filter(|alert| alert.rule == "heart-rate-very-high")
            .collect();
        let ended = of_rule
            .iter()
            .filter(|alert| alert.state() == AlertState::Latched);
        if ended.count() == PATIENTS {
            break of_rule;
        }
        assert!(tokio::time::Instant::now() < deadline, "{of_rule:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(of_rule.len(), PATIENTS, "one episode a patient");
    for alert in &of_rule {
        assert_eq!(alert.since_us, start + 5 * S);
        let history = world
            .store
            .alert_history(&Scope::Service, &alert.id)
            .await
            .unwrap();
        let states: Vec<AlertState> = history.iter().map(Alert::state).collect();
        assert_eq!(states, [AlertState::Active, AlertState::Latched]);
    }
    for member in members {
        member.stop().await;
    }
}
