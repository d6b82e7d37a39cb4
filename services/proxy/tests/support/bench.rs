//! A proxy on loopback, a gateway behind two emulated access links, and their certificates.

// Each test file uses its part.
#![allow(dead_code)]

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use emulated_link::{LinkControl, emulate, link::LinkConfig};
use proxy::{Config, RunError};
use service_kit::{
    Context,
    tls::{Identity, IdentityFiles, PeerId, authority::LocalAuthority},
};
use tempfile::TempDir;
use testkit::within;
use tokio::{net::TcpListener, task::JoinHandle};
use tunnel::{Authority, Interface, Tunnel, TunnelConfig};

pub const NAMES: [&str; 2] = ["wifi", "lte"];

/// Accepts connections and sends back what comes.
pub async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.into_split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address
}

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    config: Config,
}

/// The command line of a proxy in a process of its own.
const LINE: &str = "BRAID_TEST_PROXY_LINE";

/// A proxy in a process of its own, which can be killed.
pub struct Apart {
    line: Vec<String>,
    child: Child,
}

impl Apart {
    fn start(line: Vec<String>) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_process_of_a_proxy", "--nocapture"])
            .env(LINE, line.join("\n"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { line, child }
    }

    /// By SIGKILL: it says nothing to anybody.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// With the same files, the same address and these flags.
    pub fn start_again(&mut self, flags: &[&str]) {
        let line = self
            .line
            .iter()
            .map(String::as_str)
            .chain(flags.iter().copied());
        *self = Self::start(line.map(str::to_owned).collect());
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // Fails for one that was killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs that process until it is killed; returns at once in another one.
pub async fn run_apart() {
    if let Ok(line) = std::env::var(LINE) {
        service_kit::tls::install_provider();
        let config = CommandLine::parse_from(line.lines()).config;
        proxy::run(config, Context::new("proxy")).await.unwrap();
    }
}

pub struct Proxy {
    pub context: Context,
    pub address: SocketAddr,
    pub running: JoinHandle<Result<(), RunError>>,
    authority: LocalAuthority,
    dir: TempDir,
}

impl Proxy {
    /// `flags` are command line flags beside listener and identity.
    pub async fn start(flags: &[&str]) -> Self {
        Self::start_believing(flags, "").await
    }

    /// The same with further authorities in the proxy's list.
    pub async fn start_believing(flags: &[&str], authorities: &str) -> Self {
        let (mut proxy, line) = Self::new(flags, authorities);
        let config = CommandLine::parse_from(line).config;
        proxy.running = tokio::spawn(proxy::run(config, proxy.context.clone()));
        proxy.address = within(proxy.context.address("tunnel")).await.unwrap();
        proxy
    }

    /// The error of a proxy that does not start.
    pub async fn start_to_fail(flags: &[&str]) -> RunError {
        let (proxy, line) = Self::new(flags, "");
        let config = CommandLine::parse_from(line).config;
        proxy::run(config, proxy.context).await.unwrap_err()
    }

    /// The same in a process of its own. The test binary must have a test
    /// `the_process_of_a_proxy` that calls `run_apart`.
    pub fn start_apart(flags: &[&str]) -> (Self, Apart) {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        let (mut proxy, mut line) = Self::new(flags, "");
        line.retain(|word| word != "--listen" && word != "127.0.0.1:0");
        line.extend(["--listen".to_owned(), address.to_string()]);
        proxy.address = address;
        drop(free);
        (proxy, Apart::start(line))
    }

    fn new(flags: &[&str], authorities: &str) -> (Self, Vec<String>) {
        service_kit::tls::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let files = authority
            .issue(&PeerId::service("proxy"), &["proxy".to_owned()])
            .unwrap();
        let mut believed = std::fs::read_to_string(&files.ca).unwrap();
        believed.push_str(authorities);
        let believed_file = dir.path().join("believed.pem");
        std::fs::write(&believed_file, believed).unwrap();
        let mut line = vec!["proxy", "--listen", "127.0.0.1:0"];
        if !flags.contains(&"--path-telemetry") {
            line.extend(["--path-telemetry", ""]);
        }
        line.extend(flags);
        let file = |path: &std::path::Path| path.display().to_string();
        let (cert, key, ca) = (file(&files.cert), file(&files.key), file(&believed_file));
        line.extend(["--cert", &cert, "--key", &key, "--ca", &ca]);
        let line = line.into_iter().map(str::to_owned).collect();
        let context = Context::new("proxy");
        let proxy = Self {
            context,
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            running: tokio::spawn(async { Ok(()) }),
            authority,
            dir,
        };
        (proxy, line)
    }

    pub fn identity(&self, id: &PeerId) -> Identity {
        Identity::load(&self.authority.issue(id, &[]).unwrap()).unwrap()
    }

    pub fn gateway(&self) -> Identity {
        self.identity(&PeerId::gateway("acme", "gw-1"))
    }

    /// Another certificate of the same gateway.
    pub fn renewed(&self) -> IdentityFiles {
        let dir = self.dir.path().join("renewed");
        let id = PeerId::gateway("acme", "gw-1");
        self.authority.issue_in(&dir, &id, &[]).unwrap()
    }

    /// A certificate of an unknown authority, from a client that trusts the proxy.
    pub fn of_another_authority(&self) -> Identity {
        let other = LocalAuthority::open_or_create(&self.dir.path().join("other")).unwrap();
        let files = other.issue(&PeerId::gateway("acme", "gw-1"), &[]).unwrap();
        Identity::load(&IdentityFiles {
            ca: self.authority.ca_file(),
            ..files
        })
        .unwrap()
    }

    pub fn tunnel(&self, identity: &Identity, link: &LinkConfig, open_timeout: Duration) -> Tunnel {
        self.tunnel_over(identity, link, open_timeout).0
    }

    /// The same with the links' controls.
    pub fn tunnel_over(
        &self,
        identity: &Identity,
        link: &LinkConfig,
        open_timeout: Duration,
    ) -> (Tunnel, Vec<LinkControl>) {
        self.tunnel_as(identity.client_config(&[tunnel::ALPN]), link, open_timeout)
    }

    /// The same with this client's side of TLS.
    pub fn tunnel_as(
        &self,
        tls: Arc<rustls::ClientConfig>,
        link: &LinkConfig,
        open_timeout: Duration,
    ) -> (Tunnel, Vec<LinkControl>) {
        let mut links = Vec::new();
        let interfaces = NAMES.iter().enumerate().map(|(index, name)| {
            let ip = std::net::IpAddr::from([127, 0, index as u8 + 1, 1]);
            let mut interface = Interface::bind(*name, ip, None).unwrap();
            let (socket, control) = emulate(interface.socket, link, index as u64);
            interface.socket = socket;
            links.push(control);
            interface
        });
        let interfaces: Vec<Interface> = interfaces.collect();
        let mut config = TunnelConfig::new(self.address, "proxy", tls);
        config.open_timeout = open_timeout;
        (Tunnel::start(config, interfaces).unwrap(), links)
    }

    /// A gateway whose networks block UDP, with this client's side of TLS.
    pub fn tunnel_without_udp(
        &self,
        tls: Arc<rustls::ClientConfig>,
        open_timeout: Duration,
    ) -> Tunnel {
        let ip = std::net::IpAddr::from([127, 0, 1, 1]);
        let mut interface = Interface::bind("wifi", ip, None).unwrap();
        let (socket, link) = emulate(interface.socket, &fast(), 1);
        interface.socket = socket;
        link.set_up(false);
        let mut config = TunnelConfig::new(self.address, "proxy", tls);
        config.open_timeout = open_timeout;
        config.fallback = true;
        Tunnel::start(config, vec![interface]).unwrap()
    }

    pub async fn stop(self) {
        self.context.shutdown().request();
        within(self.running).await.unwrap().unwrap();
    }
}

pub fn fast() -> LinkConfig {
    LinkConfig::new(200e6, Duration::from_millis(1))
}

pub fn authority_of(address: SocketAddr) -> Authority {
    address.to_string().parse().unwrap()
}
