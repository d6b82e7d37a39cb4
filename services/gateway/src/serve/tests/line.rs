//! A whole gateway without its tunnel: sensors on one side, a fake ingest on the other.

use std::{sync::Arc, time::Duration};

use contracts::vitals::{
    Metric, RecordRequest, Sample, gateway_service_client::GatewayServiceClient, sample::Reading,
};
use service_kit::{
    Context,
    config::defaults,
    grpc::{ChannelError, channel},
};
use swarm::{Feed, Patient, Profile};
use tokio::sync::{broadcast, mpsc};
use tonic::transport::Channel;
use tunnel::{CopyNumber, PathSnapshot, TunnelEvent, Urgency};

use super::{
    fake_ingest::{FakeIngest, Got},
    serve,
    under_test::{DEADLINE, Gateway, config_at, line, until},
};
use crate::{Config, RunError, to_proxy::Uplink};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_line_is_enough_and_a_bad_one_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;

    let (status, answer) = gateway.post(&line("d1", 72.0)).await;
    assert_eq!((status, &answer["accepted"]), (200, &1.into()), "{answer}");
    until("the sample arrives", &ingest, |got| got.samples.len() == 1).await;
    {
        let got = ingest.got.lock();
        let (_, sample) = got.samples.values().next().unwrap();
        assert_eq!(sample.stream, "heart-rate");
        // A new stream begins at the gateway's clock.
        assert_eq!(sample.sequence, sample.gateway_time_us as u64);
        assert_eq!(
            (sample.unit.as_str(), sample.gateway.as_str()),
            ("/min", "g1")
        );
        assert_eq!(sample.reading, Some(Reading::Value(72.0)));
        assert!(sample.device_time_us > 0 && sample.device_time_us == sample.gateway_time_us);
    }

    let body = format!(
        "{}\n\n{}\r\n{}\n",
        line("d1", 73.0),
        line("d1", 900.0),
        "{nonsense"
    );
    let (status, answer) = gateway.post(&body).await;
    assert_eq!((status, &answer["accepted"]), (207, &1.into()), "{answer}");
    let rejections = answer["rejections"].as_array().unwrap();
    assert_eq!(
        (&rejections[0]["line"], &rejections[0]["field"]),
        (&3.into(), &"value".into())
    );
    assert_eq!(
        (&rejections[1]["line"], &rejections[1]["field"]),
        (&4.into(), &"line".into())
    );
    assert!(
        rejections
            .iter()
            .all(|rejection| rejection["example"] != "")
    );

    assert_eq!(gateway.post("").await.0, 400);
    assert_eq!(gateway.post(&line("", 72.0)).await.0, 400);
    let (status, answer) = gateway
        .post(r#"{"device":"d1","metric":"heart-rate","value":72,"sensor_sequence":1}"#)
        .await;
    assert_eq!(
        (status, &answer["rejections"][0]["field"]),
        (400, &"device_time_us".into())
    );
    let many = format!("{}\n", line("d1", 72.0)).repeat(10_001);
    assert_eq!(gateway.post(&many).await.0, 413);
    until("the second sample arrives", &ingest, |got| {
        got.samples.len() == 2
    })
    .await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_under_a_running_gateway_becomes_a_gap_and_stops_no_other_entry() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    ingest.got.lock().silent = true;
    let gateway = Gateway::start_with(directory.path(), running.address, None, |config| {
        config.journal_segment_bytes = 64 << 10;
    })
    .await;
    let lines = format!("{}\n", line("d1", 70.0)).repeat(200);
    for _ in 0..15 {
        assert_eq!(gateway.post(&lines).await.0, 200);
    }
    let journal = directory.path().join("journal/vitals");
    let files = std::fs::read_dir(journal).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == "segment"));
    files.sort();
    assert!(files.len() > 2, "{files:?}");
    let mut bytes = std::fs::read(&files[1]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&files[1], bytes).unwrap();

    ingest.got.lock().silent = false;
    let lost = |got: &Got| -> u64 {
        let lengths = got
            .gaps
            .iter()
            .map(|it| it.last_sequence - it.first_sequence + 1);
        lengths.sum()
    };
    until("all samples arrive, or are told as gaps", &ingest, |got| {
        got.samples.len() as u64 + lost(got) >= 3000
    })
    .await;
    {
        let got = ingest.got.lock();
        assert_eq!(
            got.samples.len() as u64 + lost(&got),
            3000,
            "{:?}",
            got.gaps
        );
        assert!((1..1000).contains(&lost(&got)), "{:?}", got.gaps);
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_for_an_unknown_path_is_not_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, Some("t")).await;
    let line = line("d1", 70.0);
    let token = "authorization: Bearer t\r\n";
    let (status, _) = gateway.post_to("/", token, &line).await;
    assert_eq!(status, 405, "the page takes no samples");
    assert_eq!(gateway.post_to("/", "", &line).await.0, 401);
    for path in ["/v1/sample", "/v1/samples/", "/v2/samples"] {
        let (status, answer) = gateway.post_to(path, token, &line).await;
        assert_eq!(status, 404, "{path}: {answer}");
        assert!(answer.contains("POST /v1/samples"), "{answer}");
        assert_eq!(gateway.post_to(path, "", &line).await.0, 401, "{path}");
    }
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fall_is_cancelled_at_the_gateway_and_the_core_gets_it() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, Some("t")).await;
    let token = "authorization: Bearer t\r\n";
    let start_us = contracts::now_us() - 60_000_000;
    // Half a minute of activity: an impact, and stillness for less than the rule's ten seconds.
    let lines: String = [(0, 1.3), (1, 3.5), (2, 1.0), (8, 1.0)]
        .into_iter()
        .map(|(second, value)| {
            let at_us = start_us + second * 1_000_000;
            format!("{{\"device\":\"d1\",\"metric\":\"activity\",\"value\":{value},\"device_time_us\":{at_us}}}\n")
        })
        .collect();
    let cancel = async |body: &str| gateway.post_to("/v1/falls/cancel", token, body).await;
    assert_eq!(
        cancel(r#"{"device":"d1"}"#).await.0,
        409,
        "nothing has happened"
    );
    assert_eq!(gateway.post_with(token, &lines).await.0, 200);
    assert_eq!(cancel(r#"{"device":"a b"}"#).await.0, 400);
    assert_eq!(cancel("{").await.0, 400);
    assert_eq!(cancel(r#"{"device":"d2"}"#).await.0, 409, "somebody else's");
    let without_token = gateway
        .post_to("/v1/falls/cancel", "", r#"{"device":"d1"}"#)
        .await;
    assert_eq!(without_token.0, 401);
    let (status, answer) = cancel(r#"{"device":"d1"}"#).await;
    assert_eq!(status, 200, "{answer}");
    until("the core hears of it", &ingest, |got| {
        got.alerts.values().any(|alert| {
            alert.cancelled
                && (
                    alert.rule.as_str(),
                    alert.device.as_str(),
                    alert.gateway.as_str(),
                ) == ("fall", "d1", "g1")
        })
    })
    .await;
    assert_eq!(cancel(r#"{"device":"d1"}"#).await.0, 409, "once");
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_the_token_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let token = Some("correct horse");
    let gateway = Gateway::start(directory.path(), running.address, token).await;
    let body = line("d1", 72.0);
    assert_eq!(gateway.post_with("", &body).await.0, 401);
    let right = "authorization: Bearer correct horse\r\n";
    assert_eq!(gateway.post_with(right, &body).await.0, 200);

    let url = format!("http://{}", gateway.address);
    let mut client = GatewayServiceClient::connect(url).await.unwrap();
    let status = client
        .record(tokio_stream::iter([RecordRequest::default()]))
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_a_web_page_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let running = FakeIngest::default().start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    let (sample, cancel) = (line("d1", 72.0), r#"{"device": "d1"}"#);
    for said in [
        "origin: https://elsewhere.example\r\n",
        "origin: null\r\n",
        "sec-fetch-site: cross-site\r\n",
    ] {
        assert_eq!(gateway.post_with(said, &sample).await.0, 403, "{said}");
        let cancelled = gateway.post_to("/v1/falls/cancel", said, cancel).await;
        assert_eq!(cancelled.0, 403, "{said}");
    }
    assert_eq!(gateway.post(&sample).await.0, 200);
    gateway.stop().await;
}

fn numbered(n: u64) -> Sample {
    Sample {
        device: "d1".into(),
        metric: Metric::Spo2.into(),
        device_time_us: contracts::now_us() - 1_000_000_000 + n as i64,
        reading: Some(Reading::Value(97.0)),
        sensor_sequence: Some(n),
        ..Sample::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sensors_retry_over_grpc_is_one_sample() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let mut gateway = Gateway::start(directory.path(), running.address, None).await;
    let samples: Vec<_> = (1..=50).map(numbered).collect();
    for attempt in 0..3 {
        let url = format!("http://{}", gateway.address);
        let mut client = GatewayServiceClient::connect(url).await.unwrap();
        let requests: Vec<_> = samples
            .chunks(10)
            .enumerate()
            .map(|(n, samples)| RecordRequest {
                request: n as u64,
                samples: samples.to_vec(),
            })
            .collect();
        let mut answers = client
            .record(tokio_stream::iter(requests))
            .await
            .unwrap()
            .into_inner();
        for n in 0..5 {
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!((answer.request, answer.accepted), (n, 10), "{answer:?}");
        }
        assert!(answers.message().await.unwrap().is_none());
        if attempt == 1 {
            // The journal remembers across a restart.
            gateway.stop().await;
            gateway = Gateway::start(directory.path(), running.address, None).await;
        }
    }
    assert_eq!(gateway.post(&line("d1", 72.0)).await.0, 200);
    until("the last sample arrives", &ingest, |got| {
        got.samples.len() == 51
    })
    .await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_path_opens_a_fresh_link_and_replays() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    until("both links stand", &ingest, |got| got.connections >= 2).await;
    ingest.got.lock().silent = true;
    for n in 0..20 {
        assert_eq!(gateway.post(&line("d1", 60.0 + f64::from(n))).await.0, 200);
    }
    ingest.got.lock().silent = false;
    gateway
        .events
        .send(TunnelEvent::PathDown {
            name: "wifi".into(),
            carried: true,
        })
        .unwrap();
    // Well before missing acknowledgements would be noticed.
    let before = tokio::time::Instant::now();
    until("everything arrives", &ingest, |got| got.samples.len() == 20).await;
    assert!(before.elapsed() < Duration::from_secs(9));
    until("links were opened anew", &ingest, |got| {
        got.connections >= 4
    })
    .await;
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_ends_is_replaced_and_the_gateway_is_ready_again() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    for n in 1..=5 {
        until("links and spares stand", &ingest, |got| got.connections > 3).await;
        ingest.got.lock().end_next = true;
        assert_eq!(gateway.post(&line("d1", 72.0)).await.0, 200);
        until("the sample arrives", &ingest, |got| {
            !got.end_next && got.samples.len() == n
        })
        .await;
    }
    let health = gateway.context.health().clone();
    let ready = async {
        while !health.is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, ready).await.is_ok(),
        "{:?}",
        health.failing()
    );
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_accepted_while_ingest_was_away_arrive_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    running.task.abort();
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    let lines: Vec<_> = (0..2_000)
        .map(|n| line("d1", 60.0 + f64::from(n % 20)))
        .collect();
    assert_eq!(gateway.post(&lines.join("\n")).await.0, 200);
    gateway.stop().await;

    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    assert_eq!(gateway.post(&line("d1", 72.0)).await.0, 200);
    until("everything arrives", &ingest, |got| {
        got.samples.len() == 2_001
    })
    .await;
    let got = std::mem::take(&mut *ingest.got.lock());
    let first = got.samples.keys().next().unwrap();
    let last = got.samples.keys().last().unwrap();
    assert_eq!(last.2 - first.2, 2_000, "sequences go on");
    assert!(got.samples.values().all(|(count, _)| *count == 1));
    gateway.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_that_ingest_refuses_are_kept_and_block_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    ingest.got.lock().refused_device = "unassigned".into();
    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    let body = [line("d1", 71.0), line("unassigned", 72.0), line("d1", 73.0)].join("\n");
    assert_eq!(gateway.post(&body).await.0, 200);
    until("the others arrive", &ingest, |got| got.samples.len() == 2).await;
    gateway.stop().await;
    let (letters, _) = crate::rejected(&config_at(directory.path())).unwrap();
    let letter: serde_json::Value = serde_json::from_str(letters.trim()).unwrap();
    assert_eq!(
        (&letter["device"], &letter["reading"]),
        (&"unassigned".into(), &72.0.into())
    );
    assert!(letter["reason"].as_str().unwrap().contains("registered"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ill_patient_raises_an_alert_at_the_edge() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    let profile = Profile {
        episode_interval_s: 0.0,
        ..Profile::adult("belt-1")
    };
    // Five minutes that the sensor has stored.
    let mut patient = Patient::new(1, profile, contracts::now_us() - 300_000_000);
    patient.trigger(swarm::Episode::Tachycardia);
    let (_triggers, triggers) = mpsc::channel(1);
    let feed = Feed {
        url: format!("http://{}", gateway.address),
        token: None,
        patients: vec![patient],
        triggers,
        health: None,
    };
    let shutdown = gateway.context.shutdown().clone();
    let feed = tokio::spawn(feed.run(shutdown));
    until("alert and ECG arrive", &ingest, |got| {
        got.alerts
            .values()
            .any(|alert| alert.metric() == Metric::HeartRate && alert.sequence > 0)
            && got
                .samples
                .keys()
                .filter(|(_, stream, _)| stream == "ecg")
                .count()
                > 250
    })
    .await;
    gateway.stop().await;
    feed.await.unwrap().unwrap();
    let got = ingest.got.lock();
    // One that left before a slow disk had it has no number, and comes again with one.
    let numbered = got.alerts.iter().map(|(number, alert)| (*number, alert));
    let numbered = numbered.filter(|(number, _)| *number > 0);
    let (numbers, numbered): (Vec<u64>, Vec<_>) = numbered.unzip();
    let alert = numbered
        .into_iter()
        .find(|alert| alert.metric() == Metric::HeartRate)
        .unwrap();
    assert_eq!(
        (alert.device.as_str(), alert.gateway.as_str()),
        ("belt-1", "g1")
    );
    assert!(
        alert.value > 110.0 && !alert.summary.is_empty(),
        "{alert:?}"
    );
    let first = numbers[0];
    let expected = first..first + numbers.len() as u64;
    assert_eq!(numbers, expected.collect::<Vec<_>>());
}

/// Its couriers panic at their start.
struct Broken;

impl Uplink for Broken {
    fn channel(
        &self,
        url: &str,
        _: Urgency,
        _: Option<&CopyNumber>,
    ) -> Result<Channel, ChannelError> {
        channel(url, None)
    }

    fn events(&self) -> broadcast::Receiver<TunnelEvent> {
        panic!("for the test")
    }

    fn paths(&self) -> Vec<PathSnapshot> {
        Vec::new()
    }
}

#[tokio::test]
async fn a_gateway_that_has_lost_a_courier_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut config: Config = defaults().unwrap();
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.data_dir = directory.path().to_path_buf();
    let context = Context::new("gateway");
    let serving = serve(config, "g1".into(), Arc::new(Broken), &context);
    let ended = tokio::time::timeout(DEADLINE, serving).await;
    let ended = ended.expect("it takes samples that go nowhere");
    assert!(matches!(ended, Err(RunError::Task(_))), "{ended:?}");
}
