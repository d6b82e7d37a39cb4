//! The thread that owns a [`Log`], and the handle for the rest of the gateway.
//!
//! Group commit: the thread takes every request that has gathered during the sync of the previous
//! batch. It makes them durable with one append and one `fsync`, and only then answers. An
//! acknowledgement of the core is written with the next batch; alone it waits up to
//! ACKNOWLEDGE_INTERVAL, since its loss costs only a repeated upload.
//!
//! A caller that has waited too long for a stalled disk takes its samples back, unless they are
//! staged. Its sensor sends them again. Two requests are stored all the same, since nobody may
//! send them again. One is of a caller that went away without an answer. The other has alerts: the
//! rules raise them once, and the core merges repetitions.

use std::{
    io,
    net::IpAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use contracts::vitals::{EdgeAlert, LedgerStream, Sample};
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{
    claim::Claim,
    disk::Disk,
    log::{Limits, Log, StageError, Staged},
    reader::Reader,
    recovery::{OpenError, Summary},
};

/// Requests that wait for the writer; at the bound `try_` calls are refused as busy, the others
/// wait.
const QUEUE_REQUESTS_MAX: usize = 1024;
/// Bytes at which a batch is committed before further requests are taken.
const BATCH_BYTES_MAX: usize = 1 << 20;
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_secs(1);
/// A disk that takes longer for a batch has stalled. A worn flash disk pauses for a second or two.
pub const STALLED_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Safe to retry.
    #[error("{QUEUE_REQUESTS_MAX} requests already wait for the disk")]
    Busy,
    /// No sample of the request was stored; safe to retry.
    #[error("the journal cannot write: {0}")]
    Storage(Arc<io::Error>),
    /// No sample of the request is stored; safe to retry.
    #[error("the disk has not answered a write for {} s", STALLED_AFTER.as_secs())]
    Stalled,
    /// The entries of the request may be stored later.
    #[error(
        "the disk has not answered a write for {} s; it may still store this request",
        STALLED_AFTER.as_secs()
    )]
    Unconfirmed,
    #[error("the journal is closed")]
    Closed,
}

pub type Outcome = Result<Staged, StageError>;

enum Entries {
    Samples(Vec<Sample>, Option<IpAddr>, Claim),
    Alerts(Vec<EdgeAlert>),
}

enum Request {
    Append(Entries, oneshot::Sender<Result<Vec<Outcome>, AppendError>>),
    Acknowledge(u64),
    GiveUp(u64, oneshot::Sender<()>),
    Ledger(oneshot::Sender<(u64, Vec<LedgerStream>)>),
    Close,
}

/// The thread's state, for readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Writable,
    Failing(String),
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Label of the metrics and name of the thread: `vitals` or `alerts`.
    pub class: &'static str,
    pub limits: Limits,
    /// Wait for further requests before each commit: fewer syncs on flash, later answers.
    pub gather: Duration,
}

pub struct Journal<D> {
    requests: mpsc::Sender<Request>,
    reader: Reader<D>,
    durable: watch::Receiver<u64>,
    condition: watch::Receiver<Condition>,
    batch_since: BatchSince,
    ended: watch::Receiver<bool>,
    bytes_max: u64,
}

/// Since when the thread has been at its batch.
type BatchSince = Arc<Mutex<Option<Instant>>>;

impl<D: Clone> Clone for Journal<D> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
            reader: self.reader.clone(),
            durable: self.durable.clone(),
            condition: self.condition.clone(),
            batch_since: Arc::clone(&self.batch_since),
            ended: self.ended.clone(),
            bytes_max: self.bytes_max,
        }
    }
}

impl<D: Disk> Journal<D> {
    /// Recovers the journal and starts its thread. Reads all waiting entries from the disk, so it
    /// must be called where blocking is permitted.
    pub fn open(disk: D, options: Options) -> Result<(Self, Summary), OpenError> {
        let (log, summary) = Log::open(disk, options.limits)?;
        metrics::counter!("braid_gateway_journal_damaged_segments_total", "class" => options.class)
            .increment(summary.damaged_segments as u64);
        let (requests, queue) = mpsc::channel(QUEUE_REQUESTS_MAX);
        let reader = log.reader();
        let (durable, durable_seen) = watch::channel(reader.durable());
        let (condition, condition_seen) = watch::channel(Condition::Writable);
        let (ended, ended_seen) = watch::channel(false);
        let batch_since = BatchSince::default();
        let writer = Writer {
            log,
            options,
            durable,
            condition,
            batch_since: Arc::clone(&batch_since),
            ended,
            acknowledged: None,
        };
        thread::Builder::new()
            .name(format!("journal-{}", options.class))
            .spawn(move || writer.run(queue))
            .map_err(OpenError::from)?;
        let journal = Self {
            requests,
            reader,
            durable: durable_seen,
            condition: condition_seen,
            batch_since,
            ended: ended_seen,
            bytes_max: options.limits.bytes_max,
        };
        Ok((journal, summary))
    }

    /// Durable entries that the core has not acknowledged.
    pub fn waiting(&self) -> u64 {
        self.reader.durable().saturating_sub(self.reader.head())
    }

    /// Share of its bound that the journal holds, in thousandths.
    pub fn filled_permille(&self) -> u32 {
        let permille = self.reader.bytes().saturating_mul(1000) / self.bytes_max.max(1);
        u32::try_from(permille).unwrap_or(u32::MAX)
    }

    /// Answers once the samples are on disk, with one outcome each; waits while the queue is full.
    pub async fn append(
        &self,
        samples: Vec<Sample>,
        from: Option<IpAddr>,
    ) -> Result<Vec<Outcome>, AppendError> {
        let claim = Claim::default();
        let entries = Entries::Samples(samples, from, claim.clone());
        self.unless_stalled(self.send(entries), || claim.take())
            .await
    }

    /// The same, but refused at once while the queue is full.
    pub async fn try_append(
        &self,
        samples: Vec<Sample>,
        from: Option<IpAddr>,
    ) -> Result<Vec<Outcome>, AppendError> {
        let claim = Claim::default();
        let entries = Entries::Samples(samples, from, claim.clone());
        let answered = async {
            let (reply, outcome) = oneshot::channel();
            self.requests
                .try_send(Request::Append(entries, reply))
                .map_err(|error| match error {
                    mpsc::error::TrySendError::Full(_) => AppendError::Busy,
                    mpsc::error::TrySendError::Closed(_) => AppendError::Closed,
                })?;
            outcome.await.map_err(|_| AppendError::Closed)?
        };
        self.unless_stalled(answered, || claim.take()).await
    }

    /// Alerts that have reached the queue are stored, also when the answer is an error.
    pub async fn append_alerts(&self, alerts: Vec<EdgeAlert>) -> Result<Vec<Outcome>, AppendError> {
        let answered = self.send(Entries::Alerts(alerts));
        self.unless_stalled(answered, || false).await
    }

    async fn send(&self, entries: Entries) -> Result<Vec<Outcome>, AppendError> {
        let (reply, outcome) = oneshot::channel();
        let request = Request::Append(entries, reply);
        let sent = self.requests.send(request).await;
        sent.map_err(|_| AppendError::Closed)?;
        outcome.await.map_err(|_| AppendError::Closed)?
    }

    /// While the disk stalls, nothing is added to the requests that wait for it. `take_back`:
    /// whether the caller gets its entries back, so that they are not stored.
    async fn unless_stalled(
        &self,
        answered: impl Future<Output = Result<Vec<Outcome>, AppendError>>,
        take_back: impl FnOnce() -> bool,
    ) -> Result<Vec<Outcome>, AppendError> {
        if self.stalled_for().is_some() {
            return Err(AppendError::Stalled);
        }
        match timeout(STALLED_AFTER, answered).await {
            Ok(answer) => answer,
            Err(_) if take_back() => Err(AppendError::Stalled),
            Err(_) => Err(AppendError::Unconfirmed),
        }
    }

    /// How long the disk has not answered, if it has stalled.
    fn stalled_for(&self) -> Option<Duration> {
        let since = *self.batch_since.lock();
        since
            .map(|since| since.elapsed())
            .filter(|elapsed| *elapsed >= STALLED_AFTER)
    }

    /// Why the journal takes no writes now, as far as that is known.
    pub fn trouble(&self) -> Option<String> {
        if let Some(time) = self.stalled_for() {
            let seconds = time.as_secs();
            return Some(format!("the disk has not answered a write for {seconds} s"));
        }
        match &*self.condition.borrow() {
            Condition::Writable => None,
            Condition::Failing(reason) => Some(reason.clone()),
        }
    }

    /// The core has everything before `position`. False: the journal cannot note it now, and is to
    /// be told again. A closed journal notes nothing, and the entries are sent again after the
    /// restart.
    pub fn acknowledge(&self, position: u64) -> bool {
        let noted = self.requests.try_send(Request::Acknowledge(position));
        !matches!(noted, Err(mpsc::error::TrySendError::Full(_)))
    }

    /// The entry at `position` is damaged. Returns once reading continues after the damage and the
    /// loss is on disk as gaps, or the disk has refused that.
    pub async fn give_up(&self, position: u64) {
        let (done, is_done) = oneshot::channel();
        // A closed journal finds the damage when it is opened again.
        let _ = self.requests.send(Request::GiveUp(position, done)).await;
        let _ = is_done.await;
    }

    /// The journal's number, and the sequences of everything that was appended before. `None`: the
    /// journal is closed or its disk has stalled.
    pub async fn ledger(&self) -> Option<(u64, Vec<LedgerStream>)> {
        let (reply, ledger) = oneshot::channel();
        let asked = self.requests.send(Request::Ledger(reply));
        timeout(STALLED_AFTER, asked).await.ok()?.ok()?;
        timeout(STALLED_AFTER, ledger).await.ok()?.ok()
    }

    pub fn reader(&self) -> &Reader<D> {
        &self.reader
    }

    /// Position after the newest durable entry, as it grows.
    pub fn durable(&self) -> watch::Receiver<u64> {
        self.durable.clone()
    }

    pub fn condition(&self) -> watch::Receiver<Condition> {
        self.condition.clone()
    }

    /// Answers queued requests, writes the last acknowledgement, ends the thread and waits for its
    /// end, for at most `STALLED_AFTER`.
    pub async fn close(&self) {
        let closed = async {
            let _ = self.requests.send(Request::Close).await;
            let mut ended = self.ended.clone();
            let _ = ended.wait_for(|ended| *ended).await;
        };
        if timeout(STALLED_AFTER, closed).await.is_err() {
            tracing::error!("the disk does not answer; its last writes are not confirmed");
        }
    }
}

struct Writer<D: Disk> {
    log: Log<D>,
    options: Options,
    durable: watch::Sender<u64>,
    condition: watch::Sender<Condition>,
    batch_since: BatchSince,
    ended: watch::Sender<bool>,
    /// Time of the oldest acknowledgement that is not on disk yet.
    acknowledged: Option<Instant>,
}

type Waiting = (
    oneshot::Sender<Result<Vec<Outcome>, AppendError>>,
    Vec<Outcome>,
);

impl<D: Disk> Writer<D> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the thread is the journal's own, no runtime's"
    )]
    fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        let mut open = true;
        self.measure();
        while open {
            let Some(mut request) = queue.blocking_recv() else {
                break;
            };
            *self.batch_since.lock() = Some(Instant::now());
            if !self.options.gather.is_zero() && matches!(request, Request::Append(..)) {
                thread::sleep(self.options.gather);
            }
            let mut waiting = Vec::new();
            let mut given_up = None;
            let mut ledger = None;
            loop {
                match request {
                    Request::Append(entries, reply) => {
                        if let Some(outcomes) = self.stage(entries) {
                            waiting.push((reply, outcomes));
                        }
                    }
                    Request::Acknowledge(position) => self.acknowledge(position),
                    Request::GiveUp(position, done) => {
                        // After the batch.
                        given_up = Some((position, done));
                        break;
                    }
                    Request::Ledger(reply) => {
                        // After the batch, which may fail and give its sequences back.
                        ledger = Some(reply);
                        break;
                    }
                    Request::Close => open = false,
                }
                if self.log.batch_bytes() >= BATCH_BYTES_MAX {
                    break;
                }
                match queue.try_recv() {
                    Ok(next) => request = next,
                    Err(_) => break,
                }
            }
            let acknowledged_long_ago = self
                .acknowledged
                .is_some_and(|since| since.elapsed() >= ACKNOWLEDGE_INTERVAL);
            if !waiting.is_empty() || acknowledged_long_ago || !open {
                self.commit(waiting);
            }
            if let Some(reply) = ledger {
                // A courier that has gone needs none.
                let _ = reply.send(self.log.ledger());
            }
            if let Some((position, done)) = given_up {
                self.give_up(position);
                // A courier that has gone asks again.
                let _ = done.send(());
            }
            *self.batch_since.lock() = None;
        }
        // Requests after the close get an error by their dropped reply channels.
        self.commit(Vec::new());
        drop(queue);
        drop(self.log);
        self.ended.send_replace(true);
    }

    /// None: the caller has taken the samples back.
    fn stage(&mut self, entries: Entries) -> Option<Vec<Outcome>> {
        let outcomes = match entries {
            Entries::Samples(_, _, claim) if !claim.take() => return None,
            Entries::Samples(samples, from, _) => samples
                .into_iter()
                .map(|mut sample| self.log.stage_sample(&mut sample, from))
                .collect(),
            Entries::Alerts(alerts) => alerts
                .into_iter()
                .map(|mut alert| self.log.stage_alert(&mut alert))
                .collect(),
        };
        Some(outcomes)
    }

    fn acknowledge(&mut self, position: u64) {
        self.acknowledged.get_or_insert_with(Instant::now);
        if let Err(error) = self.log.acknowledge(position) {
            tracing::warn!(%error, class = self.options.class, "cannot remove a delivered segment; will try again");
        }
    }

    fn give_up(&mut self, position: u64) {
        if let Err(error) = self.log.give_up(position) {
            tracing::error!(%error, class = self.options.class, "cannot continue after the damage; will try again");
        } else {
            metrics::counter!("braid_gateway_journal_damaged_segments_total", "class" => self.options.class)
                .increment(1);
        }
        self.durable.send_replace(self.log.reader().durable());
        self.measure();
    }

    fn commit(&mut self, waiting: Vec<Waiting>) {
        let class = self.options.class;
        let dropped_before = self.log.dropped_entries();
        let start = Instant::now();
        let committed = self.log.commit().map_err(Arc::new);
        metrics::histogram!("braid_gateway_journal_commit_seconds", "class" => class)
            .record(start.elapsed().as_secs_f64());
        match &committed {
            Ok(()) => {
                self.acknowledged = None;
                self.durable.send_replace(self.log.reader().durable());
                self.set_condition(Condition::Writable);
                let taken: usize = waiting
                    .iter()
                    .flat_map(|(_, outcomes)| outcomes)
                    .filter(|outcome| matches!(outcome, Ok(Staged::New { .. })))
                    .count();
                metrics::counter!("braid_gateway_journal_entries_total", "class" => class)
                    .increment(taken as u64);
            }
            Err(error) => self.set_condition(Condition::Failing(error.to_string())),
        }
        if let Some(StageError::Storage(error)) = waiting
            .iter()
            .flat_map(|(_, outcomes)| outcomes)
            .find_map(|outcome| outcome.as_ref().err())
        {
            self.set_condition(Condition::Failing(error.to_string()));
        }
        let dropped = self.log.dropped_entries() - dropped_before;
        if dropped > 0 {
            tracing::warn!(
                class,
                entries = dropped,
                "the journal is full: dropped the oldest entries"
            );
            metrics::counter!("braid_gateway_journal_dropped_entries_total", "class" => class)
                .increment(dropped);
        }
        self.measure();
        for (reply, outcomes) in waiting {
            // The samples of a requester that went away are in the journal all the same.
            let _ = reply.send(match &committed {
                Ok(()) => Ok(outcomes),
                Err(error) => Err(AppendError::Storage(Arc::clone(error))),
            });
        }
    }

    fn set_condition(&self, condition: Condition) {
        self.condition.send_if_modified(|current| {
            let changed = *current != condition;
            *current = condition;
            changed
        });
    }

    fn measure(&self) {
        let class = self.options.class;
        let reader = self.log.reader();
        metrics::gauge!("braid_gateway_journal_bytes", "class" => class).set(reader.bytes() as f64);
        metrics::gauge!("braid_gateway_journal_limit_bytes", "class" => class)
            .set(self.options.limits.bytes_max as f64);
        metrics::gauge!("braid_gateway_journal_waiting_entries", "class" => class)
            .set(reader.durable().saturating_sub(reader.head()) as f64);
    }
}
