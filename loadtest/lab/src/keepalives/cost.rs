//! The cost of monitoring: memory of one tunnel, and probes a second of one core beside a plain
//! loop.

use std::net::UdpSocket;
use std::time::Duration;

use path_probe::{
    AsymmetricEwma, Check, Client, Command, Connectivity, OneWayLoss, PAYLOAD_BYTES, Payload,
    Server,
};
use rustix::time::{ClockId, clock_gettime};

use crate::exhibit::Exhibit;
use crate::figures::Figure;
use crate::references;

/// Tunnels that are monitored at once.
const TUNNELS: usize = 10_000;
const ROUNDS: u64 = 20;
const PLAIN_PROBES: u32 = 20_000;
const RATE_MIN: f64 = 500_000.0;
const PLAIN_RATIO_MIN: f64 = 5.0;
const BYTES_MAX: f64 = 512.0;

/// All that the end that asks keeps of a tunnel; nothing of it is on the heap.
struct Monitored {
    client: Client,
    connectivity: Connectivity,
    rtt: AsymmetricEwma,
    to_server: OneWayLoss,
    to_client: OneWayLoss,
}

impl Monitored {
    fn new(check: Check) -> Self {
        Self {
            client: Client::default(),
            connectivity: Connectivity::new(check, 0),
            rtt: AsymmetricEwma::new(1.0, 10.0),
            to_server: OneWayLoss::default(),
            to_client: OneWayLoss::default(),
        }
    }
}

pub(super) fn add(exhibit: &mut Exhibit) {
    let size = |bytes: usize| bytes as f64;
    let client = size(std::mem::size_of::<Monitored>());
    let server = size(std::mem::size_of::<Server>());
    exhibit.figures.extend([
        Figure::at_most(
            "keepalive.memory.asking_end",
            "bytes",
            None,
            BYTES_MAX,
            client,
        ),
        Figure::at_most(
            "keepalive.memory.answering_end",
            "bytes",
            None,
            BYTES_MAX,
            server,
        ),
    ]);
    let rate = state_machines();
    let karle = references::value("keepalive.rate.max.karle");
    exhibit.figures.push(Figure::at_least(
        "keepalive.rate.state_machines",
        "1/s",
        karle,
        RATE_MIN,
        rate,
    ));
    match plain_loop() {
        Ok(plain) => exhibit.figures.extend([
            Figure::shown("keepalive.rate.plain_loop", "1/s", karle, plain),
            Figure::at_least(
                "keepalive.rate.by_plain_loop",
                "x",
                None,
                PLAIN_RATIO_MIN,
                rate / plain,
            ),
        ]),
        Err(error) => exhibit
            .skipped
            .push(format!("plain loop: no socket: {error}")),
    }
    exhibit.notes.push(
        "probes a second: processor time of one core for both ends of 10,000 tunnels, encoding \
         and decoding included, without sockets; the plain loop sends each probe by a system call \
         of its own over loopback"
            .to_owned(),
    );
}

fn thread_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Probes answered a second: request, answer and both judgements, through the wire format.
fn state_machines() -> f64 {
    let check = Check {
        k: 7,
        t_ka_us: 500_000,
    };
    let mut tunnels: Vec<(Monitored, Server)> = (0..TUNNELS)
        .map(|_| (Monitored::new(check), Server::default()))
        .collect();
    let mut answered = 0_u64;
    let began = thread_s();
    for round in 0..ROUNDS {
        let now_us = round * check.t_ka_us;
        for (own, server) in &mut tunnels {
            while let Some(command) = own.connectivity.poll(now_us) {
                if command != Command::Probe {
                    continue;
                }
                let request = own.client.request(now_us, false).encode();
                server.on_request(now_us + 10_000, &Payload::decode(&request), false);
                let Some(response) = server.respond(now_us + 10_000, false) else {
                    continue;
                };
                let response = response.encode();
                let after_us = now_us + 20_000;
                let seen = own
                    .client
                    .on_response(after_us, &Payload::decode(&response), false);
                own.connectivity.on_response(after_us);
                if let Some(rtt_us) = seen.rtt_us {
                    own.rtt.update(after_us as f64 / 1e6, f64::from(rtt_us));
                }
                own.to_server.update(seen.sent, seen.peer_received);
                own.to_client.update(seen.peer_sent, seen.received);
                answered += 1;
            }
        }
    }
    let took_s = thread_s() - began;
    std::hint::black_box(&tunnels);
    answered as f64 / took_s.max(1e-9)
}

/// One socket, one probe per system call, as the paper's `karle`: both ends in one thread.
fn plain_loop() -> std::io::Result<f64> {
    let (asks, answers) = (
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    );
    asks.connect(answers.local_addr()?)?;
    answers.connect(asks.local_addr()?)?;
    for socket in [&asks, &answers] {
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    }
    let (mut client, mut server) = (Client::default(), Server::default());
    let mut buffer = [0; PAYLOAD_BYTES];
    let began = thread_s();
    for number in 0..PLAIN_PROBES {
        let now_us = u64::from(number) * 100;
        asks.send(&client.request(now_us, false).encode())?;
        answers.recv(&mut buffer)?;
        server.on_request(now_us + 10, &Payload::decode(&buffer), false);
        if let Some(response) = server.respond(now_us + 10, false) {
            answers.send(&response.encode())?;
            asks.recv(&mut buffer)?;
            client.on_response(now_us + 20, &Payload::decode(&buffer), false);
        }
    }
    Ok(f64::from(PLAIN_PROBES) / (thread_s() - began).max(1e-9))
}
