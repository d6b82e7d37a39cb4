//! The client's side: detects that a tunnel needs another stream, and asks the proxy for it.
//!
//! A tunnel needs another stream if the carrying stream has died or the tunnel has stalled
//! (`stall`). It also does if its session has ended, or is silent while the keeper has another. The
//! old stream goes on until the proxy has answered. If the proxy does not know the tunnel, the
//! tunnel ends at once. It stays only while its old session speaks: another proxy may have answered
//! instead of one that is draining.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{StatusCode, uri::Authority};
use tokio::sync::watch;

use super::{
    header::{Attached, Offer, Token},
    line::{Broken, Line, ResumableStream, TICK},
    server::until,
    stall::{Stall, Verdict},
};
use crate::{
    client::{
        session::{ConnectError, Session},
        shared::Shared,
    },
    http::{request::Urgency, stream::ConnectStream},
};

/// Silence of a session after which another session is preferred.
const MUTE_MAX: Duration = Duration::from_secs(1);

/// Longest wait for an answer; then the next attempt supersedes it.
const ATTACH_MAX: Duration = Duration::from_secs(4);

/// First pause after a failed attempt.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest pause after failed attempts.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Time for which the client tries to report a reset of a detached tunnel to the proxy. Later the
/// proxy's own limit ends the tunnel.
const TELL_MAX: Duration = Duration::from_secs(30);

/// Starts a tunnel that the proxy has agreed to resume.
pub(crate) fn begin(
    shared: &Arc<Shared>,
    (session, wire, answer): (Arc<Session>, ConnectStream, Attached),
    request: Request,
) -> ResumableStream {
    let line = Line::new(shared.ledger.clone(), Some(wire), Instant::now());
    let companion = Companion {
        line: line.clone(),
        sessions: shared.session.subscribe(),
        shared: shared.clone(),
        troubles: session.paths.troubles(),
        carrier: session,
        request,
        stall: Stall::default(),
        attempt: None,
        retry_at: None,
        pause: RETRY_FIRST,
        copying: Copying::new(answer),
        aborting: Aborting::No,
    };
    tokio::spawn(companion.run());
    ResumableStream::new(line)
}

/// The parameters of the tunnel's request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) authority: Authority,
    pub(crate) urgency: Urgency,
    pub(crate) token: Token,
}

type PendingAnswer = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// An attempt to resume that is under way.
struct Attempt {
    session: Arc<Session>,
    answer: PendingAnswer,
}

enum Answer {
    Continued(Box<ConnectStream>, Attached),
    Refused(StatusCode),
    /// The answer of a proxy without resumption.
    NotResumed,
    Lost(ConnectError),
    TimedOut,
}

async fn ask(session: Arc<Session>, request: Request, offer: Offer) -> Answer {
    let asking = session.connect(&request.authority, (request.urgency, true), Some(offer));
    match tokio::time::timeout(ATTACH_MAX, asking).await {
        Ok(Ok((wire, Some(answer)))) => Answer::Continued(Box::new(wire), answer),
        Ok(Ok((wire, None))) => {
            wire.abort();
            Answer::NotResumed
        }
        Ok(Err(ConnectError::Refused(status))) => Answer::Refused(status),
        Ok(Err(error)) => Answer::Lost(error),
        Err(_) => Answer::TimedOut,
    }
}

/// The companion of one tunnel; see `line`.
struct Companion {
    line: Arc<Line>,
    shared: Arc<Shared>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    request: Request,
    /// The session of the carrying stream, or of the last one.
    carrier: Arc<Session>,
    /// Rises when a path of the carrier gets into trouble.
    troubles: watch::Receiver<u64>,
    stall: Stall,
    attempt: Option<Attempt>,
    retry_at: Option<Instant>,
    pause: Duration,
    copying: Copying,
    aborting: Aborting,
}

/// The request for a stream with copies.
struct Copying {
    /// The proxy of the carrying stream takes copies.
    is_agreed: bool,
    /// The epoch and the answer of the request that is under way.
    asking: Option<(u64, PendingAnswer)>,
    retry_at: Option<Instant>,
}

impl Copying {
    fn new(answer: Attached) -> Self {
        Self {
            is_agreed: answer.takes_copies,
            asking: None,
            retry_at: None,
        }
    }

    async fn answered(&mut self) -> (u64, Answer) {
        match &mut self.asking {
            Some((epoch, answer)) => (*epoch, answer.await),
            None => std::future::pending().await,
        }
    }
}

/// Whether the proxy must still learn of a reset by the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aborting {
    No,
    Since(Instant),
    Told,
}

enum Woken {
    Answered(Answer),
    Copied(u64, Answer),
    SessionChanged,
    Troubled,
    Otherwise,
    Closed,
}

impl Companion {
    async fn run(mut self) {
        let end = self.shared.end.clone();
        loop {
            let Some(wake) = self.turn(Instant::now()) else {
                return;
            };
            let woken = {
                let Self {
                    line,
                    sessions,
                    troubles,
                    attempt,
                    copying,
                    ..
                } = &mut self;
                let answered = async {
                    match attempt {
                        Some(attempt) => attempt.answer.as_mut().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = end.cancelled() => Woken::Closed,
                    answer = answered => Woken::Answered(answer),
                    (epoch, answer) = copying.answered() => Woken::Copied(epoch, answer),
                    changed = sessions.changed() => match changed {
                        Ok(()) => Woken::SessionChanged,
                        Err(_) => Woken::Closed,
                    },
                    Ok(()) = troubles.changed() => Woken::Troubled,
                    () = line.notified() => Woken::Otherwise,
                    () = until(wake) => Woken::Otherwise,
                }
            };
            match woken {
                Woken::Answered(answer) => {
                    if let Some(attempt) = self.attempt.take() {
                        self.on_answer(attempt, answer);
                    }
                }
                Woken::Copied(epoch, answer) => self.on_copy(epoch, answer),
                Woken::SessionChanged => {
                    self.retry_at = None;
                    self.pause = RETRY_FIRST;
                    // A session that has ended cannot answer, and a replaced one may not answer for
                    // long. The next attempt supersedes it in any state.
                    let current = self
                        .sessions
                        .borrow()
                        .as_ref()
                        .map(|session| session.number);
                    let outdated = |attempt: &Attempt| {
                        attempt.session.is_closed()
                            || current.is_some_and(|number| number != attempt.session.number)
                    };
                    if let Some(attempt) = self.attempt.take_if(|attempt| outdated(attempt)) {
                        attempt.session.give_up();
                    }
                }
                Woken::Troubled => self.stall.on_trouble(Instant::now()),
                Woken::Otherwise => {}
                Woken::Closed => {
                    self.line.fail(Broken::Closed);
                    return;
                }
            }
        }
    }

    /// Looks after the tunnel; returns the time of the next look, or `None` if the tunnel is
    /// finished.
    fn turn(&mut self, now: Instant) -> Option<Option<Instant>> {
        let look = self.line.look(now);
        if look.done && !self.is_aborting(now) {
            return None;
        }
        if look.complete && !look.attached {
            // The proxy forgets the rest by its own limit.
            return None;
        }
        let mut wake = look.busy.then(|| now + TICK);
        let session = self.sessions.borrow_and_update().clone();
        self.stall.on_arrivals(now, self.carrier.arrivals());
        let mut wanted = None;
        if look.attached {
            let mute = self.carrier.paths.silence(now) > MUTE_MAX;
            let left = mute || self.carrier.is_closed() || self.carrier.is_given_up();
            match session {
                Some(session) if session.number != self.carrier.number => {
                    // A QUIC session is preferred over TCP as soon as it exists. A session that is
                    // being finished keeps its tunnels only while their data moves.
                    let better = self.carrier.is_fallback() && !session.is_fallback();
                    if left || better || self.has_stalled(now, look) {
                        wanted = Some(session);
                    } else {
                        wake = wake.or(Some(now + MUTE_MAX));
                    }
                }
                session if !mute => {
                    let moved_before = self.stall.has_moved();
                    if self.has_stalled(now, look) {
                        if moved_before && !self.stall.session_moves(now) {
                            // Another stream of the same session did not help, and the session
                            // serves no other stream.
                            self.carrier.give_up();
                        } else {
                            wanted = session;
                        }
                    }
                }
                _ => {}
            }
            if self.stall.waits() {
                wake = wake.or(Some(now + TICK));
            }
        } else {
            if !look.done {
                let deadline = look.detached_at + self.shared.setup.config.resume_within;
                if deadline <= now {
                    tracing::debug!(token = ?self.request.token, "a tunnel could not be resumed in time");
                    self.line.fail(Broken::GivenUp);
                    return None;
                }
                wake = Some(deadline);
            }
            wanted = session.filter(|session| !session.is_closed());
        }
        if look.attached && look.lacks_copy && self.attempt.is_none() {
            let again = self.copy(now);
            wake = wake.into_iter().chain(again).min();
        }
        if let (Some(session), None) = (wanted, &self.attempt) {
            match self.retry_at.filter(|at| *at > now) {
                Some(at) => wake = Some(wake.map_or(at, |wake| wake.min(at))),
                None => self.attach(session),
            }
        }
        Some(wake)
    }

    /// Whether the proxy must still learn of the reset here.
    fn is_aborting(&mut self, now: Instant) -> bool {
        if self.line.broken() != Some(Broken::Here) {
            return false;
        }
        match self.aborting {
            // A reset that was sent in a living session arrives.
            Aborting::No
                if self.attempt.is_none()
                    && !self.carrier.is_closed()
                    && self.carrier.paths.silence(now) < MUTE_MAX =>
            {
                false
            }
            Aborting::No => {
                self.aborting = Aborting::Since(now);
                true
            }
            Aborting::Since(since) => now.saturating_duration_since(since) < TELL_MAX,
            Aborting::Told => false,
        }
    }

    fn has_stalled(&mut self, now: Instant, look: super::line::Look) -> bool {
        if look.held {
            // Answers wait in the window as well.
            self.stall.on_attached();
        }
        if self.attempt.is_some() || look.held {
            return false;
        }
        match self.stall.look(now, look.heard_at, look.ponged, look.waits) {
            Verdict::Fine => false,
            Verdict::Ask(number) => {
                self.line.ping(number);
                false
            }
            Verdict::Stalled => {
                tracing::debug!(token = ?self.request.token, session = self.carrier.number, "a tunnel has stalled");
                metrics::counter!("braid_tunnel_stalled_total").increment(1);
                true
            }
        }
    }

    /// Asks for a stream with copies, beside the carrying one in the same session. Returns the time
    /// of the next attempt.
    fn copy(&mut self, now: Instant) -> Option<Instant> {
        let copying = &mut self.copying;
        if !copying.is_agreed || copying.asking.is_some() || self.carrier.is_fallback() {
            return None;
        }
        if let Some(at) = copying.retry_at.filter(|at| *at > now) {
            return Some(at);
        }
        let attach = self.line.begin_copy();
        let offer = Offer {
            token: self.request.token,
            attach: Some(attach),
        };
        let answer = Box::pin(ask(self.carrier.clone(), self.request.clone(), offer));
        copying.asking = Some((attach.epoch, answer));
        // A stream that ends at once is not asked for at once.
        copying.retry_at = Some(now + RETRY_MAX);
        None
    }

    /// The tunnel itself is not concerned if its copy is refused.
    fn on_copy(&mut self, epoch: u64, answer: Answer) {
        self.copying.asking = None;
        match answer {
            Answer::Continued(wire, answer) => self.line.copied(*wire, epoch, answer),
            Answer::Refused(status) => {
                tracing::debug!(token = ?self.request.token, %status, "a tunnel is not copied");
            }
            Answer::NotResumed => self.copying.is_agreed = false,
            Answer::Lost(_) | Answer::TimedOut => {}
        }
    }

    fn attach(&mut self, session: Arc<Session>) {
        let attach = self.line.begin_attach();
        tracing::debug!(token = ?self.request.token, session = session.number, epoch = attach.epoch, "continuing a tunnel");
        let offer = Offer {
            token: self.request.token,
            attach: Some(attach),
        };
        self.attempt = Some(Attempt {
            answer: Box::pin(ask(session.clone(), self.request.clone(), offer)),
            session,
        });
    }

    fn on_answer(&mut self, attempt: Attempt, answer: Answer) {
        let now = Instant::now();
        match answer {
            Answer::Continued(wire, _) if self.line.broken().is_some() => {
                tokio::spawn(Line::send_reset(*wire));
                self.aborting = Aborting::Told;
            }
            Answer::Continued(wire, answer) => {
                let replayed = self.line.attached(*wire, answer, now);
                super::line::count_resumed(replayed);
                self.carrier = attempt.session;
                self.troubles = self.carrier.paths.troubles();
                self.copying = Copying::new(answer);
                self.stall.on_attached();
                self.retry_at = None;
                self.pause = RETRY_FIRST;
            }
            // The proxy has seen a higher epoch: its answer to it was lost. The next epoch is
            // higher.
            Answer::Refused(StatusCode::CONFLICT) => self.retry_later(now),
            Answer::Refused(
                StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST,
            )
            | Answer::NotResumed => self.on_forgotten(attempt, now),
            Answer::Refused(status) => {
                tracing::debug!(token = ?self.request.token, %status, "a tunnel was not resumed");
                self.retry_later(now);
            }
            Answer::Lost(error) => {
                tracing::debug!(token = ?self.request.token, %error, "the session ended while a tunnel was resumed");
                attempt.session.give_up();
                self.retry_later(now);
            }
            Answer::TimedOut => {
                // A session with traffic, but without this answer or data for other streams, is
                // useless; the keeper makes another.
                let serves_others =
                    attempt.session.number == self.carrier.number && self.stall.session_moves(now);
                if attempt.session.paths.silence(now) < MUTE_MAX && !serves_others {
                    attempt.session.give_up();
                }
                self.retry_later(now);
            }
        }
    }

    fn on_forgotten(&mut self, attempt: Attempt, now: Instant) {
        if self.line.is_attached()
            && !self.carrier.is_closed()
            && self.carrier.paths.silence(now) < MUTE_MAX
            && self.carrier.number != attempt.session.number
        {
            // The old stream goes on, at another proxy than the one that answered.
            self.pause = RETRY_MAX;
            self.retry_later(now);
            return;
        }
        let authority = &self.request.authority;
        tracing::info!(%authority, "a tunnel ends: the proxy has lost it");
        metrics::counter!("braid_tunnel_forgotten_total").increment(1);
        self.line.fail(Broken::Forgotten);
        self.aborting = Aborting::Told;
    }

    fn retry_later(&mut self, now: Instant) {
        self.retry_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }
}
