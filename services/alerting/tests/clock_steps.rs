//! The clock of alerting's machine steps while devices continue. No device is called silent for it,
//! and real silence is found.

#![allow(clippy::unwrap_used)]

#[path = "support/scene.rs"]
mod scene;
#[path = "support/stage.rs"]
mod stage;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use clocks::{CheckedClock, Moment};
use contracts::alerts::AlertState;
use scene::Sensor;
use service_kit::Context;
use stage::{S, World};
use store::Store;

const HOUR: i64 = 3600 * S;
/// The shortest value that alerting accepts.
const SILENT_AFTER_S: u64 = 5;
const DEVICES: usize = 20;

/// A machine whose wall clock is wrong by an error that the test sets.
fn machine(error_us: &Arc<AtomicI64>) -> CheckedClock {
    let (error_us, begun) = (Arc::clone(error_us), Instant::now());
    CheckedClock::new(Arc::new(move || Moment {
        wall_us: contracts::now_us() + error_us.load(Ordering::Relaxed),
        monotonic_us: i64::try_from(begun.elapsed().as_micros()).unwrap(),
    }))
}

/// Every patient has the name of the device.
fn worn(device: &str) -> Sensor<'_> {
    Sensor {
        gateway: "gateway-1",
        ..Sensor::named(device)
    }
}

async fn hear(store: &dyn Store, devices: &[String]) {
    let sensors = devices.iter().map(|it| worn(it));
    scene::hear(store, sensors, contracts::now_us()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_silent_device_is_called_silent_after_a_step() {
    for by_us in [90 * S, HOUR] {
        let world = World::new();
        let error_us = Arc::new(AtomicI64::new(0));
        let context = Context::with_clock("alerting", machine(&error_us));
        let names: Vec<String> = (0..DEVICES).map(|n| format!("d{n}")).collect();
        for name in &names {
            worn(name).wear(world.store.as_ref(), i64::MIN).await;
        }
        hear(world.store.as_ref(), &names).await;
        let running = world.start_in(context, |config| config.silent_after_s = SILENT_AFTER_S);
        running.context.address("grpc").await.unwrap();
        // The first device ends here. The others continue until the end of the test.
        let (store, going_on) = (Arc::clone(&world.store), names[1..].to_vec());
        let feeding = tokio::spawn(async move {
            loop {
                hear(store.as_ref(), &going_on).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        error_us.store(by_us, Ordering::Relaxed);
        world
            .alert_of("d0", "device-silent", AlertState::Active)
            .await;
        let others: Vec<String> = world
            .alerts()
            .await
            .into_iter()
            .filter(|alert| alert.patient != "d0")
            .map(|alert| format!("{} {}", alert.rule, alert.patient))
            .collect();
        assert_eq!(others, Vec::<String>::new(), "{by_us}");
        let warnings = running.context.health().warnings();
        assert!(
            warnings.iter().any(|(name, _)| *name == "clock"),
            "{warnings:?}"
        );
        feeding.abort();
        running.stop().await;
    }
}
