//! `braid probe`: measures any path by the keepalive of `path-probe`, 28 bytes in UDP each way.
//!
//! `serve` answers at one end and `run` asks at the other, so both work for any mobility solution:
//! VPN, MPTCP proxy or plain interface. Both ends print round trip and loss of each direction.
//! `run` also prints the K and T_KA that the optimiser chooses for the measured path.

mod prober;
mod responder;
mod shown;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use path_probe::{Check, PAYLOAD_BYTES, Payload};
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::MissedTickBehavior;

use crate::process::{self, Failure, print};
use prober::{Goal, Prober};
use responder::Responder;
use shown::Format;

/// Port of `serve`, and of `run` if HOST names none.
const PORT: u16 = 7028;
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 1..=60_000;
const REPORT_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;
const K: std::ops::RangeInclusive<u32> = 1..=1_000;

#[derive(Debug, clap::Subcommand)]
pub enum ProbeCommand {
    /// Answer probes, and print each client's round trip and losses as this end measures them.
    #[command(
        after_help = "Examples:\n  braid probe serve\n  braid probe serve --listen 0.0.0.0:7028 --csv > probes.csv"
    )]
    Serve(ServeCommand),
    /// Probe a host that runs `braid probe serve`: round trip, loss of each direction, state, and
    /// the K and T_KA that suit the path.
    #[command(
        after_help = "Examples:\n  braid probe run probe.example.org\n  braid probe run 192.0.2.7 --bind 10.64.0.2 --count 600 --csv > lte.csv\n  braid probe run 192.0.2.7 --detection-ms 300 --tune --json\n\nThe exit status is 1 if no probe was answered."
    )]
    Run(RunCommand),
}

#[derive(Debug, clap::Args)]
pub struct ServeCommand {
    /// UDP address to answer at.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:7028")]
    listen: SocketAddr,
    #[command(flatten)]
    printed: Printed,
}

#[derive(Debug, clap::Args)]
pub struct RunCommand {
    /// Name or address, with a port or without (7028).
    #[arg(value_name = "HOST")]
    host: String,
    /// Local address to probe from, to choose an interface.
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<std::net::IpAddr>,
    /// T_KA: milliseconds between two probes, 1 to 60,000.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    interval_ms: u64,
    /// K: intervals without an answer after which the path counts as down, 1 to 1,000.
    #[arg(long, value_name = "K", default_value_t = 5)]
    k: u32,
    /// End after this many probes; without it at Ctrl-C.
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// Goal of the optimiser: mean time until a dead path is detected.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    detection_ms: u64,
    /// Goal of the optimiser: shortest mean time between two false alarms.
    #[arg(long, value_name = "S", default_value_t = 100_000)]
    false_alarm_s: u64,
    /// Probe with the optimiser's K and T_KA instead of printing them only.
    #[arg(long, default_value_t = false)]
    tune: bool,
    #[command(flatten)]
    printed: Printed,
}

#[derive(Debug, clap::Args)]
struct Printed {
    /// Print a line of comma-separated values for each report.
    #[arg(long, default_value_t = false, conflicts_with = "json")]
    csv: bool,
    /// Print a line of JSON for each report.
    #[arg(long, default_value_t = false)]
    json: bool,
    /// T_L: milliseconds between two reports, over which losses are counted, 100 to 3,600,000.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    report_ms: u64,
}

impl Printed {
    fn format(&self) -> Format {
        match (self.csv, self.json) {
            (true, _) => Format::Csv,
            (_, true) => Format::Json,
            _ if io::stdout().is_terminal() => Format::Live,
            _ => Format::Lines,
        }
    }

    fn every(&self) -> Result<Duration, Failure> {
        within("--report-ms", &self.report_ms, &REPORT_MS)?;
        Ok(Duration::from_millis(self.report_ms))
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    flag: &str,
    value: &T,
    range: &std::ops::RangeInclusive<T>,
) -> Result<(), Failure> {
    if range.contains(value) {
        return Ok(());
    }
    let (from, to) = (range.start(), range.end());
    let reason = format!("{flag}: {value} is not within {from} to {to}; for example: {flag} {to}");
    Err(Failure::other(reason))
}

impl ProbeCommand {
    pub fn run(self) -> Result<std::process::ExitCode, Failure> {
        process::block_on(async {
            match self {
                Self::Serve(serve) => serve.run().await,
                Self::Run(run) => run.run().await,
            }
        })?
    }
}

impl ServeCommand {
    async fn run(self) -> Result<std::process::ExitCode, Failure> {
        let (every, format) = (self.printed.every()?, self.printed.format());
        let listen = self.listen;
        let failed = |error: io::Error| Failure::other(format!("--listen {listen}: {error}"));
        let socket = UdpSocket::bind(listen).await.map_err(failed)?;
        eprintln!("answers probes at {}", socket.local_addr().map_err(failed)?);
        print(format.clients_head())?;
        let mut print_reports = |responder: &mut Responder, at_s: f64| {
            let reports = responder.report();
            print(&format.clients(at_s, &reports))
        };
        tokio::select! {
            served = serve(&socket, every, &mut print_reports) => served?,
            ended = tokio::signal::ctrl_c() => ended.map_err(Failure::other)?,
        }
        Ok(std::process::ExitCode::SUCCESS)
    }
}

/// Answers until `report` fails, which is called after each interval.
async fn serve(
    socket: &UdpSocket,
    every: Duration,
    report: &mut impl FnMut(&mut Responder, f64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let start = Instant::now();
    let mut responder = Responder::default();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once.
    ticks.tick().await;
    // One byte more than a probe, so that longer datagrams are noticed.
    let mut buffer = [0; PAYLOAD_BYTES + 1];
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                // An error is an ICMP message about an earlier answer.
                let Ok((length, from)) = received else {
                    continue;
                };
                let Some(request) = payload(&buffer[..length]) else {
                    continue;
                };
                if let Some(answer) = responder.on_request(micros(start), from, &request) {
                    // A full socket loses an answer, as a network does.
                    let _ = socket.try_send_to(&answer.encode(), from);
                }
            }
            _ = ticks.tick() => {
                responder.forget(micros(start));
                report(&mut responder, start.elapsed().as_secs_f64())?;
            }
        }
    }
}

fn payload(datagram: &[u8]) -> Option<Payload> {
    let bytes: &[u8; PAYLOAD_BYTES] = datagram.try_into().ok()?;
    Some(Payload::decode(bytes))
}

fn micros(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

impl RunCommand {
    async fn run(self) -> Result<std::process::ExitCode, Failure> {
        within("--interval-ms", &self.interval_ms, &INTERVAL_MS)?;
        within("--k", &self.k, &K)?;
        let (every, format) = (self.printed.every()?, self.printed.format());
        let to = resolve(&self.host, self.bind).await?;
        let unspecified = match to {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let from = SocketAddr::new(self.bind.unwrap_or(unspecified), 0);
        let failed = |error: io::Error| Failure::other(format!("{from} to {to}: {error}"));
        let socket = UdpSocket::bind(from).await.map_err(failed)?;
        socket.connect(to).await.map_err(failed)?;
        let check = Check {
            k: self.k,
            t_ka_us: self.interval_ms * 1_000,
        };
        let goal = Goal {
            detection_s: self.detection_ms as f64 / 1e3,
            false_alarm_s: self.false_alarm_s as f64,
            tune: self.tune,
        };
        let mut prober = Prober::new(check, goal, 0);
        print(format.path_head())?;
        let mut report = |prober: &mut Prober, at_s: f64| {
            let row = prober.report(at_s);
            print(&format.path(to, &row))
        };
        tokio::select! {
            probed = probe(&socket, &mut prober, every, self.count, &mut report) => probed?,
            ended = tokio::signal::ctrl_c() => ended.map_err(Failure::other)?,
        }
        let summary = prober.summary();
        print(&format.summary(to, &summary))?;
        Ok(match summary.answered {
            0 => std::process::ExitCode::FAILURE,
            _ => std::process::ExitCode::SUCCESS,
        })
    }
}

/// Probes until `count` probes were sent and the last had K intervals for its answer.
async fn probe(
    socket: &UdpSocket,
    prober: &mut Prober,
    every: Duration,
    count: Option<u64>,
    report: &mut impl FnMut(&mut Prober, f64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut buffer = [0; PAYLOAD_BYTES + 1];
    let mut ends_at = None;
    loop {
        // The next probe may be due before this one is sent, so the count is compared before each.
        while count.is_none_or(|count| prober.sent() < count)
            && let Some(request) = prober.poll(micros(start))
        {
            // A lost probe is measured as such, also one that this machine could not send.
            let _ = socket.send(&request.encode()).await;
        }
        if count.is_some_and(|count| prober.sent() >= count) {
            let waits = Duration::from_micros(prober.patience_us());
            let ends = *ends_at.get_or_insert(Instant::now() + waits);
            if prober.is_all_answered() || Instant::now() >= ends {
                return Ok(());
            }
        }
        let wake = match ends_at {
            Some(ends) => ends,
            None => start + Duration::from_micros(prober.next_deadline_us()),
        };
        tokio::select! {
            received = socket.recv(&mut buffer) => {
                let answer = received.ok().and_then(|length| payload(&buffer[..length]));
                if let Some(answer) = answer {
                    prober.on_response(micros(start), &answer);
                }
            }
            _ = ticks.tick() => report(prober, start.elapsed().as_secs_f64())?,
            () = tokio::time::sleep_until(wake.into()) => {}
        }
    }
}

/// The first address of HOST that fits `--bind`.
async fn resolve(host: &str, bind: Option<std::net::IpAddr>) -> Result<SocketAddr, Failure> {
    let has_port = host.parse::<SocketAddr>().is_ok()
        || host
            .rsplit_once(':')
            .is_some_and(|(name, port)| !name.contains(':') && port.parse::<u16>().is_ok());
    let found: io::Result<Vec<SocketAddr>> = match (has_port, host.parse::<std::net::IpAddr>()) {
        (_, Ok(address)) => Ok(vec![SocketAddr::new(address, PORT)]),
        (true, _) => lookup_host(host).await.map(Iterator::collect),
        (false, _) => lookup_host((host, PORT)).await.map(Iterator::collect),
    };
    let found = found.map_err(|error| Failure::other(format!("{host}: {error}")))?;
    let fits = |to: &&SocketAddr| bind.is_none_or(|bind| bind.is_ipv4() == to.is_ipv4());
    found.iter().find(fits).copied().ok_or_else(|| {
        Failure::other(format!(
            "{host}: no address of the family of --bind; example: 192.0.2.7"
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;

    /// More than the test lasts, at one in 100 ms.
    const REPORTS_MAX: usize = 1_024;

    /// Carries datagrams between a client and the server, and drops every `up`th and `down`th.
    async fn lossy_relay(server: SocketAddr, up: u64, down: u64) -> SocketAddr {
        let outer = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = outer.local_addr().unwrap();
        let inner = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        inner.connect(server).await.unwrap();
        tokio::spawn(async move {
            let (mut client, mut ups, mut downs) = (None, 0, 0);
            let (mut there, mut back) = ([0; 64], [0; 64]);
            loop {
                tokio::select! {
                    Ok((length, from)) = outer.recv_from(&mut there) => {
                        client = Some(from);
                        ups += 1;
                        if ups % up != 0 {
                            inner.send(&there[..length]).await.unwrap();
                        }
                    }
                    Ok(length) = inner.recv(&mut back) => {
                        downs += 1;
                        if downs % down != 0 {
                            outer.send_to(&back[..length], client.unwrap()).await.unwrap();
                        }
                    }
                }
            }
        });
        address
    }

    #[tokio::test]
    async fn both_ends_measure_round_trip_and_loss_of_each_way_over_a_lossy_relay() {
        let at_server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let relay = lossy_relay(at_server.local_addr().unwrap(), 5, 10).await;
        let (seen, mut reports) = tokio::sync::mpsc::channel(REPORTS_MAX);
        let serving = tokio::spawn(async move {
            let mut report = |responder: &mut Responder, _| {
                for client in responder.report() {
                    let _ = seen.try_send(client);
                }
                Ok(())
            };
            serve(&at_server, Duration::from_millis(100), &mut report).await
        });
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(relay).await.unwrap();
        let goal = Goal {
            detection_s: 0.5,
            false_alarm_s: 1e5,
            tune: false,
        };
        let check = Check {
            k: 1_000,
            t_ka_us: 1_000,
        };
        let mut prober = Prober::new(check, goal, 0);
        let every = Duration::from_secs(3_600);
        let mut nothing = |_: &mut Prober, _| Ok(());
        probe(&socket, &mut prober, every, Some(1_000), &mut nothing)
            .await
            .unwrap();
        let summary = prober.summary();
        assert_eq!(
            (summary.sent, summary.answered),
            (1_000, 720),
            "{summary:?}"
        );
        let (up, down) = (summary.loss_up.unwrap(), summary.loss_down.unwrap());
        assert!((up - 0.2).abs() < 0.01, "{summary:?}");
        assert!((down - 0.1).abs() < 0.01, "{summary:?}");
        assert!(summary.rtt_ms.is_some() && summary.is_up, "{summary:?}");
        let Some(advice) = summary.advice else {
            panic!("the optimiser has an answer: {summary:?}");
        };
        assert!(advice.k > 7, "more than at the paper's 5 %: {advice:?}");
        // The server has counted the same losses, and has measured a round trip of its own.
        let mut heard = 0;
        while heard < 800 {
            let client = testkit::within(reports.recv()).await.unwrap();
            heard = client.received;
            assert!(client.rtt_ms.is_some());
            if heard == 800 {
                let (up, down) = (client.loss_up_all.unwrap(), client.loss_down_all.unwrap());
                assert!((up - 0.2).abs() < 0.01, "{client:?}");
                assert!((down - 0.1).abs() < 0.01, "{client:?}");
            }
        }
        serving.abort();
    }

    /// At one probe a microsecond the next one is due before the last one is sent.
    #[tokio::test]
    async fn a_slow_machine_sends_no_probe_beyond_the_count() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(server.local_addr().unwrap()).await.unwrap();
        let goal = Goal {
            detection_s: 0.5,
            false_alarm_s: 1e5,
            tune: false,
        };
        let check = Check { k: 1, t_ka_us: 1 };
        let mut prober = Prober::new(check, goal, 0);
        let every = Duration::from_secs(3_600);
        let mut nothing = |_: &mut Prober, _| Ok(());
        let probed = probe(&socket, &mut prober, every, Some(3), &mut nothing);
        testkit::within(probed).await.unwrap();
        assert_eq!(prober.sent(), 3);
    }

    #[tokio::test]
    async fn a_host_has_a_port_or_the_usual_one() {
        let usual = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (host, to) in [
            ("192.0.2.7", "192.0.2.7:7028"),
            ("192.0.2.7:9", "192.0.2.7:9"),
            ("2001:db8::7", "[2001:db8::7]:7028"),
            ("[2001:db8::7]:9", "[2001:db8::7]:9"),
        ] {
            assert_eq!(resolve(host, None).await.ok(), Some(usual(to)), "{host}");
        }
        let v6 = Some("::1".parse().unwrap());
        assert!(resolve("192.0.2.7", v6).await.is_err());
    }
}
