//! Readiness of ingest for its clients and for the supervisor that restarts it.

use std::time::Duration;

use crate::world::{INSIDE, Mode, PATIENCE, Running, Uplink, World, gateway, sample, upload};

/// An ingest that has taken one upload.
async fn with_an_upload(world: &World) -> (Running, Uplink) {
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    uplink.send(upload(1, vec![sample("belt-0", 1)])).await;
    assert_eq!(uplink.answer().await.position, 1);
    (running, uplink)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "not yet: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A process that cannot publish must not report that it is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_has_panicked_is_seen() {
    let world = World::new().await;
    let (running, uplink) = with_an_upload(&world).await;
    let health = running.context.health();
    let stalled = || health.stalled(std::time::Instant::now());
    assert_eq!(stalled(), []);
    running.bus.mode.send_replace(Mode::Broken);
    uplink.send(upload(2, vec![sample("belt-0", 2)])).await;
    until("it is stalled", || !stalled().is_empty()).await;
    assert_eq!(stalled()[0].0, "bulk");
}

/// Kubernetes and Envoy send no requests to a process that is not ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_goes_away_takes_nobody_out_of_service() {
    let world = World::new().await;
    let (running, mut uplink) = with_an_upload(&world).await;
    let health = running.context.health();
    until("ready", || health.is_ready()).await;
    let file = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    file.execute_batch("ALTER TABLE probe RENAME TO away")
        .unwrap();
    let is_said = || health.warnings().iter().any(|(name, _)| *name == "store");
    until("its absence is said", || is_said() || !health.is_ready()).await;
    assert!(health.is_ready(), "{:?}", health.failing());
    uplink.send(upload(2, vec![sample("belt-0", 2)])).await;
    assert_eq!(uplink.answer().await.position, 2);
    file.execute_batch("ALTER TABLE away RENAME TO probe")
        .unwrap();
    until("it is back", || !is_said()).await;
    running.stop().await;
}

/// A gateway is untrusted, so it gets no internal details.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_gateway_is_told_what_store_and_bus_say_of_themselves() {
    let world = World::new().await;
    let (running, mut uplink) = with_an_upload(&world).await;
    running.bus.mode.send_replace(Mode::Refuse);
    uplink.send(upload(2, vec![sample("belt-0", 2)])).await;
    let rejections = uplink.answer().await.rejections;
    assert_eq!(rejections.len(), 1);
    let reason = &rejections[0].reason;
    assert!(reason.contains("the bus refuses"), "{reason}");
    assert!(!reason.contains(INSIDE), "{reason}");
    running.bus.mode.send_replace(Mode::Pass);

    let file = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    file.execute_batch("ALTER TABLE devices RENAME TO away")
        .unwrap();
    // A device that ingest has not looked up yet.
    uplink.send(upload(3, vec![sample("belt-1", 1)])).await;
    let ended = tokio::time::timeout(PATIENCE, uplink.answers.as_mut().unwrap().message());
    let status = ended.await.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(status.message().contains("send again"), "{status}");
    assert!(!status.message().contains("no such table"), "{status}");
    running.stop().await;
}
