//! Who holds the places of a listener, and who gives one up to whoever comes when all are taken: a place that is only held keeps nobody out,
//! whoever holds it, and that is known before anybody is. In this order:
//! 1. A connection without a request, that which has had none for longest; none of an address that has fewer connections than the newcomer's,
//!    or who comes often enough would take the places of all others.
//! 2. The oldest of the address with the most, as long as the newcomer's would not have more than it then. So one address cannot hold the
//!    places of all, though a lone one, behind which all may come (a NAT, a forwarder), may have every place.
//!
//! Else there is no place for the newcomer.

use std::collections::HashMap;
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
    /// Bounded by the listener's places.
    open: HashMap<u64, Connection>,
}

struct Connection {
    network: IpAddr,
    requests: usize,
    since: Instant,
    gives_way: CancellationToken,
}

/// One connection, until it is dropped.
pub(super) struct Entered {
    connections: Connections,
    number: u64,
    pub(super) gives_way: CancellationToken,
}

impl Connections {
    pub(super) fn enter(&self, address: IpAddr) -> Entered {
        let gives_way = CancellationToken::new();
        let mut table = self.0.lock();
        table.newest += 1;
        let number = table.newest;
        let connection = Connection {
            network: network(address),
            requests: 0,
            since: Instant::now(),
            gives_way: gives_way.clone(),
        };
        table.open.insert(number, connection);
        Entered {
            connections: self.clone(),
            number,
            gives_way,
        }
    }

    /// Ends one for a newcomer from this address; false when none gives way to it.
    pub(super) fn end_one_for(&self, address: IpAddr) -> bool {
        let newcomer = network(address);
        let table = self.0.lock();
        let open = || {
            table
                .open
                .iter()
                .filter(|(_, it)| !it.gives_way.is_cancelled())
        };
        let mut held: HashMap<IpAddr, usize> = HashMap::new();
        for (_, connection) in open() {
            *held.entry(connection.network).or_default() += 1;
        }
        let of = |network: &IpAddr| held.get(network).copied().unwrap_or_default();
        let own = of(&newcomer);
        let idle = open().filter(|(_, it)| it.requests == 0 && of(&it.network) >= own);
        let idle = idle.min_by_key(|(_, it)| it.since);
        let greedy = || {
            let most = held.values().max().copied().unwrap_or_default();
            let theirs = open().filter(|(_, it)| of(&it.network) == most && most > own + 1);
            theirs.min_by_key(|(number, _)| **number)
        };
        let ended = idle.or_else(greedy);
        if let Some((_, connection)) = ended {
            connection.gives_way.cancel();
        }
        ended.is_some()
    }

    fn count(&self, number: u64, change: impl Fn(&mut Connection)) {
        if let Some(connection) = self.0.lock().open.get_mut(&number) {
            change(connection);
        }
    }
}

impl Entered {
    /// A middleware: from a request's head to the end of its answer the connection is busy, but for the time in which what is there of the
    /// answer waits for the peer to take it. A peer that takes nothing would have its place for ever.
    pub(super) fn watch(
        &self,
    ) -> impl Fn(Request, Next) -> Pin<Box<dyn Future<Output = Response> + Send>>
    + Clone
    + Send
    + Sync
    + 'static {
        let (connections, number) = (self.connections.clone(), self.number);
        move |request, next| {
            let connections = connections.clone();
            Box::pin(async move {
                let busy = Busy::enter(connections.clone(), number);
                let response = next.run(request).await;
                drop(busy);
                response.map(|body| {
                    Body::new(Answer {
                        body,
                        connections,
                        number,
                        busy: None,
                    })
                })
            })
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.connections.0.lock().open.remove(&self.number);
    }
}

/// A request of this connection that we have to do something for.
struct Busy {
    connections: Connections,
    number: u64,
}

impl Busy {
    fn enter(connections: Connections, number: u64) -> Busy {
        connections.count(number, |it| it.requests += 1);
        Busy {
            connections,
            number,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connections.count(self.number, |it| {
            it.requests -= 1;
            it.since = Instant::now();
        });
    }
}

/// An answer's body. It is asked for more when the peer has room; then it is up to us as long as there is nothing.
struct Answer {
    body: Body,
    connections: Connections,
    number: u64,
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
            self.busy = Some(Busy::enter(self.connections.clone(), self.number));
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
