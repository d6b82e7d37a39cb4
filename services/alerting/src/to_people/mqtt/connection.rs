//! A connection to the broker: TCP or TLS, and one publication at a time.

use std::{io, sync::Arc, time::Duration};

use bytes::BytesMut;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::TlsConnector;

use super::packets::{self, Answer, Login, PacketError};

/// The broker ends a connection after one and a half times this silence.
const KEEP_ALIVE_S: u16 = 300;
/// A connection that was idle for longer is replaced, because no task sends pings between notices.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("the broker cannot be reached: {0}")]
    Connect(#[source] io::Error),
    #[error("no TLS with the broker: {0}")]
    Tls(#[source] io::Error),
    #[error("the connection to the broker failed: {0}")]
    Io(#[from] io::Error),
    #[error("the broker closed the connection")]
    Closed,
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error("the broker acknowledged another publication")]
    Foreign,
}

impl ConnectionError {
    /// A packet that is too long stays too long.
    pub(super) fn is_retryable(&self) -> bool {
        !matches!(self, ConnectionError::Packet(PacketError::TooLong(..)))
    }
}

/// Everything that a connection needs. Valid since the configuration was checked.
pub(super) struct Broker {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// A broker ends the older of two connections with one identifier.
    pub(super) client: String,
    pub(super) login: Option<Login>,
}

impl Broker {
    /// The same broker for a second connection.
    pub(super) fn beside(&self, purpose: &str) -> Broker {
        Broker {
            host: self.host.clone(),
            port: self.port,
            tls: self.tls.clone(),
            client: format!("{}-{purpose}", self.client),
            login: self.login.clone(),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) struct Connection {
    stream: Box<dyn Stream>,
    received: BytesMut,
    /// Identifier of the last publication.
    id: u16,
    used: Instant,
}

impl Connection {
    pub(super) async fn open(broker: &Broker) -> Result<Connection, ConnectionError> {
        let tcp = TcpStream::connect((broker.host.as_str(), broker.port))
            .await
            .map_err(ConnectionError::Connect)?;
        tcp.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &broker.tls {
            None => Box::new(tcp),
            Some((config, name)) => {
                let connector = TlsConnector::from(Arc::clone(config));
                let tls = connector.connect(name.clone(), tcp).await;
                Box::new(tls.map_err(ConnectionError::Tls)?)
            }
        };
        let mut connection = Connection {
            stream,
            received: BytesMut::new(),
            id: 0,
            used: Instant::now(),
        };
        let connect = packets::connect(&broker.client, broker.login.as_ref(), KEEP_ALIVE_S)?;
        match connection.ask(&connect).await? {
            Answer::Connected => Ok(connection),
            Answer::Acknowledged(_) => Err(ConnectionError::Foreign),
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        self.used.elapsed() < IDLE_MAX
    }

    /// Returns the connection when the broker has acknowledged. It is closed otherwise.
    pub(super) async fn publish(
        mut self,
        topic: &str,
        payload: &str,
    ) -> Result<Connection, ConnectionError> {
        self.id = self.id.checked_add(1).unwrap_or(1);
        let publish = packets::publish(self.id, topic, payload)?;
        match self.ask(&publish).await? {
            Answer::Acknowledged(id) if id == self.id => {
                self.used = Instant::now();
                Ok(self)
            }
            Answer::Acknowledged(_) | Answer::Connected => Err(ConnectionError::Foreign),
        }
    }

    /// Subscribes to `replies`, publishes, and returns when a reply is accepted. `is_published`:
    /// the broker has the publication. The caller limits the time.
    pub(super) async fn ask_subscribers(
        mut self,
        topic: &str,
        payload: &str,
        replies: &str,
        is_published: &mut bool,
        accepts: impl Fn(&[u8]) -> bool,
    ) -> Result<(), ConnectionError> {
        let subscribe = packets::subscribe(1, replies)?;
        self.stream.write_all(&subscribe).await?;
        self.stream.flush().await?;
        let publish = packets::publish(2, topic, payload)?;
        loop {
            let (kind, body) = self.packet().await?;
            match kind & 0xf0 {
                packets::SUBACK => {
                    self.stream.write_all(&publish).await?;
                    self.stream.flush().await?;
                }
                packets::PUBACK => *is_published = true,
                packets::PUBLISH if packets::message(&body).is_some_and(&accepts) => return Ok(()),
                packets::PUBLISH => {}
                _ => return Err(PacketError::Unexpected(kind).into()),
            }
        }
    }

    /// The next packet of a connection with a subscription.
    async fn packet(&mut self) -> Result<(u8, Vec<u8>), ConnectionError> {
        let kind = self.stream.read_u8().await?;
        let mut length = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.stream.read_u8().await?;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        if length > packets::REPLY_BYTES_MAX {
            return Err(PacketError::Unexpected(kind).into());
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok((kind, body))
    }

    /// Sends a packet and waits for one answer. The caller limits the time.
    async fn ask(&mut self, packet: &[u8]) -> Result<Answer, ConnectionError> {
        self.stream.write_all(packet).await?;
        self.stream.flush().await?;
        loop {
            if let Some(answer) = packets::answer(&mut self.received)? {
                return Ok(answer);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(ConnectionError::Closed);
            }
        }
    }
}
