//! Helpers for tests of transfers: bytes to send, an echo server, and bounded waiting.

use std::{future::Future, net::SocketAddr, time::Duration};

use rand::{Rng, SeedableRng};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    net::UdpSocket,
};

/// A generous deadline, since CI machines are slow; no figure depends on it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The result of a future; a test that waits longer fails.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what)
        .await
        .expect("within the deadline")
}

/// Bytes that differ from all other bytes of the same transfer.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rand_chacha::ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Writes until the stream accepts nothing for `patience`; returns the number of bytes written.
pub async fn write_until_blocked(
    stream: &mut (impl AsyncWrite + Unpin),
    patience: Duration,
) -> usize {
    let chunk = vec![1; 64 * 1024];
    let mut taken = 0;
    loop {
        match tokio::time::timeout(patience, stream.write(&chunk)).await {
            Ok(written) => taken += written.expect("an open stream"),
            Err(_) => return taken,
        }
    }
}

/// A real socket that sends back each datagram.
pub async fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0")
        .await
        .expect("a port of loopback");
    let address = socket.local_addr().expect("bound");
    tokio::spawn(async move {
        let mut buffer = vec![0; 65_535];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            // A client that is gone needs no answer.
            let _ = socket.send_to(&buffer[..length], from).await;
        }
    });
    address
}
