//! Ingest accepts only a gateway's own data, under a certificate in force.

use crate::world::{PATIENCE, World, gateway, sample, upload};
use bus::{Bus, Event, Topic};
use contracts::vitals::{EdgeAlert, Gap, VitalsRecord};
use prost::Message;
use service_kit::tls::PeerId;
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_gateway_that_owns_a_device_may_speak_for_it() {
    let counters = service_kit::telemetry::metrics_handle();
    let world = World::new().await;
    let running = world.start().await;
    for id in [gateway("other"), PeerId::gateway("another-tenant", "gw")] {
        let mut uplink = world.gateway(&running, id.clone()).await;
        uplink.send(upload(1, vec![sample("belt-0", 1)])).await;
        let answer = uplink.answer().await;
        assert_eq!(
            answer.rejections,
            [],
            "{id}: kept apart, and no word of whose it is"
        );
    }
    // Their alerts and gaps must not be attributed to another gateway either.
    let mut records = running.bus.tail(Topic::Vitals).await.unwrap();
    for id in [gateway("other"), PeerId::gateway("another-tenant", "gw")] {
        let mut crossing = world.gateway(&running, id.clone()).await;
        let mut theirs = upload(1, vec![sample("belt-0", 7)]);
        theirs.gaps.push(Gap {
            device: "belt-0".into(),
            stream: "ecg".into(),
            first_sequence: 1,
            last_sequence: 5,
            ..Gap::default()
        });
        for (device, patient) in [
            ("belt-0", ""),
            ("", "patient-0"),
            ("belt-0", "patient-0"),
            ("", ""),
        ] {
            theirs.alerts.push(EdgeAlert {
                device: device.into(),
                patient: patient.into(),
                rule: "spo2-low".into(),
                sequence: 1 + theirs.alerts.len() as u64,
                time_us: contracts::now_us(),
                ..EdgeAlert::default()
            });
        }
        crossing.send(theirs).await;
        let answer = crossing.answer().await;
        assert_eq!(answer.rejections, [], "{id}");
    }
    let service = world.gateway(&running, PeerId::service("proxy")).await;
    assert_eq!(service.answers.unwrap_err().code(), Code::PermissionDenied);
    // A valid sample behind them shows that none of theirs is on its way to the store.
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    uplink.send(upload(1, vec![sample("belt-0", 2)])).await;
    uplink.answer().await;
    world.stored("belt-0", 1).await;
    assert_eq!(
        world
            .store
            .stream_count("belt-0", crate::world::STREAM)
            .await
            .unwrap(),
        (1, 2)
    );
    let mut seen = VitalsRecord::default();
    while seen.samples.is_empty() {
        let next = tokio::time::timeout(PATIENCE, records.next(10)).await;
        let Event::Batch(batch) = next.unwrap().unwrap() else {
            panic!("a tail is given no partitions")
        };
        for delivery in batch {
            let record = VitalsRecord::decode(delivery.value).unwrap();
            seen.samples.extend(record.samples);
            seen.alerts.extend(record.alerts);
            seen.gaps.extend(record.gaps);
            seen.quarantined.extend(record.quarantined);
        }
    }
    assert_eq!(
        (seen.samples.len(), seen.alerts.len(), seen.gaps.len()),
        (1, 0, 0)
    );
    // A reading, a gap and four alerts of each.
    let of = |tenant: &str, gateway: &str| {
        let mut all = seen.quarantined.iter();
        all.by_ref()
            .filter(|it| it.tenant == tenant && it.gateway == gateway)
            .count()
    };
    assert_eq!((of("default", "other"), of("another-tenant", "gw")), (6, 6));
    let counted = counters.render();
    for (metric, labels) in [
        ("quarantined_total", "kind=\"other-gateway\""),
        ("quarantined_total", "kind=\"unknown-device\""),
        ("quarantined_total", "kind=\"not-owned\""),
    ] {
        let line = format!("braid_ingest_{metric}{{{labels}}}");
        assert!(counted.contains(&line), "{line} is not in\n{counted}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_gateway_is_turned_away_within_seconds_until_it_has_a_new_certificate() {
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let mut other = world.gateway(&running, gateway("other")).await;
    uplink.send(upload(1, vec![sample("belt-0", 1)])).await;
    uplink.answer().await;
    let revoke = async |version: u32, excepted: Vec<String>| {
        let document = contracts::alerts::Document {
            kind: store::REVOCATION.into(),
            tenant: "default".into(),
            subject: "gw".into(),
            version,
            author: "ada".into(),
            reason: "stolen".into(),
            body: serde_json::to_string(&store::Revocation {
                excepted,
                ..store::Revocation::default()
            })
            .unwrap(),
            ..Default::default()
        };
        world.store.put_document(&document).await.unwrap();
    };
    revoke(1, Vec::new()).await;
    // The open stream ends without any action of the gateway.
    let ended = tokio::time::timeout(PATIENCE, uplink.answers.as_mut().unwrap().message()).await;
    assert_eq!(ended.unwrap().unwrap_err().code(), Code::PermissionDenied);
    // A new stream ends as well, before any of its data is accepted.
    let mut again = world.gateway(&running, gateway("gw")).await;
    let _ = again
        .uploads
        .send(upload(2, vec![sample("belt-0", 2)]))
        .await;
    let ended = tokio::time::timeout(PATIENCE, again.answers.as_mut().unwrap().message()).await;
    assert_eq!(ended.unwrap().unwrap_err().code(), Code::PermissionDenied);

    let files = world.authority.issue(&gateway("gw"), &[]).unwrap();
    let pem = std::fs::read_to_string(&files.cert).unwrap();
    let fingerprint = service_kit::tls::renewal::fingerprint(&pem).unwrap();
    revoke(2, vec![fingerprint.to_string()]).await;
    // Accepted once the exception is known. Each attempt before is refused.
    let let_in = async {
        loop {
            let mut renewed = world.gateway_with(&running, &files).await;
            let _ = renewed
                .uploads
                .send(upload(3, vec![sample("belt-0", 3)]))
                .await;
            match renewed.answers.as_mut().unwrap().message().await {
                Ok(answer) => break answer.unwrap(),
                Err(status) => assert_eq!(status.code(), Code::PermissionDenied),
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, let_in).await.unwrap();
    assert_eq!((answer.position, answer.rejections.len()), (3, 0));
    other.send(upload(9, Vec::new())).await;
    assert_eq!(other.answer().await.position, 9, "nobody else is concerned");
    world.stored("belt-0", 2).await;
    running.stop().await;
}

/// Abuse under a certificate in force is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gateway_takes_neither_the_memory_nor_the_places_of_all() {
    let world = World::new().await;
    let running = world.start().await;
    let mut other = world.gateway(&running, gateway("other")).await;
    // Two million empty samples: 4 MiB encoded and 550 MB decoded.
    let many = [0x12, 0].repeat((4 << 20) / 2 - 8);
    let mut answers = world.upload_bytes(&running, gateway("gw"), [many]).await;
    let refused = answers.message().await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("fields"), "{refused}");

    let files = world.authority.issue(&gateway("gw"), &[]).unwrap();
    let mut first = world.gateway_with(&running, &files).await;
    first.send(upload(1, vec![sample("belt-0", 1)])).await;
    first.answer().await;
    let mut more = Vec::new();
    for _ in 0..32 {
        more.push(world.gateway_with(&running, &files).await);
    }
    let ended = tokio::time::timeout(PATIENCE, first.answers.as_mut().unwrap().message()).await;
    assert_eq!(ended.unwrap().unwrap_err().code(), Code::ResourceExhausted);
    for (position, uplink) in (2..).zip(&mut more) {
        uplink.send(upload(position, Vec::new())).await;
        assert_eq!(uplink.answer().await.position, position);
    }
    other.send(upload(9, Vec::new())).await;
    assert_eq!(other.answer().await.position, 9, "nobody else is concerned");
    running.stop().await;
}
