//! The real `braid` binary as a child process. Its log goes to a file, which a failing test prints.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::disallowed_methods,
    reason = "a blocking test polls processes; there is no runtime to block"
)]
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A generous deadline, since CI machines are slow; no figure depends on it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `braid ARGS`; log and output go to files in `logs`.
    pub fn start(logs: &Path, name: &str, args: &[&str]) -> Program {
        Program::start_in(logs, name, args, &[])
    }

    /// The same with variables.
    pub fn start_in(
        logs: &Path,
        name: &str,
        args: &[&str],
        variables: &[(String, String)],
    ) -> Program {
        let log = logs.join(format!("{name}.log"));
        let append = || {
            File::options()
                .create(true)
                .append(true)
                .open(&log)
                .unwrap()
        };
        let variables = variables.iter().map(|(name, value)| (name, value));
        let child = command(args)
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(append())
            .stderr(append())
            .spawn()
            .unwrap();
        Program {
            name: name.to_owned(),
            child,
            log,
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The kernel's status of the process.
    pub fn status(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap()
    }

    /// SIGKILL, without a chance to finish.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGINT, as Ctrl-C sends it.
    pub fn interrupt(&self) {
        let status = Command::new("sh")
            .args(["-c", &format!("kill -INT {}", self.child.id())])
            .status()
            .unwrap();
        assert!(status.success());
    }

    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} did not end in {limit:?}:\n{}",
                self.name,
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("== the end of {}'s log", self.name);
            for line in tail.into_iter().rev() {
                eprintln!("{line}");
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `braid ARGS` to its end: exit code, standard output, standard error.
pub fn run(args: &[&str]) -> (i32, String, String) {
    run_with(args, &[])
}

/// The same with variables.
pub fn run_with(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let output = command(args)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(args);
    // The environment of the tests must not configure the programs.
    for (name, _) in std::env::vars() {
        if name.starts_with("BRAID_") {
            command.env_remove(name);
        }
    }
    command
}

/// Polls until `condition` holds.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, condition);
}

pub fn eventually_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An address of this test alone, for services that must come back on the same one.
pub fn free_port() -> SocketAddr {
    testkit::ports::reserve().unwrap()
}

/// One HTTP request: status and body.
pub fn http(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let malformed = || std::io::Error::other("the answer is cut off");
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(malformed)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    Ok((status, body.to_owned()))
}

/// Rows of a device in the embedded store, and the number of different readings.
pub fn rows(data: &Path, device_like: &str) -> (u64, u64) {
    let open = || {
        let connection = rusqlite::Connection::open(data.join("store.db"))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.query_row(
            "SELECT COUNT(*), COUNT(DISTINCT s.device || '/' || v.sensor_sequence)
             FROM samples v JOIN streams s ON s.key = v.stream WHERE s.device LIKE ?1",
            [device_like],
            |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
        )
    };
    // Before the first service has created the tables there are no rows.
    open().map_or((0, 0), |(rows, readings)| (rows as u64, readings as u64))
}
