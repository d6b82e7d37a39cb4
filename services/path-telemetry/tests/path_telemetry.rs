//! Path-telemetry as a whole on the embedded bus and store: reports in, rows and policy out.

#![allow(clippy::unwrap_used)]

#[path = "support/world.rs"]
mod world;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bus::PublishError;
use contracts::{
    alerts::Document,
    paths::{End, PathReport},
    policy::{GetPolicyRequest, policy_service_client::PolicyServiceClient},
};
use multipath::steering_rules;
use service_kit::tls::PeerId;
use store::{GatewayEntry, Scope};
use tonic::Code;
use world::{Forgetful, LIMIT, World, open, reports};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_and_the_gateway_gets_its_policy() {
    let world = World::start();
    let gateway = PeerId::gateway("default", "gateway-1");
    let proxy = PeerId::service("proxy");
    let up = reports(End::Gateway, "lte", 5);
    assert_eq!(world.report(&gateway, up.clone()).await.unwrap(), 30);
    assert_eq!(
        world
            .report(&proxy, reports(End::Proxy, "lte", 1))
            .await
            .unwrap(),
        30
    );
    assert_eq!(world.rows(60).await.len(), 60);
    // These reports are sent again after a lost acknowledgement: accepted, and stored once. The
    // last report is new and shows that the others were handled.
    let mut again = up;
    again.push(PathReport {
        sequence: 31,
        ..again[0].clone()
    });
    world.report(&gateway, again).await.unwrap();
    assert_eq!(world.rows(61).await.len(), 61);

    let mut client = PolicyServiceClient::new(world.channel(&gateway).await);
    let mut ask = async |gateway: &str| {
        let gateway = gateway.to_owned();
        client
            .get_policy(GetPolicyRequest {
                gateway,
                ..GetPolicyRequest::default()
            })
            .await
    };
    // The example of the paper, after the estimates have followed the topic.
    let deadline = tokio::time::Instant::now() + LIMIT;
    let policy = loop {
        let policy = ask("gateway-1").await.unwrap().into_inner();
        let choice = policy
            .paths
            .first()
            .map(|path| (path.keepalive_k, path.keepalive_interval_ms));
        if choice == Some((7, 60)) {
            break policy;
        }
        assert!(tokio::time::Instant::now() < deadline, "{policy:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(policy.paths.len(), 1);
    assert_eq!(policy.paths[0].path, "lte");
    assert_eq!(
        ask("gateway-2").await.unwrap_err().code(),
        Code::PermissionDenied
    );

    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_sender_reports_for_another() {
    let world = World::start();
    let cases = [
        (
            PeerId::gateway("default", "gateway-2"),
            End::Gateway,
            Code::PermissionDenied,
        ),
        (
            PeerId::gateway("default", "gateway-1"),
            End::Proxy,
            Code::PermissionDenied,
        ),
        (
            PeerId::service("proxy"),
            End::Gateway,
            Code::PermissionDenied,
        ),
        (
            PeerId::service("ingest"),
            End::Proxy,
            Code::PermissionDenied,
        ),
    ];
    for (peer, end, code) in cases {
        let refused = world
            .report(&peer, reports(end, "wifi", 0))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), code, "{peer}");
    }
    let mut nonsense = reports(End::Proxy, "wifi", 0);
    nonsense[3].rtt_ms = f64::INFINITY;
    let refused = world
        .report(&PeerId::service("proxy"), nonsense)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // Only the report that is accepted afterwards is stored.
    world
        .report(&PeerId::service("proxy"), reports(End::Proxy, "wifi", 0))
        .await
        .unwrap();
    assert_eq!(world.rows(30).await.len(), 30);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_dated_long_ago_is_taken_as_of_its_arrival() {
    let world = World::start();
    let dated = |end: End| {
        let mut reports = reports(end, "wifi", 0);
        // The first clock was never set; the other times are invented.
        for (days, report) in (0..).zip(&mut reports) {
            report.time_us = 1 + days * 86_400_000_000;
        }
        reports
    };
    let began_us = contracts::now_us();
    let gateway = PeerId::gateway("default", "gateway-1");
    world.report(&gateway, dated(End::Gateway)).await.unwrap();
    let proxy = PeerId::service("proxy");
    world.report(&proxy, dated(End::Proxy)).await.unwrap();
    let rows = world.rows(60).await;
    let past = rows.iter().filter(|row| row.time_us < began_us);
    assert_eq!(past.count(), 0);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namesake_in_another_tenant_neither_writes_nor_reads() {
    let world = World::with_store(|store| async move {
        let entry = GatewayEntry {
            id: "gateway-1".into(),
            tenant: "default".into(),
        };
        store.put_gateway(&entry).await.unwrap();
    })
    .await;
    let own = PeerId::gateway("default", "gateway-1");
    let namesake = PeerId::gateway("other", "gateway-1");
    let mut asking = PolicyServiceClient::new(world.channel(&namesake).await);
    let policy = GetPolicyRequest {
        gateway: "gateway-1".into(),
        ..GetPolicyRequest::default()
    };
    // The register has been read by now.
    let deadline = tokio::time::Instant::now() + LIMIT;
    while asking.get_policy(policy.clone()).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "it reads on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = world
        .report(&namesake, reports(End::Gateway, "lte", 0))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // The proxy serves both gateways: reports on the namesake are dropped, the reports beside them
    // are kept.
    let of = |tenant: &str, path: &str| {
        let mut reports = reports(End::Proxy, path, 0);
        reports.iter_mut().for_each(|it| it.tenant = tenant.into());
        reports
    };
    let mut both = [of("other", "lte"), of("default", "wifi")].concat();
    // A proxy of an older release names no tenant.
    both[59].tenant.clear();
    let proxy = PeerId::service("proxy");
    assert_eq!(world.report(&proxy, both).await.unwrap(), 60);
    world
        .report(&own, reports(End::Gateway, "wifi", 0))
        .await
        .unwrap();
    let rows = world.rows(60).await;
    assert_eq!(rows.len(), 60);
    assert!(rows.iter().all(|row| row.path == "wifi"));
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_under_an_unregistered_name_stay_hidden_after_its_registration() {
    let world = World::with_store(|_| async {}).await;
    let before = PeerId::gateway("other", "gateway-1");
    let mut forged = reports(End::Gateway, "lte", 0);
    forged
        .iter_mut()
        .for_each(|it| it.tenant = "default".into());
    world.report(&before, forged).await.unwrap();
    assert_eq!(world.rows(30).await.len(), 30);
    let entry = GatewayEntry {
        id: "gateway-1".into(),
        tenant: "default".into(),
    };
    world.store.put_gateway(&entry).await.unwrap();
    let scope = Scope::tenant("default");
    assert_eq!(world.store.latest_paths(&scope, None).await.unwrap(), []);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_an_answer_to_the_starting_position_costs_no_rebalance() {
    const FAILURES: u32 = 4;
    let (asked, subscribed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let world = World::with_bus(|dir| {
        Arc::new(Forgetful {
            inner: open(dir),
            failures: FAILURES,
            asked: Arc::clone(&asked),
            subscribed: Arc::clone(&subscribed),
            says: None,
        })
    });
    let gateway = PeerId::gateway("default", "gateway-1");
    world
        .report(&gateway, reports(End::Gateway, "lte", 0))
        .await
        .unwrap();
    assert_eq!(world.rows(30).await.len(), 30);
    assert!(asked.load(Ordering::Relaxed) > FAILURES);
    assert_eq!(subscribed.load(Ordering::Relaxed), 1, "it stayed a member");
    assert!(
        world
            .context
            .health()
            .failing()
            .iter()
            .all(|it| it.0 != "store")
    );
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

/// A gateway may be in foreign hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_gateway_sees_errors_of_the_bus() {
    let inside = "broker kafka-0.inside:9092";
    for (says, code) in [
        (PublishError::Unavailable(inside.into()), Code::Unavailable),
        (PublishError::Refused(inside.into()), Code::InvalidArgument),
    ] {
        let world = World::with_bus(|dir| {
            Arc::new(Forgetful {
                inner: open(dir),
                failures: 0,
                asked: Arc::default(),
                subscribed: Arc::default(),
                says: Some(says),
            })
        });
        let gateway = PeerId::gateway("default", "gateway-1");
        let refused = world.report(&gateway, reports(End::Gateway, "lte", 5));
        let refused = refused.await.unwrap_err();
        assert_eq!(refused.code(), code);
        assert!(refused.message().contains("the bus"), "{refused}");
        assert!(!refused.message().contains(inside), "{refused}");
        world.context.shutdown().request();
        world.joined.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_newest_steering_document_of_its_tenant_is_handed_out_once() {
    let put = |tenant: &str, version, body: &str| Document {
        kind: store::STEERING.into(),
        tenant: tenant.into(),
        subject: "default".into(),
        version,
        author: "Eve".into(),
        reason: "LTE is capped".into(),
        at_us: contracts::now_us(),
        until_us: 0,
        body: body.into(),
    };
    let grouped = r#"{"format":1,
        "group":[{"name":"ambulances","gateways":["gateway-1","amb-*"]},
                 {"name":"homes","gateways":["home-*"]}],
        "rule":[{"name":"moving","match":{"group":["ambulances"]},"accesses":["lte"]},
                {"name":"at home","match":{"group":["homes"]},"accesses":["wifi"]},
                {"name":"all","accesses":["wifi","lte"]}]}"#;
    let documents = [
        put("default", 1, r#"{"format":1,"freshness_ms":1000}"#),
        put("default", 2, grouped),
        put("other", 1, r#"{"format":1,"freshness_ms":2000}"#),
    ];
    let world = World::with_store(|store| async move {
        for document in documents {
            store.put_document(&document).await.unwrap();
        }
    })
    .await;
    let ask = async |gateway: &str, steering_version| {
        let id = PeerId::gateway("default", gateway);
        let mut client = PolicyServiceClient::new(world.channel(&id).await);
        let request = GetPolicyRequest {
            gateway: gateway.into(),
            steering_version,
        };
        let policy = client.get_policy(request).await.unwrap().into_inner();
        (policy.steering_version, policy.steering_document)
    };
    let deadline = tokio::time::Instant::now() + LIMIT;
    while ask("gateway-1", 1).await == (0, String::new()) {
        assert!(tokio::time::Instant::now() < deadline, "none is handed out");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Each gateway gets its own rules, and no name of another gateway.
    for (gateway, rules) in [
        ("gateway-1", &["moving", "all"][..]),
        ("home-3", &["at home", "all"]),
        ("van", &["all"]),
    ] {
        let (version, body) = ask(gateway, 1).await;
        let document = steering_rules::Document::from_json(&body, "answer").unwrap();
        let names: Vec<_> = document.rules.iter().map(|it| it.name.as_str()).collect();
        assert_eq!((version, names.as_slice()), (2, rules), "{gateway}");
        assert!(!body.contains("group") && !body.contains("amb-"), "{body}");
    }
    assert_eq!(ask("gateway-1", 2).await, (2, String::new()), "it has it");
}
