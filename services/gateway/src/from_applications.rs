//! The entry for applications: HTTP CONNECT and SOCKS5 on one port, distinguished by the first
//! byte. Each connection becomes a tunnel, or holds an association for datagrams.
//!
//! ```text
//! TCP -> conversation (http | socks5, sans-IO) -> tunnel.open_tcp -> splice
//!                                              -> association: UDP -> flow per destination -> tunnel.open_udp
//! TUN device: TCP -> nftables' redirect -> redirected -> tunnel.open_tcp -> splice
//!             port 53 -> nftables' redirect -> dns -> tunnel.open_tcp
//!             all else -> tun -> tunnel.open_ip
//! ```
//!
//! A negotiating connection holds one of `NEGOTIATIONS_MAX` places, and an established one holds
//! one of `connections_max`. So a slow or silent application takes no place of working ones, and
//! the longest negotiation gives way to a new connection. A request beyond `connections_max` waits
//! for its turn, at most `WAIT_MAX`. An application's stream never goes before alerts, whatever
//! priority it asks for.

mod association;
mod conversation;
mod dns;
mod http_connect;
mod listeners;
mod redirected;
mod refusal;
mod socks5;
mod step;
mod tun;

use std::{
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use association::{Association, Steered};
use bytes::Bytes;
use conversation::{Conversation, Dialect};
pub use dns::Dns;
pub(crate) use dns::resolver;
pub(crate) use listeners::bind;
use parking_lot::Mutex;
pub use redirected::Redirected;
use refusal::Refusal;
use service_kit::{Context, DRAIN_LIMIT, Secret, guesses::Guesses};
use step::{Step, Wanted};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
pub use tun::Packets;
use tunnel::{
    Place, Places, SpliceError, Traffic, Tunnel, TunnelStream, Urgency, splice,
    steering_rules::{self, Flow},
};

use crate::steering::{FlowGuard, Flows};

/// Names under which the listeners are announced.
pub const LISTENER: &str = "applications";
pub const LISTENER_PROMPT: &str = "applications-prompt";

/// Negotiating connections of one listener; for a further connection the oldest is closed once it
/// has had `NEGOTIATION_GRACE`.
const NEGOTIATIONS_MAX: usize = 64;
/// A burst of connections closes none of its own: honest negotiations end within this time. Silent
/// connections hold a newcomer up for no longer.
const NEGOTIATION_GRACE: Duration = Duration::from_millis(250);
/// Requests that wait for the end of another application's connection; further ones are refused.
const WAITING_MAX: usize = 512;
/// Longest wait of a request beyond `connections_max`; then it is refused.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest negotiation; then the connection is refused.
const NEGOTIATION_MAX: Duration = Duration::from_secs(10);
/// Pause after `accept` failed, which means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Part of the drain limit for closing the tunnel itself after the applications' time.
const CLOSE_RESERVE: Duration = Duration::from_millis(1_500);
/// Time for which a refused application's data is read and dropped, so that the refusal arrives
/// before a reset.
const REFUSAL_LINGER: Duration = Duration::from_millis(500);

/// Settings of the entry for applications.
#[derive(Clone, Debug)]
pub struct Options {
    /// The token of applications; `None` on loopback.
    pub token: Option<Secret>,
    /// Concurrent tunnels of applications; at the bound requests wait for `WAIT_MAX`.
    pub connections_max: usize,
    /// Time without traffic after which a tunnel is closed.
    pub idle_max: Duration,
}

/// Accepts connections of applications until shutdown is requested, then gives them time to end.
pub struct Applications {
    pub tunnel: Tunnel,
    /// Which accesses each connection may use.
    pub flows: Flows,
    pub options: Options,
}

struct Shared {
    tunnel: Tunnel,
    steered: Flows,
    options: Options,
    places: Arc<Semaphore>,
    /// Places of requests that wait for one of `places`.
    waiting: Arc<Semaphore>,
    /// Places for the flows of all associations.
    flows: Arc<Semaphore>,
    /// Wrong tokens, by the address that sent them.
    guesses: Mutex<Guesses>,
}

/// Counts the bytes of a connection, also for its rule.
fn counted(steered: &FlowGuard) -> Arc<Traffic> {
    let counter = |direction| metrics::counter!("braid_gateway_applications_bytes_total", "direction" => direction);
    let traffic = Arc::new(Traffic::new(counter("down"), counter("up")));
    let passed = Arc::clone(&traffic);
    steered.counts(move || {
        let (down, up) = passed.bytes();
        down.saturating_add(up)
    });
    traffic
}

impl Applications {
    /// Each listener has a default urgency for its streams.
    pub async fn run(self, listeners: Vec<(TcpListener, Urgency)>, context: Context) {
        let shared = Arc::new(Shared {
            places: Arc::new(Semaphore::new(self.options.connections_max)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            flows: Arc::new(Semaphore::new(association::FLOWS_MAX)),
            guesses: Mutex::default(),
            tunnel: self.tunnel,
            steered: self.flows,
            options: self.options,
        });
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let accepting = listeners.into_iter().map(|(listener, urgency)| {
            accept_all(
                listener,
                urgency,
                shared.clone(),
                connections.clone(),
                cut.clone(),
            )
        });
        let accepting = futures::future::join_all(accepting);
        tokio::select! {
            () = context.shutdown().requested() => {}
            _ = accepting => {}
        }
        connections.close();
        let grace = DRAIN_LIMIT.saturating_sub(CLOSE_RESERVE);
        if tokio::time::timeout(grace, connections.wait())
            .await
            .is_err()
        {
            tracing::info!(left = connections.len(), "applications cut off");
            cut.cancel();
            connections.wait().await;
        }
    }
}

async fn accept_all(
    listener: TcpListener,
    urgency: Urgency,
    shared: Arc<Shared>,
    connections: TaskTracker,
    cut: CancellationToken,
) {
    let mut negotiations = Places::with_grace(NEGOTIATIONS_MAX, NEGOTIATION_GRACE);
    loop {
        let (stream, address) = match listener.accept().await {
            Ok((stream, address)) => (stream, address.ip()),
            Err(error) => {
                tracing::warn!(%error, "an application's connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if shared.is_slowed(address) {
            metrics::counter!("braid_gateway_tokens_slowed_total").increment(1);
            continue;
        }
        // The semaphore is never closed.
        let Some(negotiating) = negotiations.take().await else {
            return;
        };
        let (shared, cut) = (shared.clone(), cut.clone());
        connections.spawn(async move {
            let serving = async {
                if let Err(error) = shared.serve(stream, address, urgency, negotiating).await {
                    tracing::debug!(%error, "an application's connection ended");
                }
            };
            cut.run_until_cancelled(serving).await;
        });
    }
}

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("negotiating: {0}")]
    Negotiate(io::Error),
    #[error("refused: {0}")]
    Refused(Refusal),
    #[error(transparent)]
    Splice(#[from] SpliceError),
    #[error("association: {0}")]
    Associate(io::Error),
}

/// The result of a negotiation.
enum Negotiated {
    Wanted(Wanted),
    Associate {
        port: u16,
        user: Option<String>,
    },
    Refused(Refusal),
    /// The application has closed the connection.
    Gone,
}

impl Shared {
    fn is_slowed(&self, address: IpAddr) -> bool {
        self.options.token.is_some()
            && self
                .guesses
                .lock()
                .allowed(address, Instant::now())
                .is_err()
    }

    /// Records the address's token for its next connections.
    fn note(&self, address: IpAddr, negotiated: &Negotiated) {
        if self.options.token.is_none() {
            return;
        }
        let (mut guesses, now) = (self.guesses.lock(), Instant::now());
        match negotiated {
            Negotiated::Refused(Refusal::Unauthorized) => guesses.wrong(address, None, now),
            Negotiated::Wanted(_) | Negotiated::Associate { .. } => guesses.right(address, now),
            Negotiated::Refused(_) | Negotiated::Gone => {}
        }
    }

    /// A place for an application's connection, at once or in the order of arrival.
    async fn turn(&self, negotiating: Place) -> Result<OwnedSemaphorePermit, Refusal> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        let refusal = match self.waiting.clone().try_acquire_owned() {
            Ok(_waiting) => {
                // A request that waits keeps no newcomer from negotiating.
                drop(negotiating);
                let place = tokio::time::timeout(WAIT_MAX, self.places.clone().acquire_owned());
                match place.await {
                    Ok(Ok(place)) => {
                        metrics::counter!("braid_gateway_applications_waited_total").increment(1);
                        return Ok(place);
                    }
                    // The semaphore is never closed.
                    Ok(Err(_)) | Err(_) => Refusal::Full(self.options.connections_max),
                }
            }
            Err(_) => Refusal::Crowded(WAITING_MAX),
        };
        // Written once in 10 s, however many are refused.
        tracing::warn!(limit = "--applications-connections-max", %refusal, "requests of applications are refused");
        Err(refusal)
    }

    async fn serve(
        &self,
        mut stream: TcpStream,
        address: IpAddr,
        urgency: Urgency,
        negotiating: Place,
    ) -> Result<(), ServeError> {
        stream.set_nodelay(true).map_err(ServeError::Negotiate)?;
        let mut conversation = Conversation::new(self.options.token.clone());
        let talking = negotiate(&mut stream, &mut conversation);
        let talking = tokio::time::timeout(NEGOTIATION_MAX, talking);
        let negotiated = match negotiating.hold(talking).await {
            Some(Ok(negotiated)) => negotiated.map_err(ServeError::Negotiate)?,
            Some(Err(_)) => Negotiated::Refused(Refusal::TooSlow),
            // Closed at once for a newcomer: a refusal would linger.
            None => Negotiated::Gone,
        };
        self.note(address, &negotiated);
        let dialect = conversation.dialect();
        let wanted = match negotiated {
            Negotiated::Wanted(wanted) => wanted,
            Negotiated::Associate { port, user } => {
                let place = match self.turn(negotiating).await {
                    Ok(place) => place,
                    Err(refusal) => return refuse(stream, dialect, refusal).await,
                };
                let flow = flow_of(
                    admitted(urgency),
                    urgency == Urgency::Prompt,
                    user.as_deref(),
                );
                let associated = self.associate(stream, dialect, port, urgency, flow).await;
                drop(place);
                return associated;
            }
            Negotiated::Refused(refusal) => {
                let telling = refuse(stream, dialect, refusal);
                let told = negotiating.hold(telling).await;
                return told.unwrap_or(Ok(()));
            }
            Negotiated::Gone => return Ok(()),
        };
        let _place = match self.turn(negotiating).await {
            Ok(place) => place,
            Err(refusal) => return refuse(stream, dialect, refusal).await,
        };
        let prompt = urgency == Urgency::Prompt;
        let urgency = admitted(wanted.urgency.unwrap_or(urgency));
        let flow = flow_of(urgency, prompt, wanted.user.as_deref());
        let steered = match self.steered.enter(flow.to(wanted.authority.as_str())) {
            Ok(steered) => steered,
            Err(blocked) => return refuse(stream, dialect, Refusal::Steered(blocked)).await,
        };
        let opened = self.tunnel.open_tcp(&wanted.authority, urgency).await;
        let mut tunnel = match opened {
            Ok(tunnel) => tunnel,
            Err(error) => {
                tracing::info!(authority = %wanted.authority, %error, "an application's destination was not reached");
                return refuse(stream, dialect, Refusal::NotOpened(error)).await;
            }
        };
        count(dialect, "opened");
        steered.carried_by(tunnel.switch());
        let open = Open::enter();
        stream
            .write_all(&dialect.opened())
            .await
            .map_err(ServeError::Negotiate)?;
        send_early(&mut tunnel, wanted.early)
            .await
            .map_err(ServeError::Negotiate)?;
        let traffic = counted(&steered);
        let spliced = splice(tunnel, stream, self.options.idle_max, &traffic);
        // None: the rules leave it no access any more.
        let ended = steered.carry(spliced).await.unwrap_or(Ok(()));
        drop(open);
        let (down_bytes, up_bytes) = traffic.bytes();
        tracing::debug!(authority = %wanted.authority, up_bytes, down_bytes, ?ended, "an application's tunnel ended");
        Ok(ended?)
    }
}

impl Shared {
    /// Relays an application's datagrams while its connection lives.
    async fn associate(
        &self,
        mut stream: TcpStream,
        dialect: Dialect,
        port: u16,
        urgency: Urgency,
        mut flow: Flow,
    ) -> Result<(), ServeError> {
        let association = match Association::bind(&stream, port).await {
            Ok(association) => association,
            Err(error) => return refuse(stream, dialect, Refusal::NoSocket(error)).await,
        };
        let relay = association.address().map_err(ServeError::Associate)?;
        flow.protocol = steering_rules::Protocol::Udp;
        // Only asked: a decision holds for each destination while it has datagrams.
        if let Err(blocked) = self.steered.enter(flow.clone()) {
            return refuse(stream, dialect, Refusal::Steered(blocked)).await;
        }
        count(dialect, "associated");
        let _open = Open::enter();
        let associated = socks5::associated(relay);
        let told = stream.write_all(&associated).await;
        told.map_err(ServeError::Associate)?;
        let rules = Steered {
            flows: self.steered.clone(),
            flow,
        };
        let serving = association.run(
            (&self.tunnel, rules),
            admitted(urgency),
            &self.flows,
            self.options.idle_max,
        );
        tokio::select! {
            failed = serving => failed.map_err(ServeError::Associate),
            () = gone(&mut stream) => Ok(()),
        }
    }
}

/// The flow as rules know it: by the user of SOCKS5, or by the listener.
fn flow_of(urgency: Urgency, prompt_listener: bool, user: Option<&str>) -> Flow {
    let application = match user.filter(|user| !user.is_empty()) {
        Some(user) => format!("user:{user}"),
        None if prompt_listener => LISTENER_PROMPT.to_owned(),
        None => LISTENER.to_owned(),
    };
    let urgency = match urgency {
        Urgency::Bulk => steering_rules::Urgency::Bulk,
        Urgency::Prompt | Urgency::Urgent => steering_rules::Urgency::Prompt,
    };
    Flow::new(application, urgency)
}

/// Returns when the application has closed its connection; its bytes there have no meaning.
async fn gone(stream: &mut TcpStream) {
    let mut rest = [0; 64];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
}

/// Alerts stay before all requests of applications.
fn admitted(asked: Urgency) -> Urgency {
    match asked {
        Urgency::Urgent | Urgency::Prompt => Urgency::Prompt,
        Urgency::Bulk => Urgency::Bulk,
    }
}

/// Some applications send before the tunnel is confirmed.
async fn send_early(tunnel: &mut TunnelStream, early: Bytes) -> io::Result<()> {
    tunnel.write_all(&early).await?;
    tunnel.flush().await
}

async fn negotiate(
    stream: &mut TcpStream,
    conversation: &mut Conversation,
) -> io::Result<Negotiated> {
    loop {
        match conversation.step() {
            Step::Say(answer) => stream.write_all(&answer).await?,
            Step::Want(wanted) => return Ok(Negotiated::Wanted(wanted)),
            Step::Associate { port, user } => return Ok(Negotiated::Associate { port, user }),
            Step::Refuse(refusal) => return Ok(Negotiated::Refused(refusal)),
            Step::More => {
                if stream.read_buf(conversation.input()).await? == 0 {
                    return Ok(Negotiated::Gone);
                }
            }
        }
    }
}

async fn refuse(
    mut stream: TcpStream,
    dialect: Dialect,
    refusal: Refusal,
) -> Result<(), ServeError> {
    count(dialect, refusal.label());
    let telling = async {
        stream.write_all(&dialect.refused(&refusal)).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        Ok(())
    };
    if let Ok(Err(error)) = tokio::time::timeout(REFUSAL_LINGER, telling).await {
        return Err(ServeError::Negotiate(error));
    }
    Err(ServeError::Refused(refusal))
}

fn count(dialect: Dialect, result: &'static str) {
    metrics::counter!("braid_gateway_applications_requests_total", "protocol" => dialect.label(), "result" => result)
        .increment(1);
}

/// Counts the tunnels that are open.
struct Open;

impl Open {
    fn enter() -> Self {
        metrics::gauge!("braid_gateway_applications_open").increment(1.0);
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("braid_gateway_applications_open").decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stream_of_an_application_goes_before_alerts() {
        let asked = [Urgency::Urgent, Urgency::Prompt, Urgency::Bulk];
        assert_eq!(
            asked.map(admitted),
            [Urgency::Prompt, Urgency::Prompt, Urgency::Bulk]
        );
    }
}
