//! The connections of a full listener, and the choice of one that is closed for a newcomer. A
//! connection that only holds a place is closed first, because the peers are not identified yet.
//! The order is:
//! 1. The connection that has been without a request for longest. Connections of an address with
//!    fewer connections than the newcomer's are spared: otherwise frequent newcomers would take all
//!    places.
//! 2. The oldest connection of the address with the most, if the newcomer's address has fewer
//!    afterwards. So one of several addresses cannot hold all places; a lone address (a NAT, a
//!    forwarder) may.
//!
//! Otherwise the newcomer gets no place.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::network;

#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    newest: u64,
    /// Connections that were not asked to close, by network and number, so the oldest comes first.
    /// Bounded by the listener's places.
    open: HashMap<IpAddr, BTreeMap<u64, Connection>>,
}

/// Key of a connection in the table.
#[derive(Clone, Copy)]
struct ConnectionKey {
    network: IpAddr,
    number: u64,
}

struct Connection {
    requests: usize,
    since: Instant,
    gives_way: CancellationToken,
}

/// An entered connection; dropping it frees its place.
pub(super) struct Entered {
    connections: Connections,
    key: ConnectionKey,
    pub(super) gives_way: CancellationToken,
}

impl Table {
    fn remove(&mut self, key: ConnectionKey) -> Option<Connection> {
        let theirs = self.open.get_mut(&key.network)?;
        let connection = theirs.remove(&key.number);
        if theirs.is_empty() {
            self.open.remove(&key.network);
        }
        connection
    }
}

impl Connections {
    pub(super) fn enter(&self, address: IpAddr) -> Entered {
        let gives_way = CancellationToken::new();
        let mut table = self.0.lock();
        table.newest += 1;
        let key = ConnectionKey {
            network: network(address),
            number: table.newest,
        };
        let connection = Connection {
            requests: 0,
            since: Instant::now(),
            gives_way: gives_way.clone(),
        };
        let theirs = table.open.entry(key.network).or_default();
        theirs.insert(key.number, connection);
        Entered {
            connections: self.clone(),
            key,
            gives_way,
        }
    }

    /// Asks a connection to close for a newcomer from this address; returns false if none may be
    /// closed.
    pub(super) fn end_one_for(&self, address: IpAddr) -> bool {
        let newcomer = network(address);
        let mut table = self.0.lock();
        let own = table.open.get(&newcomer).map_or(0, BTreeMap::len);
        let key = |network: &IpAddr, number: &u64| ConnectionKey {
            network: *network,
            number: *number,
        };
        let of_many = table.open.iter().filter(|(_, theirs)| theirs.len() >= own);
        let idle = of_many.flat_map(|(network, theirs)| {
            let idle = theirs.iter().filter(|(_, it)| it.requests == 0);
            idle.map(move |(number, it)| (it.since, key(network, number)))
        });
        let idle = idle.min_by_key(|(since, _)| *since).map(|(_, idle)| idle);
        let greedy = || {
            let greedy = table
                .open
                .iter()
                .filter(|(_, theirs)| theirs.len() > own + 1);
            let oldest = greedy.filter_map(|(network, theirs)| {
                let (number, _) = theirs.first_key_value()?;
                Some((theirs.len(), key(network, number)))
            });
            let most = oldest.max_by_key(|(count, oldest)| (*count, Reverse(oldest.number)));
            most.map(|(_, oldest)| oldest)
        };
        let ended = idle.or_else(greedy).and_then(|it| table.remove(it));
        if let Some(connection) = &ended {
            connection.gives_way.cancel();
        }
        ended.is_some()
    }

    fn count(&self, key: ConnectionKey, change: impl Fn(&mut Connection)) {
        let mut table = self.0.lock();
        let theirs = table.open.get_mut(&key.network);
        if let Some(connection) = theirs.and_then(|theirs| theirs.get_mut(&key.number)) {
            change(connection);
        }
    }
}

impl Entered {
    /// A middleware: a connection is busy from a request's head to the end of its answer. While
    /// data of the answer waits for the peer, the connection is idle: otherwise a peer that reads
    /// nothing would keep its place without end.
    pub(super) fn watch(
        &self,
    ) -> impl Fn(Request, Next) -> Pin<Box<dyn Future<Output = Response> + Send>>
    + Clone
    + Send
    + Sync
    + 'static {
        let (connections, key) = (self.connections.clone(), self.key);
        move |request, next| {
            let connections = connections.clone();
            Box::pin(async move {
                let busy = Busy::enter(connections.clone(), key);
                let response = next.run(request).await;
                drop(busy);
                response.map(|body| {
                    Body::new(Answer {
                        body,
                        connections,
                        key,
                        busy: None,
                    })
                })
            })
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.connections.0.lock().remove(self.key);
    }
}

/// A request of this connection that the service works on.
struct Busy {
    connections: Connections,
    key: ConnectionKey,
}

impl Busy {
    fn enter(connections: Connections, key: ConnectionKey) -> Busy {
        connections.count(key, |it| it.requests += 1);
        Busy { connections, key }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connections.count(self.key, |it| {
            it.requests -= 1;
            it.since = Instant::now();
        });
    }
}

/// The body of an answer. The transport polls it when the peer has room; until it yields data, the
/// service is busy.
struct Answer {
    body: Body,
    connections: Connections,
    key: ConnectionKey,
    busy: Option<Busy>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            self.busy = None;
        } else if self.busy.is_none() {
            self.busy = Some(Busy::enter(self.connections.clone(), self.key));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
