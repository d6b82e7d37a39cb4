//! HTTP at both ends: requests and their streams, over QUIC (HTTP/3) and over TCP (HTTP/2).

pub(crate) mod carrier;
pub(crate) mod codes;
pub(crate) mod copy_number;
pub(crate) mod exchange;
pub(crate) mod h2_over_tcp;
pub(crate) mod h3_over_noq;
pub(crate) mod http_datagrams;
pub(crate) mod request;
pub(crate) mod stream;
pub(crate) mod transport;
mod unsent;
pub(crate) mod varint;
