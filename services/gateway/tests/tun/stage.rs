//! A released gateway and proxy, each in a network namespace, with TUN devices, two access networks
//! between them and two destinations behind the proxy.

// Each test file uses its part.
#![allow(dead_code)]

use std::{
    io::Read,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use clap::Parser;
use emulated_link::{emulate, link::LinkConfig};
use service_kit::{
    Context,
    tls::{IdentityFiles, PeerId, authority::LocalAuthority},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tempfile::TempDir;
use testkit::{
    DEADLINE,
    netns::{World, proxy},
};
use tunnel::Interface;

pub const DEVICES: [(&str, u8); 2] = [("wlan0", 1), ("wwan0", 2)];
pub const TUN: &str = "braid0";

/// More than any test carries.
const UNLIMITED: &str = "10gbit";

/// Permitted at the proxy, and not; both exist.
pub const LISTED: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
pub const UNLISTED: Ipv4Addr = Ipv4Addr::new(10, 8, 1, 2);
pub const PORT: u16 = 9_000;

/// The gateway's port for SOCKS5, in its namespace.
pub const LISTEN: &str = "127.0.0.1:9001";

/// Longer than an answer takes; an unanswered packet was dropped.
pub const SILENCE: Duration = Duration::from_secs(1);

#[derive(Parser)]
struct GatewayLine {
    #[command(flatten)]
    config: gateway::Config,
}

#[derive(Parser)]
struct ProxyLine {
    #[command(flatten)]
    config: ::proxy::Config,
}

fn with_identity(line: &mut Vec<String>, files: &IdentityFiles) {
    let file = |path: &Path| path.display().to_string();
    for (flag, path) in [
        ("--cert", &files.cert),
        ("--key", &files.key),
        ("--ca", &files.ca),
    ] {
        line.extend([flag.to_owned(), file(path)]);
    }
}

/// A released gateway and proxy, each in its namespace.
pub struct Stage {
    pub world: Arc<World>,
    gateway: End,
    proxy: End,
    proxy_config: ::proxy::Config,
    dir: TempDir,
}

/// A running gateway or proxy.
pub struct End(Context, JoinHandle<()>);

impl End {
    fn start_proxy(world: &World, config: &::proxy::Config) -> Self {
        let (context, config) = (Context::new("proxy"), config.clone());
        let running = world.spawn("px", {
            let context = context.clone();
            move || async move { ::proxy::run(config, context).await.unwrap() }
        });
        Self(context, running)
    }

    /// Must end regularly.
    fn stop(self) {
        self.0.shutdown().request();
        self.1.join().unwrap();
    }
}

/// The gateway's networks behind these links.
fn emulated(links: &[LinkConfig; 2]) -> Vec<Interface> {
    let both = DEVICES.iter().zip(links);
    both.map(|((device, net), link)| {
        let address = IpAddr::from([10, *net, 0, 2]);
        let plain = Interface::bind(*device, address, Some(device)).unwrap();
        let (socket, _) = emulate(plain.socket, link, u64::from(*net));
        Interface { socket, ..plain }
    })
    .collect()
}

impl Stage {
    /// With networks of that rate; `None`, with a message, on hosts without namespaces.
    pub fn start(rate: &str, gateway_flags: &str) -> Option<Self> {
        Self::start_behind(rate, None, None, gateway_flags)
    }

    /// The same; the network of `device` is down until the test brings it up.
    pub fn start_without(device: &str, rate: &str, gateway_flags: &str) -> Option<Self> {
        Self::start_behind(rate, Some(device), None, gateway_flags)
    }

    /// The same with the gateway's networks behind emulated links.
    pub fn start_over(links: [LinkConfig; 2], gateway_flags: &str) -> Option<Self> {
        Self::start_behind(UNLIMITED, None, Some(links), gateway_flags)
    }

    fn start_behind(
        rate: &str,
        absent: Option<&str>,
        links: Option<[LinkConfig; 2]>,
        gateway_flags: &str,
    ) -> Option<Self> {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        let world = Arc::new(World::new()?);
        world.plug_far();
        for (device, net) in DEVICES {
            world.plug(device, net, rate);
        }
        if let Some(device) = absent {
            world.ip("gw", &format!("link set {device} down"));
        }
        service_kit::tls::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let line =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let files = authority
            .issue(&PeerId::service("proxy"), &["proxy".to_owned()])
            .unwrap();
        let mut flags = line(&format!("proxy --listen {} --tun {TUN}", proxy()));
        flags.extend(["--path-telemetry".to_owned(), String::new()]);
        flags.extend(line("--ip-pool 10.64.0.0/24,fd00:64::/112"));
        flags.extend(line("--allow-ip 10.8.0.0/24,fd00:8::/64"));
        // For SOCKS5 and HTTP CONNECT.
        flags.extend(line("--allow 10.8.0.2:9000"));
        with_identity(&mut flags, &files);
        let config = ProxyLine::parse_from(flags).config;
        let proxy_end = End::start_proxy(&world, &config);
        let proxy_config = config;

        let files = authority
            .issue(&PeerId::gateway("acme", "gw-1"), &[])
            .unwrap();
        let mut flags = line(&format!("gateway --listen {LISTEN} --proxy {}", proxy()));
        flags.extend(["--path-telemetry".to_owned(), String::new()]);
        // A gateway without sensors.
        flags.extend(["--ingest".to_owned(), String::new()]);
        flags.extend(line(&format!("--tun {TUN} {gateway_flags}")));
        let data = dir.path().join("gateway");
        flags.extend(["--data-dir".to_owned(), data.display().to_string()]);
        for (device, _) in DEVICES {
            flags.extend(["--interface".to_owned(), device.to_owned()]);
        }
        with_identity(&mut flags, &files);
        let config = GatewayLine::parse_from(flags).config;
        let context = Context::new("gateway");
        let running = world.spawn("gw", {
            let context = context.clone();
            move || async move {
                let interfaces = links.map(|links| emulated(&links));
                gateway::run(config, interfaces, context).await.unwrap()
            }
        });
        Some(Self {
            world,
            gateway: End(context, running),
            proxy: proxy_end,
            proxy_config,
            dir,
        })
    }

    /// Runs a program in a namespace, on its own thread.
    pub fn run<T: Send + 'static>(
        &self,
        side: &str,
        program: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.world.spawn(side, move || async move { program() })
    }

    /// Its leases are lost with it.
    pub fn restart_proxy(self) -> Self {
        self.proxy.stop();
        let proxy = End::start_proxy(&self.world, &self.proxy_config);
        Self { proxy, ..self }
    }

    /// Whether gateway and proxy warn of their devices.
    pub fn warn(&self) -> [bool; 2] {
        self.warn_of("tun")
    }

    /// Whether the gateway is ready.
    pub fn is_ready(&self) -> bool {
        self.gateway.0.health().is_ready()
    }

    /// Whether gateway and proxy have the warning of this name.
    pub fn warn_of(&self, warning: &str) -> [bool; 2] {
        [&self.gateway, &self.proxy].map(|end| {
            let warnings = end.0.health().warnings();
            warnings.iter().any(|(name, _)| *name == warning)
        })
    }

    /// Ends the gateway, then the proxy.
    pub fn stop(self) {
        self.stop_and_keep();
    }

    /// The same; the gateway's data are in `gateway` of the folder.
    pub fn stop_and_keep(self) -> TempDir {
        self.gateway.stop();
        self.proxy.stop();
        self.dir
    }
}

/// The IPv4 address of the TUN device in the gateway's namespace, once it has one: names pass
/// before.
// Callers have a thread of their own, or wait for nothing else.
#[allow(clippy::disallowed_methods)]
pub fn own(world: &World) -> Ipv4Addr {
    let deadline = std::time::Instant::now() + testkit::DEADLINE;
    loop {
        let shown = std::process::Command::new("ip")
            .args(["-n", &world.name("gw"), "-4", "-o", "addr", "show"])
            .args(["dev", TUN])
            .output()
            .unwrap();
        let text = String::from_utf8(shown.stdout).unwrap();
        if let Some(address) = text.split("inet ").nth(1) {
            return address.split('/').next().unwrap().parse().unwrap();
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the TUN device has no address: {text}"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// The MTU of the TUN device of a side.
pub fn mtu(world: &World, side: &str) -> usize {
    let shown = std::process::Command::new("ip")
        .args(["-n", &world.name(side), "-o", "link", "show", "dev", TUN])
        .output()
        .unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    let after = text.split(" mtu ").nth(1).unwrap();
    after.split(' ').next().unwrap().parse().unwrap()
}

/// Asks until it works.
// Blocks the thread of one program.
#[allow(clippy::disallowed_methods)]
pub fn until<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(it) = attempt() {
            return it;
        }
        assert!(start.elapsed() < DEADLINE, "never");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One ICMP echo from the address that the kernel chooses; returns its time if it came back.
pub fn ping(to: IpAddr, number: u16) -> Option<Duration> {
    ping_by(None, to, number)
}

/// The same over that device, whatever the routes are.
pub fn ping_by(device: Option<&str>, to: IpAddr, number: u16) -> Option<Duration> {
    let (domain, protocol, kinds) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, [8, 0]),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, [128, 129]),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket.bind_device(device.map(str::as_bytes)).unwrap();
    let [high, low] = number.to_be_bytes();
    let mut question = [kinds[0], 0, 0, 0, 0x77, 0x77, high, low];
    if to.is_ipv4() {
        let sum = 0x0800 + 0x7777 + u32::from(number);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        question[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    let start = Instant::now();
    let address = SockAddr::from(SocketAddr::new(to, 0));
    socket.send_to(&question, &address).ok()?;
    let mut heard = [0; 256];
    while start.elapsed() < SILENCE {
        let length = (&socket).read(&mut heard).ok()?;
        let message = &heard[if to.is_ipv4() { 20 } else { 0 }..length];
        if message.first() == Some(&kinds[1]) && message[4..8] == question[4..] {
            return Some(start.elapsed());
        }
    }
    None
}
