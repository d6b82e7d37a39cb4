//! For tests: a bus of which a test changes single calls, while the rest goes to an engine.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

use crate::{
    Bus, Consumer, Extent, Log, NotReady, PublishError, Record, StartAt, SubscribeError, Topic,
};

/// Every implementor is a [`Bus`].
#[async_trait]
pub trait Interposed: Send + Sync {
    fn inner(&self) -> &dyn Bus;

    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        self.inner().publish(topic, records).await
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner().subscribe(topic, group, start).await
    }

    async fn extents(&self, topic: Topic) -> Result<BTreeMap<u32, Extent>, NotReady> {
        self.inner().extents(topic).await
    }
}

#[async_trait]
impl<T: Interposed> Bus for T {
    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        Interposed::publish(self, topic, records).await
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        Interposed::subscribe(self, topic, group, start).await
    }

    async fn tail(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner().tail(topic).await
    }

    async fn read_back(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner().read_back(topic).await
    }

    async fn partitions(&self, topic: Topic) -> Result<u32, NotReady> {
        self.inner().partitions(topic).await
    }

    async fn extents(&self, topic: Topic) -> Result<BTreeMap<u32, Extent>, NotReady> {
        Interposed::extents(self, topic).await
    }

    async fn log(&self, topic: Topic, partition: u32) -> Result<Log, NotReady> {
        self.inner().log(topic, partition).await
    }

    async fn committed(&self, topic: Topic, group: &str) -> Result<BTreeMap<u32, u64>, NotReady> {
        self.inner().committed(topic, group).await
    }

    async fn ready(&self) -> Result<(), NotReady> {
        self.inner().ready().await
    }
}
