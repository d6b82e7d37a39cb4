//! A request at the server that waits for its answer, over HTTP/3 or HTTP/2.

use std::{io, sync::Arc};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use h3::quic::StreamId;
use http::{HeaderMap, Response, StatusCode};

use crate::http::{
    h3_over_noq::{BidiStream, SendHandle},
    request::Urgency,
    stream::{ConnectStream, H2Wire, H3Wire, OpenStream},
};

type H3Stream = h3::server::RequestStream<BidiStream, Bytes>;

pub(crate) enum Exchange {
    H3(Box<H3Exchange>),
    H2 {
        respond: SendResponse<Bytes>,
        receive: RecvStream,
    },
}

pub(crate) struct H3Exchange {
    stream: H3Stream,
    send: Arc<SendHandle>,
}

impl Exchange {
    pub(crate) fn h3(stream: H3Stream, send: Arc<SendHandle>) -> Self {
        Self::H3(Box::new(H3Exchange { stream, send }))
    }

    /// HTTP/2 serves its streams in turn, independent of their urgency.
    pub(crate) fn set_urgency(&self, urgency: Urgency) {
        if let Self::H3(exchange) = self {
            exchange.send.set_urgency(urgency);
        }
    }

    /// The stream id for datagrams; `None` over HTTP/2.
    pub(crate) fn h3_stream(&self) -> Option<StreamId> {
        match self {
            Self::H3(exchange) => Some(exchange.stream.id()),
            Self::H2 { .. } => None,
        }
    }

    /// Answers 200 with these headers and returns the byte stream.
    pub(crate) async fn accept(
        self,
        headers: HeaderMap,
        open: OpenStream,
    ) -> io::Result<ConnectStream> {
        let mut response = answer(StatusCode::OK);
        *response.headers_mut() = headers;
        match self {
            Self::H3(mut exchange) => {
                let sent = exchange.stream.send_response(response).await;
                sent.map_err(io::Error::other)?;
                let wire = H3Wire::of_server(exchange.stream, exchange.send);
                Ok(ConnectStream::of_h3(wire, open))
            }
            Self::H2 {
                mut respond,
                receive,
            } => {
                let send = respond.send_response(response, false);
                let wire = H2Wire::new(send.map_err(io::Error::other)?, receive);
                Ok(ConnectStream::of_h2(wire, open))
            }
        }
    }

    /// Answers with an error status.
    pub(crate) async fn refuse(self, status: StatusCode) {
        let response = answer(status);
        let refused = match self {
            Self::H3(mut exchange) => match exchange.stream.send_response(response).await {
                Ok(()) => exchange.stream.finish().await.map_err(io::Error::other),
                Err(error) => Err(io::Error::other(error)),
            },
            Self::H2 { mut respond, .. } => respond
                .send_response(response, true)
                .map(|_| ())
                .map_err(io::Error::other),
        };
        if let Err(error) = refused {
            tracing::debug!(%error, "refusal not sent");
        }
    }
}

fn answer(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}
