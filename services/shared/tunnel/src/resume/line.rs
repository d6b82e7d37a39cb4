//! One end of a resumable tunnel with its socket side: the state machine of `flow`, the carrying
//! stream, and the wakers.
//!
//! The application's task reads and writes the carrying stream directly under the tunnel's lock,
//! without a task in between. Beside it each end has a companion task, which runs every `TICK`
//! while data is under way. The companion
//! - confirms read bytes,
//! - sends bytes that the stream had refused,
//! - receives bytes that the application does not read, so that later confirmations arrive,
//! - detects that the carrying stream has died.
//!
//! While copies are wanted, a second stream carries the same bytes by another path (`copies`).
//!
//! Then the client's companion opens another stream (`client`), and the server's waits for one
//! (`server`).
//!
//! Both directions share the carrying stream's two wakers. An arrival wakes the reader, and the
//! writer if it waits for room; if neither waits it wakes the companion.

mod application;
mod copies;

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::{io::AsyncWrite, sync::Notify};

pub(crate) use application::ResumableStream;
pub use copies::StreamSwitch;

use super::{
    flow::{AttachRefused, Carrier, Flow, Violation},
    header::{Attach, Attached},
    ledger::{Ledger, Share},
};
use crate::http::stream::{ConnectStream, wire_error::WireError};

/// Interval of a companion's looks while data is under way.
pub(super) const TICK: Duration = Duration::from_millis(40);

/// Chunks received in one look of the companion or of a waiting writer; further chunks wait for the
/// next.
const CHUNKS_PER_LOOK_MAX: usize = 256;

/// Time for which a tunnel that its application has left waits for the peer's end or for progress;
/// then it is reset.
const LINGER_MAX: Duration = Duration::from_secs(60);

/// After both ends are done: longest wait for the peer's end of the carrying stream.
const FAREWELL_MAX: Duration = Duration::from_secs(5);

/// Why a tunnel is over before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the tunnel was reset")]
    Here,
    #[error("the peer reset the tunnel")]
    ByPeer,
    #[error("the peer violated the protocol: {0}")]
    Violation(#[from] Violation),
    #[error("the peer no longer has the tunnel")]
    Forgotten,
    #[error("the tunnel was not resumed in time")]
    Expired,
    #[error("the tunnel was reset to free its place")]
    Crowded,
    #[error("the tunnel could not be resumed in time")]
    GivenUp,
    #[error("the tunnel's client is closed")]
    Closed,
}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        let kind = match broken {
            Broken::Closed => io::ErrorKind::ConnectionAborted,
            Broken::Violation(_) => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::ConnectionReset,
        };
        Self::new(kind, broken)
    }
}

#[derive(Debug, Default)]
struct Waiters {
    reader: AtomicWaker,
    writer: AtomicWaker,
    companion: Notify,
}

impl Waiters {
    fn wake_all(&self) {
        self.reader.wake();
        self.writer.wake();
        self.companion.notify_one();
    }
}

struct OnArrival(Arc<Waiters>);

impl Wake for OnArrival {
    fn wake(self: Arc<Self>) {
        let (reader, writer) = (self.0.reader.take(), self.0.writer.take());
        if reader.is_none() && writer.is_none() {
            self.0.companion.notify_one();
        }
        for waker in [reader, writer].into_iter().flatten() {
            waker.wake();
        }
    }
}

struct OnRoom(Arc<Waiters>);

impl Wake for OnRoom {
    fn wake(self: Arc<Self>) {
        match self.0.writer.take() {
            Some(writer) => writer.wake(),
            None => self.0.companion.notify_one(),
        }
    }
}

struct OnCopyRoom(Arc<Waiters>);

impl Wake for OnCopyRoom {
    fn wake(self: Arc<Self>) {
        self.0.companion.notify_one();
    }
}

#[derive(Debug)]
struct State {
    flow: Flow,
    share: Share,
    wire: Option<ConnectStream>,
    /// The stream with copies.
    copy: Option<ConnectStream>,
    copies_wanted: bool,
    /// The rules leave it no path at the moment.
    held: bool,
    broken: Option<Broken>,
    /// Time at which the carrying stream was lost, or the tunnel began.
    detached_at: Instant,
    /// Time of the last arrival on the carrying stream.
    heard_at: Instant,
    heard_ever: bool,
    /// The application waits in `poll_read`.
    reader_waits: bool,
    /// Number of reads by the application, now and at the companion's last look.
    reads: u64,
    reads_seen: u64,
    /// Time since which the application is gone and everything is written.
    left_at: Option<Instant>,
    /// Bytes arrived that will never be read.
    unwanted: bool,
    /// Time at which the carrying stream was finished, after both ends were done.
    finished_at: Option<Instant>,
    companion_sleeps: bool,
}

/// The companion's view of the tunnel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// No work is left.
    pub(super) done: bool,
    pub(super) attached: bool,
    pub(super) detached_at: Instant,
    /// Time of the last arrival on the carrying stream.
    pub(super) heard_at: Instant,
    /// Whether this or an earlier stream ever brought bytes.
    pub(super) heard_ever: bool,
    /// Data is under way; the next look is due after `TICK`.
    pub(super) busy: bool,
    /// This end waits for a confirmation by the peer.
    pub(super) waits: bool,
    /// A stream with copies is wanted, and there is none.
    pub(super) lacks_copy: bool,
    /// It stands still because the rules say so.
    pub(super) held: bool,
    /// Both directions are complete.
    pub(super) complete: bool,
    pub(super) ponged: u64,
}

/// One end of a resumable tunnel.
#[derive(Debug)]
pub(crate) struct Line {
    state: Mutex<State>,
    waiters: Arc<Waiters>,
    on_arrival: Waker,
    on_room: Waker,
    /// The companion sends what the stream with copies refused.
    on_copy_room: Waker,
}

impl Line {
    pub(super) fn new(ledger: Ledger, wire: Option<ConnectStream>, now: Instant) -> Arc<Self> {
        let waiters = Arc::new(Waiters::default());
        Arc::new(Self {
            state: Mutex::new(State {
                flow: Flow::default(),
                share: Share::of(ledger),
                wire,
                copy: None,
                copies_wanted: false,
                held: false,
                broken: None,
                detached_at: now,
                heard_at: now,
                heard_ever: false,
                reader_waits: false,
                reads: 0,
                reads_seen: 0,
                left_at: None,
                unwanted: false,
                finished_at: None,
                companion_sleeps: false,
            }),
            on_arrival: Waker::from(Arc::new(OnArrival(waiters.clone()))),
            on_room: Waker::from(Arc::new(OnRoom(waiters.clone()))),
            on_copy_room: Waker::from(Arc::new(OnCopyRoom(waiters.clone()))),
            waiters,
        })
    }

    /// Returns when the companion should look before its time.
    pub(super) async fn notified(&self) {
        self.waiters.companion.notified().await;
    }

    /// The client's attempt to resume begins; the old stream, if there is one, goes on meanwhile.
    pub(super) fn begin_attach(&self) -> Attach {
        self.state.lock().flow.begin_attach()
    }

    /// The server has answered: `wire` carries the tunnel from now on. Returns the number of bytes
    /// that are sent again.
    pub(super) fn attached(&self, wire: ConnectStream, answer: Attached, now: Instant) -> u64 {
        let state = &mut *self.state.lock();
        if state.broken.is_some() {
            return 0;
        }
        if let Err(violation) = state.flow.attached(answer) {
            wire.abort();
            self.break_off(state, violation.into());
            return 0;
        }
        self.carry(state, wire, now);
        state.flow.take_replayed_bytes()
    }

    /// The server's answer to a request to resume. The old carrying stream is void.
    pub(super) fn attach(&self, attach: Attach, now: Instant) -> Result<Attached, AttachRefused> {
        let state = &mut *self.state.lock();
        let answer = match state.flow.attach(attach) {
            Ok(answer) => answer,
            Err(AttachRefused::Stale) => return Err(AttachRefused::Stale),
            Err(AttachRefused::Violation(violation)) => {
                self.break_off(state, violation.into());
                return Err(AttachRefused::Violation(violation));
            }
        };
        state.wire = None;
        state.end_copy();
        state.detached_at = now;
        self.waiters.wake_all();
        Ok(answer)
    }

    /// The server has sent its answer for that epoch over `wire`. If a later attachment has come
    /// meanwhile, `wire` is dropped. Returns the number of bytes that are sent again.
    pub(super) fn install(&self, wire: ConnectStream, epoch: u64, now: Instant) -> u64 {
        let state = &mut *self.state.lock();
        if state.broken.is_some() || state.flow.epoch() != epoch {
            return 0;
        }
        self.carry(state, wire, now);
        state.flow.take_replayed_bytes()
    }

    fn carry(&self, state: &mut State, wire: ConnectStream, now: Instant) {
        // The flow has begun anew, without copies.
        state.end_copy();
        state.wire = Some(wire);
        state.heard_at = now;
        state.finished_at = None;
        self.waiters.wake_all();
    }

    /// Ends the tunnel for both sides, unless it has ended.
    pub(super) fn fail(&self, broken: Broken) {
        let state = &mut *self.state.lock();
        self.break_off(state, broken);
    }

    pub(super) fn broken(&self) -> Option<Broken> {
        self.state.lock().broken
    }

    pub(super) fn is_attached(&self) -> bool {
        self.state.lock().wire.is_some()
    }

    /// Whether an application still holds the tunnel.
    pub(super) fn is_held(&self) -> bool {
        self.state.lock().left_at.is_none()
    }

    pub(super) fn ping(&self, number: u64) {
        let state = &mut *self.state.lock();
        state.flow.ping(number);
        let _ = self.poll_send(state);
    }

    /// Sends the tunnel's reset to the peer over a fresh carrying stream.
    pub(super) async fn send_reset(mut wire: ConnectStream) {
        let mut capsule = Some(Flow::reset_capsule());
        let sent = poll_fn(|cx| {
            ready!(wire.poll_sent(cx))?;
            if let Some(capsule) = capsule.take() {
                wire.send(cx, capsule)?;
                ready!(wire.poll_sent(cx))?;
            }
            // The peer answers by resetting the stream.
            wire.poll_chunk(cx).map_ok(|_| ())
        });
        let _ = tokio::time::timeout(FAREWELL_MAX, sent).await;
    }

    fn break_off(&self, state: &mut State, broken: Broken) {
        if state.broken.is_some() {
            return;
        }
        state.broken = Some(broken);
        if let Some(wire) = state.wire.take() {
            wire.abort();
        }
        state.end_copy();
        state.share.settle(0);
        self.waiters.wake_all();
    }

    /// The carrying stream is lost, but not the tunnel.
    fn lose(&self, state: &mut State, why: &io::Error) {
        if state.wire.take().is_some() {
            tracing::debug!(%why, "a resumable tunnel lost the stream that carried it");
            state.detached_at = Instant::now();
            self.waiters.companion.notify_one();
        }
    }

    fn on_wire_error(&self, state: &mut State, error: &WireError) {
        match error {
            WireError::Aborted => self.break_off(state, Broken::ByPeer),
            WireError::Lost(why) => self.lose(state, why),
        }
    }

    /// Sends the waiting bytes. Ready once the carrying stream has accepted all of them; copies are
    /// not waited for.
    fn poll_send(&self, state: &mut State) -> Poll<()> {
        let sent = self.poll_send_original(state);
        self.send_copy(state);
        sent
    }

    fn poll_send_original(&self, state: &mut State) -> Poll<()> {
        let cx = &mut Context::from_waker(&self.on_room);
        loop {
            let Some(wire) = &mut state.wire else {
                return Poll::Pending;
            };
            let sent = match wire.poll_sent(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => match state.flow.emit() {
                    Some(bytes) => wire.send(cx, bytes),
                    None => return Poll::Ready(()),
                },
                Poll::Ready(Err(error)) => Err(error),
            };
            if let Err(error) = sent {
                self.on_wire_error(state, &error);
            }
        }
    }

    /// Receives one chunk. Pending if there is none, or no stream.
    fn poll_arrival(&self, state: &mut State, join: bool) -> Poll<()> {
        if self.poll_copy_arrival(state, join).is_ready() {
            return Poll::Ready(());
        }
        let cx = &mut Context::from_waker(&self.on_arrival);
        let Some(wire) = &mut state.wire else {
            return Poll::Pending;
        };
        match ready!(wire.poll_chunk(cx)) {
            Ok(Some(chunk)) => self.take_in(state, Carrier::Original, chunk, join),
            // After both ends are done, this is the peer's farewell; at any other time the stream
            // is broken.
            Ok(None) if state.finished_at.is_some() => return Poll::Pending,
            Ok(None) => {
                if !state.flow.is_complete() {
                    self.lose(state, &io::ErrorKind::UnexpectedEof.into());
                }
                return Poll::Pending;
            }
            Err(error) => {
                self.on_wire_error(state, &error);
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    fn take_in(&self, state: &mut State, from: Carrier, chunk: Bytes, join: bool) {
        match state.flow.receive(from, chunk, join) {
            Ok(arrived) => {
                if arrived.confirmed {
                    self.waiters.writer.wake();
                }
                if arrived.data {
                    // Without `join` the reader itself receives.
                    if join {
                        self.waiters.reader.wake();
                    }
                    state.unwanted |= state.left_at.is_some() && !state.flow.is_read_to_end();
                }
                if arrived.reset {
                    self.break_off(state, Broken::ByPeer);
                }
            }
            Err(violation) => {
                tracing::debug!(%violation, "a resumable tunnel is reset");
                self.break_off(state, violation.into());
            }
        }
    }

    /// Called after several chunks, so that the clock and the budget are not asked for each.
    fn heard(state: &mut State) {
        state.heard_at = Instant::now();
        state.heard_ever = true;
        let held = state.flow.held_bytes();
        state.share.settle(held);
    }

    /// Receives bytes that the application does not read now, as far as the budget permits.
    fn drain(&self, state: &mut State) {
        for taken in 0..CHUNKS_PER_LOOK_MAX {
            if state.share.room(state.flow.held_bytes()) == 0
                || self.poll_arrival(state, true).is_pending()
            {
                if taken > 0 {
                    Self::heard(state);
                }
                return;
            }
        }
        Self::heard(state);
        self.waiters.companion.notify_one();
    }

    /// The application has acted: the companion must be awake.
    fn stir(&self, state: &mut State) {
        if state.companion_sleeps {
            state.companion_sleeps = false;
            self.waiters.companion.notify_one();
        }
    }

    /// One look of the companion.
    pub(super) fn look(&self, now: Instant) -> Look {
        let state = &mut *self.state.lock();
        let done = self.look_after(state, now);
        let reading = state.reader_waits || state.flow.is_read_to_end() || state.wire.is_none();
        let busy = !state.flow.is_quiet() || state.flow.unsent() > 0 || !reading;
        state.companion_sleeps = !busy;
        Look {
            done,
            attached: state.wire.is_some(),
            detached_at: state.detached_at,
            heard_at: state.heard_at,
            heard_ever: state.heard_ever,
            busy: busy || state.left_at.is_some(),
            waits: !state.flow.is_confirmed(),
            lacks_copy: state.copies_wanted && state.copy.is_none(),
            held: state.held,
            complete: state.flow.is_complete(),
            ponged: state.flow.ponged(),
        }
    }

    fn look_after(&self, state: &mut State, now: Instant) -> bool {
        if state.broken.is_some() {
            return true;
        }
        state.flow.tick(now);
        let absent = !state.reader_waits && state.reads == state.reads_seen;
        state.reads_seen = state.reads;
        if absent && !state.held || state.left_at.is_some() {
            self.drain(state);
        }
        let sent = self.poll_send(state);
        if state.broken.is_some() {
            return true;
        }
        if state.left_at.is_some() && state.flow.is_complete() && sent.is_ready() {
            return self.say_goodbye(state, now);
        }
        if let Some(left_at) = state.left_at {
            let last = left_at.max(state.heard_at);
            let waited = now.saturating_duration_since(last) > LINGER_MAX && state.wire.is_some();
            if waited || state.unwanted && state.flow.is_confirmed() {
                self.break_off(state, Broken::Here);
                return true;
            }
        }
        false
    }

    fn say_goodbye(&self, state: &mut State, now: Instant) -> bool {
        state.end_copy();
        let Some(wire) = &mut state.wire else {
            return true;
        };
        let finished_at = *state.finished_at.get_or_insert(now);
        let finished = {
            let cx = &mut Context::from_waker(&self.on_room);
            Pin::new(&mut *wire).poll_shutdown(cx)
        };
        match finished {
            Poll::Ready(Ok(())) => {
                let cx = &mut Context::from_waker(&self.on_arrival);
                // Any event is the end, or an error after which no data can be lost.
                let silent = wire.poll_chunk(cx).is_pending();
                !silent || now.saturating_duration_since(finished_at) > FAREWELL_MAX
            }
            Poll::Ready(Err(_)) => true,
            Poll::Pending => now.saturating_duration_since(finished_at) > FAREWELL_MAX,
        }
    }
}

/// A tunnel continues over another stream.
pub(super) fn count_resumed(replayed_bytes: u64) {
    metrics::counter!("braid_tunnel_resumed_total").increment(1);
    metrics::counter!("braid_tunnel_replayed_bytes_total").increment(replayed_bytes);
    tracing::debug!(replayed_bytes, "a tunnel continues over another stream");
}
