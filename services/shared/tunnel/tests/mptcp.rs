//! Blocked UDP, over the kernel's MPTCP: in network namespaces with two shaped access networks, one
//! of which is cut without notice during a transfer. Skips on hosts without namespaces or MPTCP.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;
#[path = "support/beside_server.rs"]
mod beside_server;

use bench::{Identities, authority};
use beside_server::{DEVICES, beside_server, config, follow};
use testkit::netns::World;
use testkit::{noise, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{ConnectRequest, SessionHandle, Transport, Tunnel, Urgency};

const RATE: &str = "20mbit";

/// Bytes that each network must carry for a transfer to count as spread.
const SHARE_BYTES: u64 = 500_000;

/// The kernel tries a subflow only once.
const ATTEMPTS_MAX: u8 = 3;

/// Several seconds of both networks' capacity.
const BYTES: usize = 12_000_000;

/// The client's first byte selects the noise that it gets.
async fn send_noise(request: ConnectRequest, _: SessionHandle) {
    let Ok(mut stream) = request.accept().await else {
        return;
    };
    let mut seed = [0];
    if stream.read_exact(&mut seed).await.is_err() {
        return;
    }
    let bytes = noise(BYTES, seed[0].into());
    if stream.write_all(&bytes).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

fn tunnel(identities: &Identities) -> Tunnel {
    let tunnel = Tunnel::start(config(identities), Vec::new()).unwrap();
    follow(&tunnel);
    tunnel
}

/// Runs a whole transfer over a plain tunnel, which no other session can continue; `midway` runs
/// when a quarter has arrived.
async fn transfer(tunnel: &Tunnel, seed: u8, midway: impl FnOnce()) {
    let to = authority();
    let opened = tunnel.open_plain_tcp(&to, Urgency::Bulk);
    let mut stream = within(opened).await.unwrap();
    stream.write_all(&[seed]).await.unwrap();
    stream.flush().await.unwrap();
    let mut all = vec![0; BYTES];
    let (first, rest) = all.split_at_mut(BYTES / 4);
    within(stream.read_exact(first)).await.unwrap();
    midway();
    within(stream.read_exact(rest)).await.unwrap();
    assert!(all == noise(BYTES, seed.into()), "bytes differ");
    assert_eq!(within(stream.read(&mut [0])).await.unwrap(), 0);
}

/// Waits until the gateway's kernel has both networks.
async fn until_told(world: &World) {
    within(async {
        let has = |text: &str| world.mptcp_endpoints().unwrap().contains(text);
        while !DEVICES
            .iter()
            .all(|(device, net)| has(&format!("10.{net}.0.2")) && has(device))
        {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[test]
fn a_transfer_continues_over_the_remaining_network() {
    let Some(world) = World::new() else {
        return;
    };
    let [(first, net), (second, second_net)] = DEVICES;
    world.plug(first, net, RATE);
    if let Err(error) = world.mptcp_endpoints() {
        println!("SKIPPED: no MPTCP here ({error})");
        return;
    }
    world.block_udp();
    beside_server(world, send_noise, move |inside, identities| async move {
        let tunnel = tunnel(&identities);
        within(tunnel.up()).await;
        assert_eq!(tunnel.transport(), Some(Transport::Mptcp));
        let session = tunnel.paths()[0].session;
        // The second network comes when the session is established.
        inside.plug(second, second_net, RATE);
        for attempt in 1..=ATTEMPTS_MAX {
            until_told(&inside).await;
            let before = DEVICES.map(|(device, _)| inside.received(device));
            transfer(&tunnel, attempt, || {}).await;
            let shares: Vec<u64> = DEVICES
                .iter()
                .zip(before)
                .map(|((device, _), before)| inside.received(device) - before)
                .collect();
            println!("of {BYTES} bytes the networks carried {shares:?}");
            if shares.iter().all(|share| *share > SHARE_BYTES) {
                break;
            }
            assert!(attempt < ATTEMPTS_MAX, "one network carries all");
            // On a busy machine the router may not have been ready when the network settled; so the
            // network comes again.
            inside.ip("gw", &format!("link set {second} down"));
            inside.up(second, second_net);
        }
        let began = std::time::Instant::now();
        transfer(&tunnel, 0, || inside.cut(first, net)).await;
        println!(
            "{first} cut after a quarter: {BYTES} bytes after {:?}, {} session",
            began.elapsed(),
            match tunnel.paths()[0].session == session {
                true => "the same",
                false => "beside another",
            }
        );
        tunnel.close().await;
        within(async {
            while !inside.mptcp_endpoints().unwrap().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
        .await;
    });
}
