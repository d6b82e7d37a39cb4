//! UDP of programs without proxy support over two paths of unequal delay at once: more than either
//! carries, in order, with little delay. Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

#[path = "tun/stage.rs"]
mod stage;

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use emulated_link::link::LinkConfig;
use stage::{LISTED, PORT, Stage, own, ping, until};

/// The paths' rates and one-way delays.
const PATHS: [(f64, Duration); 2] = [
    (15e6, Duration::from_millis(10)),
    (10e6, Duration::from_millis(40)),
];
const BITS_PER_S: f64 = 20e6;
const PAYLOAD_BYTES: usize = 1_200;
const LASTS: Duration = Duration::from_secs(12);
/// The paths' own start-up, which is not counted.
const WARM_UP: Duration = Duration::from_secs(5);

/// Targets on an idle machine.
const LOSS_TARGET: f64 = 0.001;
const DELAY_ABOVE_TARGET: Duration = Duration::from_millis(30);

/// Holds on a machine under load too.
const DISORDER_MAX: f64 = 0.01;

/// A thread that was woken so much later than due says that the machine did not keep up. Loss and
/// delay of such a run are printed, and not judged.
const LATE_MAX: Duration = Duration::from_millis(8);

/// A datagram: its number, and its time of sending in microseconds.
fn datagram(number: u64, at: Duration) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.extend((at.as_micros() as u64).to_be_bytes());
    payload.resize(PAYLOAD_BYTES, 0);
    payload
}

/// Sends at the rate until the end of the test.
// Blocks the thread of one program.
#[allow(clippy::disallowed_methods)]
fn send(origin: Instant, from: Ipv4Addr, to: Ipv4Addr) -> u64 {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.connect((to, PORT)).unwrap();
    let interval = Duration::from_secs_f64(PAYLOAD_BYTES as f64 * 8.0 / BITS_PER_S);
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < LASTS {
        let due = start + interval.mul_f64(number as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A full device drops; that is a loss as well.
        let _ = socket.send(&datagram(number, origin.elapsed()));
        number += 1;
    }
    number
}

/// How late a thread was woken at most while the flow lasted.
// Blocks the thread of one program.
#[allow(clippy::disallowed_methods)]
fn lateness() -> Duration {
    const TICK: Duration = Duration::from_millis(1);
    let start = Instant::now();
    let mut late = Duration::ZERO;
    while start.elapsed() < LASTS {
        let before = Instant::now();
        std::thread::sleep(TICK);
        late = late.max(before.elapsed().saturating_sub(TICK));
    }
    late
}

/// Number, time of sending and time of arrival.
type Arrival = (u64, Duration, Duration);

fn receive(origin: Instant, at: Ipv4Addr) -> Vec<Arrival> {
    let socket = UdpSocket::bind((at, PORT)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(3)))
        .unwrap();
    let mut arrivals = Vec::new();
    let mut buffer = [0; 2_048];
    while let Ok(length) = socket.recv(&mut buffer) {
        assert_eq!(length, PAYLOAD_BYTES);
        let word = |at: usize| u64::from_be_bytes(buffer[at..at + 8].try_into().unwrap());
        arrivals.push((word(0), Duration::from_micros(word(8)), origin.elapsed()));
    }
    arrivals
}

fn judge(direction: &str, sent: u64, arrivals: &[Arrival], late: Duration) {
    let kept_up = late < LATE_MAX;
    let first = (WARM_UP.as_secs_f64() * BITS_PER_S / 8.0 / PAYLOAD_BYTES as f64) as u64;
    let counted: Vec<&Arrival> = arrivals
        .iter()
        .filter(|(number, ..)| *number >= first)
        .collect();
    let expected = sent - first;
    let loss = 1.0 - counted.len() as f64 / expected as f64;
    let mut delays: Vec<Duration> = counted
        .iter()
        .map(|(_, sent, came)| *came - *sent)
        .collect();
    delays.sort();
    let p99 = delays[(delays.len() - 1) * 99 / 100];
    let behind = |pair: &&[&Arrival]| pair[0].0 > pair[1].0;
    let disorder = counted.windows(2).filter(behind).count() as f64 / expected as f64;
    let target = PATHS[1].1 + DELAY_ABOVE_TARGET;
    println!(
        "{direction}: {:.0} Mbit/s of UDP over 15 and 10: loss {:.3} % (target {:.1}), p50 {:.0} ms, \
         p99 {:.0} ms (target {}), out of order {:.3} %{}",
        BITS_PER_S / 1e6,
        loss * 100.0,
        LOSS_TARGET * 100.0,
        delays[delays.len() / 2].as_secs_f64() * 1e3,
        p99.as_secs_f64() * 1e3,
        target.as_millis(),
        disorder * 100.0,
        match kept_up {
            true => "",
            false => "; the machine did not keep up",
        },
    );
    let mut numbers: Vec<u64> = arrivals.iter().map(|(number, ..)| *number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(
        numbers.len(),
        arrivals.len(),
        "{direction}: delivered twice"
    );
    assert!(disorder < DISORDER_MAX, "{direction}: {disorder}");
    if kept_up {
        assert!(loss <= LOSS_TARGET, "{direction}: {loss}");
        assert!(p99 <= target, "{direction}: {p99:?}");
    }
}

#[test]
fn one_udp_flow_uses_both_networks_in_order() {
    let links = PATHS.map(|(rate, delay)| LinkConfig::new(rate, delay));
    let Some(stage) = Stage::start_over(links, "--tun-routes") else {
        return;
    };
    let origin = Instant::now();
    let answered = stage.run("gw", || until(|| ping(IpAddr::from(LISTED), 1)));
    answered.join().unwrap();
    let own = own(&stage.world);
    for (direction, [from_side, to_side], from, to) in [
        ("up", ["gw", "far"], own, LISTED),
        ("down", ["far", "gw"], LISTED, own),
    ] {
        let receiving = stage.run(to_side, move || receive(origin, to));
        let sending = stage.run(from_side, move || send(origin, from, to));
        let late = stage.run(from_side, lateness);
        let (sent, late) = (sending.join().unwrap(), late.join().unwrap());
        judge(direction, sent, &receiving.join().unwrap(), late);
    }
    stage.stop();
}
