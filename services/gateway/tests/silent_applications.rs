//! Silent connections, with a token or without, keep no application out.

#![allow(clippy::unwrap_used)]

#[path = "applications/stage.rs"]
mod stage;

use std::io;

use stage::{Stage, echo};
use testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Largest number of concurrent negotiations.
const NEGOTIATIONS_MAX: usize = 64;

#[tokio::test]
async fn silent_connections_give_way_to_new_ones() {
    let to = echo().await;
    let stage = Stage::start(&[to.to_string()], &[]).await;
    let mut silent = Vec::new();
    for _ in 0..NEGOTIATIONS_MAX {
        silent.push(stage.connect().await);
    }
    let mut stream = stage.tunnel(to).await;
    within(stream.write_all(b"heard")).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    let mut back = Vec::new();
    within(stream.read_to_end(&mut back)).await.unwrap();
    assert_eq!(back, b"heard");
    // Before their time was over; newer connections are still within theirs.
    let newest = silent.last().unwrap();
    let nothing = newest.try_read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(nothing, Err(io::ErrorKind::WouldBlock));
    let first = within(silent[0].read(&mut [0])).await;
    assert_eq!(first.unwrap(), 0, "the first gave way");
    drop(stream);
    drop(silent);
    stage.stop().await;
}
