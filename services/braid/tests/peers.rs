//! Clients of other implementations against a real proxy process: curl by HTTP/2 CONNECT, and Go
//! clients of CONNECT-UDP (RFC 9298) and CONNECT-IP (RFC 9484).
#![allow(clippy::unwrap_used)]
#![allow(
    clippy::disallowed_methods,
    reason = "a blocking test waits for processes; there is no runtime to block"
)]

#[path = "support/program.rs"]
mod program;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, OnceLock},
};

use program::{Program, eventually, free_port};
use service_kit::tls::{IdentityFiles, PeerId, authority::LocalAuthority};
use tempfile::TempDir;
use testkit::{
    netns::{World, proxy},
    noise,
};

/// A file that spans many windows of HTTP/2.
const FILE_BYTES: usize = 3_000_000;
/// A request line and its headers.
const HEAD_LINES_MAX: usize = 64;
/// Exit code of `curl` for a failed exchange with the proxy or the peer.
const CURL_RECEIVE: i32 = 56;
/// Exit code of `peers` for a refusal.
const REFUSED: i32 = 2;

/// The identities of a proxy, of a gateway, and of those that must be refused.
struct Stage {
    dir: TempDir,
    authority: LocalAuthority,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(&dir.path().join("authority")).unwrap();
        Self { dir, authority }
    }

    fn issue(&self, id: &PeerId) -> IdentityFiles {
        let hosts = match id {
            PeerId::Service { noun } => vec![noun.clone()],
            PeerId::Gateway(_) => Vec::new(),
        };
        self.authority.issue(id, &hosts).unwrap()
    }

    fn gateway(&self) -> IdentityFiles {
        self.issue(&PeerId::gateway("acme", "gw-1"))
    }

    /// A gateway of another authority, which the proxy does not know.
    fn of_another_authority(&self) -> IdentityFiles {
        let other = LocalAuthority::open_or_create(&self.dir.path().join("other")).unwrap();
        let files = other.issue(&PeerId::gateway("acme", "gw-1"), &[]).unwrap();
        IdentityFiles {
            ca: self.authority.ca_file(),
            ..files
        }
    }

    /// A proxy process in the network of this thread; returns once it listens.
    fn proxy(&self, listen: SocketAddr, flags: &[&str]) -> Program {
        let files = self.issue(&PeerId::service("proxy"));
        let file = |path: &Path| path.display().to_string();
        let mut line = vec![
            "proxy".to_owned(),
            format!("--listen={listen}"),
            format!("--admin={}", free_port()),
            format!("--cert={}", file(&files.cert)),
            format!("--key={}", file(&files.key)),
            format!("--ca={}", file(&files.ca)),
            "--path-telemetry=".to_owned(),
        ];
        line.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let proxy = Program::start(self.dir.path(), "proxy", &line);
        eventually("a proxy that listens", || {
            TcpStream::connect(listen).is_ok()
        });
        proxy
    }
}

fn cache() -> PathBuf {
    std::env::var_os("BRAID_CACHE").map_or_else(
        || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache/braid"),
        PathBuf::from,
    )
}

/// Whether the program is there and its help names the option.
fn knows(program: &Path, help: &[&str], option: &str) -> bool {
    let said = Command::new(program).args(help).output();
    said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(option))
}

/// A curl that speaks HTTP/2 to proxies.
fn curl() -> Option<PathBuf> {
    let installed = cache().join("curl/curl");
    let found = [PathBuf::from("curl"), installed]
        .into_iter()
        .find(|curl| knows(curl, &["--help", "proxy"], "--proxy-http2"));
    if found.is_none() {
        testkit::missing("curl of 8.1 or later", "infra/dev/need.sh curl installs it");
    }
    found
}

/// The clients in Go, built once.
fn go_peers() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build_go_peers).clone()
}

fn build_go_peers() -> Option<PathBuf> {
    let installed = cache().join("go/bin/go");
    let go = if installed.exists() {
        installed
    } else {
        PathBuf::from("go")
    };
    let how = "infra/dev/need.sh peers installs Go and the modules";
    if Command::new(&go).arg("version").output().is_err() {
        testkit::missing("Go", how);
        return None;
    }
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../loadtest/peers/go");
    let out = Command::new(&go)
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            "-o",
        ])
        .arg(&built)
        .arg(".")
        // need.sh has the modules.
        .env("GOPROXY", "off")
        .current_dir(sources)
        .output()
        .unwrap();
    if !out.status.success() {
        let error = String::from_utf8_lossy(&out.stderr);
        testkit::missing(
            "the modules of loadtest/peers/go",
            &format!("{how}\n{error}"),
        );
        return None;
    }
    Some(built)
}

/// An HTTP server: GET returns the file, PUT returns what was sent.
fn web(file: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), file) = (stream, file.clone()) else {
                continue;
            };
            // A client that leaves ends its own thread.
            std::thread::spawn(move || answer(stream, &file));
        }
    });
    address
}

fn answer(stream: TcpStream, file: &[u8]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut length = 0;
        let mut puts = false;
        for line in 0..HEAD_LINES_MAX {
            let mut text = String::new();
            if reader.read_line(&mut text)? == 0 {
                return Ok(());
            }
            puts |= line == 0 && text.starts_with("PUT");
            let text = text.trim().to_ascii_lowercase();
            if let Some(bytes) = text.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap_or(0);
            }
            if text.is_empty() {
                break;
            }
        }
        let mut sent = vec![0; length];
        reader.read_exact(&mut sent)?;
        let body = if puts { &sent } else { file };
        write!(
            writer,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )?;
        writer.write_all(body)?;
    }
}

/// Asks through the proxy by HTTP/2 CONNECT, with the certificate if there is one. Its log goes
/// to standard error.
fn ask(
    curl: &Path,
    proxy: SocketAddr,
    files: &IdentityFiles,
    shows: bool,
    more: &[&str],
) -> Output {
    let file = |path: &Path| path.display().to_string();
    let mut command = Command::new(curl);
    command
        .args(["--silent", "--show-error", "--verbose", "--max-time", "30"])
        .args(["--trace-config", "proxy"])
        .args(["--proxy-http2", "--proxytunnel", "--noproxy", ""])
        .args(["--proxy", &format!("https://proxy:{}", proxy.port())])
        .args([
            "--resolve",
            &format!("proxy:{}:{}", proxy.port(), proxy.ip()),
        ])
        .args(["--proxy-cacert", &file(&files.ca)]);
    if shows {
        command.args(["--proxy-cert", &file(&files.cert)]);
        command.args(["--proxy-key", &file(&files.key)]);
    }
    command.args(more).output().unwrap()
}

#[test]
fn curl_uses_the_proxy_by_http2() {
    let Some(curl) = curl() else {
        return;
    };
    let stage = Stage::new();
    let file = noise(FILE_BYTES, 1);
    let (listed, unlisted) = (web(file.clone()), web(file.clone()));
    let proxy = free_port();
    let _running = stage.proxy(proxy, &[&format!("--allow={listed}")]);
    let gateway = stage.gateway();

    let in_dir = |name: &str| stage.dir.path().join(name).display().to_string();
    let (got, back, to_send) = (in_dir("got"), in_dir("back"), in_dir("to-send"));
    let sent = noise(FILE_BYTES, 2);
    std::fs::write(&to_send, &sent).unwrap();
    let url = format!("http://{listed}/");
    let down = ask(&curl, proxy, &gateway, true, &["--output", &got, &url]);
    let up = ["--output", &back, "--upload-file", &to_send, &url];
    let up = ask(&curl, proxy, &gateway, true, &up);
    for (out, path, expected) in [(down, got, &file), (up, back, &sent)] {
        let log = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{log}");
        for said in [
            "CONNECT tunnel: HTTP/2 negotiated",
            "established, response 200",
        ] {
            assert!(log.contains(said), "{log}");
        }
        assert!(&std::fs::read(path).unwrap() == expected, "bytes differ");
    }

    let url = format!("http://{unlisted}/");
    let refused = ask(&curl, proxy, &gateway, true, &[&url]);
    let log = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(CURL_RECEIVE), "{log}");
    assert!(log.contains("status: HTTP/2 403"), "{log}");

    let url = format!("http://{listed}/");
    let service = stage.issue(&PeerId::service("ingest"));
    for (files, shows, why) in [
        (&gateway, false, "no certificate"),
        (&stage.of_another_authority(), true, "another authority"),
        (&service, true, "the certificate of a service"),
    ] {
        let out = ask(&curl, proxy, files, shows, &[&url]);
        let log = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{why}: {log}");
        assert!(!log.contains("established"), "{why}: {log}");
        assert!(out.stdout.is_empty(), "{why}");
    }
}

/// Echoes datagrams on this address.
fn echo(at: SocketAddr) -> SocketAddr {
    let socket = UdpSocket::bind(at).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

fn ask_peers(
    peers: &Path,
    kind: &str,
    proxy: SocketAddr,
    files: &IdentityFiles,
    shows: bool,
    to: SocketAddr,
) -> Output {
    let file = |path: &Path| path.display().to_string();
    let mut command = Command::new(peers);
    command.arg(kind).args(["--proxy", &proxy.to_string()]);
    command.args(["--ca", &file(&files.ca), "--to", &to.to_string()]);
    if shows {
        command.args(["--cert", &file(&files.cert), "--key", &file(&files.key)]);
    }
    command.output().unwrap()
}

/// The exit code and what was written.
fn told(out: &Output) -> (Option<i32>, String) {
    let text = [&out.stdout[..], &out.stderr].concat();
    (
        out.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn a_go_client_has_udp_echoed() {
    let Some(peers) = go_peers() else {
        return;
    };
    let stage = Stage::new();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listed, unlisted) = (echo(any), echo(any));
    let proxy = free_port();
    let _running = stage.proxy(proxy, &[&format!("--allow={listed}")]);
    let gateway = stage.gateway();
    let ask = |files, shows, to| told(&ask_peers(&peers, "udp", proxy, files, shows, to));

    let (code, text) = ask(&gateway, true, listed);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("200 datagrams echoed"), "{text}");
    let (code, text) = ask(&gateway, true, unlisted);
    assert_eq!(code, Some(REFUSED), "{text}");
    assert!(text.contains("refused: 403"), "{text}");
    for (files, shows) in [(&gateway, false), (&stage.of_another_authority(), true)] {
        let (code, text) = ask(files, shows, listed);
        assert_eq!(code, Some(1), "{text}");
    }
    // IP is not offered.
    let (code, text) = told(&ask_peers(&peers, "ip", proxy, &gateway, true, listed));
    assert_eq!(code, Some(REFUSED), "{text}");
    assert!(text.contains("refused: 501"), "{text}");
}

#[test]
fn a_go_client_has_packets_echoed_from_its_assigned_address() {
    const LISTED: ([u8; 4], u16) = ([10, 8, 0, 2], 9_000);
    const UNLISTED: ([u8; 4], u16) = ([10, 8, 1, 2], 9_000);
    let Some(peers) = go_peers() else {
        return;
    };
    let Some(world) = World::new() else {
        return;
    };
    world.plug_far();
    world.plug("wlan0", 1, "100mbit");
    let stage = Arc::new(Stage::new());
    let gateway = stage.gateway();
    let echoing = world.spawn("far", || async {
        echo(LISTED.into());
        echo(UNLISTED.into());
    });
    echoing.join().unwrap();
    let starting = world.spawn("px", {
        let stage = stage.clone();
        || async move {
            let pool = ["--tun=braid0", "--ip-pool=10.64.0.0/29"];
            stage.proxy(proxy(), &[&pool[..], &["--allow-ip=10.8.0.0/24"]].concat())
        }
    });
    let _running = starting.join().unwrap();
    let ask = |to: ([u8; 4], u16)| {
        let (peers, gateway) = (peers.clone(), gateway.clone());
        let asking = world.spawn("gw", move || async move {
            told(&ask_peers(&peers, "ip", proxy(), &gateway, true, to.into()))
        });
        asking.join().unwrap()
    };
    let (code, text) = ask(LISTED);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("10.64.0."), "{text}");
    assert!(text.contains("200 pings and 200 datagrams"), "{text}");
    let (code, text) = ask(UNLISTED);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no route to 10.8.1.2"), "{text}");
}
