//! Readiness and progress.
//!
//! A service is ready when all its checks pass; a check fails from its registration until its first
//! `ok`. A warning is shown beside the checks and does not affect readiness. A service makes
//! progress while each of its loops beats within its promised time. `/healthz` reports that, and
//! the event loop itself is always one of the loops (see `admin`).

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Names are `&'static str`, so the program text bounds the tables; a second registration of a name
/// replaces the first.
#[derive(Clone, Default)]
pub struct Health {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// `Err` holds the reason in words.
    checks: BTreeMap<&'static str, Result<(), String>>,
    warnings: BTreeMap<&'static str, Warning>,
    loops: BTreeMap<&'static str, Heartbeat>,
}

impl State {
    fn set_warning(&mut self, name: &'static str, to: Option<Warning>) {
        match to {
            Some(warning) => self.warnings.insert(name, warning),
            None => self.warnings.remove(name),
        };
    }
}

/// A condition that does not stop the service but needs attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub says: String,
    /// Advice for the operator.
    pub to_do: String,
}

struct Heartbeat {
    last_beat: Instant,
    silence_max: Duration,
}

impl Health {
    pub fn new() -> Health {
        Health::default()
    }

    /// Registers a readiness check; it fails with "starting" until it is set.
    pub fn check(&self, name: &'static str) -> CheckHandle {
        self.state
            .lock()
            .checks
            .insert(name, Err("starting".to_owned()));
        CheckHandle {
            name,
            to_do: None,
            health: self.clone(),
        }
    }

    /// Registers a check for a dependency that a service needs to start. After its first `ok` a
    /// failure is a warning with `to_do`: taking the service out would stop the work that still
    /// goes on.
    pub fn check_at_start(&self, name: &'static str, to_do: &'static str) -> CheckHandle {
        CheckHandle {
            to_do: Some(to_do),
            ..self.check(name)
        }
    }

    /// Passes a check if it is registered.
    pub fn passed(&self, name: &'static str) {
        let is_begun = self.state.lock().checks.contains_key(name);
        if is_begun {
            let (to_do, health) = (None, self.clone());
            CheckHandle {
                name,
                to_do,
                health,
            }
            .ok();
        }
    }

    /// Registers a warning, which is off until it is set.
    pub fn warning(&self, name: &'static str) -> WarningHandle {
        WarningHandle {
            name,
            health: self.clone(),
        }
    }

    /// Registers a loop that promises a beat at least every `silence_max`.
    pub fn progress(&self, name: &'static str, silence_max: Duration) -> ProgressHandle {
        self.state.lock().loops.insert(
            name,
            Heartbeat {
                last_beat: Instant::now(),
                silence_max,
            },
        );
        ProgressHandle {
            name,
            health: self.clone(),
        }
    }

    /// Registers `running` as a loop that may wait for work without end. It counts as stalled only
    /// after a panic.
    pub fn watch<F: Future>(
        &self,
        name: &'static str,
        running: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let turns = self.progress(name, Duration::MAX);
        async move {
            let _turns = turns;
            running.await
        }
    }

    pub fn is_ready(&self) -> bool {
        self.state.lock().checks.values().all(Result::is_ok)
    }

    /// The failing checks with their reasons; empty when ready.
    pub fn failing(&self) -> Vec<(&'static str, String)> {
        let state = self.state.lock();
        state
            .checks
            .iter()
            .filter_map(|(name, check)| Some((*name, check.as_ref().err()?.clone())))
            .collect()
    }

    /// The warnings that are on.
    pub fn warnings(&self) -> Vec<(&'static str, Warning)> {
        let state = self.state.lock();
        let warnings = state.warnings.iter();
        warnings
            .map(|(name, warning)| (*name, warning.clone()))
            .collect()
    }

    /// The loops that are silent for longer than they promised, as of `now`.
    pub fn stalled(&self, now: Instant) -> Vec<(&'static str, Duration)> {
        let state = self.state.lock();
        state
            .loops
            .iter()
            .filter_map(|(name, state)| {
                let silence = now.saturating_duration_since(state.last_beat);
                (silence > state.silence_max).then_some((*name, silence))
            })
            .collect()
    }
}

/// Sets one readiness check. Repeated calls are cheap.
#[derive(Clone)]
pub struct CheckHandle {
    name: &'static str,
    /// `Some`: failures after the first `ok` are warnings.
    to_do: Option<&'static str>,
    health: Health,
}

impl CheckHandle {
    pub fn ok(&self) {
        self.set(Ok(()));
    }

    pub fn failing(&self, reason: impl Into<String>) {
        self.set(Err(reason.into()));
    }

    fn set(&self, to: Result<(), String>) {
        let mut state = self.health.state.lock();
        if let (Some(to_do), Some(Ok(()))) = (self.to_do, state.checks.get(self.name)) {
            let warning = to.err().map(|says| Warning {
                says,
                to_do: to_do.to_owned(),
            });
            return state.set_warning(self.name, warning);
        }
        state.checks.insert(self.name, to);
    }
}

/// Sets one warning. Repeated calls are cheap.
#[derive(Clone)]
pub struct WarningHandle {
    name: &'static str,
    health: Health,
}

impl WarningHandle {
    pub fn set(&self, to: Option<Warning>) {
        self.health.state.lock().set_warning(self.name, to);
    }
}

/// Beats for one loop, and belongs to that loop.
pub struct ProgressHandle {
    name: &'static str,
    health: Health,
}

impl ProgressHandle {
    pub fn beat(&self) {
        if let Some(state) = self.health.state.lock().loops.get_mut(self.name) {
            state.last_beat = Instant::now();
        }
    }
}

impl Drop for ProgressHandle {
    /// A loop that ends is removed. A loop that panicked stays and counts as stalled, so the
    /// orchestrator restarts the process.
    fn drop(&mut self) {
        let loops = &mut self.health.state.lock().loops;
        if !std::thread::panicking() {
            loops.remove(self.name);
        } else if let Some(state) = loops.get_mut(self.name) {
            state.silence_max = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_check_is_ok() {
        let health = Health::new();
        assert!(health.is_ready(), "nothing to wait for");
        let bus = health.check("bus");
        let store = health.check("store");
        assert_eq!(health.failing().len(), 2);
        bus.ok();
        assert!(!health.is_ready());
        store.ok();
        assert!(health.is_ready());
        health.passed("listener");
        assert!(health.is_ready(), "nobody had begun it");
        health.check("listener");
        assert!(!health.is_ready());
        health.passed("listener");
        assert!(health.is_ready());
        bus.failing("disk full");
        assert_eq!(health.failing(), [("bus", "disk full".to_owned())]);
    }

    #[test]
    fn a_warning_does_not_affect_readiness() {
        let health = Health::new();
        let handle = health.warning("transport");
        assert_eq!(health.warnings(), []);
        let warning = Warning {
            says: "by TCP".to_owned(),
            to_do: "open UDP".to_owned(),
        };
        handle.set(Some(warning.clone()));
        assert!(health.is_ready());
        assert_eq!(health.warnings(), [("transport", warning)]);
        handle.set(None);
        assert_eq!(health.warnings(), []);
    }

    #[test]
    fn a_dependency_of_the_start_is_a_warning_later() {
        let health = Health::new();
        let store = health.check_at_start("store", "see why it does not answer");
        store.failing("refused");
        assert_eq!(health.failing(), [("store", "refused".to_owned())]);
        assert_eq!(health.warnings(), []);
        store.ok();
        store.failing("gone");
        assert!(health.is_ready());
        let warning = Warning {
            says: "gone".to_owned(),
            to_do: "see why it does not answer".to_owned(),
        };
        assert_eq!(health.warnings(), [("store", warning)]);
        store.ok();
        assert_eq!(health.warnings(), []);
    }

    #[test]
    fn a_silent_loop_is_stalled_until_it_beats_or_ends() {
        let health = Health::new();
        let handle = health.progress("loop", Duration::from_secs(5));
        let later = Instant::now() + Duration::from_secs(6);
        assert_eq!(health.stalled(Instant::now()), []);
        assert_eq!(health.stalled(later).len(), 1);
        handle.beat();
        assert_eq!(health.stalled(Instant::now() + Duration::from_secs(4)), []);
        drop(handle);
        assert_eq!(health.stalled(later), []);
    }

    #[tokio::test]
    async fn a_loop_that_panicked_is_stalled() {
        let health = Health::new();
        let running = health.watch("loop", async { panic!("for the test") });
        assert_eq!(health.stalled(Instant::now()), [], "not yet");
        assert!(tokio::spawn(running).await.is_err());
        assert_eq!(health.stalled(Instant::now()).len(), 1, "at once");
    }
}
