//! Live streams while the store is behind the bus, and the clock that pages use.

use std::sync::Arc;
use std::time::Duration;

use crate::browser::{ANYWHERE, client, cookie_of, until};
use crate::ward::{Ward, heart_rate};
use contracts::query::watch_response::Update;
use contracts::query::{ListPatientsRequest, WatchRequest};
use store::{Role, VitalsBatch};
use tokio::time::timeout;

/// The bus is ahead of the store. A reading may pass before a viewer subscribes and be stored after
/// the viewer's snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_gets_what_the_store_learns_after_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("vera", Role::Viewer).await;
    ward.patient("p1", "Ada Berg", "default", "g1").await;
    let mut client = client(&ward, &cookie_of(&ward, "vera").await);
    let watch = || WatchRequest {
        patient: "p1".to_owned(),
    };
    // If the machine stalls for longer than the page waits for the store, another viewer is used.
    for sequence in 1..=6 {
        let mut stream = client.watch(watch()).await.unwrap().into_inner();
        let snapshot = |update| matches!(update, Update::Paths(_)).then_some(());
        until("the snapshot", &mut stream, snapshot).await;
        // Written to the store without the bus.
        let batch = VitalsBatch {
            samples: vec![heart_rate("p1", sequence, 71.0)],
            ..VitalsBatch::default()
        };
        let stored = ward.store.write_vitals(Arc::new(batch), Vec::new()).await;
        stored.unwrap();
        let late = until("the late reading", &mut stream, |update| match update {
            Update::Samples(update) => {
                let mut samples = update.samples.iter();
                samples.any(|it| it.sequence == sequence).then_some(())
            }
            _ => None,
        });
        if timeout(Duration::from_secs(10), late).await.is_ok() {
            return ward.end().await;
        }
    }
    panic!("no viewer got what was stored after the snapshot");
}

/// With wrong clocks of their own, pages would show all patients as silent, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_look_at_the_ward_says_what_time_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("vera", Role::Viewer).await;
    let mut client = client(&ward, &cookie_of(&ward, "vera").await);
    let before_us = contracts::now_us();
    let listed = client.list_patients(ListPatientsRequest {}).await.unwrap();
    let mut told_us = vec![listed.into_inner().now_us];
    let mut stream = client
        .watch(WatchRequest::default())
        .await
        .unwrap()
        .into_inner();
    for look in ["the first look", "the next look"] {
        let time = |update| match update {
            Update::Ward(ward) => Some(ward.now_us),
            _ => None,
        };
        told_us.push(until(look, &mut stream, time).await);
    }
    told_us.push(contracts::now_us());
    assert!(
        before_us <= told_us[0] && told_us.is_sorted(),
        "{told_us:?}"
    );
    ward.end().await;
}
