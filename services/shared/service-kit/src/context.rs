//! The surroundings of one running service.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clocks::CheckedClock;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Health;
use crate::path_table::{PathTable, ServicePaths};
use crate::qlog::Recorder;
use crate::shutdown::Shutdown;
use crate::wrong::{Level, Wrong};

/// Time for a service to finish after shutdown was requested; remaining tasks are then dropped.
/// Nothing acknowledged lives in memory only, so no data is lost.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(4);

/// Readiness check that fails until the service has announced a listener.
pub const LISTENER: &str = "listener";

/// A source of further faults, beside the checks, warnings and loops of the service.
pub type AlsoWrong = Arc<dyn Fn() -> Vec<Wrong> + Send + Sync>;

/// One per running service; clones belong to the same service.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    noun: &'static str,
    clock: CheckedClock,
    shutdown: Shutdown,
    ended: CancellationToken,
    health: Health,
    listeners: watch::Sender<HashMap<&'static str, SocketAddr>>,
    tasks: TaskTracker,
    paths: Mutex<Option<PathTable>>,
    recorder: Mutex<Option<Arc<Recorder>>>,
    /// As many as the program text has calls of [`Context::also`].
    also: Mutex<Vec<AlsoWrong>>,
}

impl Context {
    pub fn new(noun: &'static str) -> Context {
        Context::with_clock(noun, CheckedClock::of_machine())
    }

    /// A context with its own clock, for tests of wrong clocks.
    pub fn with_clock(noun: &'static str, clock: CheckedClock) -> Context {
        Context {
            inner: Arc::new(Inner {
                noun,
                clock,
                shutdown: Shutdown::new(),
                ended: CancellationToken::new(),
                health: Health::new(),
                listeners: watch::Sender::new(HashMap::new()),
                tasks: TaskTracker::new(),
                paths: Mutex::default(),
                recorder: Mutex::default(),
                also: Mutex::default(),
            }),
        }
    }

    pub fn noun(&self) -> &'static str {
        self.inner.noun
    }

    /// The service's clock; [`crate::own_clock::watch`] checks it each second.
    pub fn clock(&self) -> &CheckedClock {
        &self.inner.clock
    }

    pub fn shutdown(&self) -> &Shutdown {
        &self.inner.shutdown
    }

    pub fn health(&self) -> &Health {
        &self.inner.health
    }

    /// Adds a source of faults. It must not call [`Context::wrong`] of this context.
    pub fn also(&self, source: AlsoWrong) {
        self.inner.also.lock().push(source);
    }

    /// The faults that the service itself finds, and those of the sources that were added.
    pub fn wrong(&self, now: Instant) -> Vec<Wrong> {
        let sources = self.inner.also.lock().clone();
        let mut all = self.own_wrong(now);
        all.extend(sources.iter().flat_map(|source| source()));
        all
    }

    /// The faults that the service itself finds.
    pub fn own_wrong(&self, now: Instant) -> Vec<Wrong> {
        let service = self.noun();
        let of = |name: &'static str, level, says| Wrong {
            service,
            name: name.into(),
            level,
            says,
            to_do: String::new(),
        };
        let stalled = self.health().stalled(now).into_iter();
        let mut all: Vec<Wrong> = stalled
            .map(|(name, silence)| {
                let says = format!("no beat for {} s", silence.as_secs());
                of(name, Level::Stalled, says)
            })
            .collect();
        if self.shutdown().is_requested() {
            all.push(of(
                crate::wrong::SHUTDOWN,
                Level::Failing,
                "draining".to_owned(),
            ));
        }
        let failing = self.health().failing().into_iter();
        all.extend(failing.map(|(name, reason)| of(name, Level::Failing, reason)));
        let warnings = self.health().warnings().into_iter();
        all.extend(warnings.map(|(name, warning)| Wrong::warning(service, name, warning)));
        all
    }

    pub fn tasks(&self) -> &TaskTracker {
        &self.inner.tasks
    }

    /// Announces a bound listener, such as `"grpc"` or `"http"`; passes the check [`LISTENER`] if
    /// it was registered.
    pub fn listening(&self, what: &'static str, address: SocketAddr) {
        self.health().passed(LISTENER);
        tracing::info!(service = self.inner.noun, what, %address, "listening");
        self.inner.listeners.send_modify(|listeners| {
            listeners.insert(what, address);
        });
    }

    /// Serves this table at `/paths` of the admin listener.
    pub fn show_paths(&self, table: PathTable) {
        *self.inner.paths.lock() = Some(table);
    }

    /// Lets people record the paths of this table below `folder`, at the admin listener.
    pub fn record_paths(&self, folder: PathBuf, table: PathTable) {
        let recorder = Recorder::new(self.noun(), folder, table, self.shutdown().clone());
        *self.inner.recorder.lock() = Some(Arc::new(recorder));
    }

    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.inner.recorder.lock().clone()
    }

    /// The table of this service; `None` if it has no paths.
    pub fn paths(&self, gateway: Option<&str>) -> Option<ServicePaths> {
        let table = self.inner.paths.lock().clone()?;
        Some(ServicePaths::new(self.inner.noun, table(gateway)))
    }

    /// Waits until the listener is announced; `None` if the service ended before.
    pub async fn address(&self, what: &str) -> Option<SocketAddr> {
        let mut listeners = self.inner.listeners.subscribe();
        tokio::select! {
            biased;
            found = listeners.wait_for(|listeners| listeners.contains_key(what)) => {
                found.ok().and_then(|listeners| listeners.get(what).copied())
            }
            () = self.inner.ended.cancelled() => None,
        }
    }

    /// Waits for the spawned tasks to finish, until [`DRAIN_LIMIT`] after the request to end;
    /// returns false if some had not.
    pub async fn drain_tasks(&self) -> bool {
        self.inner.tasks.close();
        let left = self.inner.shutdown.left_of(DRAIN_LIMIT);
        tokio::time::timeout(left, self.inner.tasks.wait())
            .await
            .is_ok()
    }

    /// Must be called after the service has returned.
    pub fn end(&self) {
        self.inner.ended.cancel();
    }

    pub fn has_ended(&self) -> bool {
        self.inner.ended.is_cancelled()
    }

    pub async fn ended(&self) {
        self.inner.ended.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::CONNECTIONS_DRAIN_LIMIT;

    /// The process ends a service that needs longer, with an exit status other than 0.
    #[tokio::test]
    async fn a_listener_and_the_tasks_share_one_limit() {
        let context = Context::new("test");
        context.tasks().spawn(std::future::pending::<()>());
        assert_eq!(context.shutdown().left_of(DRAIN_LIMIT), DRAIN_LIMIT);
        // A listener waited for its connections as long as it may.
        context.shutdown().requested_before(CONNECTIONS_DRAIN_LIMIT);
        let left = context.shutdown().left_of(DRAIN_LIMIT);
        assert!(!left.is_zero() && left <= DRAIN_LIMIT - CONNECTIONS_DRAIN_LIMIT);
        // A second request does not begin the limit again.
        context.shutdown().request();
        assert!(context.shutdown().left_of(DRAIN_LIMIT) <= left);

        let context = Context::new("test");
        context.tasks().spawn(std::future::pending::<()>());
        context.shutdown().requested_before(DRAIN_LIMIT);
        let drained = tokio::time::timeout(DRAIN_LIMIT / 2, context.drain_tasks()).await;
        assert_eq!(drained.ok(), Some(false), "the limit is over");
    }
}
