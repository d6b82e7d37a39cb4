//! CONNECT-IP from a client of another vendor: plain QUIC with one path, and HTTP/3 written byte by
//! byte, with the request as quic-go encodes it. Then errors of such a client, which affect no
//! other request.

use std::sync::Arc;

use crate::bench::{Identities, listen_anywhere, serve};
use bytes::Bytes;
use ip_packets::{IpPrefix, IpRange};
use noq::crypto::rustls::QuicClientConfig;
use testkit::within;
use tunnel::{ConnectRequest, IpAddressEntry, IpCapsule, TunnelServer};

/// A control stream with `SETTINGS_H3_DATAGRAM` and a setting without meaning (RFC 9114, 7.2.4.1).
const CONTROL: &[u8] = &[0x00, 0x04, 0x05, 0x33, 0x01, 0x40, 0x21, 0x07];

/// A section of headers: every literal in Huffman coding, lengths of frames in two bytes.
#[rustfmt::skip]
const REQUEST: &[u8] = &[
    0x01, 0x40, 66, 0x00, 0x00,
    // `:authority: proxy`, `:method: CONNECT`.
    0x50, 0x84, 0xae, 0xc3, 0xf9, 0xf5, 0xcf,
    // `:path: /.well-known/masque/ip/*/*/`.
    0x51, 0x95, 0x61, 0x7f, 0x05, 0xa2, 0x85, 0xba, 0xd4, 0x7f, 0x15, 0x31, 0x48, 0xd1, 0xda, 0xd2,
    0xb0, 0x6a, 0xd8, 0xf9, 0x63, 0xe5, 0x8f,
    // `:scheme: https`, `:protocol: connect-ip`.
    0xd7, 0x2f, 0x00, 0xb9, 0x5d, 0x87, 0x49, 0xc8, 0x7a, 0x3f,
    0x87, 0x21, 0xea, 0xa8, 0xa4, 0x4a, 0xc6, 0xaf,
    // `capsule-protocol: ?1`.
    0x2f, 0x04, 0x20, 0xeb, 0x45, 0xb4, 0x15, 0x6a, 0xec, 0x3a, 0x4e, 0x43, 0xd1, 0x82, 0xff, 0x03,
];

/// `:status: 200` in QPACK's static table.
const OK: u8 = 0xc0 | 25;

const QUESTION: &[u8] = &[2, 7, 1, 4, 0, 0, 0, 0, 32];
const ANSWER: &[u8] = &[1, 7, 1, 4, 10, 64, 0, 7, 32];
const ROUTES: &[u8] = &[3, 10, 4, 1, 0, 0, 0, 9, 255, 255, 255, 0];

/// Advertises a route, gives the address to every request, and sends packets back.
async fn echo(request: ConnectRequest) {
    let tunnel = request.accept_ip().await.unwrap();
    let range = IpRange::new([1, 0, 0, 0].into(), [9, 255, 255, 255].into()).unwrap();
    let routes = IpCapsule::RouteAdvertisement(vec![range]);
    let mut said = tunnel.say(&routes).await;
    while said.is_ok() {
        said = tokio::select! {
            packet = tunnel.receive() => packet.map(|packet| {
                tunnel.send(&packet);
            }),
            heard = tunnel.hear() => match heard {
                Ok(IpCapsule::AddressRequest(asked)) => {
                    let prefix = IpPrefix::host([10, 64, 0, 7].into());
                    let given = asked.iter().map(|asked| IpAddressEntry {
                        request_id: asked.request_id,
                        prefix,
                    });
                    tunnel.say(&IpCapsule::AddressAssign(given.collect())).await
                }
                Ok(_) => Ok(()),
                Err(ended) => Err(ended),
            },
        };
    }
}

struct Client {
    connection: noq::Connection,
    _control: noq::SendStream,
    _endpoint: noq::Endpoint,
    _server: Arc<TunnelServer>,
}

struct Request {
    send: noq::SendStream,
    receive: noq::RecvStream,
    read: Vec<u8>,
}

impl Client {
    async fn start() -> Self {
        let identities = Identities::new();
        let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
        let server = Arc::new(server);
        serve(server.clone(), |request, _| echo(request));
        let tls = identities.client.client_config(&[tunnel::ALPN]);
        let crypto = QuicClientConfig::try_from(tls.as_ref().clone()).unwrap();
        let endpoint = noq::Endpoint::client(listen_anywhere()).unwrap();
        let config = noq::ClientConfig::new(Arc::new(crypto));
        let connecting = endpoint.connect_with(config, server.local_addr(), "localhost");
        let connection = within(connecting.unwrap()).await.unwrap();
        let mut control = within(connection.open_uni()).await.unwrap();
        control.write_all(CONTROL).await.unwrap();
        Self {
            connection,
            _control: control,
            _endpoint: endpoint,
            _server: server,
        }
    }

    /// Sends a request and reads the answer's headers.
    async fn ask(&self) -> Request {
        let (mut send, receive) = within(self.connection.open_bi()).await.unwrap();
        send.write_all(REQUEST).await.unwrap();
        let mut request = Request {
            send,
            receive,
            read: Vec::new(),
        };
        let (kind, headers) = request.frame().await.unwrap();
        assert_eq!((kind, headers[2]), (1, OK), "{headers:x?}");
        request
    }

    fn frame(&self, request: &Request, context: &[u8], payload: &[u8]) {
        let quarter = u64::from(request.send.id()) / 4;
        assert!(quarter < 64);
        let datagram = [&[quarter as u8], context, payload].concat();
        self.connection.send_datagram(datagram.into()).unwrap();
    }

    /// Checks that a new request of the same connection is served completely.
    async fn is_served(&self) -> Request {
        let mut request = self.ask().await;
        assert_eq!(request.capsules(ROUTES.len()).await, ROUTES);
        request.say(QUESTION).await;
        assert_eq!(request.capsules(ANSWER.len()).await, ANSWER);
        self.frame(&request, &[0], b"packet");
        let quarter = u64::from(request.send.id()) / 4;
        let back = within(self.connection.read_datagram()).await.unwrap();
        assert_eq!(back, [&[quarter as u8, 0], &b"packet"[..]].concat());
        request
    }
}

impl Request {
    /// Sends capsule bytes in a DATA frame.
    async fn say(&mut self, capsules: &[u8]) {
        let length = (capsules.len() as u16 | 0x4000).to_be_bytes();
        let frame = [&[0], &length[..], capsules].concat();
        within(self.send.write_all(&frame)).await.unwrap();
    }

    async fn more(&mut self, bytes: usize) -> Option<()> {
        while self.read.len() < bytes {
            let chunk = within(self.receive.read_chunk(65_536)).await.ok()??;
            self.read.extend_from_slice(&chunk);
        }
        Some(())
    }

    /// `None` at the end of the stream.
    async fn frame(&mut self) -> Option<(u8, Bytes)> {
        self.more(2).await?;
        let (length, header) = match self.read[1] >> 6 {
            0 => (usize::from(self.read[1]), 2),
            1 => {
                self.more(3).await?;
                (
                    usize::from(self.read[1] & 0x3f) << 8 | usize::from(self.read[2]),
                    3,
                )
            }
            _ => panic!("{:x?}", self.read),
        };
        self.more(header + length).await?;
        let frame: Vec<u8> = self.read.drain(..header + length).collect();
        Some((frame[0], Bytes::from(frame).slice(header..)))
    }

    /// This many payload bytes of DATA frames.
    async fn capsules(&mut self, bytes: usize) -> Vec<u8> {
        let mut capsules = Vec::new();
        while capsules.len() < bytes {
            let (kind, data) = self.frame().await.unwrap();
            assert_eq!(kind, 0);
            capsules.extend_from_slice(&data);
        }
        capsules
    }

    /// The server resets the request.
    async fn breaks_off(mut self, why: &str) {
        let ended = async {
            loop {
                match self.receive.read_chunk(65_536).await {
                    Ok(Some(_)) => {}
                    other => return other.map(|_| ()),
                }
            }
        };
        let ended = within(ended).await;
        assert!(
            matches!(ended, Err(noq::ReadError::Reset(_))),
            "{why}: {ended:?}"
        );
    }
}

#[tokio::test]
async fn a_client_of_another_vendor_gets_an_address_and_its_packets_back() {
    let client = Client::start().await;
    let mut request = client.is_served().await;
    // As a capsule as well; the answer may be a frame.
    request.say(b"\x00\x07\x00packet").await;
    let back = within(client.connection.read_datagram()).await.unwrap();
    assert_eq!(&back[2..], b"packet");
    client.is_served().await;
}

#[tokio::test]
async fn an_error_in_a_request_affects_no_other() {
    let client = Client::start().await;
    let mut other = client.is_served().await;
    let endless = |kind: u8| [&[kind], &[0xff; 8][..]].concat();
    let routes = |last: u8| {
        vec![
            3, 20, 4, 1, 0, 0, 0, 1, 0, 0, 9, 0, 4, 1, 0, 0, last, 1, 0, 1, 0, 0,
        ]
    };
    for (capsules, why) in [
        (vec![2, 0], "a question for nothing"),
        (
            vec![2, 7, 0, 4, 0, 0, 0, 0, 32],
            "a question without a number",
        ),
        (
            vec![2, 7, 1, 4, 0, 0, 0, 0, 33],
            "a prefix longer than its address",
        ),
        (vec![2, 7, 1, 4, 0, 0, 0, 1, 24], "bits behind a prefix"),
        (vec![2, 7, 1, 5, 0, 0, 0, 0, 32], "a version that is none"),
        (vec![2, 6, 1, 4, 0, 0, 0, 0], "a torn question"),
        (
            [vec![2, 0x40, 119], [[1, 4, 0, 0, 0, 0, 32]; 17].concat()].concat(),
            "17 questions at once",
        ),
        (vec![1, 1, 0], "a torn address"),
        (routes(9), "routes that overlap"),
        (endless(0), "a packet without end"),
        (endless(1), "addresses without end"),
        (endless(2), "questions without end"),
        (endless(3), "routes without end"),
        (vec![0, 0], "a packet without a context"),
    ] {
        let mut request = client.ask().await;
        request.say(&capsules).await;
        request.breaks_off(why).await;
    }
    // The stream ends within a capsule.
    let mut request = client.ask().await;
    request.say(&QUESTION[..5]).await;
    request.send.finish().unwrap();
    request.breaks_off("torn").await;
    // A frame without a context.
    let request = client.ask().await;
    client.frame(&request, &[], &[]);
    request.breaks_off("no context").await;
    other.say(QUESTION).await;
    assert_eq!(other.capsules(ANSWER.len()).await, ANSWER);
    client.is_served().await;
}

#[tokio::test]
async fn frames_without_meaning_are_skipped() {
    let client = Client::start().await;
    // Before any request; for a request that never comes; and for our control stream's number.
    for early in [&[0_u8, 0, 7][..], &[0x40, 200, 0, 7]] {
        client
            .connection
            .send_datagram(Bytes::copy_from_slice(early))
            .unwrap();
    }
    let mut request = client.is_served().await;
    client.frame(&request, &[0x05], b"another context");
    // The context of an order, which this client has not asked for.
    client.frame(&request, &[0x02, 7, 0, 0, 0, 0], b"in order");
    client.frame(&request, &[0x80, 0, 0, 9], b"");
    let unknown = [&[0x17, 0x40, 70][..], &[9; 70]].concat();
    // Our routes and addresses, sent twice, which the server does not use; then a packet of another
    // context.
    let useless = [ROUTES, ANSWER, ROUTES, &[3, 0, 1, 0], b"\x00\x06\x05other"].concat();
    for capsules in [&unknown[..], &useless, b"\x00\x01\x00", QUESTION] {
        // Split in any way.
        for piece in capsules.chunks(3) {
            request.say(piece).await;
        }
    }
    assert_eq!(request.capsules(ANSWER.len()).await, ANSWER);
    let empty = within(client.connection.read_datagram()).await.unwrap();
    assert_eq!(empty.len(), 2);
    client.is_served().await;
}

/// RFC 9297, 2.1.
#[tokio::test]
async fn a_datagram_without_a_possible_request_ends_the_connection() {
    for datagram in [&[0xff_u8; 9][..], &[], &[0x40]] {
        let client = Client::start().await;
        client.is_served().await;
        client
            .connection
            .send_datagram(Bytes::copy_from_slice(datagram))
            .unwrap();
        let closed = within(client.connection.closed()).await;
        let noq::ConnectionError::ApplicationClosed(close) = closed else {
            panic!("{closed:?}");
        };
        assert_eq!(close.error_code, 0x33_u32.into());
    }
}

/// Requests whose answers are not read wait in the transport, and none is lost.
#[tokio::test]
async fn endless_requests_wait_for_their_reader() {
    const COUNT: usize = 20_000;
    let client = Client::start().await;
    let mut request = client.ask().await;
    assert_eq!(request.capsules(ROUTES.len()).await, ROUTES);
    let Request {
        mut send,
        receive,
        read,
    } = request;
    let asking = tokio::spawn(async move {
        for _ in 0..COUNT {
            let frame = [&[0, QUESTION.len() as u8], QUESTION].concat();
            send.write_all(&frame).await.unwrap();
        }
        send
    });
    client.is_served().await;
    let (send, _) = client.connection.open_bi().await.unwrap();
    let mut request = Request {
        send,
        receive,
        read,
    };
    for _ in 0..COUNT {
        assert_eq!(request.capsules(ANSWER.len()).await, ANSWER);
    }
    drop(within(asking).await.unwrap());
}
