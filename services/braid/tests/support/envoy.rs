//! Envoy as a child process, with the shipped configuration and this machine's addresses in it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::program::{eventually, free_port, http, run};
use crate::separate::Separate;

const FILES: [&str; 3] = ["envoy.yaml", "certificate.yaml", "authority.yaml"];

pub struct Envoy {
    binary: PathBuf,
    folder: PathBuf,
    child: Child,
    pub devices: SocketAddr,
    people: SocketAddr,
    admin: SocketAddr,
    /// The listener for Prometheus.
    pub metrics: SocketAddr,
}

/// Envoy of `infra/dev/need.sh envoy`. `make test` requires it; elsewhere the test is skipped with
/// a message.
pub fn binary() -> Option<PathBuf> {
    let cache = std::env::var_os("BRAID_CACHE").map_or_else(
        || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache/braid"),
        PathBuf::from,
    );
    let binary = cache.join("envoy/envoy");
    if binary.exists() {
        return Some(binary);
    }
    let how = format!("infra/dev/need.sh envoy makes {}", binary.display());
    testkit::missing("Envoy", &how);
    None
}

/// Output of a command on the data directory of the test.
pub fn braid(args: &[&str], data: &Path) -> String {
    let data = ["--data", data.to_str().unwrap()];
    let (code, out, error) = run(&[args, &data].concat());
    assert_eq!(code, 0, "braid {}: {error}", args.join(" "));
    out.trim().to_owned()
}

/// Identities of all services, without starting any.
pub fn prepare(dir: &Path, devices: &[String]) -> Separate {
    let separate = Separate::prepare(dir, devices, &[]);
    for who in [["service", "envoy"], ["gateway", "gw-2"]] {
        braid(&["identity", "issue", who[0], who[1]], &separate.data);
    }
    separate
}

impl Envoy {
    pub fn start(binary: &Path, dir: &Path, separate: &Separate) -> Envoy {
        Envoy::start_with(binary, dir, separate, &[])
    }

    /// With further dashboards: the addresses of their page and their health.
    pub fn start_with(
        binary: &Path,
        dir: &Path,
        separate: &Separate,
        dashboards: &[(SocketAddr, SocketAddr)],
    ) -> Envoy {
        let folder = dir.join("envoy");
        fs::create_dir_all(&folder).unwrap();
        let [devices, people, admin, metrics] = [(); 4].map(|()| free_port());
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/envoy");
        let identities = separate.data.join("identities");
        let ports = &separate.ports;
        let of = |address: SocketAddr| {
            format!("address: {}, port_value: {}", address.ip(), address.port())
        };
        let health = |noun: &str| format!("port_value: {}", ports.admin(noun).port());
        let mut replaced = vec![
            ("address: 127.0.0.1, port_value: 9901".to_owned(), of(admin)),
            ("address: 0.0.0.0, port_value: 7443".to_owned(), of(devices)),
            ("address: 0.0.0.0, port_value: 8443".to_owned(), of(people)),
            ("address: 0.0.0.0, port_value: 9109".to_owned(), of(metrics)),
            (
                "address: ingest, port_value: 7001".to_owned(),
                of(ports.ingest),
            ),
            (
                "address: path-telemetry, port_value: 7003".to_owned(),
                of(ports.path_telemetry),
            ),
            ("port_value: 9103".to_owned(), health("ingest")),
            ("port_value: 9105".to_owned(), health("path-telemetry")),
        ];
        let endpoint = |address: &str, health: &str| {
            format!(
                "- endpoint:
                  address: {{ socket_address: {{ {address} }} }}
                  health_check_config: {{ {health} }}
"
            )
        };
        let first = (ports.page, ports.admin("dashboard"));
        let mut endpoints = String::new();
        for (page, admin) in [first].iter().chain(dashboards) {
            let indent = if endpoints.is_empty() {
                ""
            } else {
                "              "
            };
            let health = format!("port_value: {}", admin.port());
            endpoints += &format!("{indent}{}", endpoint(&of(*page), &health));
        }
        let shipped_endpoint = endpoint("address: dashboard, port_value: 8080", "port_value: 9106");
        replaced.push((shipped_endpoint, endpoints));
        for file in FILES {
            let mut text = fs::read_to_string(shipped.join(file)).unwrap();
            if file == "envoy.yaml" {
                for (from, to) in &replaced {
                    assert!(text.contains(from), "{from} is not in {file}");
                    text = text.replace(from, to);
                }
            }
            let text = text
                .replace("/etc/braid/identity", identities.to_str().unwrap())
                .replace("/etc/envoy", folder.to_str().unwrap());
            fs::write(folder.join(file), text).unwrap();
        }
        let mut envoy = Envoy {
            child: spawn(binary, &folder),
            binary: binary.to_owned(),
            folder,
            devices,
            people,
            admin,
            metrics,
        };
        envoy.wait_until_ready();
        envoy
    }

    fn wait_until_ready(&mut self) {
        eventually("Envoy is ready", || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "Envoy has ended:\n{}", self.log());
            http(self.admin, "GET", "/ready", "", "").is_ok_and(|(status, _)| status == 200)
        });
    }

    /// Ends it like an orchestrator: listeners drain first.
    pub fn drain(&mut self) {
        let (status, answer) =
            http(self.admin, "POST", "/drain_listeners?graceful", "", "").unwrap();
        assert_eq!(status, 200, "{answer}");
        eventually("the listeners are closed", || {
            std::net::TcpStream::connect(self.devices).is_err()
        });
        self.kill();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.child = spawn(&self.binary, &self.folder);
        self.wait_until_ready();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("envoy.log")).unwrap_or_default()
    }

    /// Number of a service's endpoints that Envoy uses; for dashboards, those of requests
    /// without and with a sign-in.
    pub fn ready(&self, cluster: &str) -> usize {
        let clusters = http(self.admin, "GET", "/clusters", "", "");
        let clusters = clusters.map(|(_, text)| text).unwrap_or_default();
        let of = |cluster: &str| {
            let of_it = |line: &&str| {
                line.starts_with(&format!("{cluster}::"))
                    && line.ends_with("::health_flags::healthy")
            };
            clusters.lines().filter(of_it).count()
        };
        let page = format!("{cluster}-page");
        if clusters.contains(&page) {
            of(cluster).min(of(&page))
        } else {
            of(cluster)
        }
    }

    /// Highest memory so far, in bytes.
    pub fn memory_peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let mut lines = status.lines();
        let peak = lines.find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes * 1024
    }

    /// The header of a signed-in viewer.
    pub fn sign_in(&self, data: &Path) -> String {
        let account = ["accounts", "put", "vera", "--role", "viewer", "--by", "Eve"];
        braid(
            &[&account[..], &["--password", "correct horse"]].concat(),
            data,
        );
        let credentials = serde_json::json!({"name": "vera", "password": "correct horse"});
        let file = self.folder.join("credentials");
        fs::write(&file, credentials.to_string()).unwrap();
        let body = format!("@{}", file.display());
        let mut token = String::new();
        eventually("a token", || {
            let args = [
                "-H",
                "content-type: application/json",
                "--data-binary",
                &body,
            ];
            let (status, answer) = self.ask("/api/token", &args);
            let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
            token = answer["token"].as_str().unwrap_or_default().to_owned();
            status == 200
        });
        format!("authorization: Bearer {token}")
    }

    /// A counter or gauge of Envoy's own.
    pub fn stat(&self, name: &str) -> u64 {
        let stats = http(self.admin, "GET", &format!("/stats?filter={name}"), "", "");
        let stats = stats.map(|(_, text)| text).unwrap_or_default();
        let mut lines = stats.lines().filter_map(|line| line.split_once(": "));
        let value = lines.find(|(found, _)| *found == name);
        value.map_or(0, |(_, value)| value.trim().parse().unwrap())
    }

    /// Refused while Envoy has its largest number of connections.
    pub async fn connect_as_person(
        &self,
        tls: Arc<rustls::ClientConfig>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.people).await?;
        let name = "envoy".try_into().unwrap();
        TlsConnector::from(tls).connect(name, stream).await
    }

    /// Asks with curl and `args`; returns status and body.
    pub fn ask(&self, path: &str, args: &[&str]) -> (u16, String) {
        let authority = self.folder.join("../data/identities/ca.pem");
        let url = format!("https://{}{path}", self.people);
        let output = Command::new("curl")
            // Over HTTP/2 this curl takes an answer before the end of its request for an error.
            .args([
                "-sS",
                "--http1.1",
                "--max-time",
                "30",
                "-w",
                "\n%{http_code}",
                "--cacert",
            ])
            .arg(&authority)
            .args(args)
            .arg(&url)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            eprintln!("{path}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let (body, status) = said.rsplit_once('\n').unwrap_or_default();
        (status.parse().unwrap_or(0), body.to_owned())
    }

    pub fn get_page(&self, path: &str) -> String {
        let mut body = String::new();
        eventually("the page", || {
            let answer = self.ask(path, &[]);
            body = answer.1;
            answer.0 == 200
        });
        body
    }
}

fn spawn(binary: &Path, folder: &Path) -> Child {
    let log = || {
        let file = folder.join("envoy.log");
        File::options()
            .create(true)
            .append(true)
            .open(file)
            .unwrap()
    };
    Command::new(binary)
        .arg("-c")
        .arg(folder.join("envoy.yaml"))
        // Otherwise several Envoys on one machine would share a name in shared memory.
        .arg("--use-dynamic-base-id")
        .args([
            "--concurrency",
            "1",
            "--log-level",
            "warn",
            "--drain-time-s",
            "1",
            "--file-flush-interval-msec",
            "100",
        ])
        .stdin(Stdio::null())
        .stdout(log())
        .stderr(log())
        .spawn()
        .unwrap()
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!("== the end of Envoy's log");
            for line in tail.into_iter().rev() {
                eprintln!("{line}");
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
