//! One direction of a link as a scenario has it: rate, delay, loss, queue and state, and the traces
//! that a rate may come from.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use emulated_link::link::{LinkConfig, Loss, Rate, Trace, queue_of_one_bdp};
use serde::{Deserialize, Serialize};

use super::error::ScenarioError;
use super::text::{FILE_BYTES_MAX, read_bounded};
use crate::csv_trace::CsvTrace;
use crate::packet::LINK_MTU_BYTES;

const TRACE_BYTES_MAX: u64 = 256 << 20;
/// Longest trace; times beyond could not be counted.
const TRACE_PERIOD_MAX: Duration = Duration::from_secs(1_000_000);

/// One direction of a link.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Half {
    pub rate: RateSpec,
    /// One-way.
    pub delay_ms: f64,
    /// Seconds and one-way delay from then on, in place of `delay_ms`, which holds before the
    /// first.
    #[serde(default)]
    pub delay_steps: Vec<(f64, f64)>,
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
    /// Seconds and share of packets lost from then on, beside `loss`.
    #[serde(default)]
    pub loss_steps: Vec<(f64, f64)>,
    /// Seconds and whether the link is up from then on.
    #[serde(default)]
    pub changes: Vec<(f64, bool)>,
}

impl Half {
    /// The least of the one-way delays in the course of a run.
    pub(crate) fn delay_ms_min(&self) -> f64 {
        let steps = self.delay_steps.iter().map(|step| step.1);
        steps.fold(self.delay_ms, f64::min)
    }

    /// The largest of them, after which the queue is sized.
    fn delay_ms_max(&self) -> f64 {
        let steps = self.delay_steps.iter().map(|step| step.1);
        steps.fold(self.delay_ms, f64::max)
    }

    pub fn constant(rate_mbit: f64, delay_ms: f64) -> Self {
        Self {
            rate: RateSpec::Mbit(rate_mbit),
            delay_ms,
            delay_steps: Vec::new(),
            jitter_ms: 0.0,
            reorder: false,
            duplicate: 0.0,
            corrupt: 0.0,
            queue_bytes: None,
            loss: LossSpec::Random(0.0),
            loss_steps: Vec::new(),
            changes: Vec::new(),
        }
    }

    pub fn with_loss(mut self, loss: f64) -> Self {
        self.loss = LossSpec::Random(loss);
        self
    }

    pub(super) fn read_csv(&mut self, file: &Path) -> Result<(), ScenarioError> {
        let text = read_bounded(file, FILE_BYTES_MAX)?;
        let trace = CsvTrace::parse(&text).map_err(|source| ScenarioError::Csv {
            file: file.to_owned(),
            source,
        })?;
        self.rate = RateSpec::Steps(trace.rates);
        if !trace.delays.is_empty() {
            self.delay_steps = trace.delays;
        }
        self.loss_steps = trace.losses;
        Ok(())
    }

    /// The configuration of the link model.
    pub fn to_link(&self) -> Result<LinkConfig, ScenarioError> {
        let rate = self.rate.to_rate()?;
        let delay = Duration::from_secs_f64(self.delay_ms_min() / 1e3);
        let delay_max = Duration::from_secs_f64(self.delay_ms_max() / 1e3);
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
            .unwrap_or_else(|| queue_of_one_bdp(mean, delay_max * 2, LINK_MTU_BYTES));
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
    /// A file with a line for each change: seconds, Mbit/s, and where wanted delay and loss.
    Csv(PathBuf),
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
            Self::Trace { .. } | Self::Csv(_) | Self::Loaded(_) => 0.0,
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
            // Read with the scenario's file; a CSV that is left was made by a program.
            Self::Csv(file) => return Err(ScenarioError::CsvUnread(file.clone())),
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
