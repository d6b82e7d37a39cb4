//! An HTTP/3 CONNECT request as the carrier of bytes.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use h3::{
    ConnectionState,
    error::{Code, StreamError},
    quic::StreamId,
};

use super::wire_error::{Broken, WireError};
use crate::http::{
    copy_number::CopyNumber,
    h3_over_noq::{BidiStream, RecvStream, SendHandle, SendStream},
};

enum Sender {
    Client(h3::client::RequestStream<SendStream, Bytes>),
    Server(h3::server::RequestStream<SendStream, Bytes>),
}

enum Receiver {
    Client(h3::client::RequestStream<RecvStream, Bytes>),
    Server(h3::server::RequestStream<RecvStream, Bytes>),
}

pub(crate) struct H3Wire {
    sender: Sender,
    receiver: Receiver,
    handle: Arc<SendHandle>,
}

impl H3Wire {
    pub(crate) fn of_client(
        stream: h3::client::RequestStream<BidiStream, Bytes>,
        handle: Arc<SendHandle>,
    ) -> Self {
        let (sender, receiver) = stream.split();
        Self {
            sender: Sender::Client(sender),
            receiver: Receiver::Client(receiver),
            handle,
        }
    }

    pub(crate) fn of_server(
        stream: h3::server::RequestStream<BidiStream, Bytes>,
        handle: Arc<SendHandle>,
    ) -> Self {
        let (sender, receiver) = stream.split();
        Self {
            sender: Sender::Server(sender),
            receiver: Receiver::Server(receiver),
            handle,
        }
    }

    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, WireError>> {
        fn whole(chunk: Option<impl Buf>) -> Option<Bytes> {
            chunk.map(|mut chunk| chunk.copy_to_bytes(chunk.remaining()))
        }
        let received = match &mut self.receiver {
            Receiver::Client(receiver) => receiver.poll_recv_data(cx).map_ok(whole),
            Receiver::Server(receiver) => receiver.poll_recv_data(cx).map_ok(whole),
        };
        received.map_err(WireError::from)
    }

    /// Begins a DATA frame; the handle keeps bytes that the transport refuses (see `h3_over_noq`).
    pub(super) fn begin_data(&mut self, chunk: Bytes) {
        self.handle.begin_data(chunk);
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        self.handle.poll_flush(cx).map_err(WireError::from)
    }

    /// Must be polled once everything is flushed: it waits for nothing else, so a fresh poll each
    /// time is sound.
    pub(super) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        let finished = match &mut self.sender {
            Sender::Client(sender) => pin!(sender.finish()).poll(cx),
            Sender::Server(sender) => pin!(sender.finish()).poll(cx),
        };
        finished.map_err(WireError::from)
    }

    pub(super) fn set_copy(&self, copy: Option<CopyNumber>) {
        self.handle.set_copy(copy);
    }

    pub(super) fn id(&self) -> StreamId {
        match &self.receiver {
            Receiver::Client(receiver) => receiver.id(),
            Receiver::Server(receiver) => receiver.id(),
        }
    }

    pub(super) fn peer_takes_datagrams(&self) -> bool {
        let settings = match &self.sender {
            Sender::Client(sender) => sender.settings(),
            Sender::Server(sender) => sender.settings(),
        };
        settings.enable_datagram()
    }

    pub(super) fn break_off(&mut self, broken: Broken) {
        let code = match broken.deliberately {
            true => Code::H3_CONNECT_ERROR,
            false => Code::H3_REQUEST_CANCELLED,
        };
        if broken.sending {
            self.handle.reset(code);
        }
        if broken.receiving {
            match &mut self.receiver {
                Receiver::Client(receiver) => receiver.stop_sending(code),
                Receiver::Server(receiver) => receiver.stop_sending(code),
            }
        }
    }
}

impl From<StreamError> for WireError {
    fn from(error: StreamError) -> Self {
        let kind = match &error {
            StreamError::RemoteTerminate { code, .. } if *code == Code::H3_CONNECT_ERROR => {
                return Self::Aborted;
            }
            StreamError::RemoteTerminate { .. } | StreamError::StreamError { .. } => {
                std::io::ErrorKind::ConnectionReset
            }
            // The remaining case is the end of the connection; h3's type cannot be matched.
            _ => std::io::ErrorKind::ConnectionAborted,
        };
        Self::Lost(std::io::Error::new(kind, error))
    }
}

impl From<noq::WriteError> for WireError {
    fn from(error: noq::WriteError) -> Self {
        match error {
            noq::WriteError::Stopped(code)
                if code.into_inner() == Code::H3_CONNECT_ERROR.value() =>
            {
                Self::Aborted
            }
            other => Self::Lost(other.into()),
        }
    }
}
