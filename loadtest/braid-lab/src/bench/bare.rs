//! One end of a bare `noq` connection, the reference of `speed.*`. It has only the library, one
//! stream at a time, in a separate process like gateway and proxy.
//!
//! Its settings are the best that were tried on loopback (docs/lab/tunnel.md). They are the
//! library's Cubic, one path without multipath, the tunnel's socket buffers and stream windows, and
//! transfers without a copy.
//!
//! With TCP at both ends (`--listen`, `--forward`) it has the least cost of any relay between two
//! TCP connections. That bounds a gateway and a proxy without cost of their own.

use std::io::{BufRead, IoSlice, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};
use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use service_kit::tls::{Identity, IdentityFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tunnel::ALPN;

use crate::failure::{Failure, block_on};

/// Bytes of one write.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks of one read.
const CHUNKS_MAX: usize = 32;
/// The window of Braid's own ends.
const STREAM_WINDOW_BYTES: u32 = 2_300_000;
const SEND_WINDOW_BYTES: u64 = 8 * 1024 * 1024;
/// First byte of a stream: the client sends, or asks for data.
const UP: u8 = b'u';
const DOWN: u8 = b'd';

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Controller {
    Cubic,
    Newreno,
    Bbr,
}

/// Reference end of `braid-lab bench`.
#[derive(Clone, Debug, Args)]
pub struct EndCommand {
    /// The server's address; without it this end is the server.
    #[arg(long)]
    to: Option<SocketAddr>,
    #[arg(long, value_enum, default_value = "cubic")]
    controller: Controller,
    /// Accept connections instead of orders: each becomes a stream.
    #[arg(long, requires = "to")]
    listen: bool,
    /// Connect each stream of a server to this address.
    #[arg(long, conflicts_with = "to")]
    forward: Option<SocketAddr>,
    #[command(flatten)]
    identity: IdentityFiles,
}

impl EndCommand {
    pub fn run(self) -> Result<(), Failure> {
        service_kit::tls::install_provider();
        block_on(async {
            let identity = Identity::load(&self.identity).map_err(Failure::other)?;
            match self.to {
                Some(server) => self.client(&identity, server).await,
                None => self.server(&identity).await,
            }
        })?
    }

    fn transport(&self) -> Arc<noq::TransportConfig> {
        let mut transport = noq::TransportConfig::default();
        transport
            .stream_receive_window(noq::VarInt::from_u32(STREAM_WINDOW_BYTES))
            .send_window(SEND_WINDOW_BYTES);
        match self.controller {
            Controller::Cubic => transport
                .congestion_controller_factory(Arc::new(noq::congestion::CubicConfig::default())),
            Controller::Newreno => transport
                .congestion_controller_factory(Arc::new(noq::congestion::NewRenoConfig::default())),
            Controller::Bbr => transport
                .congestion_controller_factory(Arc::new(noq::congestion::Bbr3Config::default())),
        };
        Arc::new(transport)
    }

    /// Prints its address, then serves one connection.
    async fn server(&self, identity: &Identity) -> Result<(), Failure> {
        let tls = identity.server_config(false, &[ALPN]);
        let crypto = QuicServerConfig::try_from((*tls).clone()).map_err(Failure::other)?;
        let mut config = noq::ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(self.transport());
        let endpoint = endpoint(Some(config))?;
        print_line(&endpoint.local_addr().map_err(Failure::other)?.to_string())?;
        let incoming = endpoint.accept().await;
        let connection = incoming
            .ok_or_else(|| Failure::other("the endpoint is closed"))?
            .await
            .map_err(Failure::other)?;
        // Ends with the client.
        while let Ok((send, receive)) = connection.accept_bi().await {
            match self.forward {
                Some(address) => {
                    let tcp = TcpStream::connect(address).await.map_err(Failure::other)?;
                    join(tcp, send, receive).await?;
                }
                None => serve(send, receive).await?,
            }
        }
        Ok(())
    }

    /// Takes orders, `up BYTES` or `down BYTES`, one per line, and answers each with the seconds
    /// that it took.
    async fn client(&self, identity: &Identity, server: SocketAddr) -> Result<(), Failure> {
        let tls = identity.client_config(&[ALPN]);
        let crypto = QuicClientConfig::try_from((*tls).clone()).map_err(Failure::other)?;
        let mut config = noq::ClientConfig::new(Arc::new(crypto));
        config.transport_config(self.transport());
        let endpoint = endpoint(None)?;
        let connection = endpoint
            .connect_with(config, server, "proxy")
            .map_err(Failure::other)?
            .await
            .map_err(Failure::other)?;
        if self.listen {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.map_err(Failure::other)?;
            print_line(&listener.local_addr().map_err(Failure::other)?.to_string())?;
            loop {
                let (tcp, _) = listener.accept().await.map_err(Failure::other)?;
                let (send, receive) = connection.open_bi().await.map_err(Failure::other)?;
                join(tcp, send, receive).await?;
            }
        }
        let (order, mut orders) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if order.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        while let Some(order) = orders.recv().await {
            let parsed = order
                .split_once(' ')
                .and_then(|(direction, bytes)| Some((direction, bytes.parse::<u64>().ok()?)));
            let since = Instant::now();
            let (mut send, mut receive) = connection.open_bi().await.map_err(Failure::other)?;
            match parsed {
                Some(("up", bytes)) => {
                    send.write_all(&[UP]).await.map_err(Failure::other)?;
                    pour(&mut send, bytes).await?;
                    send.finish().map_err(Failure::other)?;
                    expect(1, drain(&mut receive).await?)?;
                }
                Some(("down", bytes)) => {
                    send.write_all(&[DOWN]).await.map_err(Failure::other)?;
                    send.write_all(&bytes.to_be_bytes())
                        .await
                        .map_err(Failure::other)?;
                    send.finish().map_err(Failure::other)?;
                    expect(bytes, drain(&mut receive).await?)?;
                }
                _ => return Err(Failure::other(format!("no order: {order:?}"))),
            }
            print_line(&since.elapsed().as_secs_f64().to_string())?;
        }
        Ok(())
    }
}

fn expect(bytes: u64, got: u64) -> Result<(), Failure> {
    match got == bytes {
        true => Ok(()),
        false => Err(Failure::other(format!("{got} bytes instead of {bytes}"))),
    }
}

fn print_line(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(Failure::other)
}

fn endpoint(server: Option<noq::ServerConfig>) -> Result<noq::Endpoint, Failure> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Failure::other)?;
    tunnel::enlarge_buffers(&socket);
    noq::Endpoint::new(
        noq::EndpointConfig::default(),
        server,
        socket,
        Arc::new(noq::TokioRuntime),
    )
    .map_err(Failure::other)
}

async fn serve(mut send: noq::SendStream, mut receive: noq::RecvStream) -> Result<(), Failure> {
    let mut direction = [0];
    receive
        .read_exact(&mut direction)
        .await
        .map_err(Failure::other)?;
    if direction == [UP] {
        drain(&mut receive).await?;
        send.write_all(&[0]).await.map_err(Failure::other)?;
    } else {
        let mut bytes = [0; 8];
        receive
            .read_exact(&mut bytes)
            .await
            .map_err(Failure::other)?;
        pour(&mut send, u64::from_be_bytes(bytes)).await?;
    }
    send.finish().map_err(Failure::other)
}

/// Joins a connection and a stream until both directions have ended; one at a time.
async fn join(
    mut tcp: TcpStream,
    mut send: noq::SendStream,
    mut receive: noq::RecvStream,
) -> Result<(), Failure> {
    tcp.set_nodelay(true).map_err(Failure::other)?;
    let (from, to) = tcp.split();
    tokio::try_join!(into_stream(from, &mut send), from_stream(&mut receive, to)).map(|_| ())
}

async fn into_stream(mut tcp: ReadHalf<'_>, send: &mut noq::SendStream) -> Result<(), Failure> {
    loop {
        let mut chunk = bytes::BytesMut::with_capacity(CHUNK_BYTES);
        if tcp.read_buf(&mut chunk).await.map_err(Failure::other)? == 0 {
            return send.finish().map_err(Failure::other);
        }
        send.write_chunk(chunk.freeze())
            .await
            .map_err(Failure::other)?;
    }
}

async fn from_stream(receive: &mut noq::RecvStream, mut tcp: WriteHalf<'_>) -> Result<(), Failure> {
    let mut chunks: [bytes::Bytes; CHUNKS_MAX] = Default::default();
    while let Some(count) = receive
        .read_many_chunks(&mut chunks)
        .await
        .map_err(Failure::other)?
    {
        let mut slices: [IoSlice<'_>; CHUNKS_MAX] = std::array::from_fn(|_| IoSlice::new(&[]));
        for (slice, chunk) in slices.iter_mut().zip(&chunks[..count]) {
            *slice = IoSlice::new(chunk);
        }
        let mut left = &mut slices[..count];
        while !left.is_empty() {
            let written = tcp.write_vectored(left).await.map_err(Failure::other)?;
            IoSlice::advance_slices(&mut left, written);
        }
    }
    tcp.shutdown().await.map_err(Failure::other)
}

async fn pour(send: &mut noq::SendStream, bytes: u64) -> Result<(), Failure> {
    let chunk = bytes::Bytes::from(vec![0x5a; CHUNK_BYTES]);
    let mut left = bytes;
    while left > 0 {
        let count = left.min(CHUNK_BYTES as u64);
        send.write_chunk(chunk.slice(..count as usize))
            .await
            .map_err(Failure::other)?;
        left -= count;
    }
    Ok(())
}

async fn drain(receive: &mut noq::RecvStream) -> Result<u64, Failure> {
    let mut chunks: [bytes::Bytes; CHUNKS_MAX] = Default::default();
    let mut sum = 0;
    while let Some(count) = receive
        .read_many_chunks(&mut chunks)
        .await
        .map_err(Failure::other)?
    {
        sum += chunks[..count]
            .iter()
            .map(|chunk| chunk.len() as u64)
            .sum::<u64>();
    }
    Ok(sum)
}
