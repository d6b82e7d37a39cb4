//! The cost of a gateway on a SIM card, in kernel time. Bytes of IP packets are counted both ways,
//! at the devices of its two access networks.
//!
//! ```text
//!   client namespace                                   server namespace
//!   sensor -> braid gateway == wan0, wan1: emulator == braid proxy -> ingest, path-telemetry
//! ```
//!
//! Gateway and proxy are processes of the program that ships. Ingest and path-telemetry run in this
//! process on embedded engines. Minutes are counted and extrapolated to a month.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{Bus, EmbeddedBus, EmbeddedOptions};
use contracts::vitals::{
    Metric, RecordRequest, Sample, Waveform, gateway_service_client::GatewayServiceClient,
    sample::Reading,
};
use service_kit::Context;
use service_kit::config::defaults;
use service_kit::grpc::channel;
use service_kit::tls::{IdentityFiles, PeerId, authority::LocalAuthority};
use store::{DeviceEntry, SqliteStore, Store};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;

use super::bed::{Bed, KernelError, Receipt};
use super::identities::SERVER_NAME;
use super::network::{SERVER_IP, device_name};
use crate::figures::Figure;
use crate::scenario::{Controller, Direction, Interface, Scenario};

const MONTH_S: f64 = 30.0 * 24.0 * 3600.0;
/// Not counted: handshakes, the dense pings of new paths, and the agreement on the keepalive, which
/// the policy changes within two minutes.
const SETTLE: Duration = Duration::from_secs(150);
/// How long gateway, proxy and core may take until the gateway is ready.
const READY_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
const TENANT: &str = "lab";
const GATEWAY: &str = "gateway";
const DEVICE: &str = "patch";
/// Path of the shorter round trip, which is in use, and the metered one that stands by.
const IN_USE: usize = 0;
const STANDBY: usize = 1;
const STEERING: &str =
    "format = 1\n[[access]]\nname = \"wan1\"\nkind = \"cellular\"\nmetered = true\n";
const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 4433);
const INGEST: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 7001);
const PATH_TELEMETRY: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER_IP), 7003);
const SENSORS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8090);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9101);
/// Readings a second of the electrocardiogram, of two bytes each.
const ECG_HZ: u64 = 250;
const ECG_RAW_BYTES_PER_S: f64 = 2.0 * ECG_HZ as f64;
/// Requests of the sensor that wait for the gateway.
const REQUESTS_WAITING_MAX: usize = 4;

/// Six values a second, of which none raises an alert: alerts go three times each.
const VITALS: [(Metric, &str, f64); 6] = [
    (Metric::HeartRate, "/min", 72.0),
    (Metric::RespirationRate, "/min", 15.0),
    (Metric::Spo2, "%", 97.0),
    (Metric::Temperature, "Cel", 36.6),
    (Metric::SystolicPressure, "mm[Hg]", 121.0),
    (Metric::DiastolicPressure, "mm[Hg]", 79.0),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feed {
    Nothing,
    Vitals,
    Ecg,
}

/// One gateway that is counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) name: &'static str,
    feed: Feed,
    freshness_ms: u32,
    /// Seconds that are counted. The report of paths comes each 300 s.
    pub(super) counted_s: u64,
}

const fn case(name: &'static str, feed: Feed, freshness_ms: u32, counted_s: u64) -> Case {
    Case {
        name,
        feed,
        freshness_ms,
        counted_s,
    }
}

pub(super) const CASES: [Case; 4] = [
    case("idle", Feed::Nothing, 1_000, 600),
    case("vitals_1s", Feed::Vitals, 1_000, 120),
    case("vitals_10s", Feed::Vitals, 10_000, 300),
    case("ecg", Feed::Ecg, 1_000, 120),
];

/// The result of a case.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// On the path in use and on the standby, extrapolated to a month.
    pub(super) mb_a_month: [f64; 2],
    /// Whether the machine kept up.
    pub(super) kept_up: bool,
}

/// Rows of a case beside the targets of `braid-lab budget`.
pub(super) fn figures(case: &Case, counted: &Counted) -> Vec<Figure> {
    let [used, standby] = counted.mb_a_month;
    let id = |what: &str| format!("kernel.budget.{}.{what}", case.name);
    let both = |target| {
        let unit = "MB/month";
        vec![Figure::at_most(
            id("both"),
            unit,
            None,
            target,
            used + standby,
        )]
    };
    match case.name {
        "idle" => vec![
            Figure::at_most(id("in_use"), "MB/month", None, 50.0, used),
            Figure::at_most(id("standby"), "MB/month", None, 20.0, standby),
        ],
        "vitals_1s" => both(1_200.0),
        "vitals_10s" => both(300.0),
        _ => {
            let raw = ECG_RAW_BYTES_PER_S * MONTH_S / 1e6;
            let by_raw = (used + standby) / raw;
            vec![Figure::at_most(id("by_raw"), "x", None, 1.5, by_raw)]
        }
    }
}

/// Runs all cases at once, each in namespaces of its own. `only` chooses by the id of its rows.
pub(super) fn run_all(
    program: &Path,
    seed: u64,
    only: impl Fn(&Case) -> bool,
) -> Vec<(Case, Result<Counted, KernelError>)> {
    std::thread::scope(|scope| {
        let cases = CASES.into_iter().filter(|case| only(case));
        let running: Vec<_> = cases
            .map(|case| (case, scope.spawn(move || run(&case, program, seed))))
            .collect();
        running
            .into_iter()
            .map(|(case, thread)| {
                let counted = match thread.join() {
                    Ok(counted) => counted,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                (case, counted)
            })
            .collect()
    })
}

/// A process that ends with the run.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The flags of a service besides its noun.
fn flags(pairs: &[(&str, &str)], files: &IdentityFiles) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let identity = [
        ("--cert", path(&files.cert)),
        ("--key", path(&files.key)),
        ("--ca", path(&files.ca)),
    ];
    let pairs = pairs
        .iter()
        .map(|(flag, value)| (*flag, (*value).to_owned()));
    pairs
        .chain(identity)
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}

/// Starts the program in a namespace.
fn spawn(
    program: &Path,
    namespace: &str,
    noun: &str,
    flags: Vec<String>,
) -> Result<Process, KernelError> {
    let child = Command::new("ip")
        .args(["netns", "exec", namespace])
        .arg(program)
        .args([noun, "--log", "warn"])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Process(child))
}

/// The core: ingest and path-telemetry in the server's namespace.
struct Core {
    contexts: [Context; 2],
}

impl Core {
    fn start(bed: &Bed, directory: &Path, authority: &LocalAuthority) -> Result<Core, KernelError> {
        let endpoint = |error: &dyn std::fmt::Display| KernelError::Endpoint(error.to_string());
        let hosts = [SERVER_IP.to_string()];
        let identity = |noun: &str| {
            let issued = authority.issue(&PeerId::service(noun), &hosts);
            issued.map_err(|error| endpoint(&error))
        };
        let store = SqliteStore::open(directory).map_err(|error| endpoint(&error))?;
        let store: Arc<dyn Store> = Arc::new(store);
        let bus = EmbeddedBus::open(directory, EmbeddedOptions::default());
        let bus: Arc<dyn Bus> = Arc::new(bus.map_err(|error| endpoint(&error))?);
        let entry = DeviceEntry {
            id: DEVICE.into(),
            tenant: TENANT.into(),
            gateway: GATEWAY.into(),
            patient: "patient".into(),
            registered_us: 0,
        };
        let registering = store.put_device(&entry);
        bed.server
            .block_on(registering)
            .map_err(|error| endpoint(&error))?;
        let mut ingest: ingest::Config = defaults().map_err(|error| endpoint(&error))?;
        ingest.listen = INGEST;
        ingest.identity = identity("ingest")?;
        let mut paths: path_telemetry::Config = defaults().map_err(|error| endpoint(&error))?;
        paths.listen = PATH_TELEMETRY;
        paths.identity = identity("path-telemetry")?;
        let contexts = [Context::new("ingest"), Context::new("path-telemetry")];
        let [of_ingest, of_paths] = contexts.clone();
        bed.server.spawn(ingest::run(
            ingest,
            Arc::clone(&bus),
            Arc::clone(&store),
            of_ingest,
        ));
        bed.server
            .spawn(path_telemetry::run(paths, bus, store, of_paths));
        Ok(Core { contexts })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        for context in &self.contexts {
            context.shutdown().request();
        }
    }
}

fn scenario(case: &Case, seed: u64) -> Scenario {
    let interfaces = vec![
        Interface::symmetric("wifi", 20.0, 30.0, 0.0),
        Interface::symmetric("cellular", 10.0, 60.0, 0.0),
    ];
    let limit_s = SETTLE.as_secs_f64() + READY_MAX.as_secs_f64() + case.counted_s as f64;
    Scenario::transfer(
        case.name,
        seed,
        Direction::Upload,
        1,
        Controller::Ours,
        limit_s,
        interfaces,
    )
}

/// Counts one case.
// A thread of its own, which no runtime uses.
#[allow(clippy::disallowed_methods)]
fn run(case: &Case, program: &Path, seed: u64) -> Result<Counted, KernelError> {
    let scenario = scenario(case, seed);
    let bed = Bed::new(&scenario)?;
    let directory = tempfile::tempdir()?;
    let authority = LocalAuthority::open_or_create(directory.path())
        .map_err(super::identities::IdentitiesError::from)?;
    let issue = |id: PeerId, hosts: &[String]| {
        let issued = authority.issue(&id, hosts);
        issued.map_err(super::identities::IdentitiesError::from)
    };
    let core = Core::start(&bed, directory.path(), &authority)?;
    let files = issue(PeerId::service("proxy"), &[SERVER_NAME.to_owned()])?;
    let (listen, telemetry) = (PROXY.to_string(), format!("https://{PATH_TELEMETRY}"));
    let allow = format!("{INGEST},{PATH_TELEMETRY}");
    let of_proxy = flags(
        &[
            ("--listen", &listen),
            ("--allow", &allow),
            ("--path-telemetry", &telemetry),
        ],
        &files,
    );
    let _proxy = spawn(program, bed.network.server.name(), "proxy", of_proxy)?;
    let files = issue(PeerId::gateway(TENANT, GATEWAY), &[])?;
    let of_gateway = gateway_flags(case, &directory, &files)?;
    let _gateway = spawn(program, bed.network.client.name(), "gateway", of_gateway)?;
    bed.client
        .block_on(bed.client.spawn(ready()))
        .map_err(io::Error::other)??;
    let feeding = bed.client.spawn(feed(case.feed));
    std::thread::sleep(SETTLE);
    let begun = Instant::now();
    let before = bytes(&bed)?;
    std::thread::sleep(Duration::from_secs(case.counted_s));
    let after = bytes(&bed)?;
    let counted_s = begun.elapsed().as_secs_f64();
    if feeding.is_finished() && case.feed != Feed::Nothing {
        let ended = bed.client.block_on(feeding).map_err(io::Error::other)?;
        let reason = ended.err().unwrap_or_else(|| "it ended".to_owned());
        return Err(KernelError::Endpoint(format!("the sensor: {reason}")));
    }
    drop(core);
    let receipt = Receipt::new(bed.origin, 1);
    let report = bed.finish(&scenario, receipt.bulk(None, scenario.limit()))?;
    let month = |path: usize| {
        let bytes = after[path].saturating_sub(before[path]) as f64;
        bytes * MONTH_S / counted_s / 1e6
    };
    Ok(Counted {
        mb_a_month: [month(IN_USE), month(STANDBY)],
        kept_up: report.kept.up,
    })
}

fn gateway_flags(
    case: &Case,
    directory: &TempDir,
    files: &IdentityFiles,
) -> Result<Vec<String>, KernelError> {
    let file = |name: &str| -> PathBuf { directory.path().join(name) };
    let steering = file("steering.toml");
    std::fs::write(&steering, STEERING)?;
    let (data, steering) = (
        file("gateway-data").display().to_string(),
        steering.display().to_string(),
    );
    let (proxy, ingest) = (PROXY.to_string(), format!("https://{INGEST}"));
    let telemetry = format!("https://{PATH_TELEMETRY}");
    let freshness = case.freshness_ms.to_string();
    let (listen, admin) = (SENSORS.to_string(), ADMIN.to_string());
    let (in_use, standby) = (device_name(IN_USE), device_name(STANDBY));
    Ok(flags(
        &[
            ("--listen", &listen),
            ("--admin", &admin),
            ("--proxy", &proxy),
            ("--proxy-name", SERVER_NAME),
            ("--ingest", &ingest),
            ("--path-telemetry", &telemetry),
            ("--interface", &in_use),
            ("--interface", &standby),
            ("--data-dir", &data),
            ("--steering", &steering),
            ("--freshness-ms", &freshness),
        ],
        files,
    ))
}

/// Bytes of IP packets that each device of the gateway has sent and received. A TUN device has no
/// frames around its packets.
fn bytes(bed: &Bed) -> Result<[u64; 2], KernelError> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let text = bed.network.client.run(read)??;
    Ok([IN_USE, STANDBY].map(|path| both_ways(&text, &device_name(path))))
}

/// The first and the ninth number of the device's line: received and sent bytes.
fn both_ways(text: &str, device: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.trim().split_once(':'));
    let line = lines.find(|(name, _)| *name == device);
    let numbers = line.map_or("", |(_, numbers)| numbers).split_whitespace();
    let numbers: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
    let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
    at(0) + at(8)
}

/// Returns once the gateway says that it is ready: its links to ingest are open.
async fn ready() -> io::Result<()> {
    let deadline = tokio::time::Instant::now() + READY_MAX;
    while tokio::time::Instant::now() < deadline {
        if is_ready().await.unwrap_or(false) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    Err(io::Error::other("the gateway did not become ready"))
}

async fn is_ready() -> io::Result<bool> {
    // Before its parts have begun, a gateway has no check that could fail.
    drop(TcpStream::connect(SENSORS).await?);
    let mut stream = TcpStream::connect(ADMIN).await?;
    let request = b"GET /readyz HTTP/1.1\r\nhost: lab\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200 "))
}

/// One request a second, until the run ends. Returns why it cannot continue.
async fn feed(feed: Feed) -> Result<(), String> {
    if feed == Feed::Nothing {
        return Ok(());
    }
    let address = format!("http://{SENSORS}");
    let channel = channel(&address, None).map_err(|error| error.to_string())?;
    let (requests, waiting) = mpsc::channel(REQUESTS_WAITING_MAX);
    let answers = GatewayServiceClient::new(channel)
        .record(ReceiverStream::new(waiting))
        .await;
    let mut answers = answers.map_err(|status| status.to_string())?.into_inner();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for request in 1.. {
        ticks.tick().await;
        let samples = match feed {
            Feed::Ecg => vec![electrocardiogram(request)],
            Feed::Vitals | Feed::Nothing => vitals(request),
        };
        let sent = requests.send(RecordRequest { request, samples }).await;
        sent.map_err(|_| "the gateway ended the stream".to_owned())?;
        let answer = answers
            .message()
            .await
            .map_err(|status| status.to_string())?;
        let rejections = answer.map(|answer| answer.rejections).unwrap_or_default();
        if let Some(rejection) = rejections.into_iter().next() {
            return Err(rejection.reason);
        }
    }
    Ok(())
}

fn sample(metric: Metric, unit: &str, reading: Reading) -> Sample {
    Sample {
        device: DEVICE.to_owned(),
        metric: metric.into(),
        unit: unit.to_owned(),
        device_time_us: contracts::now_us(),
        reading: Some(reading),
        ..Sample::default()
    }
}

fn vitals(second: u64) -> Vec<Sample> {
    let values = VITALS.into_iter();
    values
        .map(|(metric, unit, value)| {
            sample(
                metric,
                unit,
                Reading::Value(value + (second % 3) as f64 / 10.0),
            )
        })
        .collect()
}

fn electrocardiogram(second: u64) -> Sample {
    let readings = second * ECG_HZ..(second + 1) * ECG_HZ;
    let waveform = Waveform {
        period_us: (1_000_000 / ECG_HZ) as u32,
        values: readings.map(data_budget::heart_mv).collect(),
    };
    sample(Metric::Ecg, "mV", Reading::Waveform(waveform))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_the_kernels_table() {
        let text = "Inter-|   Receive\n face |bytes packets\n  wan0: 100 2 0 0 0 0 0 0 40 1 0 0 0 0 0 0\n\
                    wan10: 7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n";
        assert_eq!(both_ways(text, "wan0"), 140);
        assert_eq!(both_ways(text, "wan10"), 16);
        assert_eq!(both_ways(text, "wan1"), 0);
    }

    #[test]
    fn every_case_has_a_row_with_a_target() {
        for case in CASES {
            let counted = Counted {
                mb_a_month: [10.0, 5.0],
                kept_up: true,
            };
            let rows = figures(&case, &counted);
            assert!(!rows.is_empty());
            assert!(
                rows.iter().all(|row| row.target.is_some() && row.met),
                "{rows:?}"
            );
        }
        let missed = Counted {
            mb_a_month: [1_250.0, 700.0],
            kept_up: true,
        };
        let rows = CASES.iter().flat_map(|case| figures(case, &missed));
        assert!(rows.filter(|row| !row.met).count() >= 4);
    }
}
