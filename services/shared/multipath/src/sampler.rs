//! Delivery-rate samples: the bytes delivered between sending and acknowledgement of a packet, over
//! the longer of the sending and the acknowledging interval.
//!
//! A packet is identified by its number and its time of sending, because the number spaces of the
//! handshake share the path's controller.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Packets remembered per path. The oldest are removed, and only their samples are missing.
const RECORDS_MAX: usize = 32_768;

#[derive(Debug, Clone, Copy)]
struct Record {
    pn: u64,
    sent: Instant,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    app_limited: bool,
    settled: bool,
}

/// The sample of the newest packet in a batch of acknowledgements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) rtt: Duration,
    pub(crate) interval: Duration,
    pub(crate) rate_bytes_per_s: f64,
    /// The application had less to send than the path could carry: the rate is a lower bound.
    pub(crate) app_limited: bool,
    /// Bytes delivered when the packet was sent.
    pub(crate) delivered_before: u64,
    /// Bytes delivered since then: the packet, and what was in flight with it.
    pub(crate) delivered_since: u64,
}

/// The samples of one path.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    records: VecDeque<Record>,
    /// Number of removed records, so that positions stay countable.
    forgotten: u64,
    /// Position of the record behind the last acknowledged one, counted from the first:
    /// acknowledgements mostly come in order.
    next: u64,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    /// Delivered bytes up to which samples count as application-limited.
    app_limited_until: u64,
    app_limited: bool,
    /// The newest packet of the current batch of acknowledgements.
    batch: Option<Record>,
}

impl Sampler {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            records: VecDeque::new(),
            forgotten: 0,
            next: 0,
            delivered: 0,
            delivered_at: now,
            first_sent: now,
            app_limited_until: 0,
            app_limited: true,
            batch: None,
        }
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The connection had more to send than the window allowed.
    pub(crate) fn on_limited(&mut self) {
        self.app_limited = false;
    }

    /// `idle`: nothing else is in flight. Records older than `horizon` are removed.
    pub(crate) fn on_sent(&mut self, now: Instant, pn: u64, idle: bool, horizon: Duration) {
        if idle {
            self.first_sent = now;
            self.delivered_at = now;
        }
        self.records.push_back(Record {
            pn,
            sent: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            app_limited: self.app_limited || self.delivered < self.app_limited_until,
            settled: false,
        });
        while self.records.len() > RECORDS_MAX
            || self
                .records
                .front()
                .is_some_and(|record| record.settled || now > record.sent + horizon)
        {
            self.records.pop_front();
            self.forgotten += 1;
        }
    }

    pub(crate) fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, pn: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        let Some(index) = self.find(sent, pn) else {
            return;
        };
        self.next = self.forgotten + index as u64 + 1;
        let record = &mut self.records[index];
        record.settled = true;
        if self.batch.is_none_or(|newest| record.sent >= newest.sent) {
            self.batch = Some(*record);
        }
    }

    fn find(&self, sent: Instant, pn: u64) -> Option<usize> {
        let is_it = |record: &Record| record.sent == sent && record.pn == pn && !record.settled;
        let expected = self.next.saturating_sub(self.forgotten) as usize;
        if self.records.get(expected).is_some_and(is_it) {
            return Some(expected);
        }
        let from = self.records.partition_point(|record| record.sent < sent);
        let alike = self.records.range(from..);
        let found = alike
            .take_while(|record| record.sent == sent)
            .position(is_it)?;
        Some(from + found)
    }

    /// The batch is complete.
    pub(crate) fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
    ) -> Option<Sample> {
        self.app_limited = app_limited;
        if app_limited {
            self.app_limited_until = self.delivered + in_flight;
        }
        let record = self.batch.take()?;
        self.first_sent = record.sent;
        let sending = record.sent.saturating_duration_since(record.first_sent);
        let acking = now.saturating_duration_since(record.delivered_at);
        let interval = sending.max(acking);
        let seconds = interval.as_secs_f64();
        let delivered_since = self.delivered - record.delivered;
        Some(Sample {
            rtt: now.saturating_duration_since(record.sent),
            interval,
            rate_bytes_per_s: if seconds > 0.0 {
                delivered_since as f64 / seconds
            } else {
                0.0
            },
            app_limited: record.app_limited,
            delivered_before: record.delivered,
            delivered_since,
        })
    }
}
