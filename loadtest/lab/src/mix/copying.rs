//! Copies of an application's streams by another path, as a redundant tunnel makes them. A second
//! stream has the same bytes. Each write reserves the next packet for the path of its stream.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use multipath::steering_rules::Mode;
use multipath::{CopyWrite, PathScheduler, RESERVED_MAX};
use noq_proto::StreamId;

use crate::scenario::Scenario;

/// Streams with the same bytes.
pub(super) const COPIES: usize = 2;
/// Most bytes of one write, which one path takes.
const WRITE_BYTES_MAX: u64 = 16 * 1024;
/// A longer message goes once, like the bytes of a tunnel whose copy is further behind.
const MESSAGE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Debug)]
pub(super) struct Copying {
    scheduler: Arc<PathScheduler>,
    start: Instant,
    /// The reservation of the last write, and its end at the latest.
    reserved: Option<(u64, Duration)>,
    /// A write waits for it.
    waits: bool,
}

impl Copying {
    /// Where the scenario's rule asks for copies.
    pub(super) fn of(
        scenario: &Scenario,
        scheduler: &Arc<PathScheduler>,
        start: Instant,
    ) -> Option<Self> {
        let steered = scenario.steered.as_ref()?;
        let mut rules = steered.document.rules.iter();
        rules
            .any(|rule| rule.mode == Mode::Redundant)
            .then(|| Self {
                scheduler: scheduler.clone(),
                start,
                reserved: None,
                waits: false,
            })
    }

    /// Streams are opened in pairs, so every second one is a copy.
    pub(super) fn number(id: StreamId) -> u8 {
        (id.index() % COPIES as u64) as u8
    }

    /// Whether the copy carries a message of this length.
    pub(super) fn carries(bytes: u64) -> bool {
        bytes <= MESSAGE_BYTES_MAX
    }

    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    pub(super) fn begin_turn(&mut self, now: Duration) {
        self.waits = false;
        if let Some((number, _)) = self.reserved.take_if(|(_, until)| *until <= now) {
            self.scheduler.end_reservation(number);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.reserved.map(|(_, until)| until)
    }

    /// Writes up to `bytes` of a copy by `write`, which returns how many it has written. Returns
    /// whether the next bytes may follow at once.
    pub(super) fn write(
        &mut self,
        now: Duration,
        copy: u8,
        bytes: u64,
        write: impl FnOnce(u64) -> u64,
    ) -> bool {
        let bytes = bytes.min(WRITE_BYTES_MAX);
        let mut context = Context::from_waker(Waker::noop());
        let asking = CopyWrite {
            copy,
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            urgent: false,
        };
        let asked = (self.scheduler).poll_reserve(&mut context, self.start + now, asking);
        let Poll::Ready(reserved) = asked else {
            self.waits = true;
            return false;
        };
        let written = write(bytes);
        if let Some(number) = reserved {
            if written == 0 {
                self.scheduler.end_reservation(number);
            } else {
                self.reserved = Some((number, now + RESERVED_MAX));
            }
        }
        written > 0
    }
}
