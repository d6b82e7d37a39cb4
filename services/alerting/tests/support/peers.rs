//! Receivers of notices with the real protocols: a small mail server and a small MQTT broker.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

#[path = "mqtt_packet.rs"]
mod mqtt_packet;

use mqtt_packet::packet;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A letter as the server received it.
#[derive(Clone, Debug, Default)]
pub struct Letter {
    pub to: String,
    pub text: String,
    /// Credentials of AUTH PLAIN.
    pub login: String,
    pub tls: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Security {
    Plain,
    StartTls,
}

#[derive(Clone)]
pub struct MailServer {
    pub address: SocketAddr,
    pub letters: Arc<Mutex<Vec<Letter>>>,
    /// Number of letters that are refused temporarily, with 451. Heartbeats are not.
    pub refusals: Arc<Mutex<u32>>,
    /// Addresses whose letters are refused for good, with 550.
    pub unknown: Arc<Mutex<Vec<String>>>,
    calls: Arc<AtomicUsize>,
}

impl MailServer {
    /// Connections so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub async fn start(security: Security, tls: Arc<rustls::ServerConfig>) -> MailServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = MailServer {
            address: listener.local_addr().unwrap(),
            letters: Arc::default(),
            refusals: Arc::default(),
            unknown: Arc::default(),
            calls: Arc::default(),
        };
        let own = server.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                own.calls.fetch_add(1, Ordering::Relaxed);
                let (own, tls) = (own.clone(), Arc::clone(&tls));
                // A client that disconnects ends its conversation, not the server.
                tokio::spawn(async move { own.converse(Box::new(stream), security, tls).await });
            }
        });
        server
    }

    async fn converse(
        self,
        stream: Box<dyn Stream>,
        security: Security,
        tls: Arc<rustls::ServerConfig>,
    ) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut letter = Letter::default();
        stream.write_all(b"220 peer ESMTP\r\n").await?;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_owned();
            let verb = line
                .split([' ', ':'])
                .next()
                .unwrap_or_default()
                .to_uppercase();
            let is_open = letter.tls || security == Security::Plain;
            let answer = match verb.as_str() {
                "EHLO" if is_open => "250-peer\r\n250 AUTH PLAIN",
                "EHLO" => "250-peer\r\n250 STARTTLS",
                "STARTTLS" => {
                    stream.write_all(b"220 go on\r\n").await?;
                    let acceptor = TlsAcceptor::from(Arc::clone(&tls));
                    let inner = acceptor.accept(stream.into_inner()).await?;
                    stream = BufReader::new(Box::new(inner));
                    letter.tls = true;
                    continue;
                }
                "QUIT" => "221 bye",
                _ if !is_open => "530 5.7.0 Must issue a STARTTLS command first",
                "AUTH" => {
                    letter.login = line;
                    "235 welcome"
                }
                "MAIL" => "250 ok",
                "RCPT" if self.unknown.lock().iter().any(|it| line.contains(it)) => {
                    "550 5.1.1 no such user"
                }
                "RCPT" => {
                    letter.to = line;
                    "250 ok"
                }
                "DATA" => {
                    stream.write_all(b"354 end with a dot\r\n").await?;
                    letter.text.clear();
                    loop {
                        let mut line = String::new();
                        if stream.read_line(&mut line).await? == 0 {
                            return Ok(());
                        }
                        if line == ".\r\n" {
                            break;
                        }
                        letter.text.push_str(&line);
                    }
                    let mut refusals = self.refusals.lock();
                    let is_heartbeat = letter.text.contains("please confirm that this message");
                    if *refusals > 0 && !is_heartbeat {
                        *refusals -= 1;
                        "451 try again"
                    } else {
                        self.letters.lock().push(letter.clone());
                        "250 taken"
                    }
                }
                _ => "502 unknown",
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Publication {
    pub topic: String,
    pub payload: serde_json::Value,
    pub qos: u8,
}

#[derive(Clone)]
pub struct Broker {
    pub address: SocketAddr,
    pub publications: Arc<Mutex<Vec<Publication>>>,
    pub logins: Arc<Mutex<Vec<(String, String)>>>,
    /// Number of publications whose connection ends without an acknowledgement.
    pub losses: Arc<Mutex<u32>>,
    /// A subscriber confirms heartbeats.
    confirms: bool,
}

/// A packet PUBLISH at QoS 0.
fn publication(topic: &str, payload: &str) -> Vec<u8> {
    let length = 2 + topic.len() + payload.len();
    let mut packet = vec![0x30, (length % 128) as u8 | 0x80, (length / 128) as u8];
    packet.extend((topic.len() as u16).to_be_bytes());
    packet.extend(topic.as_bytes());
    packet.extend(payload.as_bytes());
    packet
}

impl Broker {
    /// Speaks MQTT 3.1.1, over TLS if configured.
    pub async fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Broker {
        Broker::start_with(tls, false).await
    }

    /// `confirms`: a subscriber confirms heartbeats.
    pub async fn start_with(tls: Option<Arc<rustls::ServerConfig>>, confirms: bool) -> Broker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let broker = Broker {
            address: listener.local_addr().unwrap(),
            publications: Arc::default(),
            logins: Arc::default(),
            losses: Arc::default(),
            confirms,
        };
        let own = broker.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (own, tls) = (own.clone(), tls.clone());
                tokio::spawn(async move {
                    let stream: Box<dyn Stream> = match tls {
                        Some(tls) => Box::new(TlsAcceptor::from(tls).accept(stream).await?),
                        None => Box::new(stream),
                    };
                    own.converse(stream).await
                });
            }
        });
        broker
    }

    async fn converse(self, mut stream: Box<dyn Stream>) -> std::io::Result<()> {
        loop {
            let (first, body) = packet(&mut stream).await?;
            let text = |at: usize| {
                let end = at + 2 + usize::from(u16::from_be_bytes([body[at], body[at + 1]]));
                (
                    String::from_utf8_lossy(&body[at + 2..end]).into_owned(),
                    end,
                )
            };
            match first >> 4 {
                1 => {
                    let (protocol, end) = text(0);
                    assert_eq!((protocol.as_str(), body[end]), ("MQTT", 4));
                    // Level, flags and keep-alive; then id, name and password as the flags say.
                    let flags = body[end + 1];
                    let (_, end) = text(end + 4);
                    if flags & 0xc0 == 0xc0 {
                        let (name, end) = text(end);
                        self.logins.lock().push((name, text(end).0));
                    }
                    stream.write_all(&[0x20, 2, 0, 0]).await?;
                }
                3 => {
                    let (topic, end) = text(0);
                    let qos = (first >> 1) & 3;
                    let id = [body[end], body[end + 1]];
                    let is_lost = {
                        let mut losses = self.losses.lock();
                        let is_lost = *losses > 0;
                        *losses = losses.saturating_sub(1);
                        is_lost
                    };
                    if is_lost {
                        return Ok(());
                    }
                    let payload: serde_json::Value = serde_json::from_slice(&body[end + 2..])?;
                    if let (true, Some(to)) = (self.confirms, payload["reply_to"].as_str()) {
                        let reply = serde_json::json!({"confirmed": payload["challenge"]});
                        stream
                            .write_all(&publication(to, &reply.to_string()))
                            .await?;
                    }
                    self.publications.lock().push(Publication {
                        topic,
                        payload,
                        qos,
                    });
                    stream.write_all(&[0x40, 2, id[0], id[1]]).await?;
                }
                8 => stream.write_all(&[0x90, 3, body[0], body[1], 1]).await?,
                12 => stream.write_all(&[0xd0, 0]).await?,
                14 => return Ok(()),
                other => panic!("the peer does not know packet {other}"),
            }
        }
    }
}
