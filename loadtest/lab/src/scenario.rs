//! What one run consists of: a transfer, the links it may use, and the seed. The same file format serves virtual and kernel time.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::{self, OutOfBounds};
use crate::chaos::Chaos;
use serde::{Deserialize, Serialize};
use testkit::link::{LinkConfig, Loss, Rate, Trace, TraceError, queue_of_one_bdp};

/// Interfaces that a client may have; the library's tables and the gate are sized for this.
pub const INTERFACES_MAX: usize = 8;
/// IPv4 and UDP headers: link bytes are those of IP packets.
pub const IP_UDP_HEADER_BYTES: u64 = 28;
/// Largest IP packet on the simulated links.
pub const LINK_MTU_BYTES: u64 = 1500;
/// Largest files of a scenario and of a trace.
const FILE_BYTES_MAX: u64 = 16 << 20;
const TRACE_BYTES_MAX: u64 = 256 << 20;
/// Longest trace; times beyond could not be counted.
const TRACE_PERIOD_MAX: Duration = Duration::from_secs(1_000_000);
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
    /// Steering rules that both ends obey; not written to files.
    #[serde(skip)]
    pub steered: Option<crate::steered::Steered>,
    /// Seconds and the Mbit/s that the application sends from then on; empty: all that it can.
    #[serde(skip)]
    pub pace: Vec<(f64, f64)>,
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
            steered: None,
            pace: Vec::new(),
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
        scenario.check().map_err(|error| match error {
            ScenarioError::Invalid { field, reason } => match bounds::line_of(text, &field) {
                Some(line) => ScenarioError::InvalidLine {
                    line,
                    field,
                    reason,
                },
                None => ScenarioError::Invalid { field, reason },
            },
            error => error,
        })?;
        Ok(scenario)
    }

    /// From a TOML file.
    pub fn from_file(file: &Path) -> Result<Self, ScenarioError> {
        let text = read_bounded(file, FILE_BYTES_MAX)?;
        Self::from_toml(&text).map_err(|source| ScenarioError::InFile {
            file: file.to_owned(),
            source: Box::new(source),
        })
    }

    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), ScenarioError> {
        bounds::check(self)
            .map_err(|OutOfBounds { field, reason }| ScenarioError::Invalid { field, reason })
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

pub fn load_trace(file: &Path) -> Result<Trace, ScenarioError> {
    let text = read_bounded(file, TRACE_BYTES_MAX)?;
    let trace = Trace::parse(&text).map_err(|source| ScenarioError::Trace {
        file: file.to_owned(),
        source,
    })?;
    if trace.period() > TRACE_PERIOD_MAX {
        let source = io::Error::other("the trace is longer than 1,000,000 s");
        let file = file.to_owned();
        return Err(ScenarioError::Read { file, source });
    }
    Ok(trace)
}

/// The text of a regular file of at most so many bytes.
pub(crate) fn read_bounded(file: &Path, bytes_max: u64) -> Result<String, ScenarioError> {
    let read = || {
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(file)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut text = String::new();
        let mut bounded = std::fs::File::open(file)?.take(bytes_max + 1);
        if bounded.read_to_string(&mut text)? as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(text)
    };
    read().map_err(|source| ScenarioError::Read {
        file: file.to_owned(),
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
    Invalid { field: String, reason: String },
    #[error("line {line}: {field}: {reason}")]
    InvalidLine {
        line: usize,
        field: String,
        reason: String,
    },
    #[error("{}: {source}", file.display())]
    InFile {
        file: PathBuf,
        source: Box<ScenarioError>,
    },
    #[error("cannot read {}: {source}", file.display())]
    Read {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is not a Mahimahi trace: {source}", file.display())]
    Trace { file: PathBuf, source: TraceError },
}
