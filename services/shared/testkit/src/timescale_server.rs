//! A real TimescaleDB for tests, from `infra/airgap/timescaledb.sh`: a child process that ends with
//! this process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::{ports::reserve, sources};

/// Password of the superuser `postgres`.
pub const PASSWORD: &str = "braid";
const SCRIPT: &str = "infra/airgap/timescaledb.sh";
/// Longest start: the first start on a machine fetches and unpacks packages.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Lines appended to `postgresql.conf`; `/data` is the server's folder.
    pub configuration: String,
    /// Files that are put into the server's folder before the start, by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// Size in bytes of a separate file system at `/small`.
    pub small_disk: Option<u64>,
    /// Every commit is synced to disk.
    pub durable: bool,
}

pub struct TimescaleServer {
    dir: PathBuf,
    port: u16,
    options: ServerOptions,
    child: Mutex<Option<Running>>,
}

/// The process, and the channel that ends its starting thread: the process dies with that thread.
struct Running {
    child: Child,
    _keeper: mpsc::Sender<()>,
}

impl TimescaleServer {
    /// One server for all tests of this process that leave the server itself alone; each test uses
    /// its own database.
    pub fn shared() -> &'static TimescaleServer {
        static SHARED: OnceLock<TimescaleServer> = OnceLock::new();
        SHARED.get_or_init(|| TimescaleServer::start(ServerOptions::default()))
    }

    /// Panics with the end of the server's log if it does not come up.
    pub fn start(options: ServerOptions) -> TimescaleServer {
        let dir = folder();
        for (name, content) in &options.files {
            put(&dir.join(name), content);
        }
        if !options.configuration.is_empty() {
            put(&dir.join("server.conf"), options.configuration.as_bytes());
        }
        let port = reserve()
            .unwrap_or_else(|e| panic!("no free port: {e}"))
            .port();
        let server = TimescaleServer {
            dir,
            port,
            options,
            child: Mutex::new(None),
        };
        server.run();
        server
    }

    /// Starts it again on the same data after [`TimescaleServer::kill`] or
    /// [`TimescaleServer::stop`].
    pub fn run(&self) {
        let running = self.spawn();
        *self.child.lock() = Some(running);
    }

    fn spawn(&self) -> Running {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("server.log"))
            .unwrap_or_else(|e| panic!("no log in {}: {e}", self.dir.display()));
        let script = sources::file(SCRIPT).unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(script);
        command
            .arg("run")
            .arg(self.port.to_string())
            .arg(&self.dir)
            .env("BRAID_TIMESCALE_PASSWORD", PASSWORD)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if let Some(bytes) = self.options.small_disk {
            command.env("BRAID_TIMESCALE_SMALL_DISK", bytes.to_string());
        }
        if self.options.durable {
            command.env("BRAID_TIMESCALE_DURABLE", "1");
        }
        let (answer, started) = mpsc::channel();
        let (keeper, kept) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            // After a panic no test waits for the answer.
            let _ = answer.send(command.spawn());
            let _ = kept.recv();
        });
        match started.recv() {
            Ok(Ok(child)) => Running {
                child,
                _keeper: keeper,
            },
            other => panic!("{SCRIPT} does not start: {other:?}"),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        &self.dir
    }

    /// URL of the superuser, without its password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Creates an empty database with a unique name and returns its URL. Waits until the server
    /// answers.
    pub async fn database(&self) -> String {
        self.database_with("").await
    }

    /// `more` is appended to CREATE DATABASE.
    pub async fn database_with(&self, more: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.superuser()
            .await
            .batch_execute(&format!("CREATE DATABASE {name} {more}"))
            .await
            .unwrap_or_else(|e| panic!("no database: {e:?}"));
        self.url(&name)
    }

    /// A connection of the superuser to the database `postgres`, once the server answers.
    pub async fn superuser(&self) -> tokio_postgres::Client {
        let mut config = tokio_postgres::Config::new();
        config
            .host("127.0.0.1")
            .port(self.port)
            .user("postgres")
            .password(PASSWORD)
            .dbname("postgres");
        let asked = std::time::Instant::now();
        loop {
            match config.connect(tokio_postgres::NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(e) if asked.elapsed() > PATIENCE || self.has_ended() => {
                    let log = fs::read_to_string(self.dir.join("server.log")).unwrap_or_default();
                    panic!("TimescaleDB does not answer: {e}\n{log}");
                }
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    fn has_ended(&self) -> bool {
        match self.child.lock().as_mut() {
            Some(running) => !matches!(running.child.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// Like `kill -9` of the server's first process; its other processes end when they notice.
    /// Returns when no process uses the data.
    pub fn kill(&self) {
        self.end("-KILL");
    }

    /// An orderly stop that cuts connections.
    pub fn stop(&self) {
        self.end("-INT");
    }

    fn end(&self, signal: &str) {
        let Some(mut running) = self.child.lock().take() else {
            return;
        };
        let pid = fs::read_to_string(self.dir.join("pg/postmaster.pid"))
            .ok()
            .and_then(|text| text.lines().next().map(str::to_owned));
        match pid {
            Some(pid) => {
                let _ = Command::new("kill").args([signal, &pid]).status();
            }
            None => {
                let _ = running.child.kill();
            }
        }
        let _ = running.child.wait();
        // Without the first process the others end one by one, and until then the next server
        // refuses to start. Waiting for the child blocks the runtime as well.
        let since = std::time::Instant::now();
        while self.is_held() && since.elapsed() < PATIENCE {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }

    /// Whether a process works in the data folder, as all processes of a server do.
    fn is_held(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let Ok(data) = fs::metadata(self.dir.join("pg")) else {
            return false;
        };
        let mut processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes.any(|process| {
            fs::metadata(process.path().join("cwd"))
                .is_ok_and(|cwd| (cwd.dev(), cwd.ino()) == (data.dev(), data.ino()))
        })
    }
}

impl Drop for TimescaleServer {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn put(path: &Path, content: &[u8]) {
    use std::os::unix::fs::PermissionsExt;
    let written = fs::write(path, content)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o600)));
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// A folder for a server, below a folder of this process. Remains of ended processes are removed.
fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let all = std::env::temp_dir().join("braid-timescaledb");
    for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
        let ended = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
            .is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if ended {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let dir = all
        .join(std::process::id().to_string())
        .join(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
    fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    dir
}
