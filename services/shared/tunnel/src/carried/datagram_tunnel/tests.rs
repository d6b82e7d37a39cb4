//! Requests of a misbehaving client over real sockets.

#![allow(clippy::unwrap_used)]

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use testkit::within;
use tokio::{io::AsyncWriteExt, sync::mpsc};

use super::{ended::TunnelEnded, payload::MalformedDatagram};
use crate::{
    ConnectRequest, Interface, Tunnel, TunnelConfig, TunnelServer, Urgency,
    bench::{Identities, authority, listen_anywhere, serve},
    http::{
        request,
        stream::{ConnectStream, OpenStreams},
    },
};

/// The events of one request: payloads that arrived, then the reason of its end.
const EVENTS_MAX: usize = 16;

type Told = mpsc::Receiver<Result<Bytes, TunnelEnded>>;

/// A server that reports its events, and a client's raw stream of a CONNECT-UDP request.
async fn ask() -> (Tunnel, ConnectStream, Told) {
    let identities = Identities::new();
    let config = identities.server_config(listen_anywhere());
    let server = Arc::new(TunnelServer::bind(config).unwrap());
    let (to, events) = mpsc::channel(EVENTS_MAX);
    serve(server.clone(), move |request: ConnectRequest, _| {
        let to = to.clone();
        async move {
            let tunnel = request.accept_udp().await.unwrap();
            loop {
                let received = tunnel.receive().await;
                let over = received.is_err();
                to.send(received).await.unwrap();
                if over {
                    return;
                }
            }
        }
    });
    let interface = Interface::bind("any", IpAddr::from([127, 0, 0, 1]), None).unwrap();
    let tls = identities.client.client_config(&[crate::ALPN]);
    let config = TunnelConfig::new(server.local_addr(), "localhost", tls);
    let tunnel = Tunnel::start(config, vec![interface]).unwrap();
    let session = within(tunnel.session()).await.unwrap();
    let mut request = request::connect_udp("localhost", &authority(), Urgency::Bulk).unwrap();
    let protocol = h3::ext::Protocol::CONNECT_UDP;
    request.extensions_mut().insert(protocol);
    let open = OpenStreams::default().enter();
    let asked = within(session.ask(request, Urgency::Bulk, open)).await;
    let (stream, _) = asked.unwrap();
    (tunnel, stream, events)
}

#[tokio::test]
async fn a_malformed_capsule_ends_the_request_after_the_valid_ones() {
    let (tunnel, mut stream, mut events) = ask().await;
    // A payload, a capsule of another type, a datagram of context 9, and one without a context.
    let wire = b"\x00\x03\x00hi\x17\x02xx\x00\x02\x09?\x00\x00";
    within(stream.write_all(wire)).await.unwrap();
    within(stream.flush()).await.unwrap();
    assert_eq!(within(events.recv()).await.unwrap().unwrap(), "hi");
    let ended = within(events.recv()).await.unwrap();
    assert_eq!(
        ended,
        Err(TunnelEnded::Malformed(MalformedDatagram::NoContext))
    );
    // The stream is reset and not ended.
    let error = within(async {
        loop {
            stream.write_all(b"\x00\x01\x00").await?;
            stream.flush().await?;
        }
    });
    let error: std::io::Result<()> = error.await;
    assert_eq!(
        error.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );
    tunnel.close().await;
}

#[tokio::test]
async fn a_frame_without_a_context_ends_its_request_and_one_without_a_request_the_connection() {
    let (tunnel, stream, mut events) = ask().await;
    let session = within(tunnel.session()).await.unwrap();
    let connection = session.quic().unwrap();
    let quarter = (stream.h3_id().unwrap().into_inner() / 4) as u8;
    // For a missing request, for context 9, and valid; in this order on the one path.
    for frame in [&[50, 0, b'?'][..], &[quarter, 9, b'?'], &[quarter, 0, b'a']] {
        let sending = connection.send_datagram_wait(Bytes::copy_from_slice(frame));
        within(sending).await.unwrap();
    }
    assert_eq!(within(events.recv()).await.unwrap().unwrap(), "a");
    let torn = Bytes::copy_from_slice(&[quarter]);
    within(connection.send_datagram_wait(torn)).await.unwrap();
    let ended = within(events.recv()).await.unwrap();
    assert_eq!(
        ended,
        Err(TunnelEnded::Malformed(MalformedDatagram::NoContext))
    );
    assert!(!session.is_closed());
    within(connection.send_datagram_wait(Bytes::new()))
        .await
        .unwrap();
    within(session.closed()).await;
    tunnel.close().await;
}

#[tokio::test]
async fn a_stream_that_ends_within_a_capsule_differs_from_a_stream_that_ends_after_it() {
    for (wire, expected) in [
        (&b"\x00\x02\x00a"[..], TunnelEnded::ByPeer),
        (b"\x00\x02\x00a\x00\x05", MalformedDatagram::Torn.into()),
    ] {
        let (tunnel, mut stream, mut events) = ask().await;
        within(stream.write_all(wire)).await.unwrap();
        within(stream.shutdown()).await.unwrap();
        assert_eq!(within(events.recv()).await.unwrap().unwrap(), "a");
        assert_eq!(within(events.recv()).await.unwrap(), Err(expected));
        tunnel.close().await;
    }
}

/// RFC 9484, 6: the request of another client, without Huffman coding or a table; and the answer to
/// an unknown protocol.
#[tokio::test]
async fn a_request_for_ip_of_another_client_is_accepted_by_its_name_on_the_wire() {
    let (tunnel, _stream, _events) = ask().await;
    let session = within(tunnel.session()).await.unwrap();
    let connection = session.quic().unwrap();
    for (protocol, answered) in [("connect-ip", true), ("webtransport", false)] {
        let mut section = vec![0, 0];
        for (name, value) in [
            (":method", "CONNECT"),
            (":protocol", protocol),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/.well-known/masque/ip/192.0.2.1/*/"),
            ("capsule-protocol", "?1"),
        ] {
            // Three bits hold the length, and the rest follows.
            match name.len().checked_sub(7) {
                Some(beyond) => section.extend([0x27, beyond as u8]),
                None => section.push(0x20 | name.len() as u8),
            }
            section.extend(name.as_bytes());
            section.push(value.len() as u8);
            section.extend(value.as_bytes());
        }
        let mut frame = vec![1, 0x40 | (section.len() >> 8) as u8, section.len() as u8];
        frame.extend(section);
        let (mut send, mut receive) = within(connection.open_bi()).await.unwrap();
        within(send.write_all(&frame)).await.unwrap();
        let answer = within(receive.read_to_end(1_000)).await;
        // A single destination is not offered, so the request is refused with the status for that.
        assert_eq!(answer.is_ok_and(|answer| !answer.is_empty()), answered);
    }
    tunnel.close().await;
}
