//! What a device may have, however often it comes.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::time::Instant;

use bench::{Proxy, authority_of, fast};
use testkit::{DEADLINE, udp_echo, within};
use tunnel::Urgency;

/// What a device may ask for at once that may ask once a second.
const BURST: u64 = 4;

#[tokio::test]
async fn a_new_session_brings_no_new_requests() {
    let to = udp_echo().await;
    let flags = ["--allow", &to.to_string(), "--requests-per-second-max", "1"];
    let proxy = Proxy::start(&flags).await;
    let (gateway, to) = (proxy.gateway(), authority_of(to));
    let began = Instant::now();
    let mut given = 0;
    for _ in 0..5 {
        let tunnel = proxy.tunnel(&gateway, &fast(), DEADLINE);
        for _ in 0..BURST {
            let opened = within(tunnel.open_udp(&to, Urgency::Prompt)).await;
            given += u64::from(opened.is_ok());
        }
        tunnel.close().await;
    }
    let earned = BURST + began.elapsed().as_secs() + 1;
    assert!((BURST..=earned).contains(&given), "{given} of {earned}");
    proxy.stop().await;
}
