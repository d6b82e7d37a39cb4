//! Permission to resume a tunnel: requests of misbehaving clients, over real sockets.

#![allow(clippy::unwrap_used)]

use std::{net::IpAddr, sync::Arc, time::Duration};

use http::StatusCode;
use service_kit::tls::Identity;
use testkit::within;

use super::{
    flow::{Carrier, Flow},
    header::{Attach, Attached, Offer, Token},
};
use crate::{
    Interface, Tunnel, TunnelConfig, TunnelServer, Urgency,
    bench::{Identities, authority, echo, listen_anywhere, serve},
    client::session::{ConnectError, Session},
    http::stream::ConnectStream,
};

struct Client {
    tunnel: Tunnel,
    session: Arc<Session>,
}

impl Client {
    async fn of(identity: &Identity, server: &TunnelServer) -> Self {
        let interface = Interface::bind("any", IpAddr::from([127, 0, 0, 1]), None).unwrap();
        let tls = identity.client_config(&[crate::ALPN]);
        let config = TunnelConfig::new(server.local_addr(), "localhost", tls);
        let tunnel = Tunnel::start(config, vec![interface]).unwrap();
        let session = within(tunnel.session()).await.unwrap();
        Self { tunnel, session }
    }

    async fn ask(
        &self,
        token: Token,
        attach: Option<Attach>,
    ) -> Result<(ConnectStream, Option<Attached>), StatusCode> {
        let offer = Offer { token, attach };
        let authority = authority();
        let asking = self
            .session
            .connect(&authority, (Urgency::Bulk, true), Some(offer));
        match within(asking).await {
            Ok(answer) => Ok(answer),
            Err(ConnectError::Refused(status)) => Err(status),
            Err(error) => panic!("{error}"),
        }
    }
}

fn at(epoch: u64) -> Option<Attach> {
    Some(Attach {
        epoch,
        received: 0,
        is_copy: false,
    })
}

/// The answer of a server that has received nothing.
const ANSWER: Option<Attached> = Some(Attached {
    received: 0,
    takes_copies: true,
});

#[tokio::test]
async fn only_the_identity_that_opened_a_tunnel_continues_it() {
    let identities = Identities::new();
    let server = Arc::new(TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap());
    serve(server.clone(), echo);
    let client = Client::of(&identities.client, &server).await;
    let renewed = Client::of(&identities.renewed, &server).await;
    let other_gateway = Client::of(&identities.other_gateway, &server).await;

    let token = Token::random();
    let (_first, answer) = client.ask(token, None).await.unwrap();
    assert_eq!(answer, ANSWER);

    let refused = other_gateway.ask(token, at(1)).await.unwrap_err();
    assert_eq!(refused, StatusCode::NOT_FOUND);
    let copy = at(0).map(|attach| Attach {
        is_copy: true,
        ..attach
    });
    let refused = other_gateway.ask(token, copy).await.unwrap_err();
    assert_eq!(refused, StatusCode::NOT_FOUND, "not even a copy");
    let unknown = client.ask(Token::random(), at(1)).await.unwrap_err();
    assert_eq!(unknown, StatusCode::NOT_FOUND);
    // The attempt of another peer had no effect.
    let (second, answer) = client.ask(token, at(1)).await.unwrap();
    assert_eq!(answer, ANSWER);
    let stale = client.ask(token, at(1)).await.unwrap_err();
    assert_eq!(stale, StatusCode::CONFLICT);
    // The same gateway with a new certificate.
    let (third, answer) = renewed.ask(token, at(2)).await.unwrap();
    assert_eq!(answer, ANSWER);
    // The client claims to have received bytes that the server never sent.
    let impossible = Attach {
        epoch: 3,
        received: 1_000,
        is_copy: false,
    };
    let refused = client.ask(token, Some(impossible)).await.unwrap_err();
    assert_eq!(refused, StatusCode::BAD_REQUEST);
    drop((second, third));
    for client in [client, renewed, other_gateway] {
        client.tunnel.close().await;
    }
}

/// The old stream is cut as soon as another carries the tunnel.
#[tokio::test]
async fn the_old_stream_is_void() {
    let identities = Identities::new();
    let server = Arc::new(TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap());
    serve(server.clone(), echo);
    let client = Client::of(&identities.client, &server).await;
    let token = Token::random();
    let (mut first, _) = client.ask(token, None).await.unwrap();
    let (mut second, _) = client.ask(token, at(1)).await.unwrap();
    let lost = within(std::future::poll_fn(|cx| first.poll_chunk(cx))).await;
    assert!(
        matches!(
            lost,
            Err(crate::http::stream::wire_error::WireError::Lost(_))
        ),
        "{lost:?}"
    );
    // The new stream works.
    let mut flow = Flow::default();
    flow.write(b"echo");
    while let Some(bytes) = flow.emit() {
        let mut bytes = Some(bytes);
        within(std::future::poll_fn(|cx| {
            std::task::ready!(second.poll_sent(cx))?;
            if let Some(bytes) = bytes.take() {
                second.send(cx, bytes)?;
            }
            second.poll_sent(cx)
        }))
        .await
        .unwrap();
    }
    let mut back = Vec::new();
    within(async {
        while back.len() < 4 {
            let chunk = std::future::poll_fn(|cx| second.poll_chunk(cx)).await;
            flow.receive(Carrier::Original, chunk.unwrap().unwrap(), false)
                .unwrap();
            while let Some(piece) = flow.read(usize::MAX) {
                back.extend_from_slice(&piece);
            }
        }
    })
    .await;
    assert_eq!(back, b"echo");
    client.tunnel.close().await;
    tokio::time::timeout(Duration::from_secs(5), server.close())
        .await
        .unwrap();
}
