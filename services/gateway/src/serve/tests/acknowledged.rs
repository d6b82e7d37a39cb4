//! The ways of acknowledgements. Down: a reading raises a high alert at the edge and alerting
//! stores it. A person acknowledges it, and the gateway ends the copies of its uploads. Up: a
//! person beside the gateway acknowledges it, and the core stores it with the name.

use std::{sync::Arc, time::Duration};

use clap::Parser;
use contracts::{
    alerts::{AcknowledgeRequest, Alert, AlertState, alerts_service_client::AlertsServiceClient},
    vitals::{
        AcknowledgeAlertRequest, FollowAlertsRequest, Metric, RecordRequest, Sample,
        gateway_service_client::GatewayServiceClient, sample::Reading,
    },
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use service_kit::{
    Context,
    grpc::channel,
    tls::{Identity, PeerId},
};
use store::{AlertsQuery, AuditQuery, Scope};
use tokio::sync::broadcast;

use super::{core::Core, direct::Direct, serve};
use crate::{LISTENER, config::CommandLine};

/// Only a failing test reaches this time.
const PATIENCE: Duration = Duration::from_secs(60);
const S: i64 = 1_000_000;
const RULE: &str = "heart-rate-very-high";

/// A series of this test's thread as `/metrics` shows it; 0 where it is not shown.
fn series(metrics: &PrometheusHandle, name: &str) -> f64 {
    let text = metrics.render();
    let mut lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let value = lines.find(|(series, _)| *series == name);
    value.map_or(0.0, |(_, value)| value.parse().unwrap())
}

fn copies(metrics: &PrometheusHandle) -> f64 {
    series(metrics, r#"braid_gateway_copies_total{class="vitals"}"#)
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    assert!(waited.is_ok(), "{what}");
}

/// Readings of `seconds`, one a second, the last at `end_us`.
async fn record(sensors: &str, seconds: i64, end_us: i64) {
    let samples = (0..seconds).map(|second| Sample {
        device: "belt-1".into(),
        metric: Metric::HeartRate.into(),
        device_time_us: end_us - (seconds - second) * S,
        reading: Some(Reading::Value(150.0)),
        ..Sample::default()
    });
    let request = RecordRequest {
        request: 1,
        samples: samples.collect(),
    };
    let mut client = GatewayServiceClient::new(channel(sensors, None).unwrap());
    let answers = client.record(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    assert_eq!(i64::from(answer.accepted), seconds);
}

async fn open_alert(core: &Core) -> Option<Alert> {
    let query = AlertsQuery::default();
    let alerts = core.store.alerts(&Scope::Service, &query).await;
    let mut alerts = alerts.unwrap().into_iter();
    alerts.find(|alert| alert.rule == RULE)
}

#[tokio::test]
async fn an_acknowledgement_ends_the_copies_at_the_gateway() {
    // Other tests of this process have gateways as well, on other threads.
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = &recorder.handle();
    let _of_this_thread = metrics::set_default_local_recorder(&recorder);
    let core = Core::start().await;
    core.register("one", "belt-1", "ada").await;
    let ingest = core.ingest().await;
    let mut config: alerting::Config = service_kit::config::defaults().unwrap();
    config.listen = "127.0.0.1:0".parse().unwrap();
    let id = PeerId::service("alerting");
    config.identity = core.authority.issue(&id, &[]).unwrap();
    let alerting = Context::new("alerting");
    let (bus, store) = (Arc::clone(&core.bus), Arc::clone(&core.store));
    let alerting_ends = tokio::spawn(alerting::run(config, bus, store, alerting.clone()));

    let mut config = CommandLine::parse_from(["gateway", "--listen", "127.0.0.1:0"]).config;
    config.data_dir = core.directory().join("gateway");
    config.ingest = core.url().to_owned();
    let context = Context::new("gateway");
    let uplink = Arc::new(Direct {
        identity: Some(core.identity("one")),
        events: broadcast::channel(1).0,
    });
    let gateway_ends = tokio::spawn({
        let context = context.clone();
        async move { serve(config, "gw".into(), uplink, &context).await }
    });
    let sensors = format!("http://{}", context.address(LISTENER).await.unwrap());
    until("the gateway is connected", async || {
        context.health().is_ready()
    })
    .await;

    let mut last_us = contracts::now_us() - 300 * S;
    record(&sensors, 20, last_us).await;
    until("alerting has stored it", async || {
        open_alert(&core).await.is_some()
    })
    .await;
    // Its own alert and that of the core are one.
    assert_eq!(series(metrics, "braid_gateway_alarms_open"), 1.0);
    // The link for copies opens last.
    let mut readings = 20;
    while copies(metrics) == 0.0 {
        assert!(readings < 220, "no upload of vitals is copied");
        tokio::time::sleep(Duration::from_millis(50)).await;
        (last_us, readings) = (last_us + S, readings + 1);
        record(&sensors, 1, last_us).await;
    }

    let address = alerting.address("grpc").await.unwrap();
    let id = PeerId::service("dashboard");
    let identity = Identity::load(&core.authority.issue(&id, &[]).unwrap()).unwrap();
    let url = format!("https://127.0.0.1:{}", address.port());
    let mut people = AlertsServiceClient::new(channel(&url, Some(&identity)).unwrap());
    let request = AcknowledgeRequest {
        id: open_alert(&core).await.unwrap().id,
        by: "Ada Nurse".into(),
        note: String::new(),
    };
    people.acknowledge(request).await.unwrap();
    until("the gateway knows", async || {
        series(metrics, "braid_gateway_alarms_open") == 0.0
    })
    .await;

    // The episode goes on, and its readings go once.
    let before = copies(metrics);
    record(&sensors, 10, last_us + 10 * S).await;
    until("they are stored", async || {
        let stored = core.store.stream_count("belt-1", "heart-rate").await;
        stored.unwrap().0 >= readings + 10
    })
    .await;
    assert_eq!(copies(metrics), before);

    context.shutdown().request();
    gateway_ends.await.unwrap().unwrap();
    ingest.stop().await;
    alerting.shutdown().request();
    alerting_ends.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_acknowledgement_beside_the_gateway_is_stored_in_the_core_with_its_author() {
    let core = Core::start().await;
    core.register("one", "belt-1", "ada").await;
    let ingest = core.ingest().await;
    let mut config: alerting::Config = service_kit::config::defaults().unwrap();
    config.listen = "127.0.0.1:0".parse().unwrap();
    let id = PeerId::service("alerting");
    config.identity = core.authority.issue(&id, &[]).unwrap();
    let alerting = Context::new("alerting");
    let (bus, store) = (Arc::clone(&core.bus), Arc::clone(&core.store));
    let alerting_ends = tokio::spawn(alerting::run(config, bus, store, alerting.clone()));

    let mut config = CommandLine::parse_from(["gateway", "--listen", "127.0.0.1:0"]).config;
    config.data_dir = core.directory().join("gateway");
    config.ingest = core.url().to_owned();
    let context = Context::new("gateway");
    let uplink = Arc::new(Direct {
        identity: Some(core.identity("one")),
        events: broadcast::channel(1).0,
    });
    let gateway_ends = tokio::spawn({
        let context = context.clone();
        async move { serve(config, "gw".into(), uplink, &context).await }
    });
    let address = context.address(LISTENER).await.unwrap();
    let sensors = format!("http://127.0.0.1:{}", address.port());
    record(&sensors, 20, contracts::now_us() - 30 * S).await;
    until("alerting has stored it", async || {
        open_alert(&core).await.is_some()
    })
    .await;

    let mut client = GatewayServiceClient::new(channel(&sensors, None).unwrap());
    let lists = client.follow_alerts(FollowAlertsRequest {}).await.unwrap();
    let list = lists.into_inner().message().await.unwrap().unwrap().alerts;
    let shown = list.into_iter().find(|alert| alert.rule == RULE).unwrap();
    let before_us = contracts::now_us();
    for by in ["Eve Carer", "Bob"] {
        let (id, by) = (shown.id.clone(), by.into());
        let request = AcknowledgeAlertRequest { id, by };
        let answer = client.acknowledge_alert(request).await.unwrap();
        let alert = answer.into_inner().alert.unwrap();
        assert_eq!(alert.acknowledged_by, "Eve Carer");
    }
    until("the core knows who attends to it", async || {
        let alert = open_alert(&core).await;
        alert.is_some_and(|alert| alert.state() == AlertState::Acknowledged)
    })
    .await;
    let alert = open_alert(&core).await.unwrap();
    assert_eq!(alert.acknowledged_by, "Eve Carer, at the gateway");
    assert_eq!(alert.note, "acknowledged at the gateway gw");
    assert!((before_us..=contracts::now_us()).contains(&alert.changed_us));
    let query = AuditQuery {
        patient: Some("ada".into()),
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let audit = core
        .store
        .audit(&Scope::tenant("one"), &query)
        .await
        .unwrap();
    let made = audit
        .iter()
        .find(|it| it.action == "acknowledge alert")
        .unwrap();
    assert_eq!(made.who, "Eve Carer, at the gateway");
    assert!(made.detail.starts_with(&alert.id), "{}", made.detail);

    context.shutdown().request();
    gateway_ends.await.unwrap().unwrap();
    ingest.stop().await;
    alerting.shutdown().request();
    alerting_ends.await.unwrap().unwrap();
}
