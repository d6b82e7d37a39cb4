//! A UDP socket behind an emulated access link, for the demonstration and for tests on real
//! sockets.
//!
//! The decorator wraps the client's socket and shapes both directions: outgoing and incoming
//! datagrams wait before they pass. So one wrapped socket stands for a whole access network, and
//! the proxy needs none. Each direction is a [`Link`], whose verdict gives the time at which a
//! datagram passes.
//!
//! Sending is always ready: the model queues or drops datagrams that exceed the link, and never
//! blocks the caller, which has other links to serve. A batch (GSO) is split, since a real link
//! carries its packets one by one.
//!
//! Bound: `DATAGRAMS_MAX` datagrams under way per direction, beyond the model's own queue; more are
//! dropped.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    future::{Future, poll_fn},
    io::{self, IoSliceMut},
    net::SocketAddr,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use noq::{
    AsyncUdpSocket, UdpSender,
    udp::{EcnCodepoint, RecvMeta, Transmit},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, Sleep},
};

use crate::link::{Link, LinkConfig, LinkCounters, Loss, Rate, Verdict, queue_of_one_bdp};

/// Datagrams under way in one direction; further datagrams are dropped. At 1500 bytes this is 1
/// Gbit/s over 780 ms.
const DATAGRAMS_MAX: usize = 65_536;

/// Bytes of the IPv4 and UDP headers of a datagram; the model counts IP packets.
const HEADER_BYTES: u64 = 28;

/// Segments that one call may send.
const SEGMENTS_MAX: NonZeroUsize = match NonZeroUsize::new(10) {
    Some(segments) => segments,
    None => NonZeroUsize::MIN,
};

/// Buffers for one receive call, each large enough for a coalesced batch.
const RECEIVE_BUFFERS: usize = 8;
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// Receive calls before datagrams that are due are handed over.
const RECEIVES_MAX: usize = 16;

/// The current properties of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSnapshot {
    pub up: bool,
    pub rate_bits_per_s: u64,
    pub delay: Duration,
    pub jitter: Duration,
    /// Random loss, 0 to 1.
    pub loss: f64,
    pub uplink: LinkCounters,
    pub downlink: LinkCounters,
}

/// Changes a link while it runs. Clones control the same link.
#[derive(Debug, Clone)]
pub struct LinkControl {
    shared: Arc<Shared>,
}

impl LinkControl {
    /// Taking the link down loses the datagrams under way in both directions.
    pub fn set_up(&self, up: bool) {
        let now = self.shared.now();
        self.shared.both(|link| link.set_up(now, up));
    }

    /// Bits per second of each direction. The queue becomes one bandwidth-delay product.
    pub fn set_rate(&self, bits_per_second: u64) {
        self.shared.both(|link| {
            link.set_rate(Rate::Constant(bits_per_second as f64));
            resize_queue(link);
        });
    }

    /// One-way delay of each direction, and jitter that is added. The queue becomes one
    /// bandwidth-delay product.
    pub fn set_delay(&self, delay: Duration, jitter: Duration) {
        self.shared.both(|link| {
            link.set_delay(delay, jitter);
            resize_queue(link);
        });
    }

    /// Random loss of each direction, 0 to 1.
    pub fn set_loss(&self, loss: f64) {
        let loss = if loss > 0.0 {
            Loss::Bernoulli(loss.min(1.0))
        } else {
            Loss::None
        };
        self.shared.both(|link| link.set_loss(loss));
    }

    pub fn snapshot(&self) -> LinkSnapshot {
        let now = self.shared.now();
        let uplink = self.shared.uplink.lock();
        let downlink = self.shared.downlink.lock();
        let config = uplink.link.config();
        LinkSnapshot {
            up: uplink.link.is_up(now),
            rate_bits_per_s: config.rate.bits_per_second(now) as u64,
            delay: config.delay,
            jitter: config.jitter,
            loss: config.loss.mean(),
            uplink: uplink.link.counters(),
            downlink: downlink.link.counters(),
        }
    }
}

fn resize_queue(link: &mut Link) {
    let config = link.config();
    let rate = config.rate.bits_per_second(Duration::ZERO);
    let queue_bytes = queue_of_one_bdp(rate, config.delay * 2, config.mtu);
    link.set_queue_bytes(queue_bytes);
}

/// Puts a socket behind a link with the same properties in both directions. Must be called inside a
/// Tokio runtime.
pub fn emulate(
    socket: Box<dyn AsyncUdpSocket>,
    config: &LinkConfig,
    seed: u64,
) -> (Box<dyn AsyncUdpSocket>, LinkControl) {
    let shared = Arc::new(Shared {
        start: Instant::now(),
        uplink: Mutex::new(Direction::new(Link::new(config.clone(), seed))),
        downlink: Mutex::new(Direction::new(Link::new(config.clone(), !seed))),
        sent: Notify::new(),
        ended: Notify::new(),
    });
    tokio::spawn(pump(shared.clone(), socket.create_sender()));
    let emulated = EmulatedSocket {
        socket,
        shared: shared.clone(),
        buffers: vec![0; RECEIVE_BUFFERS * RECEIVE_BUFFER_BYTES].into(),
        metas: vec![RecvMeta::default(); RECEIVE_BUFFERS],
        wake: Box::pin(tokio::time::sleep(Duration::ZERO)),
    };
    (Box::new(emulated), LinkControl { shared })
}

/// A datagram under way.
#[derive(Debug)]
struct Datagram {
    contents: Vec<u8>,
    /// Destination of an outgoing datagram, or source of an incoming one.
    address: SocketAddr,
    ecn: Option<EcnCodepoint>,
    /// Source address on the way out, destination on the way in.
    local_ip: Option<std::net::IpAddr>,
}

#[derive(Debug)]
struct UnderWay {
    due: Duration,
    /// Keeps the order of datagrams with the same due time.
    number: u64,
    offered: Duration,
    datagram: Datagram,
}

impl PartialEq for UnderWay {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for UnderWay {}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnderWay {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[derive(Debug)]
struct Direction {
    link: Link,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    numbers: u64,
}

impl Direction {
    fn new(link: Link) -> Self {
        Self {
            link,
            under_way: BinaryHeap::new(),
            numbers: 0,
        }
    }

    fn offer(&mut self, now: Duration, datagram: Datagram) {
        let bytes = datagram.contents.len() as u64 + HEADER_BYTES;
        let Verdict::DeliverAt(due) = self.link.offer(now, bytes) else {
            return;
        };
        if self.under_way.len() >= DATAGRAMS_MAX {
            return;
        }
        self.numbers += 1;
        self.under_way.push(Reverse(UnderWay {
            due,
            number: self.numbers,
            offered: now,
            datagram,
        }));
    }

    /// The next datagram that has passed the link by `now`.
    fn take_due(&mut self, now: Duration) -> Option<Datagram> {
        loop {
            if self.under_way.peek()?.0.due > now {
                return None;
            }
            let Reverse(passed) = self.under_way.pop()?;
            if !self.link.was_cut(passed.offered, passed.due) {
                return Some(passed.datagram);
            }
        }
    }

    fn next_due(&self) -> Option<Duration> {
        self.under_way.peek().map(|next| next.0.due)
    }
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    uplink: Mutex<Direction>,
    downlink: Mutex<Direction>,
    /// A datagram was sent.
    sent: Notify,
    /// The socket was dropped.
    ended: Notify,
}

impl Shared {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn both(&self, mut change: impl FnMut(&mut Link)) {
        change(&mut self.uplink.lock().link);
        change(&mut self.downlink.lock().link);
    }
}

/// Hands datagrams that have passed the uplink to the real socket.
async fn pump(shared: Arc<Shared>, mut sender: Pin<Box<dyn UdpSender>>) {
    loop {
        let due = {
            let mut uplink = shared.uplink.lock();
            let datagram = uplink.take_due(shared.now());
            datagram.ok_or_else(|| uplink.next_due())
        };
        match due {
            Ok(datagram) => {
                let transmit = Transmit {
                    destination: datagram.address,
                    ecn: datagram.ecn,
                    contents: &datagram.contents,
                    segment_size: None,
                    src_ip: datagram.local_ip,
                };
                // A datagram that the kernel refuses is lost, as on a real link.
                let _ = poll_fn(|cx| sender.as_mut().poll_send(&transmit, cx)).await;
            }
            Err(next) => {
                let wait = async {
                    match next {
                        Some(due) => tokio::time::sleep_until(shared.start + due).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = shared.ended.notified() => return,
                    () = shared.sent.notified() => {}
                    () = wait => {}
                }
            }
        }
    }
}

#[derive(Debug)]
struct EmulatedSocket {
    socket: Box<dyn AsyncUdpSocket>,
    shared: Arc<Shared>,
    buffers: Box<[u8]>,
    metas: Vec<RecvMeta>,
    wake: Pin<Box<Sleep>>,
}

impl Drop for EmulatedSocket {
    fn drop(&mut self) {
        self.shared.ended.notify_one();
    }
}

impl EmulatedSocket {
    /// Takes datagrams from the real socket; returns whether the socket may have more.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Result<bool, io::Error> {
        let mut buffers: Vec<IoSliceMut<'_>> = self
            .buffers
            .chunks_mut(RECEIVE_BUFFER_BYTES)
            .map(IoSliceMut::new)
            .collect();
        let received = match self.socket.poll_recv(cx, &mut buffers, &mut self.metas) {
            Poll::Pending => return Ok(false),
            Poll::Ready(received) => received?,
        };
        let now = self.shared.now();
        let mut downlink = self.shared.downlink.lock();
        for (meta, buffer) in self.metas.iter().zip(&buffers).take(received) {
            let whole = &buffer[..meta.len.min(buffer.len())];
            for contents in whole.chunks(meta.stride.max(1)) {
                downlink.offer(
                    now,
                    Datagram {
                        contents: contents.to_vec(),
                        address: meta.addr,
                        ecn: meta.ecn,
                        local_ip: meta.dst_ip,
                    },
                );
            }
        }
        Ok(true)
    }
}

impl AsyncUdpSocket for EmulatedSocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(EmulatedSender {
            shared: self.shared.clone(),
        })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut more = true;
        for _ in 0..RECEIVES_MAX {
            more = self.take_in(cx)?;
            if !more {
                break;
            }
        }
        if more {
            // The real socket wakes this task only after it was empty.
            cx.waker().wake_by_ref();
        }
        let now = self.shared.now();
        let mut count = 0;
        let mut downlink = self.shared.downlink.lock();
        for (buf, meta) in bufs.iter_mut().zip(meta.iter_mut()) {
            let Some(datagram) = downlink.take_due(now) else {
                break;
            };
            let len = datagram.contents.len().min(buf.len());
            buf[..len].copy_from_slice(&datagram.contents[..len]);
            *meta = RecvMeta::default();
            meta.addr = datagram.address;
            meta.len = len;
            meta.stride = len;
            meta.ecn = datagram.ecn;
            meta.dst_ip = datagram.local_ip;
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        let Some(due) = downlink.next_due() else {
            return Poll::Pending;
        };
        drop(downlink);
        self.wake.as_mut().reset(self.shared.start + due);
        if self.wake.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[derive(Debug)]
struct EmulatedSender {
    shared: Arc<Shared>,
}

impl UdpSender for EmulatedSender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        _: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let now = self.shared.now();
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        let mut uplink = self.shared.uplink.lock();
        for contents in transmit.contents.chunks(segment.max(1)) {
            uplink.offer(
                now,
                Datagram {
                    contents: contents.to_vec(),
                    address: transmit.destination,
                    ecn: transmit.ecn,
                    local_ip: transmit.src_ip,
                },
            );
        }
        drop(uplink);
        self.shared.sent.notify_one();
        Poll::Ready(Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        SEGMENTS_MAX
    }
}
