//! A real proxy on loopback and a real gateway in front of it; no core is needed.

// Each test file uses its part.
#![allow(dead_code)]

use std::{net::SocketAddr, path::Path};

use clap::Parser;
use service_kit::{
    Context,
    tls::{IdentityFiles, PeerId, authority::LocalAuthority},
};
use tempfile::TempDir;
use testkit::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

#[derive(Parser)]
struct GatewayLine {
    #[command(flatten)]
    config: gateway::Config,
}

#[derive(Parser)]
struct ProxyLine {
    #[command(flatten)]
    config: proxy::Config,
}

pub struct Stage {
    pub gateway: Context,
    pub running: JoinHandle<Result<(), gateway::RunError>>,
    /// Address for applications.
    pub address: SocketAddr,
    proxy: Context,
    proxy_running: JoinHandle<Result<(), proxy::RunError>>,
    _dir: TempDir,
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

impl Stage {
    /// `allowed` are the proxy's destinations, `flags` additional flags of the gateway.
    pub async fn start(allowed: &[String], flags: &[&str]) -> Self {
        Self::start_with(allowed, &[], flags).await
    }

    /// The same with names that may resolve to private addresses.
    pub async fn start_with(allowed: &[String], private: &[String], flags: &[&str]) -> Self {
        service_kit::tls::install_provider();
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let files = authority
            .issue(&PeerId::service("proxy"), &["proxy".to_owned()])
            .unwrap();
        let mut line: Vec<String> = ["proxy", "--listen", "127.0.0.1:0", "--path-telemetry", ""]
            .map(str::to_owned)
            .into();
        for allowed in allowed {
            line.extend(["--allow".to_owned(), allowed.clone()]);
        }
        for private in private {
            line.extend(["--allow-private".to_owned(), private.clone()]);
        }
        with_identity(&mut line, &files);
        let proxy = Context::new("proxy");
        let config = ProxyLine::parse_from(line).config;
        let proxy_running = tokio::spawn(proxy::run(config, proxy.clone()));
        let at = within(proxy.address("tunnel")).await.unwrap();

        let files = authority
            .issue(&PeerId::gateway("acme", "gw-1"), &[])
            .unwrap();
        let data = dir.path().join("gateway");
        let mut line: Vec<String> = ["gateway", "--listen", "127.0.0.1:0"]
            .into_iter()
            .chain(["--applications", "127.0.0.1:0", "--path-telemetry", ""])
            .chain([
                "--interface",
                "wifi=127.0.1.1",
                "--interface",
                "lte=127.0.2.1",
            ])
            // No server listens there.
            .chain(["--ingest", "https://127.0.0.1:1"])
            .chain(flags.iter().copied())
            .map(str::to_owned)
            .collect();
        line.extend(["--proxy".to_owned(), at.to_string()]);
        line.extend(["--data-dir".to_owned(), data.display().to_string()]);
        with_identity(&mut line, &files);
        let gateway = Context::new("gateway");
        let config = GatewayLine::parse_from(line).config;
        let running = tokio::spawn(gateway::run(config, None, gateway.clone()));
        let address = within(gateway.address("applications")).await.unwrap();
        Self {
            gateway,
            running,
            address,
            proxy,
            proxy_running,
            _dir: dir,
        }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A tunnel by HTTP CONNECT.
    pub async fn tunnel(&self, to: SocketAddr) -> TcpStream {
        let mut stream = self.connect().await;
        let answer = ask_http(&mut stream, &to.to_string()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        stream
    }

    /// Ends the gateway, then the proxy; both must end regularly.
    pub async fn stop(self) {
        self.gateway.shutdown().request();
        within(self.running).await.unwrap().unwrap();
        self.proxy.shutdown().request();
        within(self.proxy_running).await.unwrap().unwrap();
    }
}

/// Sends a CONNECT and returns the head of the answer.
pub async fn ask_http(stream: &mut TcpStream, target: &str) -> String {
    let request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n");
    within(stream.write_all(request.as_bytes())).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(within(stream.read_u8()).await.unwrap());
    }
    String::from_utf8(answer).unwrap()
}

/// Asks for a connection to an IPv4 address with SOCKS5 and returns the reply's code.
pub async fn ask_socks(stream: &mut TcpStream, to: SocketAddr) -> u8 {
    let std::net::IpAddr::V4(ip) = to.ip() else {
        panic!("{to} is no IPv4 address");
    };
    let mut request = vec![5, 1, 0, 5, 1, 0, 1];
    request.extend(ip.octets());
    request.extend(to.port().to_be_bytes());
    within(stream.write_all(&request)).await.unwrap();
    let mut answer = [0; 12];
    within(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer[..3], [5, 0, 5]);
    answer[3]
}

/// Echoes its input after the input's end.
pub async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).await.is_ok() {
                    let _ = stream.write_all(&all).await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    address
}
