//! One run as data: a transfer or an application, the links that it may use, and the seed. The same
//! file format serves virtual and kernel time.

mod error;
mod examples;
mod file;
mod half;
mod text;

use std::time::Duration;

use multipath::steering_rules::{Document, Flow, Urgency};
use serde::{Deserialize, Serialize};

use crate::chaos::Chaos;
use crate::mix::{Background, Mix};
use crate::steered::Steered;
use crate::thin::Thin;

pub use error::ScenarioError;
pub use half::{Half, LossSpec, RateSpec, load_trace};
pub(crate) use text::read_bounded;

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
    /// Braid's delivery-rate controller, path scheduler and liveness.
    Ours,
    /// The library's BBRv3 with all paths opened and nothing else.
    Bbr,
    Cubic,
    Newreno,
    /// The coupled control of MPTCP, over all paths opened and nothing else.
    Olia,
    /// FAST TCP, likewise.
    Fast,
    /// Knows the links, in virtual time alone: an upper bound for any sender with Braid's path
    /// scheduler and liveness.
    Oracle,
}

impl Controller {
    pub const ALL: [Self; 7] = [
        Self::Ours,
        Self::Bbr,
        Self::Cubic,
        Self::Newreno,
        Self::Olia,
        Self::Fast,
        Self::Oracle,
    ];

    /// Whether Braid's path scheduler and liveness manage the paths.
    pub fn is_steered(self) -> bool {
        matches!(self, Self::Ours | Self::Oracle)
    }

    /// The kernel's name of the same congestion control, where it has one.
    pub(crate) fn in_kernel(self) -> Option<&'static str> {
        match self {
            Self::Cubic => Some("cubic"),
            Self::Bbr => Some("bbr"),
            Self::Newreno => Some("reno"),
            Self::Ours | Self::Olia | Self::Fast | Self::Oracle => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
            Self::Newreno => "newreno",
            Self::Olia => "olia",
            Self::Fast => "fast",
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
    /// An application's traffic in place of the transfer.
    #[serde(default)]
    pub mix: Option<Mix>,
    /// On-off traffic on every link, and the time by which the measured flow follows it.
    #[serde(default)]
    pub background: Option<Background>,
    /// Buffers of every connection; without them those of the product.
    #[serde(default)]
    pub buffers: Option<Buffers>,
    /// Rate of one link next to the server that everything to the client passes first, in Mbit/s.
    #[serde(default)]
    pub trunk_mbit: Option<f64>,
    /// A steering document that both ends obey, as gateways have it; interfaces are its accesses.
    #[serde(default)]
    pub steering: Option<Document>,
    /// Further runs for `run --report`, to compare with the scenario.
    #[serde(default)]
    pub compare: Option<Compare>,
    /// Further connections that do the same transfer at the same time, each over one interface in
    /// turn.
    #[serde(default)]
    pub competitors: Vec<Controller>,
    /// Virtual time after which the run counts as not completed.
    pub limit_s: f64,
    pub interfaces: Vec<Interface>,
    /// Steering rules that both ends obey; not written to files.
    #[serde(skip)]
    pub steered: Option<Steered>,
    /// Seconds and the Mbit/s that the application sends from then on; empty: all that it can.
    #[serde(skip)]
    pub pace: Vec<(f64, f64)>,
    /// A gateway's traffic in place of the transfer, until the limit; not written to files.
    #[serde(skip)]
    pub thin: Option<Thin>,
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
            mix: None,
            background: None,
            buffers: None,
            trunk_mbit: None,
            steering: None,
            compare: None,
            competitors: Vec::new(),
            limit_s,
            interfaces,
            steered: None,
            pace: Vec::new(),
            thin: None,
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

    /// Obeys a steering document from here on.
    pub fn steer(&mut self, document: Document) {
        let flow = Flow::new("lab", Urgency::Bulk);
        self.steered = Some(Steered {
            document: document.clone(),
            flow,
        });
        self.steering = Some(document);
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

/// Bytes that a sender keeps until they are acknowledged, and that a receiver takes ahead of its
/// reader.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffers {
    pub send_bytes: u64,
    pub receive_bytes: u64,
}

/// Further runs of a scenario in its report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// Seeds in place of the scenario's own.
    #[serde(default)]
    pub seeds: Vec<u64>,
    /// Other controllers over the same links.
    #[serde(default)]
    pub controllers: Vec<Controller>,
    /// Each link alone as well.
    #[serde(default)]
    pub single_paths: bool,
}

/// One access network of the client, both directions.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    pub name: String,
    pub to_server: Half,
    pub to_client: Half,
    /// Whether the client's operating system reports changes of state; otherwise silence reveals
    /// them.
    #[serde(default)]
    pub announced: bool,
    /// Number of an earlier interface whose bottleneck (rate, queue, loss, cuts) this one goes
    /// through; the delay is its own.
    #[serde(default)]
    pub shares: Option<usize>,
    /// Seconds at which the interface gets another address.
    #[serde(default)]
    pub address_changes: Vec<(f64, AddressChange)>,
}

/// Kinds of change of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressChange {
    /// An address translator on the way forgets the client and gives it another port. The client's
    /// operating system does not report the change.
    Translated,
    /// The client's own address. Its operating system reports the loss, and a little later the new
    /// address.
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
