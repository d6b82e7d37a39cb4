//! Requests that wait while the disk does not answer.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use contracts::vitals::{EdgeAlert, Metric, Sample, sample::Reading};
use tokio::task::JoinHandle;

use crate::journal::{
    AppendError, Entry, Journal, Outcome, Overflow,
    test_disk::{Stopping, entries, small},
};

/// Longer than any wait here takes.
const LONG: Duration = Duration::from_secs(30);

/// Without a `sensor_sequence`, so that the journal cannot recognise a repetition.
fn reading(device: &str) -> Sample {
    Sample {
        device: device.into(),
        metric: Metric::HeartRate.into(),
        device_time_us: 1_800_000_000_000_000,
        gateway_time_us: 1_800_000_000_000_000,
        reading: Some(Reading::Value(72.0)),
        ..Sample::default()
    }
}

type Answer = Result<Vec<Outcome>, AppendError>;

fn send(journal: &Journal<Stopping>, device: &str) -> JoinHandle<Answer> {
    let (journal, sample) = (journal.clone(), reading(device));
    tokio::spawn(async move { journal.append(vec![sample], None).await })
}

fn try_send(journal: &Journal<Stopping>, device: &str) -> JoinHandle<Answer> {
    let (journal, sample) = (journal.clone(), reading(device));
    tokio::spawn(async move { journal.try_append(vec![sample], None).await })
}

fn stored(journal: &Journal<Stopping>, device: &str) -> usize {
    let entries = entries(journal);
    let of_device = |entry: &&Entry| match entry {
        Entry::Sample(sample) => sample.device == device,
        Entry::Alert(alert) => alert.device == device,
        Entry::Gaps(_) => false,
    };
    entries.iter().filter(of_device).count()
}

async fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reading_that_was_refused_is_stored_only_when_it_is_sent_again() {
    let disk = Stopping::new(7);
    let journal = small(disk.clone(), "vitals", Overflow::DropOldest);
    disk.stop(true);
    let being_written = send(&journal, "being-written");
    until(|| disk.holds_a_sync()).await;
    let waiting = [send(&journal, "patient"), try_send(&journal, "impatient")];
    let alerts = {
        let (journal, device) = (journal.clone(), "ill".to_owned());
        let alert = EdgeAlert {
            device,
            ..EdgeAlert::default()
        };
        tokio::spawn(async move { journal.append_alerts(vec![alert]).await })
    };
    // This sensor closes its connection without an answer, once its request is in the queue.
    let mut gone = Box::pin(journal.append(vec![reading("gone")], None));
    assert!(futures::poll!(&mut gone).is_pending());
    drop(gone);

    let answer = being_written.await.unwrap().unwrap_err();
    assert!(matches!(answer, AppendError::Unconfirmed), "{answer}");
    for waiting in waiting {
        let answer = waiting.await.unwrap().unwrap_err();
        assert!(matches!(answer, AppendError::Stalled), "{answer}");
    }
    let answer = alerts.await.unwrap().unwrap_err();
    assert!(matches!(answer, AppendError::Unconfirmed), "{answer}");

    disk.stop(false);
    until(|| journal.trouble().is_none()).await;
    for device in ["being-written", "patient", "impatient"] {
        send(&journal, device).await.unwrap().unwrap();
    }
    // It was written for the first time when its sensor was refused.
    assert_eq!(stored(&journal, "being-written"), 2);
    for device in ["patient", "impatient", "gone", "ill"] {
        assert_eq!(stored(&journal, device), 1, "{device}");
    }
}
