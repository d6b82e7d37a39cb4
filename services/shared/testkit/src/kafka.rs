//! A real Kafka for tests, run by `infra/airgap/kafka.sh`: nodes are child processes that end with
//! the test.
#![allow(
    clippy::disallowed_methods,
    reason = "polls processes and ports; callers are tests that wait for it"
)]

use std::{
    fs::{self, File},
    io,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use crate::{ports::try_reserve, sources};

pub const SCRIPT: &str = "infra/airgap/kafka.sh";
/// Longest start of a node, with a cold cache on a busy machine; then the test fails.
const UP_WITHIN: Duration = Duration::from_secs(120);
/// Starts of one node that ends before it accepts connections.
const STARTS_MAX: u32 = 4;

pub struct Cluster {
    dir: PathBuf,
    port: u16,
    nodes: Vec<Option<Child>>,
}

impl Cluster {
    /// Starts `nodes` brokers; `extra` are lines for their `server.properties`. `None`, with a
    /// message, if Kafka is not installed.
    pub fn start(nodes: usize, extra: &str) -> Option<Cluster> {
        Cluster::start_with(nodes, |_| extra.to_owned())
    }

    /// The same with lines that depend on the first node's port.
    pub fn start_with(nodes: usize, extra: impl FnOnce(u16) -> String) -> Option<Cluster> {
        if !is_installed() {
            return None;
        }
        let port = free_ports(nodes);
        let mut cluster = Cluster::stopped(port, nodes, &extra(port));
        cluster.start_all();
        Some(cluster)
    }

    /// Prepares folders and configuration without starting the nodes.
    pub fn prepared(nodes: usize, extra: &str) -> Option<Cluster> {
        is_installed().then(|| Cluster::stopped(free_ports(nodes), nodes, extra))
    }

    fn stopped(port: u16, nodes: usize, extra: &str) -> Cluster {
        remove_leftovers();
        let dir = std::env::temp_dir().join(format!("{PREFIX}{}-{port}", std::process::id()));
        fs::create_dir_all(&dir).expect("a temporary directory");
        let status = Command::new(script())
            .args(["prepare", &nodes.to_string(), &port.to_string()])
            .arg(&dir)
            .env("BRAID_KAFKA_EXTRA", extra)
            .status()
            .expect("bash");
        assert!(status.success(), "kafka.sh prepare failed");
        Cluster {
            dir,
            port,
            nodes: (0..nodes).map(|_| None).collect(),
        }
    }

    /// `host:port` of every node.
    pub fn brokers(&self) -> Vec<String> {
        (0..self.nodes.len())
            .map(|node| format!("127.0.0.1:{}", self.port_of(node)))
            .collect()
    }

    fn port_of(&self, node: usize) -> u16 {
        self.port + u16::try_from(node).expect("few nodes")
    }

    /// SIGKILL.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].take() {
            child.kill().expect("a child of ours");
            child.wait().expect("a child of ours");
        }
    }

    pub fn kill_all(&mut self) {
        // Every node is killed before any is waited for, as in a power cut.
        for child in self.nodes.iter_mut().flatten() {
            child.kill().expect("a child of ours");
        }
        for node in 0..self.nodes.len() {
            self.kill(node);
        }
    }

    /// Starts a stopped node on its old data; returns once it accepts connections.
    pub fn restart(&mut self, node: usize) {
        self.launch(node);
        self.wait_for(node);
    }

    pub fn start_all(&mut self) {
        // The nodes open their ports only after a quorum is up, so all of them are started first.
        for node in 0..self.nodes.len() {
            self.launch(node);
        }
        for node in 0..self.nodes.len() {
            self.wait_for(node);
        }
    }

    fn launch(&mut self, node: usize) {
        if self.nodes[node].is_some() {
            return;
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log(node))
            .expect("the node's log");
        let mut command = Command::new(script());
        command
            .arg("node")
            .arg(&self.dir)
            .arg((node + 1).to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the node's log"))
            .stderr(log);
        self.nodes[node] = Some(spawn(command).expect("bash"));
    }

    /// A node that was killed while it started may find its data unreadable, and end. It is started
    /// again, as by the supervisor of a real broker.
    fn wait_for(&mut self, node: usize) {
        let deadline = Instant::now() + UP_WITHIN;
        let mut starts = 1;
        while TcpStream::connect(("127.0.0.1", self.port_of(node))).is_err() {
            let ended = self.nodes[node]
                .as_mut()
                .is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if ended && starts < STARTS_MAX {
                starts += 1;
                self.kill(node);
                self.launch(node);
            } else if ended || Instant::now() > deadline {
                let log = fs::read_to_string(self.log(node)).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(30).collect();
                for line in tail.iter().rev() {
                    eprintln!("{line}");
                }
                panic!("node {} did not come up", node + 1);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self, node: usize) -> PathBuf {
        self.dir.join(format!("node{}/server.log", node + 1))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_all();
        // The next start removes the remains.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn script() -> PathBuf {
    sources::file(SCRIPT).unwrap_or_else(|error| panic!("{error}"))
}

/// Prints a message if Kafka is not installed.
fn is_installed() -> bool {
    let here = Command::new(script()).arg("here").status();
    let here = here.is_ok_and(|status| status.success());
    if !here {
        crate::missing(
            "Kafka",
            "infra/dev/need.sh kafka installs Java, Maven and Kafka",
        );
    }
    here
}

const PREFIX: &str = "braid-test-kafka-";

/// A killed test, or a cluster in a static, leaves its folder behind.
fn remove_leftovers() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let owner = owner.and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The first of `nodes` consecutive free ports, whose controllers' ports, a thousand higher, are
/// free as well. Ports that were reserved in vain stay reserved.
fn free_ports(nodes: usize) -> u16 {
    (0..1000)
        .map(|_| rand::random_range(20_000_u16..30_000))
        .find(|first| {
            (0..u16::try_from(nodes).expect("few nodes"))
                .all(|node| try_reserve(first + node) && try_reserve(first + node + 1000))
        })
        .expect("free ports")
}

type Order = (Command, SyncSender<io::Result<Child>>);

/// A node ends with the thread that started it, and a test's thread ends with the test. So one
/// thread starts all nodes.
fn spawn(command: Command) -> io::Result<Child> {
    static ORDERS: OnceLock<SyncSender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, received) = sync_channel::<Order>(0);
        std::thread::spawn(move || {
            for (mut command, answer) in received {
                // The caller waits for the answer.
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, child) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts processes has ended");
    orders.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}
