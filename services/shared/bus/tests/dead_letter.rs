//! A record that nobody can process is kept before anybody goes past it.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use bus::{
    Bus, Delivery, EmbeddedBus, EmbeddedOptions, Event, Interposed, PublishError, Record, Topic,
    dead_letter,
};
use bytes::Bytes;

/// Does not answer the next so many publications.
struct Away {
    inner: EmbeddedBus,
    left: AtomicU32,
}

#[async_trait]
impl Interposed for Away {
    fn inner(&self) -> &dyn Bus {
        &self.inner
    }

    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        let one_less = |left: u32| left.checked_sub(1);
        if self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
        {
            return Err(PublishError::Unavailable("away".into()));
        }
        self.inner.publish(topic, records).await
    }
}

fn away(dir: &tempfile::TempDir, times: u32) -> Away {
    Away {
        inner: EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap(),
        left: AtomicU32::new(times),
    }
}

fn poison() -> Delivery {
    Delivery {
        topic: Topic::Vitals,
        partition: 3,
        offset: 41,
        key: "p".into(),
        value: Bytes::from_static(b"\xff"),
        headers: Vec::new(),
        published_us: 0,
    }
}

#[tokio::test]
async fn a_record_is_kept_once_the_bus_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let bus = away(&dir, 1);
    let never = std::future::pending();
    assert!(dead_letter::bury(&bus, &poison(), "rules", "no sense", never).await);
    let mut kept = bus.read_back(Topic::DeadLetters).await.unwrap();
    let Event::Batch(letters) = kept.next(10).await.unwrap() else {
        panic!("no batch");
    };
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].value, poison().value);
    let header = |name: &str| {
        let mut headers = letters[0].headers.iter();
        headers
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.clone())
    };
    assert_eq!(header(dead_letter::REASON), Some("no sense".into()));
    assert_eq!(header(dead_letter::OFFSET), Some("41".into()));
}

#[tokio::test]
async fn who_ends_while_the_bus_is_away_is_told_that_it_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let bus = away(&dir, u32::MAX);
    let at_once = std::future::ready(());
    assert!(!dead_letter::bury(&bus, &poison(), "rules", "no sense", at_once).await);
    let mut kept = bus.inner.read_back(Topic::DeadLetters).await.unwrap();
    assert_eq!(kept.lag().await.unwrap(), 0);
}
