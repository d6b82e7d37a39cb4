//! Which connections of a listener have no request at the moment. Whoever comes when all places are taken gets that of the one that has had
//! none for longest: a place that is only held keeps nobody out, whoever holds it, and that is known before anybody is.

use std::collections::HashMap;
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

#[derive(Clone, Default)]
pub(super) struct Connections(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    newest: u64,
    /// Bounded by the listener's places.
    open: HashMap<u64, Connection>,
}

struct Connection {
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
    pub(super) fn enter(&self) -> Entered {
        let gives_way = CancellationToken::new();
        let mut table = self.0.lock();
        table.newest += 1;
        let number = table.newest;
        let connection = Connection {
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

    /// Ends the one that has had no request for longest, if there is one.
    pub(super) fn end_one(&self) {
        let table = self.0.lock();
        let idle = table.open.values().filter(|it| it.requests == 0);
        let idle = idle.filter(|it| !it.gives_way.is_cancelled());
        if let Some(longest) = idle.min_by_key(|it| it.since) {
            longest.gives_way.cancel();
        }
    }

    fn count(&self, number: u64, change: impl Fn(&mut Connection)) {
        if let Some(connection) = self.0.lock().open.get_mut(&number) {
            change(connection);
        }
    }
}

impl Entered {
    /// A middleware: from a request's head to the end of its answer the connection is busy.
    pub(super) fn watch(
        &self,
    ) -> impl Fn(Request, Next) -> Pin<Box<dyn Future<Output = Response> + Send>>
    + Clone
    + Send
    + Sync
    + 'static {
        let (connections, number) = (self.connections.clone(), self.number);
        move |request, next| {
            connections.count(number, |it| it.requests += 1);
            let busy = Busy {
                connections: connections.clone(),
                number,
            };
            Box::pin(async move {
                let response = next.run(request).await;
                response.map(|body| Body::new(Held { body, _busy: busy }))
            })
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.connections.0.lock().open.remove(&self.number);
    }
}

struct Busy {
    connections: Connections,
    number: u64,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.connections.count(self.number, |it| {
            it.requests -= 1;
            it.since = Instant::now();
        });
    }
}

/// An answer's body, and the request that it ends.
struct Held {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
