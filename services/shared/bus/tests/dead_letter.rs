//! A record that nobody can process is kept before anybody goes past it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use bus::{
    Bus, Consumer, Delivery, EmbeddedBus, EmbeddedOptions, Event, NotReady, PublishError, Record,
    StartAt, SubscribeError, Topic, dead_letter,
};
use bytes::Bytes;

/// Does not answer the next so many publications.
struct Away {
    inner: EmbeddedBus,
    left: AtomicU32,
}

#[async_trait]
impl Bus for Away {
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

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner.subscribe(topic, group, start).await
    }

    async fn tail(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner.tail(topic).await
    }

    async fn read_back(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner.read_back(topic).await
    }

    async fn partitions(&self, topic: Topic) -> Result<u32, NotReady> {
        self.inner.partitions(topic).await
    }

    async fn extents(
        &self,
        topic: Topic,
    ) -> Result<std::collections::BTreeMap<u32, bus::Extent>, NotReady> {
        self.inner.extents(topic).await
    }

    async fn committed(
        &self,
        topic: Topic,
        group: &str,
    ) -> Result<std::collections::BTreeMap<u32, u64>, NotReady> {
        self.inner.committed(topic, group).await
    }

    async fn ready(&self) -> Result<(), NotReady> {
        self.inner.ready().await
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
