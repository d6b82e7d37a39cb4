//! Uploads of newer gateways that were kept are admitted after an upgrade: once, with their
//! original contents, and only as the register says.

use std::sync::Arc;

use crate::world::{Running, STREAM, World, gateway, sample, upload};
use bus::Bus;
use contracts::vitals::{Gap, UploadRequest};
use ingest::readmission::{Kept, NotReadmitted, Readmission};
use prost::Message;
use store::{DEFAULT_TENANT, DeviceEntry, Scope};

const S: i64 = 1_000_000;
const HOUR: i64 = 3600 * S;

fn kept(gateway: &str, upload: &UploadRequest, arrived_us: i64) -> Kept {
    Kept {
        gateway: gateway.into(),
        whole: upload.encode_to_vec().into(),
        arrived_us,
    }
}

fn readmission(world: &World, running: &Running) -> Readmission {
    let bus: Arc<dyn Bus> = running.bus.clone();
    Readmission::new(bus, Arc::clone(&world.store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_comes_in_after_an_upgrade_and_what_came_before_is_left_out() {
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    uplink
        .send(upload(1, vec![sample("belt-0", 1), sample("belt-0", 2)]))
        .await;
    uplink.answer().await;
    world.stored("belt-0", 2).await;
    // The time differs from the first, so the stored row stays.
    let mut again = sample("belt-0", 2);
    again.device_time_us -= 5 * S;
    let mut whole = upload(9, vec![again, sample("belt-0", 3), sample("nobodys", 1)]);
    let gap = |device: &str| Gap {
        device: device.into(),
        stream: "ecg".into(),
        first_sequence: 1,
        last_sequence: 5,
        from_time_us: 1,
        to_time_us: 2,
        ..Gap::default()
    };
    whole.gaps = vec![gap("belt-0"), gap("nobodys")];
    let readmission = readmission(&world, &running);
    for _ in 0..2 {
        let kept = kept("default/gw", &whole, contracts::now_us());
        let done = readmission.readmit(kept).await.unwrap();
        assert_eq!((done.samples, done.alerts, done.gaps), (2, 0, 1));
        assert_eq!((done.apart, done.refused.len()), (2, 0), "{done:?}");
    }
    // The last upload shows that all before it were handled.
    uplink.send(upload(10, vec![sample("belt-0", 4)])).await;
    uplink.answer().await;
    world.stored("belt-0", 4).await;
    assert_eq!(
        world.store.stream_count("belt-0", STREAM).await.unwrap(),
        (4, 4)
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_no_way_in_for_anybody_else() {
    let world = World::new().await;
    let running = world.start().await;
    let readmission = readmission(&world, &running);
    let whole = upload(1, vec![sample("belt-1", 1)]);
    // Only the owner's upload counts, not the author of the dead letter.
    for other in ["default/other", "another-tenant/gw"] {
        let done = readmission.readmit(kept(other, &whole, contracts::now_us()));
        let done = done.await.unwrap();
        assert_eq!((done.samples, done.apart), (0, 1), "{other}");
    }
    for nobody in ["", "gw", "/gw", "default/"] {
        let done = readmission.readmit(kept(nobody, &whole, contracts::now_us()));
        assert!(matches!(done.await, Err(NotReadmitted::NoUpload(_))));
    }
    // Field 200 is unknown to this version as well. The other bytes are no upload.
    let mut newer = kept("default/gw", &whole, contracts::now_us());
    newer.whole = [&newer.whole[..], &[0xc0, 0x0c, 0x07]].concat().into();
    let done = readmission.readmit(newer).await;
    assert!(matches!(done, Err(NotReadmitted::StillNewer)), "{done:?}");
    let mut nothing = kept("default/gw", &whole, contracts::now_us());
    nothing.whole = b"\xff\xff\xff"[..].into();
    let done = readmission.readmit(nothing).await;
    assert!(matches!(done, Err(NotReadmitted::NoUpload(_))), "{done:?}");

    // Assigned to another patient since. A reading belongs to the wearer at its time.
    let entry = DeviceEntry {
        id: "belt-1".into(),
        tenant: DEFAULT_TENANT.into(),
        gateway: "gw".into(),
        patient: "patient-9".into(),
        registered_us: contracts::now_us(),
    };
    let mut before = sample("belt-1", 1);
    before.device_time_us -= HOUR;
    let whole = UploadRequest {
        sent_time_us: contracts::now_us() - HOUR,
        ..upload(1, vec![before])
    };
    world.store.put_device(&entry).await.unwrap();
    let bus: Arc<dyn Bus> = running.bus.clone();
    let later = Readmission::new(bus, Arc::clone(&world.store));
    let done = later.readmit(kept("default/gw", &whole, contracts::now_us() - HOUR));
    assert_eq!(done.await.unwrap().samples, 1);
    world.stored("belt-1", 1).await;
    let of = async |patient| {
        let scope = Scope::tenant(DEFAULT_TENANT);
        let stored = world.store.samples(&scope, patient, 0, i64::MAX, 10).await;
        stored.unwrap().len()
    };
    assert_eq!((of("patient-1").await, of("patient-9").await), (1, 0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_clock_is_judged_by_when_it_came() {
    let world = World::new().await;
    let running = world.start().await;
    let readmission = readmission(&world, &running);
    let arrived_us = contracts::now_us() - 24 * HOUR;
    for (device, ahead_us) in [("belt-2", HOUR), ("belt-3", 0)] {
        let mut reading = sample(device, 1);
        reading.device_time_us = arrived_us + ahead_us - S;
        reading.gateway_time_us = reading.device_time_us;
        let whole = UploadRequest {
            sent_time_us: arrived_us + ahead_us,
            ..upload(1, vec![reading])
        };
        // One with a gateway of its own, because each gateway has its own clock.
        let owner = format!("gw-of-{device}");
        let entry = DeviceEntry {
            id: device.into(),
            tenant: DEFAULT_TENANT.into(),
            gateway: owner.clone(),
            patient: format!("wearer-of-{device}"),
            registered_us: 0,
        };
        world.store.put_device(&entry).await.unwrap();
        let owner = format!("{DEFAULT_TENANT}/{owner}");
        let done = readmission.readmit(kept(&owner, &whole, arrived_us));
        assert_eq!(done.await.unwrap().samples, 1);
        world.stored(device, 1).await;
        let latest = world
            .store
            .latest_vitals(&Scope::Service, Some(&entry.patient))
            .await
            .unwrap();
        assert_eq!(latest[0].device_time_us, arrived_us - S, "{device}");
        // It arrives now, so alerting treats it as a backfill.
        assert!(latest[0].ingest_time_us > arrived_us + 23 * HOUR);
    }
    running.stop().await;
}
