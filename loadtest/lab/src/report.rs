//! Results of a run: times, efficiency, gaps, and the packets of each link.

use std::time::Duration;

use serde::Serialize;

use crate::mix::Noted;

/// Width of the bins of every series.
pub const BIN: Duration = Duration::from_millis(100);

/// In-order deliveries over time.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// Bytes by bin.
    pub bins: Vec<u64>,
    last: Option<Duration>,
    /// Longest silences between deliveries, as (from, to), of at least one bin's width.
    pub gaps: Vec<(Duration, Duration)>,
}

impl Timeline {
    pub fn delivered(&mut self, now: Duration, bytes: u64) {
        let bin = (now.as_nanos() / BIN.as_nanos()) as usize;
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += bytes;
        if let Some(last) = self.last
            && now - last >= BIN
        {
            self.gaps.push((last, now));
        }
        self.last = Some(now);
    }

    pub fn last(&self) -> Option<Duration> {
        self.last
    }

    /// Longest silence that touches `from..to`, zero when every silence was shorter than a bin.
    pub fn gap_within(&self, from: Duration, to: Duration) -> Duration {
        let gaps = self.gaps.iter().filter(|gap| gap.1 > from && gap.0 < to);
        gaps.map(|gap| gap.1 - gap.0)
            .max()
            .unwrap_or(Duration::ZERO)
    }

    /// Mean Mbit/s over `from..to`, by whole bins.
    pub fn mbit_within(&self, from: Duration, to: Duration) -> f64 {
        mbit_within(&self.bins, from, to)
    }
}

pub fn mbit_within(bins: &[u64], from: Duration, to: Duration) -> f64 {
    let first = (from.as_nanos() / BIN.as_nanos()) as usize;
    let last = ((to.as_nanos() / BIN.as_nanos()) as usize).max(first + 1);
    let bytes: u64 = bins.iter().take(last).skip(first).sum();
    bytes as f64 * 8.0 / 1e6 / ((last - first) as f64 * BIN.as_secs_f64())
}

/// One direction of one link after a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LinkReport {
    pub name: String,
    pub offered_bytes: u64,
    pub delivered_bytes: u64,
    pub served_bytes: u64,
    pub lost_random: u64,
    pub lost_queue: u64,
    pub lost_down: u64,
    pub queue_bytes_max: u64,
    /// Delay that the queue added to accepted packets.
    pub queueing_ms_p50: f64,
    pub queueing_ms_p95: f64,
    #[serde(skip)]
    pub bins: Vec<u64>,
    /// Samples of that delay: seconds and milliseconds.
    #[serde(skip)]
    pub queueing: Vec<(f64, f64)>,
}

/// Bytes that a connection beside the measured one received.
#[derive(Debug, Clone, Serialize)]
pub struct CompetitorReport {
    pub controller: &'static str,
    pub delivered_bytes: u64,
    #[serde(skip)]
    pub timeline: Timeline,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    pub name: String,
    pub seed: u64,
    pub controller: &'static str,
    pub completed: bool,
    pub error: Option<String>,
    /// The error is the connection's own.
    pub connection_lost: bool,
    pub bytes: u64,
    pub delivered_bytes: u64,
    /// From the first packet of the handshake to the last byte.
    pub from_connect_s: f64,
    pub from_stream_s: f64,
    /// Goodput by the capacity that was up, in percent.
    pub efficiency_connect: f64,
    pub efficiency_stream: f64,
    /// The same, with the best single interface's capacity as the denominator.
    pub efficiency_best_single: f64,
    /// Share of the capacity that carried anything, and share of the bytes past random loss that
    /// was new payload, in percent.
    pub utilisation: f64,
    pub payload_share: f64,
    /// Longest silence in bulk delivery, and longest vitals delay, around the first change of a
    /// link's state.
    pub bulk_gap_ms: Option<f64>,
    pub vitals_gap_ms: Option<f64>,
    pub vitals_ms_p50: Option<f64>,
    pub vitals_ms_p99: Option<f64>,
    pub vitals_lost: u64,
    pub links: Vec<LinkReport>,
    pub competitors: Vec<CompetitorReport>,
    pub paths_opened: u32,
    pub paths_closed: u32,
    pub packets: u64,
    /// Share of the time in which the sender took paths for parts of one bottleneck.
    pub coupled_share: f64,
    /// Packets that the sender of the data declared lost, and their bytes: what it sent again.
    pub lost_packets: u64,
    pub lost_bytes: u64,
    pub sent_packets: u64,
    /// Bytes of the measured connection by link, in the direction of the data.
    pub carried_bytes: Vec<u64>,
    /// Bytes of IP packets of the measured connection by link: to the server, to the client.
    #[serde(skip)]
    pub both_ways_bytes: Vec<[u64; 2]>,
    /// An application's messages: delays in milliseconds, by the order of their making.
    #[serde(skip)]
    pub messages_ms: Vec<f64>,
    /// Quantiles of these delays, and the longest.
    pub messages_ms_p50: Option<f64>,
    pub messages_ms_p99: Option<f64>,
    pub messages_ms_max: Option<f64>,
    pub page_s: Option<f64>,
    /// Most datagrams that the links held at once.
    pub under_way_max: usize,
    #[serde(skip)]
    pub timeline: Timeline,
}

impl RunReport {
    /// With what the receiver of an application noted.
    pub(crate) fn with_noted(self, noted: &Noted) -> Self {
        let milliseconds = noted.delays.iter().map(|delay| delay.as_secs_f64() * 1e3);
        let messages_ms: Vec<f64> = milliseconds.collect();
        let in_order = sorted(messages_ms.iter().copied());
        Self {
            messages_ms,
            messages_ms_p50: percentile(&in_order, 0.5),
            messages_ms_p99: percentile(&in_order, 0.99),
            messages_ms_max: in_order.last().copied(),
            page_s: noted.page.map(|time| time.as_secs_f64()),
            ..self
        }
    }
}

/// Value at `share` of the sorted sample (nearest rank); none of an empty one.
pub fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1)))
        .copied()
}

pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        0.0
    } else {
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// Standard deviation of a sample; zero of fewer than two values.
pub fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}
