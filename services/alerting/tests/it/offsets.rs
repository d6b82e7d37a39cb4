//! Offsets are reported to the bus for its metrics only. No alert waits for them.

use std::{future::pending, sync::Arc};

use crate::stage::{LIMIT, S, World, pulses};
use async_trait::async_trait;
use bus::{
    Bus, CommitError, ConsumeError, Consumer, Event, Interposed, StartAt, SubscribeError, Topic,
};
use contracts::alerts::AlertState;
use service_kit::Secret;
use store::Scope;

/// A bus whose group coordinator has died: records come, but commits and offset queries get no
/// answer.
struct Uncommitted(Arc<dyn Bus>);

struct Member(Box<dyn Consumer>);

#[async_trait]
impl Consumer for Member {
    async fn next(&mut self, max_records: usize) -> Result<Event, ConsumeError> {
        self.0.next(max_records).await
    }

    async fn commit(&mut self, _: &[(u32, u64)]) -> Result<(), CommitError> {
        pending().await
    }

    fn renew(&mut self, partitions: &[u32]) {
        self.0.renew(partitions);
    }

    async fn lag(&mut self) -> Result<u64, ConsumeError> {
        pending().await
    }
}

#[async_trait]
impl Interposed for Uncommitted {
    fn inner(&self) -> &dyn Bus {
        &*self.0
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        let member = self.0.subscribe(topic, group, start).await?;
        Ok(Box::new(Member(member)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_alert_waits_for_a_commit() {
    let mut world = World::new();
    world.bus = Arc::new(Uncommitted(Arc::clone(&world.bus)));
    let running = world.start_with(|config| {
        config.people.webhook = Some(Secret::new("http://127.0.0.1:1/hook"));
    });
    // One after the other, so that there is something to commit in between.
    for patient in ["ann", "ben"] {
        let readings = pulses(patient, 1, contracts::now_us() - 30 * S, &[150.0; 15]);
        world.publish(patient, readings).await;
        let raised = world.alert_of(patient, "heart-rate-very-high", AlertState::Active);
        let alert = raised.await;
        let told = async {
            while world
                .store
                .notices(&Scope::Service, &alert.id)
                .await
                .unwrap()
                .is_empty()
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        let told = tokio::time::timeout(LIMIT, told).await;
        told.unwrap_or_else(|_| panic!("nobody is told of {patient}"));
    }
    running.stop().await;
}
