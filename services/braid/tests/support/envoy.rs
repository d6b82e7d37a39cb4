//! Envoy as a child process, with the shipped configuration and this machine's addresses in it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::program::{eventually, free_tcp, http};
use crate::separate::Separate;

const FILES: [&str; 3] = ["envoy.yaml", "certificate.yaml", "authority.yaml"];

pub struct Envoy {
    binary: PathBuf,
    folder: PathBuf,
    child: Child,
    pub devices: SocketAddr,
    people: SocketAddr,
    admin: SocketAddr,
}

/// What `infra/dev/need.sh envoy` installs. `make test` must have it; elsewhere its absence is said and the test skipped.
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

impl Envoy {
    pub fn start(binary: &Path, dir: &Path, separate: &Separate) -> Envoy {
        let folder = dir.join("envoy");
        fs::create_dir_all(&folder).unwrap();
        let [devices, people, admin] = [(); 3].map(|()| free_tcp());
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/envoy");
        let identities = separate.data.join("identities");
        let ports = &separate.ports;
        let of = |address: SocketAddr| {
            format!("address: {}, port_value: {}", address.ip(), address.port())
        };
        let health = |noun: &str| format!("port_value: {}", ports.admin(noun).port());
        let replaced = [
            ("address: 127.0.0.1, port_value: 9901".to_owned(), of(admin)),
            ("address: 0.0.0.0, port_value: 7443".to_owned(), of(devices)),
            ("address: 0.0.0.0, port_value: 8443".to_owned(), of(people)),
            (
                "address: ingest, port_value: 7001".to_owned(),
                of(ports.ingest),
            ),
            (
                "address: path-telemetry, port_value: 7003".to_owned(),
                of(ports.path_telemetry),
            ),
            (
                "address: dashboard, port_value: 8080".to_owned(),
                of(ports.page),
            ),
            ("port_value: 9103".to_owned(), health("ingest")),
            ("port_value: 9105".to_owned(), health("path-telemetry")),
            ("port_value: 9106".to_owned(), health("dashboard")),
        ];
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

    /// As an orchestrator ends it: listeners drained first.
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

    pub fn get_page(&self, path: &str) -> String {
        let authority = self.folder.join("../data/identities/ca.pem");
        let url = format!("https://{}{path}", self.people);
        let mut body = String::new();
        eventually("the page", || {
            let output = Command::new("curl")
                .args(["-sS", "--fail", "--cacert"])
                .arg(&authority)
                .arg(&url)
                .output()
                .unwrap();
            body = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success()
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
        // Several on one machine would share a name in its memory otherwise.
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
