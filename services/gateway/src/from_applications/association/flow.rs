//! The datagrams between an application and one destination.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    net::UdpSocket,
    sync::{OwnedSemaphorePermit, mpsc, watch},
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;
use tunnel::{Authority, Tunnel, TunnelEnded, UdpTunnel, Urgency, steering_rules};

use super::super::socks5::datagram;
use crate::steering::{self, Blocked, Copied, FlowGuard, QUIET_MAX};

/// Datagrams that wait for the proxy's answer; further ones are dropped. Later the tunnel's own
/// queue is the bound.
const WAITING_MAX: usize = 16;

/// Pause before a refused destination, or one whose tunnel ended at once, is tried again.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Time of the last datagram; clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Touched(Arc<Mutex<Instant>>);

impl Touched {
    pub(super) fn new(now: Instant) -> Self {
        Self(Arc::new(Mutex::new(now)))
    }

    pub(super) fn touch(&self, now: Instant) {
        *self.0.lock() = now;
    }

    fn last(&self) -> Instant {
        *self.0.lock()
    }

    /// Returns once no datagram has passed for `max`.
    pub(super) async fn quiet_for(&self, max: Duration) {
        loop {
            let deadline = self.last() + max;
            if Instant::now() >= deadline {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }
}

/// The steering rules' view of an association.
#[derive(Clone)]
pub(in crate::from_applications) struct Steered {
    pub(in crate::from_applications) flows: steering::Flows,
    /// Its flows without their destinations.
    pub(in crate::from_applications) flow: steering_rules::Flow,
}

/// The ends of a flow, and its means.
pub(super) struct Way {
    pub(super) tunnel: Tunnel,
    pub(super) steered: Steered,
    pub(super) authority: Authority,
    pub(super) urgency: Urgency,
    pub(super) header: Bytes,
    pub(super) socket: Arc<UdpSocket>,
    pub(super) application: std::net::SocketAddr,
    pub(super) association: Touched,
}

/// Dropping it ends the flow.
pub(super) struct Flow {
    /// Until the proxy has answered, and the first datagram after a pause, which asks the rules
    /// again.
    waiting: mpsc::Sender<Bytes>,
    /// All others, so that a burst needs no other queue.
    opened: Opened,
    touched: Touched,
    place: OwnedSemaphorePermit,
    carrying: AbortOnDropHandle<()>,
}

type Opened = Arc<OnceLock<Carried>>;

#[derive(Clone)]
struct Carried {
    udp: Arc<UdpTunnel>,
    /// A decision of the rules holds for the flow.
    awake: Arc<AtomicBool>,
    ruled: Arc<Mutex<Ruled>>,
}

/// The decision that holds, or the last one.
struct Ruled {
    copied: Copied,
    held: watch::Receiver<bool>,
}

impl Ruled {
    fn of(guard: &FlowGuard) -> Self {
        Self {
            copied: guard.copied().clone(),
            held: guard.held(),
        }
    }
}

impl Carried {
    /// The tunnel counts datagrams that it drops for lack of room.
    fn send(&self, payload: &[u8]) {
        let ruled = self.ruled.lock();
        if *ruled.held.borrow() {
            return count_dropped("steering");
        }
        let sent = match ruled.copied.get() {
            true => self.udp.send_copied(payload),
            false => self.udp.send(payload),
        };
        if sent {
            passed("up", payload.len());
        }
    }
}

/// Why a destination is not reached.
#[derive(Debug, thiserror::Error)]
enum NotReached {
    #[error(transparent)]
    Open(#[from] tunnel::OpenError),
    #[error(transparent)]
    Blocked(#[from] Blocked),
}

impl Flow {
    pub(super) fn start(way: Way, place: OwnedSemaphorePermit) -> Self {
        let (waiting, datagrams) = mpsc::channel(WAITING_MAX);
        let touched = Touched::new(Instant::now());
        let opened = Opened::default();
        let carrying = tokio::spawn(way.carry(datagrams, opened.clone(), touched.clone()));
        Self {
            waiting,
            opened,
            touched,
            place,
            carrying: AbortOnDropHandle::new(carrying),
        }
    }

    pub(super) fn send(&self, payload: &[u8]) {
        self.touched.touch(Instant::now());
        let awake = |it: &&Carried| it.awake.load(Ordering::Relaxed);
        if let Some(carried) = self.opened.get().filter(awake) {
            carried.send(payload);
            return;
        }
        let payload = Bytes::copy_from_slice(payload);
        if self.waiting.try_send(payload).is_err() {
            count_dropped("waiting");
        }
    }

    pub(super) fn touched(&self) -> Instant {
        self.touched.last()
    }

    pub(super) fn is_over(&self) -> bool {
        self.carrying.is_finished()
    }

    /// Ends the flow and returns its place.
    pub(super) fn into_place(self) -> OwnedSemaphorePermit {
        self.place
    }
}

impl Way {
    async fn carry(self, waiting: mpsc::Receiver<Bytes>, opened: Opened, touched: Touched) {
        let authority = &self.authority;
        let start = Instant::now();
        match self.exchange(waiting, &opened, &touched).await {
            // The next datagram asks the rules again.
            Ok(None) => return,
            Ok(Some(ended)) => {
                tracing::debug!(%authority, %ended, "a flow of an application ended");
                let broken_off = matches!(ended, TunnelEnded::ByPeer | TunnelEnded::Malformed(_));
                if !broken_off || start.elapsed() > REFUSED_PAUSE {
                    return;
                }
            }
            Err(error) => {
                tracing::info!(%authority, %error, "an application's UDP destination was not reached");
                count("refused");
            }
        }
        // Its datagrams are dropped meanwhile: the channel is closed, and the flow remains.
        tokio::time::sleep(REFUSED_PAUSE).await;
    }

    async fn exchange(
        &self,
        mut waiting: mpsc::Receiver<Bytes>,
        opened: &Opened,
        touched: &Touched,
    ) -> Result<Option<TunnelEnded>, NotReached> {
        let flow = self.steered.flow.clone().to(self.authority.as_str());
        let entered = self.steered.flows.enter(flow.clone())?;
        let udp = self.tunnel.open_udp(&self.authority, self.urgency).await?;
        let carried = Carried {
            udp: Arc::new(udp),
            awake: Arc::new(AtomicBool::new(true)),
            ruled: Arc::new(Mutex::new(Ruled::of(&entered))),
        };
        let mut guard = Some(entered);
        count("opened");
        while let Ok(payload) = waiting.try_recv() {
            carried.send(&payload);
        }
        // Set only here.
        let _ = opened.set(carried.clone());
        loop {
            let is_cut = async {
                match &guard {
                    Some(guard) => guard.is_cut().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // One that came in between, or after a pause; the channel is open while the flow
                // lives.
                Some(payload) = waiting.recv() => {
                    if guard.is_none() {
                        guard = Some(self.wake(&flow, &carried)?);
                        self.tunnel.obeyed().await;
                    }
                    carried.send(&payload);
                }
                // The rules leave it no access any more.
                () = is_cut => return Ok(None),
                // Its decision binds the other flows no longer.
                () = touched.quiet_for(QUIET_MAX), if guard.is_some() => {
                    carried.awake.store(false, Ordering::Relaxed);
                    guard = None;
                }
                received = carried.udp.receive() => {
                    let payload = match received {
                        Ok(payload) => payload,
                        Err(ended) => return Ok(Some(ended)),
                    };
                    if guard.is_none() {
                        guard = Some(self.wake(&flow, &carried)?);
                    }
                    let now = Instant::now();
                    touched.touch(now);
                    self.association.touch(now);
                    let answer = datagram::answer(&self.header, &payload);
                    match self.socket.send_to(&answer, self.application).await {
                        Ok(_) => passed("down", payload.len()),
                        Err(error) => {
                            tracing::trace!(%error, "a datagram did not reach its application");
                            count_dropped("unsent");
                        }
                    }
                }
            }
        }
    }
}

impl Way {
    /// Asks the rules again after a pause.
    fn wake(&self, flow: &steering_rules::Flow, carried: &Carried) -> Result<FlowGuard, Blocked> {
        let guard = self.steered.flows.enter(flow.clone())?;
        *carried.ruled.lock() = Ruled::of(&guard);
        carried.awake.store(true, Ordering::Relaxed);
        Ok(guard)
    }
}

fn passed(direction: &'static str, bytes: usize) {
    metrics::counter!("braid_gateway_applications_bytes_total", "direction" => direction)
        .increment(bytes as u64);
}

fn count(result: &'static str) {
    metrics::counter!("braid_gateway_applications_flows_total", "result" => result).increment(1);
}

pub(super) fn count_dropped(reason: &'static str) {
    metrics::counter!("braid_gateway_applications_datagrams_dropped_total", "reason" => reason)
        .increment(1);
}
