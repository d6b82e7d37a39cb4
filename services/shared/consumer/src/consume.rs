//! Runs a [`Sink`] on a topic: carries out what [`Work`] commands.

use std::{
    ops::Deref,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, Delivery, Event, dead_letter};
use consumer_health::{Duty, Level, Own, Pace};
use service_kit::{Backoff, Context, ProgressHandle};
use store::{Claims, Store};
use tokio::time::{Interval, MissedTickBehavior, timeout};

use crate::{
    Answer, Away, Done, Sink,
    account::Account,
    gaps::Gaps,
    halves,
    work::{Command, Work},
};

/// Interval of commits, and of the search for lost claims.
const TICK: Duration = Duration::from_secs(1);
/// A commit that takes longer is cut short: the bus needs it for its figures only.
const COMMIT_WITHIN: Duration = Duration::from_millis(250);
/// A loop without a turn for so long counts as stalled.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub struct Setup {
    /// Names topic and group, where positions are kept, and how the health is reported.
    pub duty: Duty,
    /// Effect of a standstill on the readiness of the service. `None`: the health of the group is
    /// watched elsewhere.
    pub level: Option<Level>,
    /// Name of the loop in `/healthz`.
    pub turns: &'static str,
    /// Records taken from the bus at once; more wait there.
    pub records_max: usize,
    /// A batch of so many records is two transactions at once, of different partitions.
    pub two_transactions_from: Option<usize>,
    pub tick: Duration,
    pub silence_max: Duration,
}

impl Setup {
    pub fn new(duty: Duty, level: Level, turns: &'static str, records_max: usize) -> Setup {
        Setup {
            duty,
            level: Some(level),
            turns,
            records_max,
            two_transactions_from: None,
            tick: TICK,
            silence_max: SILENCE_MAX,
        }
    }
}

/// One member of a group.
pub struct Consumer {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    account: Account,
    gaps: Gaps,
    setup: Setup,
    /// Beats with each write, too: a store that is away is no reason for a restart.
    turns: Arc<ProgressHandle>,
    context: Context,
}

impl Consumer {
    pub fn new(
        bus: Arc<dyn Bus>,
        store: Arc<dyn Store>,
        setup: Setup,
        context: Context,
    ) -> Consumer {
        let account = Account::new(setup.duty, Arc::clone(&bus), Arc::clone(&store));
        let gaps = Gaps::new(setup.duty, Arc::clone(&store), &context);
        let turns = context.health().progress(setup.turns, setup.silence_max);
        Consumer {
            bus,
            store,
            account,
            gaps,
            setup,
            turns: Arc::new(turns),
            context,
        }
    }

    /// For a sink that writes progress besides that of the batch in hand.
    pub fn claims(&self) -> Arc<Claims<dyn Store>> {
        self.account.claims()
    }

    /// For a sink whose calls last longer than one write.
    pub fn turns(&self) -> Arc<ProgressHandle> {
        Arc::clone(&self.turns)
    }

    /// Consumes until shutdown is requested. The health of the group is watched beside it.
    pub async fn run(self, sink: impl Sink) {
        if let Some(level) = self.setup.level {
            let claims = Some(self.account.claims());
            self.context.tasks().spawn(consumer_health::watch(
                Arc::clone(&self.bus),
                Arc::clone(&self.store),
                Own::duty(self.setup.duty, level, claims),
                Pace::default(),
                self.context.clone(),
            ));
        }
        Member {
            consumer: self,
            sink,
        }
        .run()
        .await;
    }
}

/// A consumer at work.
struct Member<S> {
    consumer: Consumer,
    sink: S,
}

impl<S> Deref for Member<S> {
    type Target = Consumer;

    fn deref(&self) -> &Consumer {
        &self.consumer
    }
}

impl<S: Sink> Member<S> {
    async fn run(&self) {
        let mut tick = tokio::time::interval(self.setup.tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut backoff = Backoff::for_reconnect();
        while !self.context.shutdown().is_requested() {
            self.turns.beat();
            let Duty { topic, group, .. } = self.setup.duty;
            let start = self.account.start();
            match self.bus.subscribe(topic, group, start).await {
                Ok(consumer) => {
                    self.sink.on_well();
                    self.follow(consumer, &mut tick, &mut backoff).await;
                    return self.sink.on_end().await;
                }
                Err(error) => {
                    self.sink.on_away(Away::Bus(&error.to_string()));
                    if !self.pause(backoff.next_delay()).await {
                        return;
                    }
                }
            }
        }
    }

    /// Returns when the service ends. A member stays in its group while an engine is away: leaving
    /// would cost the group a rebalance at every try.
    async fn follow(
        &self,
        mut consumer: Box<dyn bus::Consumer>,
        tick: &mut Interval,
        backoff: &mut Backoff,
    ) {
        loop {
            self.turns.beat();
            let event = tokio::select! {
                // The end comes first: behind a batch that it cut short nothing may be written.
                biased;
                () = self.context.shutdown().requested() => return,
                _ = tick.tick() => {
                    self.on_tick(&mut *consumer).await;
                    continue;
                }
                event = consumer.next(self.setup.records_max) => event,
            };
            match event {
                Ok(event) => {
                    backoff.reset();
                    self.sink.on_well();
                    if !self.on_event(event).await {
                        return;
                    }
                }
                Err(error) => {
                    self.sink.on_away(Away::Bus(&error.to_string()));
                    if !self.pause(backoff.next_delay()).await {
                        return;
                    }
                }
            }
        }
    }

    async fn on_tick(&self, consumer: &mut dyn bus::Consumer) {
        consumer.renew(&self.account.to_renew());
        if self.gaps.look(self.context.clock().now_us()).await {
            self.sink.on_another_log().await;
        }
        self.sink.on_tick(consumer).await;
        let reached = self.account.to_commit();
        match timeout(COMMIT_WITHIN, consumer.commit(&reached)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::debug!(%error, "offsets not committed"),
            Err(_) => tracing::debug!("offsets not committed yet"),
        }
        self.account.not_committed(reached);
    }

    /// False: the service ends.
    async fn on_event(&self, event: Event) -> bool {
        let group = self.setup.duty.group;
        match event {
            Event::Assigned(partitions) => {
                tracing::info!(group, partitions = bus::listed(&partitions), "assigned");
                self.gaps.on_assigned();
                self.sink.on_assigned(&partitions).await;
            }
            Event::Revoked(partitions) => {
                tracing::info!(group, partitions = bus::listed(&partitions), "revoked");
                self.account.forget(&partitions);
                self.sink.on_lost(&partitions).await;
            }
            Event::Batch(deliveries) => return self.on_batch(deliveries).await,
        }
        true
    }

    /// False: the service ends before the batch is done, and nothing behind it may be written.
    async fn on_batch(&self, mut deliveries: Vec<Delivery>) -> bool {
        deliveries.retain(|it| self.account.holds(it.partition));
        let published_us = deliveries.iter().map(|it| it.published_us);
        let (Some(first_us), Some(newest_us)) = (published_us.clone().next(), published_us.max())
        else {
            return true;
        };
        self.account.on_read(&deliveries);
        let (records, started) = (deliveries.len(), Instant::now());
        let [one, other] = halves::divide(deliveries, self.setup.two_transactions_from);
        let done = tokio::join!(self.on_part(one), self.on_part(other));
        if done != (true, true) {
            return false;
        }
        let done = Done {
            records,
            first_us,
            newest_us,
            took: started.elapsed(),
        };
        self.sink.on_done(done).await;
        true
    }

    /// False: the service ends before the part is done.
    async fn on_part(&self, deliveries: Vec<Delivery>) -> bool {
        let mut work = Work::new(&self.sink, deliveries);
        loop {
            match work.command() {
                Command::Done => return true,
                Command::Bury { delivery, reason } => {
                    if !self.bury(&delivery, &reason).await {
                        return false;
                    }
                }
                Command::Lost(partitions) => {
                    let lost = bus::listed(&partitions);
                    tracing::info!(partitions = lost, "another member has taken over");
                    self.account.fenced(&partitions);
                    self.sink.on_lost(&partitions).await;
                }
                Command::PassOver(reason) => {
                    tracing::error!(reason, "progress cannot be stored");
                }
                Command::Pause(delay, reason) => {
                    self.sink.on_away(Away::Store(&reason));
                    if !self.pause(delay).await {
                        return false;
                    }
                }
                Command::Write { batch, reached } => {
                    if !self.write(&mut work, batch, &reached).await {
                        return false;
                    }
                }
            }
        }
    }

    /// False: the service ends, and nothing was written.
    async fn write(
        &self,
        work: &mut Work<'_, S>,
        batch: Arc<S::Batch>,
        reached: &[(u32, u64)],
    ) -> bool {
        self.turns.beat();
        let partitions = reached.iter().map(|(partition, _)| *partition);
        let lost = partitions.filter(|partition| !self.account.holds(*partition));
        let lost: Vec<u32> = lost.collect();
        if !lost.is_empty() {
            // Rows without the fence of their partition must not be written.
            work.lose(&lost);
            return true;
        }
        let progress = self.account.progress_to(reached);
        let answer = self.sink.write(batch, &progress).await;
        match &answer {
            Answer::Ended => return false,
            Answer::Stored => {
                self.account.stored(&progress, reached);
                self.sink.on_well();
            }
            Answer::Refused(reason) => {
                let group = self.setup.duty.group;
                tracing::error!(group, reason, "the store refuses rows");
            }
            _ => {}
        }
        work.on_answer(answer);
        true
    }

    /// False when the service ends before the record is kept.
    async fn bury(&self, delivery: &Delivery, reason: &str) -> bool {
        let ending = self.context.shutdown().requested();
        dead_letter::bury(&*self.bus, delivery, self.setup.duty.group, reason, ending).await
    }

    /// False when the service ends meanwhile.
    async fn pause(&self, delay: Duration) -> bool {
        tokio::select! {
            () = self.context.shutdown().requested() => false,
            () = tokio::time::sleep(delay) => true,
        }
    }
}
