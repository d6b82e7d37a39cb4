//! Bulk flows of the kernel's TCP beside an application, one on each link in turn, as the
//! scenario's competitors are in virtual time.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::baseline;
use super::super::bed::{Bed, KernelError};
use super::super::network::{COMPETITOR_PORT, SERVER_IP};
use crate::scenario::{Direction, Scenario};

/// Bytes written or taken at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Starts the competitors of a scenario, which go on until the run ends.
pub(crate) fn start(bed: &Bed, scenario: &Scenario) -> Result<(), KernelError> {
    for (number, controller) in scenario.competitors.iter().enumerate() {
        let Some(congestion) = controller.in_kernel() else {
            continue;
        };
        let path = number % scenario.interfaces.len().max(1);
        let server = SocketAddr::from((SERVER_IP, COMPETITOR_PORT + number as u16));
        let listening = bed
            .server
            .spawn(async move { baseline::listen(baseline::Transport::Tcp, congestion, server) });
        let listener = bed
            .server
            .block_on(listening)
            .map_err(|error| KernelError::Endpoint(error.to_string()))??;
        let upload = scenario.direction == Direction::Upload;
        let origin = bed.origin;
        bed.server.spawn(async move {
            if let Ok((stream, _)) = listener.accept().await {
                flow(stream, !upload).await;
            }
        });
        bed.client.spawn(async move {
            tokio::time::sleep_until(origin.into()).await;
            if let Ok(stream) = baseline::connect_over(path, congestion, server).await {
                flow(stream, upload).await;
            }
        });
    }
    Ok(())
}

/// Sends without end, or takes what comes. A flow that breaks competes no longer.
async fn flow(mut stream: impl AsyncRead + AsyncWrite + Unpin, sends: bool) {
    let mut chunk = vec![0; CHUNK_BYTES];
    if sends {
        while stream.write_all(&chunk).await.is_ok() {}
    } else {
        while matches!(stream.read(&mut chunk).await, Ok(1..)) {}
    }
}
