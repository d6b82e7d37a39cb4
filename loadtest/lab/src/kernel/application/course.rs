//! Traffic of an application over streams of any kind: messages in order on one, or the objects of
//! a page on several.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::bed::Receipt;
use crate::mix::{HEAD_BYTES, Message, Mix, Noted};
use crate::pattern::{matches_pattern, pattern_from};
use crate::scenario::{Direction, Scenario};

/// Bytes of a request: the number of the object.
const REQUEST_BYTES: usize = 2;
/// Bytes taken from a stream at once.
const READ_BYTES: usize = 64 * 1024;

pub(crate) struct Course {
    messages: Vec<Message>,
    objects: Vec<u64>,
    at_once: usize,
    direction: Direction,
    /// From the run's time zero to the first connection.
    lead: Duration,
    origin: Instant,
    receipt: Arc<Receipt>,
    noted: Mutex<Noted>,
}

impl Course {
    pub(crate) fn new(
        scenario: &Scenario,
        mix: &Mix,
        receipt: Arc<Receipt>,
        origin: Instant,
    ) -> Self {
        let background = scenario.background.as_ref();
        let lead = background.map_or(0.0, |background| background.lead_s);
        Self {
            messages: mix.messages(scenario.seed),
            objects: mix.objects(scenario.seed),
            at_once: mix.at_once(),
            direction: scenario.direction,
            lead: Duration::from_secs_f64(lead),
            origin,
            receipt,
            noted: Mutex::default(),
        }
    }

    pub(crate) fn lead(&self) -> Duration {
        self.lead
    }

    pub(crate) fn noted(&self) -> Noted {
        self.noted.lock().clone()
    }

    /// Streams that the client opens.
    pub(crate) fn connections(&self) -> usize {
        self.at_once.min(self.objects.len()).max(1)
    }

    pub(crate) async fn wait_for_the_beginning(&self) {
        tokio::time::sleep_until((self.origin + self.lead).into()).await;
    }

    pub(crate) fn failed(&self, end: &str, error: &impl Display) {
        self.receipt.failed(format!("{end}: {error}"));
    }

    fn is_page(&self) -> bool {
        !self.objects.is_empty()
    }

    /// The server's end of one stream.
    pub(crate) async fn serve<S>(self: Arc<Self>, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let outcome = async {
            if self.is_page() {
                return self.answer(&mut stream).await;
            }
            match self.direction {
                Direction::Upload => self.receive_messages(&mut stream).await,
                Direction::Download => {
                    stream.read_exact(&mut [0; REQUEST_BYTES]).await?;
                    self.send_messages(&mut stream).await
                }
            }
        };
        if let Err(error) = outcome.await {
            self.failed("server", &error);
        }
    }

    /// The client's end: everything over the streams that were opened for it.
    pub(crate) async fn ask<S>(
        self: Arc<Self>,
        streams: io::Result<Vec<S>>,
        opened: &Mutex<Option<Duration>>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let outcome = async {
            let mut streams = streams?;
            *opened.lock() = Some(self.receipt.now());
            if self.is_page() {
                return self.fetch(streams).await;
            }
            let Some(stream) = streams.first_mut() else {
                return Err(io::Error::other("no stream"));
            };
            match self.direction {
                Direction::Upload => self.send_messages(stream).await,
                Direction::Download => {
                    stream.write_all(&[0; REQUEST_BYTES]).await?;
                    self.receive_messages(stream).await
                }
            }
        };
        if let Err(error) = outcome.await {
            self.failed("client", &error);
        }
    }

    /// The messages in order, each at its time or when those before it have left.
    async fn send_messages(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let from = self.receipt.now();
        stream
            .write_all(&(from.as_nanos() as u64).to_be_bytes())
            .await?;
        let (mut sent, mut end) = (0, 0);
        for message in &self.messages {
            let at = self.origin + from + message.at;
            tokio::time::sleep_until(at.into()).await;
            end += message.bytes;
            while sent < end {
                let chunk = pattern_from(sent, end);
                stream.write_all(&chunk).await?;
                sent += chunk.len() as u64;
            }
            stream.flush().await?;
        }
        stream.shutdown().await?;
        // Dropped sooner, the stream could break off what is under way.
        while stream.read(&mut [0; 1]).await? > 0 {}
        Ok(())
    }

    async fn receive_messages(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut head = [0; HEAD_BYTES as usize];
        stream.read_exact(&mut head).await?;
        let from = Duration::from_nanos(u64::from_be_bytes(head));
        let total: u64 = self.messages.iter().map(|message| message.bytes).sum();
        let mut buffer = vec![0; READ_BYTES];
        let (mut got, mut end, mut next) = (0, 0, self.messages.iter().peekable());
        while got < total {
            got += self.take(stream, &mut buffer, got, total - got).await?;
            let now = self.receipt.now();
            while let Some(message) = next.next_if(|message| end + message.bytes <= got) {
                end += message.bytes;
                let delay = now.saturating_sub(from + message.at);
                self.noted.lock().delays.push(delay);
            }
        }
        self.receipt.stream_ended();
        stream.shutdown().await
    }

    /// Fetches the objects, one after the other on each stream.
    async fn fetch<S>(&self, streams: Vec<S>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let began = self.receipt.now();
        let next = AtomicUsize::new(0);
        let fetching = streams.into_iter().map(|mut stream| {
            let next = &next;
            async move {
                let mut buffer = vec![0; READ_BYTES];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&bytes) = self.objects.get(number) else {
                        return stream.shutdown().await;
                    };
                    stream.write_all(&(number as u16).to_be_bytes()).await?;
                    stream.flush().await?;
                    let mut got = 0;
                    while got < bytes {
                        got += self
                            .take(&mut stream, &mut buffer, got, bytes - got)
                            .await?;
                    }
                }
            }
        });
        futures::future::try_join_all(fetching).await?;
        let last = self.receipt.now();
        self.noted.lock().page = Some(last.saturating_sub(began));
        self.receipt.stream_ended();
        Ok(())
    }

    /// Sends the objects that are asked for, until nobody asks.
    async fn answer(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
        loop {
            let mut request = [0; REQUEST_BYTES];
            match stream.read_exact(&mut request).await {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return stream.shutdown().await;
                }
                Err(error) => return Err(error),
            }
            let number = usize::from(u16::from_be_bytes(request));
            let Some(&bytes) = self.objects.get(number) else {
                return Err(io::Error::other(format!("no object {number}")));
            };
            let mut sent = 0;
            while sent < bytes {
                let chunk = pattern_from(sent, bytes);
                stream.write_all(&chunk).await?;
                sent += chunk.len() as u64;
            }
            stream.flush().await?;
        }
    }

    /// Takes some of the `left` bytes at an offset; how many.
    async fn take(
        &self,
        stream: &mut (impl AsyncRead + Unpin),
        buffer: &mut [u8],
        offset: u64,
        left: u64,
    ) -> io::Result<u64> {
        let most = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let bytes = stream.read(&mut buffer[..most]).await?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !matches_pattern(offset, &buffer[..bytes]) {
            return Err(io::Error::other(format!("wrong bytes at {offset}")));
        }
        self.receipt.delivered(bytes);
        Ok(bytes as u64)
    }
}
