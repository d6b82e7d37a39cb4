//! Several access networks: all carry data, any of them may fail, and all of them may fail
//! together.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bench::{Bench, Identities, NAMES, authority, echo, listen_anywhere, serve};
use emulated_link::{emulate, link::LinkConfig};
use testkit::{noise, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{
    PathState, TunnelEvent, TunnelServer, TunnelStream, Urgency,
    steering_rules::{PathSchedule, Rank, Schedule},
};

const MBIT: f64 = 1e6;

fn start(config: &LinkConfig, down: &[usize]) -> Bench {
    let identities = Identities::new();
    let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
    let addr = server.local_addr();
    serve(Arc::new(server), echo);
    Bench::start(identities, addr, config, down)
}

/// Sends `sent` and returns the echo; `at` is called once when that many bytes are back.
async fn exchange(stream: TunnelStream, sent: Vec<u8>, at: usize, then: impl FnOnce()) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(stream);
    let len = sent.len();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::with_capacity(len);
    let mut then = Some(then);
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let count = read.read(&mut chunk).await.unwrap();
        if count == 0 {
            break;
        }
        back.extend_from_slice(&chunk[..count]);
        if back.len() >= at
            && let Some(then) = then.take()
        {
            then();
        }
    }
    writing.await.unwrap();
    back
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn symmetric_links_both_carry_a_fair_part() {
    let bench = start(
        &LinkConfig::new(20.0 * MBIT, Duration::from_millis(10)),
        &[],
    );
    bench.both_up().await;
    let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let sent = noise(4_000_000, 1);
    let back = within(exchange(stream, sent.clone(), usize::MAX, || ())).await;
    assert!(back == sent, "bytes differ");
    let paths = bench.tunnel.paths();
    let sum: u64 = paths.iter().map(|path| path.sent_bytes).sum();
    assert!(sum > 4_000_000);
    for name in NAMES {
        let bytes: u64 = paths
            .iter()
            .filter(|path| path.name == name)
            .map(|path| path.sent_bytes)
            .sum();
        assert!(bytes * 10 > sum * 3, "{name} carried {bytes} of {sum}");
    }
    bench.tunnel.close().await;
}

async fn cut_in_the_middle(index: usize) {
    let mut bench = start(
        &LinkConfig::new(20.0 * MBIT, Duration::from_millis(10)),
        &[],
    );
    bench.both_up().await;
    let session = bench.session();
    let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let sent = noise(4_000_000, 2);
    let link = bench.links[index].clone();
    let back = within(exchange(stream, sent.clone(), 500_000, move || {
        link.set_up(false)
    }))
    .await;
    assert!(back == sent, "bytes differ");
    assert_eq!(bench.session(), session, "the session survives");
    bench
        .until(|event| {
            // A bulk transfer uses both links.
            *event
                == TunnelEvent::PathDown {
                    name: NAMES[index].into(),
                    carried: true,
                }
        })
        .await;
    bench.links[index].set_up(true);
    bench
        .until(|event| {
            *event
                == TunnelEvent::PathUp {
                    name: NAMES[index].into(),
                }
        })
        .await;
    // The restored path carries data again.
    bench.both_up().await;
    let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let sent = noise(1_000_000, 3);
    assert!(within(exchange(stream, sent.clone(), usize::MAX, || ())).await == sent);
    assert_eq!(bench.session(), session);
    bench.tunnel.close().await;
}

/// The path that carries light traffic, and the standby path.
async fn carrying_and_spare(bench: &Bench) -> [usize; 2] {
    within(async {
        loop {
            let in_state = |state: PathState| {
                let paths = bench.tunnel.paths();
                let path = paths.iter().find(|path| path.state == state)?;
                NAMES.iter().position(|name| *name == path.name)
            };
            let found = (in_state(PathState::Available), in_state(PathState::Backup));
            if let (Some(carrying), Some(spare)) = found {
                return [carrying, spare];
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_path_loses_no_data_and_its_silence_is_not_reported() {
    let mut bench = start(
        &LinkConfig::new(20.0 * MBIT, Duration::from_millis(10)),
        &[],
    );
    bench.both_up().await;
    for carries in [false, true] {
        let [carrying, spare] = carrying_and_spare(&bench).await;
        let cut = if carries { carrying } else { spare };
        bench.links[cut].set_up(false);
        let event = bench
            .until(|event| match event {
                TunnelEvent::PathDown { name, .. } => name == NAMES[cut],
                TunnelEvent::PathSilent { name } => name == NAMES[cut],
                _ => false,
            })
            .await;
        let name = NAMES[cut].to_owned();
        let wanted = match carries {
            true => TunnelEvent::PathSilent { name },
            false => TunnelEvent::PathDown {
                name,
                carried: false,
            },
        };
        assert_eq!(event, wanted);
        bench.links[cut].set_up(true);
        bench.both_up().await;
    }
    bench.tunnel.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_interface_may_be_cut() {
    cut_in_the_middle(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_interface_may_be_cut() {
    cut_in_the_middle(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_interface_may_be_down_at_the_start() {
    for down in [0, 1] {
        let mut bench = start(
            &LinkConfig::new(20.0 * MBIT, Duration::from_millis(5)),
            &[down],
        );
        let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
            .await
            .unwrap();
        let sent = noise(100_000, 4);
        assert!(within(exchange(stream, sent.clone(), usize::MAX, || ())).await == sent);
        bench.links[down].set_up(true);
        bench
            .until(|event| {
                *event
                    == TunnelEvent::PathUp {
                        name: NAMES[down].into(),
                    }
            })
            .await;
        bench.tunnel.close().await;
    }
}

/// After an outage of all networks new tunnels work as soon as there is a network, and an old
/// tunnel goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_networks_may_vanish_and_return() {
    let bench = start(&LinkConfig::new(20.0 * MBIT, Duration::from_millis(5)), &[]);
    bench.both_up().await;
    let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let sent = Arc::new(noise(3_000_000, 5));
    let (mut read, mut write) = tokio::io::split(stream);
    let writing = tokio::spawn({
        let sent = sent.clone();
        async move {
            write.write_all(&sent).await?;
            write.shutdown().await
        }
    });
    let mut back = vec![0; sent.len()];
    let mut received = 0;
    while received < 500_000 {
        received += within(read.read(&mut back[received..])).await.unwrap();
    }
    for link in &bench.links {
        link.set_up(false);
    }
    // Longer than the silence after which a fresh session is tried.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    for link in &bench.links {
        link.set_up(true);
    }
    let fresh = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let again = noise(1_000_000, 6);
    assert!(within(exchange(fresh, again.clone(), usize::MAX, || ())).await == again);
    while received < sent.len() {
        received += within(read.read(&mut back[received..])).await.unwrap();
    }
    assert!(back == *sent, "bytes differ");
    within(writing).await.unwrap().unwrap();
    bench.tunnel.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_learns_the_names_of_the_paths() {
    let identities = Identities::new();
    let server = Arc::new(TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap());
    let addr = server.local_addr();
    let config = LinkConfig::new(20.0 * MBIT, Duration::from_millis(1));
    let bench = Bench::start(identities, addr, &config, &[]);
    let session = within(server.accept()).await.unwrap();
    within(async {
        loop {
            let paths = session.handle().paths();
            let mut names: Vec<_> = paths
                .iter()
                .filter(|path| path.state != tunnel::PathState::Closed)
                .map(|path| path.name.as_str())
                .collect();
            names.sort_unstable();
            if names == ["lte", "wifi"] {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    bench.tunnel.close().await;
}

/// Datagrams that each end sends on idle paths within a period.
async fn pings_in(bench: &Bench, session: &tunnel::SessionHandle, length: Duration) -> (u64, u64) {
    let received = |paths: Vec<tunnel::PathSnapshot>| -> BTreeMap<(u64, u64), u64> {
        let counts = paths
            .iter()
            .map(|path| ((path.session, path.path_id), path.received_datagrams));
        counts.collect()
    };
    // A path that was closed meanwhile is not listed, and a new path begins at zero.
    let rise = |before: &BTreeMap<(u64, u64), u64>, after: BTreeMap<(u64, u64), u64>| -> u64 {
        let rises = after
            .into_iter()
            .map(|(id, count)| count - before.get(&id).copied().unwrap_or(0));
        rises.sum()
    };
    let before = (received(session.paths()), received(bench.tunnel.paths()));
    tokio::time::sleep(length).await;
    let after = (received(session.paths()), received(bench.tunnel.paths()));
    (rise(&before.0, after.0), rise(&before.1, after.1))
}

/// The optimiser's recommendation holds at both ends: the client gets it from the policy, and sends
/// it to the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keepalive_set_at_the_client_reaches_both_ends() {
    let identities = Identities::new();
    let server = Arc::new(TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap());
    let config = LinkConfig::new(20.0 * MBIT, Duration::from_millis(1));
    let bench = Bench::start(identities, server.local_addr(), &config, &[]);
    let session = within(server.accept()).await.unwrap();
    bench.both_up().await;
    let ids = |paths: Vec<tunnel::PathSnapshot>| -> Vec<u64> {
        paths.iter().map(|path| path.path_id).collect()
    };
    let before = ids(bench.tunnel.paths());
    let slow = tunnel::Keepalive {
        interval: Duration::from_secs(5),
        silent_intervals: 4,
    };
    let fast = tunnel::Keepalive {
        interval: Duration::from_millis(20),
        silent_intervals: 4,
    };
    let length = Duration::from_secs(1);
    let handle = session.handle();
    for (keepalive, few) in [(slow, true), (fast, false), (slow, true)] {
        bench.tunnel.set_keepalive(keepalive);
        // A ping and its acknowledgement, by each end on each of two paths: about 200 a second, or
        // 4.
        within(async {
            loop {
                let (to_server, to_client) = pings_in(&bench, handle, length).await;
                if few && to_server < 30 && to_client < 30 {
                    return;
                }
                if !few && to_server > 100 && to_client > 100 {
                    return;
                }
            }
        })
        .await;
    }
    for after in [handle.paths(), bench.tunnel.paths()] {
        assert_eq!(ids(after), before, "a path was closed");
    }
    bench.tunnel.close().await;
}

/// A NAT that loses its mapping gives the client another port, on one path after the other; no
/// tunnel breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_address_of_the_client_breaks_nothing() {
    let bench = start(
        &LinkConfig::new(20.0 * MBIT, Duration::from_millis(10)),
        &[],
    );
    bench.both_up().await;
    let session = bench.session();
    for (index, name) in NAMES.iter().enumerate() {
        let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
            .await
            .unwrap();
        let sent = noise(2_000_000, 20 + index as u64);
        let tunnel = bench.tunnel.clone();
        let rebind = move || {
            let ip = std::net::IpAddr::from([127, 0, index as u8 + 1, 1]);
            let mut interface = tunnel::Interface::bind(*name, ip, None).unwrap();
            let config = LinkConfig::new(20.0 * MBIT, Duration::from_millis(10));
            (interface.socket, _) = emulate(interface.socket, &config, 9);
            tunnel.attach(interface).unwrap();
        };
        let back = within(exchange(stream, sent.clone(), 500_000, rebind)).await;
        assert!(back == sent, "bytes differ");
        bench.both_up().await;
        assert_eq!(bench.session(), session, "the session survives");
    }
    bench.tunnel.close().await;
}

/// The first tunnel of a fresh session: one round trip for the handshake, one for the request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_session_takes_two_round_trips_to_the_first_tunnel() {
    let round_trip = Duration::from_millis(300);
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let began = std::time::Instant::now();
        let bench = start(&LinkConfig::new(20.0 * MBIT, round_trip / 2), &[]);
        let opened = within(bench.tunnel.open_tcp(&authority(), Urgency::Urgent)).await;
        opened.unwrap();
        best = best.min(began.elapsed());
        bench.tunnel.close().await;
    }
    println!("first tunnel after {best:?}, round trip {round_trip:?}");
    assert!(
        best >= round_trip * 2 && best < round_trip * 28 / 10,
        "{best:?}"
    );
}

/// Bytes that each end has sent over each access since the session began.
fn sent_by(paths: &[tunnel::PathSnapshot]) -> BTreeMap<String, u64> {
    let mut sent = BTreeMap::new();
    for path in paths {
        *sent.entry(path.name.clone()).or_insert(0) += path.sent_bytes;
    }
    sent
}

/// The client decides, and the proxy obeys for what it sends, without a reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_set_at_the_client_is_obeyed_by_both_ends() {
    let identities = Identities::new();
    let server = Arc::new(TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap());
    let config = LinkConfig::new(20.0 * MBIT, Duration::from_millis(10));
    let bench = Bench::start(identities, server.local_addr(), &config, &[]);
    let session = within(server.accept()).await.unwrap();
    let handle = session.handle().clone();
    tokio::spawn(async move {
        let mut session = session;
        while let Some(request) = session.accept().await {
            tokio::spawn(echo(request, session.handle().clone()));
        }
    });
    bench.both_up().await;
    let number = bench.session();
    for forbidden in [0, 1] {
        let other = NAMES[1 - forbidden];
        let paths = vec![(
            other.to_owned(),
            PathSchedule {
                place: 0,
                rank: Some(Rank::Active),
                weight: None,
                carries_copies: false,
            },
        )];
        bench.tunnel.set_schedule(Schedule {
            paths,
            ..Schedule::default()
        });
        // The proxy reports the path as backup once it obeys.
        within(async {
            let obeys = |paths: Vec<tunnel::PathSnapshot>| {
                let own = paths.into_iter().find(|it| it.name == NAMES[forbidden]);
                own.is_some_and(|path| path.state == PathState::Backup)
            };
            while !(obeys(handle.paths()) && obeys(bench.tunnel.paths())) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let before = [handle.paths(), bench.tunnel.paths()].map(|paths| sent_by(&paths));
        let stream = within(bench.tunnel.open_tcp(&authority(), Urgency::Bulk))
            .await
            .unwrap();
        let sent = noise(2_000_000, 1);
        let back = within(exchange(stream, sent.clone(), usize::MAX, || ())).await;
        assert!(back == sent, "bytes differ");
        let after = [handle.paths(), bench.tunnel.paths()].map(|paths| sent_by(&paths));
        for (before, after) in before.iter().zip(&after) {
            let by = |name: &str| after[name] - before[name];
            let (kept, barred) = (by(other), by(NAMES[forbidden]));
            assert!(kept > 2_000_000, "{other} carried {kept}");
            assert!(barred < 50_000, "{} carried {barred}", NAMES[forbidden]);
        }
    }
    assert_eq!(bench.session(), number, "a session was replaced");
    bench.tunnel.close().await;
}
