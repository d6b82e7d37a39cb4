//! Ids, codes and errors of the transport as `h3` knows them.

use std::sync::Arc;

use h3::quic::{ConnectionErrorIncoming, StreamErrorIncoming, StreamId};

/// Error codes of HTTP/3 are small constants; a larger code is cut to the largest that a frame can
/// hold.
pub(super) fn varint(code: u64) -> noq::VarInt {
    noq::VarInt::from_u64(code).unwrap_or(noq::VarInt::MAX)
}

pub(super) fn stream_id(id: noq::StreamId) -> StreamId {
    match StreamId::try_from(u64::from(id)) {
        Ok(id) => id,
        Err(_) => unreachable!("both types hold 62 bits"),
    }
}

pub(super) fn on_stream(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

pub(super) fn connection_error(error: noq::ConnectionError) -> ConnectionErrorIncoming {
    match error {
        noq::ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose {
                error_code: close.error_code.into_inner(),
            }
        }
        noq::ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

pub(super) fn read_error(error: noq::ReadError) -> StreamErrorIncoming {
    match error {
        noq::ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into_inner(),
        },
        noq::ReadError::ConnectionLost(error) => on_stream(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

pub(super) fn write_error(error: noq::WriteError) -> StreamErrorIncoming {
    match error {
        noq::WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into_inner(),
        },
        noq::WriteError::ConnectionLost(error) => on_stream(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}
