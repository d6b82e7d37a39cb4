//! Common base of every run in kernel time: the network, the emulator, and the runtimes of both
//! ends. It also keeps the receiver's record, and judges whether the machine kept up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::emulator::{Emulated, Emulator, EmulatorError, Others};
use super::identities::IdentitiesError;
use super::lateness::{Lateness, LatenessReport};
use super::namespace::NamespaceError;
use super::network::{Network, NetworkError};
use crate::beside;
use crate::report::{RunReport, Timeline};
use crate::scenario::{Direction, Scenario, ScenarioError};
use crate::wire::{Bulk, Wire};

/// From making a run to its time zero: both ends are ready by then.
const LEAD: Duration = Duration::from_millis(300);
/// An emulator whose packets were later than this (p99) distorts round trips: the run is not
/// believed.
const EMULATOR_LATE_MAX: Duration = Duration::from_millis(1);
/// The same for the timers of the endpoints, which Tokio rounds up to a millisecond.
const ENDPOINT_LATE_MAX: Duration = Duration::from_millis(5);
/// How often an endpoint's timer is looked at.
const TICK: Duration = Duration::from_millis(10);
/// How long a runtime may take to end.
const END_MAX: Duration = Duration::from_secs(2);

/// Why a run in kernel time could not be made; none of it is the transport's doing.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Emulator(#[from] EmulatorError),
    #[error(transparent)]
    Identities(#[from] IdentitiesError),
    #[error("a socket of the run: {0}")]
    Socket(#[from] io::Error),
    #[error("an endpoint of the run did not start: {0}")]
    Endpoint(String),
}

/// Whether the machine kept up.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Kept {
    pub emulator: LatenessReport,
    pub endpoints: LatenessReport,
    /// Packets that were lost by the emulation itself.
    pub mislaid: u64,
    pub realtime: bool,
    /// The run may be believed.
    pub up: bool,
}

/// A run in kernel time.
#[derive(Debug, Clone, Serialize)]
pub struct KernelReport {
    #[serde(flatten)]
    pub report: RunReport,
    pub kept: Kept,
}

/// A run that is being made.
pub struct Bed {
    // Before the network: the emulator must end while its devices exist.
    emulator: Emulator,
    pub client: Runtime,
    pub server: Runtime,
    pub network: Network,
    ticks: Arc<Mutex<Lateness>>,
    /// Time zero of links and transfer.
    pub origin: Instant,
}

impl Bed {
    pub fn new(scenario: &Scenario) -> Result<Self, KernelError> {
        scenario.check()?;
        let wires = scenario
            .interfaces
            .iter()
            .enumerate()
            .map(|(index, interface)| Wire::pair(interface, scenario.seed, index))
            .collect::<Result<Vec<_>, _>>()?;
        let (network, ends) = Network::new(wires.len())?;
        let client = network.client.runtime()?;
        let server = network.server.runtime()?;
        let direction = sender(scenario);
        let others = Others {
            packets: beside::other_packets(scenario, &wires, direction),
            direction,
        };
        let origin = Instant::now() + LEAD;
        let emulator = Emulator::start(ends, wires, others, origin)?;
        let ticks = Arc::new(Mutex::new(Lateness::default()));
        for runtime in [&client, &server] {
            runtime.spawn(watch_timers(ticks.clone(), origin));
        }
        Ok(Self {
            emulator,
            client,
            server,
            network,
            ticks,
            origin,
        })
    }

    /// Ends the run. `bulk` is how the transfer went.
    pub fn finish(self, scenario: &Scenario, bulk: Bulk) -> Result<KernelReport, KernelError> {
        let Self {
            emulator,
            client,
            server,
            network,
            ticks,
            ..
        } = self;
        let Emulated {
            mut wires,
            own_bytes,
            lateness,
            refused,
            overflowed,
            realtime,
        } = emulator.stop()?;
        client.shutdown_timeout(END_MAX);
        server.shutdown_timeout(END_MAX);
        drop(network);
        let ticks = ticks.lock().clone();
        let mislaid = refused + overflowed;
        let kept = Kept {
            emulator: lateness.report(),
            endpoints: ticks.report(),
            mislaid,
            realtime,
            up: lateness.percentile(0.99) <= EMULATOR_LATE_MAX
                && ticks.percentile(0.99) <= ENDPOINT_LATE_MAX
                && mislaid == 0,
        };
        let side = sender(scenario);
        let report = RunReport {
            carried_bytes: own_bytes.iter().map(|both| both[side]).collect(),
            both_ways_bytes: own_bytes,
            ..bulk.report(scenario, &mut wires).report
        };
        Ok(KernelReport { report, kept })
    }
}

/// The direction of the data: 0 to the server, 1 to the client.
fn sender(scenario: &Scenario) -> usize {
    match scenario.direction {
        Direction::Upload => 0,
        Direction::Download => 1,
    }
}

async fn watch_timers(ticks: Arc<Mutex<Lateness>>, origin: Instant) {
    tokio::time::sleep_until(origin.into()).await;
    loop {
        let due = Instant::now() + TICK;
        tokio::time::sleep_until(due.into()).await;
        ticks
            .lock()
            .add(Instant::now().saturating_duration_since(due));
    }
}

/// Bytes that the receiver has got, by time.
pub struct Receipt {
    origin: Instant,
    timeline: Mutex<Timeline>,
    open: AtomicU32,
    error: Mutex<Option<String>>,
    ended: Notify,
}

impl Receipt {
    /// Complete once `streams` streams have ended.
    pub fn new(origin: Instant, streams: u32) -> Arc<Self> {
        Arc::new(Self {
            origin,
            timeline: Mutex::default(),
            open: AtomicU32::new(streams),
            error: Mutex::default(),
            ended: Notify::new(),
        })
    }

    pub fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.origin)
    }

    pub fn delivered(&self, bytes: usize) {
        let mut timeline = self.timeline.lock();
        timeline.delivered(self.now(), bytes as u64);
    }

    pub fn stream_ended(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ended.notify_one();
        }
    }

    /// The first failure ends the run.
    pub fn failed(&self, error: impl ToString) {
        self.error.lock().get_or_insert_with(|| error.to_string());
        self.ended.notify_one();
    }

    /// Waits, on the runtime, until everything has arrived, something failed, or `limit` has passed
    /// since time zero.
    pub fn wait(self: &Arc<Self>, runtime: &Runtime, limit: Duration) {
        let own = self.clone();
        let deadline = self.origin + limit;
        runtime.block_on(async move {
            // Running into the limit is an outcome like others, and the report shows it.
            let _ = tokio::time::timeout_at(deadline.into(), own.ended.notified()).await;
        });
    }

    /// How the transfer went, when its streams were opened at `opened`.
    pub fn bulk(&self, opened: Option<Duration>, limit: Duration) -> Bulk {
        let timeline = self.timeline.lock().clone();
        let error = self.error.lock().clone();
        let completed = error.is_none() && self.open.load(Ordering::Acquire) == 0;
        let end = if completed {
            timeline.last().unwrap_or(limit)
        } else {
            self.now().min(limit)
        };
        Bulk {
            completed,
            error,
            opened: opened.unwrap_or(end),
            end,
            timeline,
        }
    }
}
