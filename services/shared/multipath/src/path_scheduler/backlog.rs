//! An estimate of the bytes that the application has written and the library has not sent.
//!
//! The library does not tell the size of its queues. The estimate is the written bytes less the
//! sent ones. It begins anew whenever all was sent. The library asks a path for its window only
//! when data waits. A packet without another ask at the same time therefore was the last one.

use std::time::{Duration, Instant};

use super::{PACKET_BYTES, PathScheduler};

/// Headers of a packet of stream data.
const HEADER_BYTES: u64 = 40;
/// Longer backlogs are not told apart.
const SECONDS_MAX: f64 = 3_600.0;

/// All times are to the precision of the scheduler's clock.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// None while nobody reports it.
    written_bytes: Option<u64>,
    written_at: Option<Instant>,
    unsent_bytes: u64,
    /// When the data began to wait that has waited without a pause.
    since: Option<Instant>,
    /// Asked for a packet that was not sent yet.
    waits: bool,
    sent_at: Option<Instant>,
}

impl Backlog {
    /// `in_all`: all bytes that the application has written so far.
    pub(super) fn written(&mut self, now: Option<Instant>, in_all: u64) {
        if !self.goes_on(now) {
            self.unsent_bytes = 0;
        }
        let more = in_all.saturating_sub(self.written_bytes.unwrap_or(0));
        self.written_bytes = self.written_bytes.max(Some(in_all));
        if more > 0 {
            self.written_at = now;
        }
        self.unsent_bytes = self.unsent_bytes.saturating_add(more);
    }

    pub(super) fn asked(&mut self, now: Option<Instant>) {
        // The scheduler has no clock before the first packet.
        if self.since.is_none() || !self.goes_on(now) {
            self.since = now;
        }
        self.waits = true;
    }

    fn goes_on(&self, now: Option<Instant>) -> bool {
        self.waits || self.sent_at >= now
    }

    /// Whether data waits for a path with room.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// For how long data has waited without a pause.
    pub(super) fn waited(&self, now: Option<Instant>) -> Duration {
        let since = self.since.filter(|_| self.goes_on(now));
        let lasted = since.zip(now);
        lasted.map_or(Duration::ZERO, |(since, now)| {
            now.saturating_duration_since(since)
        })
    }

    pub(super) fn sent(&mut self, now: Option<Instant>, bytes: u64) {
        self.waits = false;
        self.sent_at = now;
        let payload = bytes.saturating_sub(HEADER_BYTES);
        self.unsent_bytes = self.unsent_bytes.saturating_sub(payload);
    }

    /// These bytes must be sent again.
    pub(super) fn lost(&mut self, bytes: u64) {
        let payload = bytes.saturating_sub(HEADER_BYTES);
        self.unsent_bytes = self.unsent_bytes.saturating_add(payload);
    }
}

impl PathScheduler {
    /// The application has written so many bytes to its streams in all.
    pub(crate) fn written(&self, now: Instant, in_all: u64) {
        self.state.lock().backlog.written(Some(now), in_all);
    }

    /// When the application last wrote something.
    pub(crate) fn written_at(&self) -> Option<Instant> {
        self.state.lock().backlog.written_at
    }

    /// The shorter of two times. Data has waited without a pause for the first, and the path of
    /// this slot alone needs the second for the unsent bytes. None where nobody reports the written
    /// bytes. A path that was not busy has far too low a rate, so the second alone is too long when
    /// a backlog begins.
    pub(crate) fn backlog_time(&self, now: Instant, slot: usize) -> Option<Duration> {
        let state = self.state.lock();
        let (model, backlog) = (&state.slots.get(slot)?.model, &state.backlog);
        let unsent = backlog.written_bytes.map(|_| backlog.unsent_bytes)?;
        let rate = model.promised_bytes_per_s.max(model.rate_bytes_per_s);
        let lasted = backlog.waited(Some(now));
        let seconds = unsent as f64 / rate.max(PACKET_BYTES as f64);
        Some(lasted.min(Duration::from_secs_f64(seconds.min(SECONDS_MAX))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_waits_before_the_clock_is_known_waits_from_its_first_time_on() {
        let start = Some(Instant::now());
        let mut backlog = Backlog::default();
        backlog.asked(None);
        backlog.asked(start);
        assert_eq!(backlog.since, start);
    }

    #[test]
    fn the_estimate_begins_anew_when_all_is_sent() {
        let start = Instant::now();
        let at = |ms| Some(start + Duration::from_millis(ms));
        let mut backlog = Backlog::default();
        backlog.written(at(0), 10_000);
        backlog.asked(at(0));
        backlog.sent(at(0), 1_040);
        backlog.asked(at(0));
        backlog.written(at(10), 12_000);
        assert_eq!(backlog.since, at(0));
        assert_eq!(backlog.unsent_bytes, 11_000, "the pacer holds data back");
        backlog.lost(1_040);
        backlog.sent(at(10), 1_040);
        assert_eq!(backlog.unsent_bytes, 11_000, "lost bytes are sent again");
        backlog.written(at(20), 12_500);
        assert_eq!(backlog.unsent_bytes, 500, "nobody asked, so all was sent");
        backlog.asked(at(20));
        assert_eq!(backlog.since, at(20));
    }
}
