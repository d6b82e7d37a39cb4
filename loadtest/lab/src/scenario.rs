//! What one run consists of: a transfer, the links it may use, and the seed. The same file format serves virtual and kernel time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::address::ADDRESSES_MAX;
use crate::chaos::Chaos;
use serde::{Deserialize, Serialize};
use testkit::link::{LinkConfig, Loss, Rate, Trace, TraceError, queue_of_one_bdp};

/// Interfaces that a client may have; the library's tables and the gate are sized for this.
pub const INTERFACES_MAX: usize = 8;
/// IPv4 and UDP headers: link bytes are those of IP packets.
pub const IP_UDP_HEADER_BYTES: u64 = 28;
/// Largest IP packet on the simulated links.
pub const LINK_MTU_BYTES: u64 = 1500;
/// Goodput that a packet of full size leaves of the link's bytes.
pub(crate) const HEADER_SHARE: f64 = 0.958;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Client to server.
    Upload,
    /// Server to client.
    Download,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// Braid's delivery-rate controller, gate and liveness.
    Ours,
    /// The library's BBRv3 with all paths opened and nothing else.
    Bbr,
    Cubic,
    Newreno,
    /// Knows the links, in virtual time alone: what any sender could reach with Braid's gate and liveness.
    Oracle,
}

impl Controller {
    pub const ALL: [Self; 5] = [
        Self::Ours,
        Self::Bbr,
        Self::Cubic,
        Self::Newreno,
        Self::Oracle,
    ];

    /// Whether Braid's gate and liveness look after the paths.
    pub fn is_steered(self) -> bool {
        matches!(self, Self::Ours | Self::Oracle)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
            Self::Newreno => "newreno",
            Self::Oracle => "oracle",
        }
    }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    #[serde(default)]
    pub seed: u64,
    #[serde(default = "Scenario::default_direction")]
    pub direction: Direction,
    /// Bytes over all streams.
    pub bytes: u64,
    /// Streams that share the bytes.
    #[serde(default = "Scenario::default_streams")]
    pub streams: u32,
    #[serde(default = "Scenario::default_controller")]
    pub controller: Controller,
    /// Small urgent messages from client to server beside the transfer.
    #[serde(default)]
    pub vitals: Option<Vitals>,
    /// Streams and paths that come and go at random, in place of the transfer.
    #[serde(default)]
    pub chaos: Option<Chaos>,
    /// Further connections that do the same transfer at the same time, each over one interface: the first, the second, and so on in turn.
    #[serde(default)]
    pub competitors: Vec<Controller>,
    /// Virtual time after which the run counts as not completed.
    pub limit_s: f64,
    pub interfaces: Vec<Interface>,
}

impl Scenario {
    /// One stream, nothing beside it.
    pub fn transfer(
        name: impl Into<String>,
        seed: u64,
        direction: Direction,
        bytes: u64,
        controller: Controller,
        limit_s: f64,
        interfaces: Vec<Interface>,
    ) -> Self {
        Self {
            name: name.into(),
            seed,
            direction,
            bytes,
            streams: 1,
            controller,
            vitals: None,
            chaos: None,
            competitors: Vec::new(),
            limit_s,
            interfaces,
        }
    }

    fn default_direction() -> Direction {
        Direction::Upload
    }

    fn default_streams() -> u32 {
        1
    }

    fn default_controller() -> Controller {
        Controller::Ours
    }

    /// From the text of a TOML file.
    pub fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|error| ScenarioError::Toml(error.to_string()))?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let refuse = |field: &'static str, reason: &'static str| {
            Err(ScenarioError::Invalid { field, reason })
        };
        if self.interfaces.is_empty() || self.interfaces.len() > INTERFACES_MAX {
            return refuse("interfaces", "give between 1 and 8");
        }
        if self.bytes == 0 || self.streams == 0 || self.streams > 64 {
            return refuse(
                "bytes, streams",
                "give at least one byte and 1 to 64 streams",
            );
        }
        if !(self.limit_s > 0.0 && self.limit_s <= 100_000.0) {
            return refuse("limit_s", "give between 0 and 100000, for example 120.0");
        }
        for (index, interface) in self.interfaces.iter().enumerate() {
            let own = |other: usize| other < index && self.interfaces[other].shares.is_none();
            if interface.shares.is_some_and(|other| !own(other)) {
                return refuse(
                    "shares",
                    "give the number of an earlier interface with a bottleneck of its own, for example 0",
                );
            }
            if interface.address_changes.len() > ADDRESSES_MAX {
                return refuse("address_changes", "give at most 200");
            }
            for half in [&interface.to_server, &interface.to_client] {
                if !(0.0..=60_000.0).contains(&half.delay_ms)
                    || !(0.0..=10_000.0).contains(&half.jitter_ms)
                {
                    return refuse("delay_ms, jitter_ms", "give milliseconds, for example 12.5");
                }
                if !(0.0..=1.0).contains(&half.duplicate) || !(0.0..=1.0).contains(&half.corrupt) {
                    return refuse(
                        "duplicate, corrupt",
                        "give a share between 0 and 1, for example 0.01",
                    );
                }
                if let LossSpec::Random(p) = half.loss
                    && !(0.0..1.0).contains(&p)
                {
                    return refuse("loss", "give a share between 0 and 1, for example 0.02");
                }
            }
        }
        Ok(())
    }

    pub fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.limit_s)
    }
}

/// Messages of one size at one interval, on a stream of their own.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vitals {
    pub interval_ms: u64,
    pub bytes: u64,
}

/// One access network of the client, both directions.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    pub name: String,
    pub to_server: Half,
    pub to_client: Half,
    /// Whether the client's operating system tells of changes of state; otherwise they are found out by silence.
    #[serde(default)]
    pub announced: bool,
    /// Number of an earlier interface whose bottleneck (rate, queue, loss, cuts) this one goes through; the delay is its own.
    #[serde(default)]
    pub shares: Option<usize>,
    /// Seconds at which the interface gets another address.
    #[serde(default)]
    pub address_changes: Vec<(f64, AddressChange)>,
}

/// How an address changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressChange {
    /// An address translator on the way forgets the client and gives it another port. Nobody is told.
    Translated,
    /// The client's own address; its operating system tells of the loss, and of the new one a little later.
    Own,
}

impl Interface {
    /// The same link both ways; `rtt_ms` is split evenly.
    pub fn symmetric(name: &str, rate_mbit: f64, rtt_ms: f64, loss: f64) -> Self {
        Self::alike(
            name,
            Half::constant(rate_mbit, rtt_ms / 2.0).with_loss(loss),
        )
    }

    /// The same half both ways.
    pub fn alike(name: &str, half: Half) -> Self {
        Self {
            name: name.to_owned(),
            to_server: half.clone(),
            to_client: half,
            announced: false,
            shares: None,
            address_changes: Vec::new(),
        }
    }

    /// Adds changes of state to both directions.
    pub fn with_changes(mut self, changes: &[(f64, bool)]) -> Self {
        self.to_server.changes = changes.to_vec();
        self.to_client.changes = changes.to_vec();
        self
    }

    pub fn half(&self, direction: Direction) -> &Half {
        match direction {
            Direction::Upload => &self.to_server,
            Direction::Download => &self.to_client,
        }
    }
}

/// One direction of a link.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Half {
    pub rate: RateSpec,
    /// One-way.
    pub delay_ms: f64,
    #[serde(default)]
    pub jitter_ms: f64,
    /// Whether jitter may change the order of packets.
    #[serde(default)]
    pub reorder: bool,
    /// Share of packets that arrive twice.
    #[serde(default)]
    pub duplicate: f64,
    /// Share of packets in which one bit is flipped.
    #[serde(default)]
    pub corrupt: f64,
    /// None: one BDP (of twice the delay), at least 20 packets.
    #[serde(default)]
    pub queue_bytes: Option<u64>,
    #[serde(default)]
    pub loss: LossSpec,
    /// Seconds and whether the link is up from then on.
    #[serde(default)]
    pub changes: Vec<(f64, bool)>,
}

impl Half {
    pub fn constant(rate_mbit: f64, delay_ms: f64) -> Self {
        Self {
            rate: RateSpec::Mbit(rate_mbit),
            delay_ms,
            jitter_ms: 0.0,
            reorder: false,
            duplicate: 0.0,
            corrupt: 0.0,
            queue_bytes: None,
            loss: LossSpec::Random(0.0),
            changes: Vec::new(),
        }
    }

    pub fn with_loss(mut self, loss: f64) -> Self {
        self.loss = LossSpec::Random(loss);
        self
    }

    /// What the link model takes.
    pub fn to_link(&self) -> Result<LinkConfig, ScenarioError> {
        let rate = self.rate.to_rate()?;
        let delay = Duration::from_secs_f64(self.delay_ms / 1e3);
        let mean = match &rate {
            Rate::Constant(rate) => *rate,
            Rate::Piecewise(steps) => steps.iter().map(|step| step.1).fold(0.0, f64::max),
            Rate::Trace(trace) => {
                trace.capacity_bytes(Duration::ZERO, trace.period()) as f64 * 8.0
                    / trace.period().as_secs_f64()
            }
        };
        let mut config = LinkConfig::new(mean, delay);
        config.rate = rate;
        config.jitter = Duration::from_secs_f64(self.jitter_ms / 1e3);
        config.reorder = self.reorder;
        config.queue_bytes = self
            .queue_bytes
            .unwrap_or_else(|| queue_of_one_bdp(mean, delay * 2, LINK_MTU_BYTES));
        config.mtu = LINK_MTU_BYTES;
        config.loss = match self.loss {
            LossSpec::Random(p) if p <= 0.0 => Loss::None,
            LossSpec::Random(p) => Loss::Bernoulli(p),
            LossSpec::Bursts { mean, packets } => Loss::bursts(mean, packets),
        };
        config.schedule = self
            .changes
            .iter()
            .map(|&(at_s, up)| (Duration::from_secs_f64(at_s), up))
            .collect();
        Ok(config)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RateSpec {
    Mbit(f64),
    /// Seconds and Mbit/s from then on.
    Steps(Vec<(f64, f64)>),
    /// A Mahimahi file, entered at `start_ms`.
    Trace {
        file: PathBuf,
        start_ms: u64,
    },
    /// A trace already in memory; not written to files.
    #[serde(skip)]
    Loaded(Arc<Trace>),
}

impl RateSpec {
    /// The highest rate; zero for a trace, whose file would have to be read.
    pub fn mbit_max(&self) -> f64 {
        match self {
            Self::Mbit(mbit) => *mbit,
            Self::Steps(steps) => steps.iter().map(|step| step.1).fold(0.0, f64::max),
            Self::Trace { .. } | Self::Loaded(_) => 0.0,
        }
    }

    pub fn to_rate(&self) -> Result<Rate, ScenarioError> {
        Ok(match self {
            Self::Mbit(mbit) => Rate::Constant(mbit * 1e6),
            Self::Steps(steps) => Rate::Piecewise(
                steps
                    .iter()
                    .map(|&(at_s, mbit)| (Duration::from_secs_f64(at_s), mbit * 1e6))
                    .collect(),
            ),
            Self::Trace { file, start_ms } => {
                Rate::Trace(Arc::new(load_trace(file)?.starting_at(*start_ms)))
            }
            Self::Loaded(trace) => Rate::Trace(trace.clone()),
        })
    }
}

pub fn load_trace(file: &PathBuf) -> Result<Trace, ScenarioError> {
    let text = std::fs::read_to_string(file).map_err(|source| ScenarioError::Read {
        file: file.clone(),
        source,
    })?;
    Trace::parse(&text).map_err(|source| ScenarioError::Trace {
        file: file.clone(),
        source,
    })
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossSpec {
    /// Share of packets, each on its own.
    Random(f64),
    /// Gilbert-Elliott: share overall and packets per burst.
    Bursts { mean: f64, packets: f64 },
}

impl Default for LossSpec {
    fn default() -> Self {
        Self::Random(0.0)
    }
}

/// A scenario that cannot be run; the writer of the file is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("the scenario file is not valid TOML: {0}")]
    Toml(String),
    #[error("{field}: {reason}")]
    Invalid {
        field: &'static str,
        reason: &'static str,
    },
    #[error("cannot read {}", file.display())]
    Read {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is not a Mahimahi trace", file.display())]
    Trace { file: PathBuf, source: TraceError },
}
