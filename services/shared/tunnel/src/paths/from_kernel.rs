//! Reads from the kernel what each access of a connection over TCP has carried.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    sync::{Arc, Once},
    time::{Duration, Instant},
};

use host_network::TcpSockets;
use multipath::PathState;
use tokio::net::TcpStream;

use crate::{
    http::transport::Transport,
    paths::{slots::Slots, snapshot::PathSnapshot, subflows::Subflows},
};

/// Shortest time between two looks, unless the last one is at an end. Reports and rules ask more
/// rarely.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The reader of one connection, with what it has read.
pub(crate) struct FromKernel {
    sockets: TcpSockets,
    inode: u32,
    remote: SocketAddr,
    transport: Transport,
    slots: Arc<Slots>,
    looked_at: Option<Instant>,
    subflows: Subflows,
}

impl std::fmt::Debug for FromKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.subflows.fmt(f)
    }
}

impl FromKernel {
    /// `None`, with one line in the log, where the kernel shows no sockets. Then all bytes count
    /// for the access that connected.
    pub(crate) fn open(
        stream: &TcpStream,
        transport: Transport,
        slots: Arc<Slots>,
    ) -> Option<Self> {
        static WITHOUT: Once = Once::new();
        let open = || -> io::Result<Self> {
            let mut this = Self {
                sockets: TcpSockets::open()?,
                inode: inode_of(stream)?,
                remote: stream.peer_addr()?,
                transport,
                slots: slots.clone(),
                looked_at: None,
                subflows: Subflows::default(),
            };
            this.look(Instant::now())?;
            let is_shown = this.subflows.held().next().is_some();
            is_shown
                .then_some(this)
                .ok_or(io::ErrorKind::NotFound.into())
        };
        open()
            .inspect_err(|error| {
                WITHOUT.call_once(|| {
                    tracing::warn!(%error, "this kernel does not show the counters of TCP (INET_DIAG): over TCP, bytes count for the access that connected first");
                });
            })
            .ok()
    }

    fn look(&mut self, now: Instant) -> io::Result<()> {
        self.looked_at = Some(now);
        let sockets = self.sockets.of(self.inode, self.remote)?;
        let (slots, transport) = (&self.slots, self.transport);
        self.subflows.learn(sockets, |socket| {
            slots
                .name_at(socket.local.ip().to_canonical(), socket.device)
                .unwrap_or_else(|| transport.as_str().into())
        });
        Ok(())
    }

    /// Looks unless it has just done so. `last`: a socket is about to close.
    pub(crate) fn refresh(&mut self, now: Instant, last: bool) {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < LOOK_PAUSE;
        if !last && self.looked_at.is_some_and(is_fresh) {
            return;
        }
        if let Err(error) = self.look(now) {
            // The next look counts what this one did not.
            tracing::debug!(%error, "no counters of TCP");
        }
    }

    pub(crate) fn held(&self) -> Vec<Arc<str>> {
        self.subflows.held().cloned().collect()
    }

    pub(crate) fn rows(&self, session: u64, whole: PathState) -> Vec<PathSnapshot> {
        self.subflows.rows(session, whole)
    }
}

/// All subflows of a connection have the inode of its socket.
fn inode_of(stream: &TcpStream) -> io::Result<u32> {
    let copy: OwnedFd = stream.as_fd().try_clone_to_owned()?;
    let inode = File::from(copy).metadata()?.ino();
    u32::try_from(inode).map_err(io::Error::other)
}
