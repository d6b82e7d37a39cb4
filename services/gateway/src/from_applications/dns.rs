//! Names for programs on this machine and on hosts behind it: queries that the kernel redirects
//! here go through the tunnel to one resolver.
//!
//! ```text
//! UDP, TCP to port 53 -> nftables' redirect -> queries (sans-IO) -> one stream to the resolver
//! ```
//!
//! Queries by UDP and TCP share one resumable stream of DNS over TCP (RFC 7766). So no query is
//! lost with a path, and an answer may have any length. An answer that is too long for a client's
//! UDP is truncated, and the client asks again by TCP. While the proxy is not reached, queries fail
//! after a bounded time.

mod message;
mod queries;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Buf, BytesMut};
use host_network::{DnsRedirect, QuerySocket};
use service_kit::{Context, Shutdown, Warning, WarningHandle};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, watch},
    task::JoinError,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle, task::TaskTracker};
use tunnel::{
    Authority, OpenError, StatusCode, Tunnel, Urgency,
    steering_rules::{self, Flow},
};

use crate::steering::Flows;
use message::MESSAGE_BYTES_MAX;
use queries::{Answer, NotAsked, Queries};

/// The port of DNS, if the configuration names none.
const PORT: u16 = 53;

/// Clients' TCP connections; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// Answers that wait for one TCP client; at the bound its further queries wait.
const ANSWERS_WAITING_MAX: usize = 16;

/// Messages that wait between the tasks; at the bound the sender waits.
const MESSAGES_WAITING_MAX: usize = 64;

/// Clients' TCP connections that carry nothing for this time are closed (RFC 7766, 6.2.3).
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Pause after a refusal of the proxy in which queries fail at once.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Pause after a socket has failed.
const FAILED_PAUSE: Duration = Duration::from_millis(50);

/// The resolver of a configuration: an address, with or without a port.
pub(crate) fn resolver(text: &str) -> Option<SocketAddr> {
    let with_port = || Some(SocketAddr::new(text.parse().ok()?, PORT));
    let resolver = text.parse().ok().or_else(with_port)?;
    let is_one = !resolver.ip().is_unspecified() && !resolver.ip().is_multicast();
    (is_one && resolver.port() > 0).then_some(resolver)
}

/// Answers redirected queries until shutdown is requested.
pub struct Dns {
    tunnel: Tunnel,
    /// Which accesses the stream to the resolver may use.
    flows: Flows,
    resolver: SocketAddr,
    redirect: DnsRedirect,
    sockets: Vec<QuerySocket>,
    listeners: Vec<TcpListener>,
    /// Addresses of the TUN device.
    own: watch::Receiver<Vec<IpAddr>>,
    warning: WarningHandle,
}

/// A query, and the way back to its client.
struct Asked {
    query: Vec<u8>,
    client: Client,
}

enum Client {
    Udp {
        socket: Arc<QuerySocket>,
        from: SocketAddr,
        at: Option<IpAddr>,
    },
    Tcp(mpsc::OwnedPermit<Vec<u8>>),
}

impl Client {
    fn give(self, message: Vec<u8>) {
        match self {
            Self::Udp { socket, from, at } => {
                if let Err(error) = socket.answer(from, at, &message) {
                    count("unsent");
                    tracing::debug!(%from, %error, "an answer was not sent");
                }
            }
            Self::Tcp(place) => {
                place.send(message);
            }
        }
    }
}

/// Why there is no stream to the resolver.
#[derive(Debug, thiserror::Error)]
enum NoStream {
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("{0}")]
    Steered(#[from] crate::steering::Blocked),
    #[error("{0}")]
    Lost(#[from] io::Error),
}

impl Dns {
    /// Begins to answer queries that are routed to the device, or ask `resolver`. Where the kernel
    /// does not redirect them, a warning says so.
    pub fn start(
        device: &str,
        resolver: SocketAddr,
        tunnel: Tunnel,
        flows: Flows,
        own: watch::Receiver<Vec<IpAddr>>,
        context: &Context,
    ) {
        let warning = context.health().warning("tun-dns");
        let started = DnsRedirect::start(device, resolver.ip());
        let (redirect, sockets, listeners) = match started {
            Ok(started) => started,
            Err(error) => {
                return warning.set(Some(Warning {
                    says: format!("names are not asked through the tunnel: {error}"),
                    to_do: "give the gateway NET_ADMIN on a kernel with nftables".to_owned(),
                }));
            }
        };
        tracing::info!(device, %resolver, "names are asked through the tunnel");
        let dns = Self {
            tunnel,
            flows,
            resolver,
            redirect,
            sockets,
            listeners,
            own,
            warning,
        };
        let serving = dns.run(context.shutdown().clone());
        context.tasks().spawn(serving);
    }

    async fn run(self, shutdown: Shutdown) {
        let (to_ask, asked) = mpsc::channel(MESSAGES_WAITING_MAX);
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (connections, cut) = (TaskTracker::new(), CancellationToken::new());
        let datagrams = self.sockets.into_iter().map(|socket| {
            let reading = read_datagrams(Arc::new(socket), to_ask.clone());
            AbortOnDropHandle::new(tokio::spawn(reading))
        });
        let _datagrams: Vec<_> = datagrams.collect();
        let listening = self.listeners.into_iter().map(|listener| {
            let (connections, cut) = (connections.clone(), cut.clone());
            let accepting = accept_all(listener, places.clone(), to_ask.clone(), connections, cut);
            AbortOnDropHandle::new(tokio::spawn(accepting))
        });
        let _listening: Vec<_> = listening.collect();
        let relay = Relay {
            upstream: Upstream {
                tunnel: self.tunnel,
                flows: self.flows,
                resolver: self.resolver,
            },
            queries: Queries::new(first_id(), Instant::now()),
            stream: None,
            refused_until: Instant::now(),
            warning: self.warning,
        };
        tokio::select! {
            () = relay.run(asked) => {}
            () = follow(&self.redirect, self.own) => {}
            () = shutdown.requested() => {}
        }
        // Queries that the kernel redirects later would meet closed ports.
        drop(self.redirect);
        connections.close();
        cut.cancel();
        connections.wait().await;
    }
}

/// An id that others cannot know.
fn first_id() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u16
}

/// Redirects queries to the device's addresses as they change; never returns.
async fn follow(redirect: &DnsRedirect, mut own: watch::Receiver<Vec<IpAddr>>) {
    loop {
        let addresses = own.borrow_and_update().clone();
        if let Err(error) = redirect.set_own(&addresses) {
            tracing::warn!(%error, "queries to the TUN device's own address are not answered");
        }
        if own.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn read_datagrams(socket: Arc<QuerySocket>, to_ask: mpsc::Sender<Asked>) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let asked = match socket.receive(&mut buffer).await {
            Ok(asked) => asked,
            Err(error) => {
                tracing::warn!(%error, "queries could not be read");
                tokio::time::sleep(FAILED_PAUSE).await;
                continue;
            }
        };
        for query in buffer[..asked.length].chunks(asked.stride) {
            let client = Client::Udp {
                socket: socket.clone(),
                from: asked.from,
                at: asked.at,
            };
            let query = query.to_vec();
            if to_ask.send(Asked { query, client }).await.is_err() {
                return;
            }
        }
    }
}

async fn accept_all(
    listener: TcpListener,
    places: Arc<Semaphore>,
    to_ask: mpsc::Sender<Asked>,
    connections: TaskTracker,
    cut: CancellationToken,
) {
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection for queries could not be accepted");
                tokio::time::sleep(FAILED_PAUSE).await;
                continue;
            }
        };
        let (to_ask, cut) = (to_ask.clone(), cut.clone());
        connections.spawn(async move {
            let serving = cut.run_until_cancelled(serve(stream, to_ask)).await;
            if let Some(Err(error)) = serving {
                tracing::debug!(%error, "a connection for queries ended");
            }
            drop(place);
        });
    }
}

/// Relays the queries of one TCP connection (RFC 7766); answers leave in their own order.
async fn serve(stream: TcpStream, to_ask: mpsc::Sender<Asked>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reading, mut writing) = stream.into_split();
    let (to_answer, mut answers) = mpsc::channel::<Vec<u8>>(ANSWERS_WAITING_MAX);
    let asking = async move {
        let mut received = BytesMut::new();
        loop {
            let query =
                match tokio::time::timeout(IDLE_MAX, read(&mut reading, &mut received)).await {
                    Ok(query) => query?,
                    Err(_) => return Ok(()),
                };
            // The receiver lives as long as this future.
            let Ok(place) = to_answer.clone().reserve_owned().await else {
                return Ok(());
            };
            let client = Client::Tcp(place);
            if to_ask.send(Asked { query, client }).await.is_err() {
                return Ok(());
            }
        }
    };
    let answering = async {
        while let Some(answer) = answers.recv().await {
            let sending = write(&mut writing, [answer]);
            match tokio::time::timeout(IDLE_MAX, sending).await {
                Ok(sent) => sent?,
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        Ok(())
    };
    // The end of the queries leaves those before it to be answered.
    let asked: Result<(), io::Error>;
    let answered: Result<(), io::Error>;
    tokio::pin!(answering);
    tokio::select! {
        ended = asking => {
            asked = ended;
            answered = answering.await;
        }
        ended = &mut answering => return ended,
    }
    match asked {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => answered,
    }
}

/// The next message of a stream, with its length in front (RFC 1035, 4.2.2). Cancel-safe.
async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut BytesMut,
) -> io::Result<Vec<u8>> {
    loop {
        if let Some(length) = received.first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*length));
            if received.len() >= 2 + length {
                received.advance(2);
                return Ok(received.split_to(length).to_vec());
            }
        }
        if stream.read_buf(received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    messages: impl IntoIterator<Item = Vec<u8>>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    for message in messages {
        let Ok(length) = u16::try_from(message.len()) else {
            continue;
        };
        bytes.extend(length.to_be_bytes());
        bytes.extend(message);
    }
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Joins the clients and the stream to the resolver.
struct Relay {
    upstream: Upstream,
    queries: Queries<Client>,
    stream: Option<Stream>,
    refused_until: Instant,
    warning: WarningHandle,
}

#[derive(Clone)]
struct Upstream {
    tunnel: Tunnel,
    flows: Flows,
    resolver: SocketAddr,
}

/// The task that carries the stream.
struct Stream {
    queries: mpsc::Sender<Vec<u8>>,
    answers: mpsc::Receiver<Vec<u8>>,
    carrying: AbortOnDropHandle<Result<(), NoStream>>,
}

enum Heard {
    Answer(Vec<u8>),
    Ended(Result<Result<(), NoStream>, JoinError>),
}

impl Stream {
    fn open(upstream: Upstream) -> Self {
        // All queries that may be under way find room.
        let (to_carry, queries) = mpsc::channel(queries::QUERIES_MAX);
        let (to_answer, answers) = mpsc::channel(MESSAGES_WAITING_MAX);
        let carrying = tokio::spawn(upstream.carry(queries, to_answer));
        Self {
            queries: to_carry,
            answers,
            carrying: AbortOnDropHandle::new(carrying),
        }
    }

    async fn next(&mut self) -> Heard {
        match self.answers.recv().await {
            Some(answer) => Heard::Answer(answer),
            None => Heard::Ended((&mut self.carrying).await),
        }
    }
}

impl Relay {
    async fn run(mut self, mut asked: mpsc::Receiver<Asked>) {
        loop {
            let heard = async {
                match &mut self.stream {
                    Some(stream) => stream.next().await,
                    None => std::future::pending().await,
                }
            };
            let deadline = self.queries.next_deadline();
            let overdue = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                asked = asked.recv() => match asked {
                    Some(asked) => self.ask(asked),
                    None => return,
                },
                heard = heard => match heard {
                    Heard::Answer(answer) => {
                        self.warning.set(None);
                        let answer = self.queries.answer(Instant::now(), answer);
                        give(answer);
                    }
                    Heard::Ended(ended) => self.ended(ended),
                },
                () = overdue => {
                    let now = Instant::now();
                    give(self.queries.expire(now));
                    if self.queries.is_stalled(now) {
                        tracing::debug!("the resolver is silent: another stream is tried");
                        self.ask_again();
                    }
                }
            }
        }
    }

    fn ask(&mut self, asked: Asked) {
        let now = Instant::now();
        let by_datagram = matches!(asked.client, Client::Udp { .. });
        let failure = message::failure(&asked.query);
        let message = match self
            .queries
            .ask(now, asked.client, asked.query, by_datagram)
        {
            Ok(message) => message,
            Err((NotAsked::Malformed, client)) => {
                // Without an answer: it may be no DNS at all.
                count("malformed");
                return drop(client);
            }
            Err((full, client)) => {
                count("full");
                // Written once in 10 s, however many are refused.
                tracing::warn!(limit = "QUERIES_MAX", %full, "queries for names are refused");
                return client.give(failure);
            }
        };
        if self.stream.is_none() && now < self.refused_until {
            return give(self.queries.fail_all());
        }
        self.send(message);
    }

    fn send(&mut self, message: Vec<u8>) {
        let open = || Stream::open(self.upstream.clone());
        let stream = self.stream.get_or_insert_with(open);
        // Room for all is there; a stream that has just ended is reported by its task.
        let _ = stream.queries.try_send(message);
    }

    /// Asks everything that waits on another stream.
    fn ask_again(&mut self) {
        self.stream = None;
        let (again, given_up) = self.queries.ask_again(Instant::now());
        give(given_up);
        for message in again {
            self.send(message);
        }
    }

    fn ended(&mut self, ended: Result<Result<(), NoStream>, JoinError>) {
        self.stream = None;
        let is_forbidden = matches!(
            &ended,
            Ok(Err(NoStream::Open(OpenError::Refused(
                StatusCode::FORBIDDEN
            ))))
        );
        let error = match ended {
            // Resolvers close a stream that rests.
            Ok(Ok(())) | Ok(Err(NoStream::Lost(_))) => return self.ask_again(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.refused_until = Instant::now() + REFUSED_PAUSE;
        let resolver = self.upstream.resolver;
        tracing::info!(%resolver, error, "no stream to the resolver");
        self.warning.set(Some(Warning {
            says: format!("names are not resolved: {resolver}: {error}"),
            to_do: match is_forbidden {
                true => format!(
                    "permit {resolver} at the proxy (--allow-ip, or --allow and --allow-private)"
                ),
                false => format!(
                    "check the session and the steering rules, and that {resolver} answers TCP"
                ),
            },
        }));
        give(self.queries.fail_all());
    }
}

impl Upstream {
    async fn carry(
        self,
        mut queries: mpsc::Receiver<Vec<u8>>,
        answers: mpsc::Sender<Vec<u8>>,
    ) -> Result<(), NoStream> {
        let destination = self.resolver.to_string();
        let flow = Flow::new("tun", steering_rules::Urgency::Prompt).to(&destination);
        let steered = self.flows.enter(flow)?;
        let Ok(authority) = destination.parse::<Authority>() else {
            return Err(OpenError::Refused(StatusCode::BAD_REQUEST).into());
        };
        let stream = self.tunnel.open_tcp(&authority, Urgency::Prompt).await?;
        steered.carried_by(stream.switch());
        let (mut reading, mut writing) = tokio::io::split(stream);
        let asking = async {
            let mut waiting = Vec::new();
            while queries.recv_many(&mut waiting, MESSAGES_WAITING_MAX).await > 0 {
                write(&mut writing, waiting.drain(..)).await?;
            }
            Ok(())
        };
        let answering = async {
            let mut received = BytesMut::new();
            loop {
                let answer = read(&mut reading, &mut received).await?;
                if answers.send(answer).await.is_err() {
                    return Ok(());
                }
            }
        };
        tokio::select! {
            ended = asking => ended,
            ended = answering => ended,
            // The rules leave it no access any more.
            () = steered.is_cut() => Ok(()),
        }
    }
}

fn give(answers: impl IntoIterator<Item = Answer<Client>>) {
    for answer in answers {
        count(answer.result);
        answer.client.give(answer.message);
    }
}

fn count(result: &'static str) {
    metrics::counter!("braid_gateway_dns_queries_total", "result" => result).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_is_an_address_with_or_without_a_port() {
        for (text, expected) in [
            ("10.8.0.53", Some("10.8.0.53:53")),
            ("10.8.0.53:5353", Some("10.8.0.53:5353")),
            ("fd00:8::53", Some("[fd00:8::53]:53")),
            ("[fd00:8::53]:5353", Some("[fd00:8::53]:5353")),
            ("0.0.0.0", None),
            ("224.0.0.251", None),
            ("10.8.0.53:0", None),
            ("resolver.example", None),
            ("", None),
        ] {
            let expected = expected.and_then(|it| it.parse().ok());
            assert_eq!(resolver(text), expected, "{text}");
        }
    }
}
