//! SCTP of userland for byte streams: builds `loadtest/peers/sctp_relay.c` with the installed
//! library, and runs it at both ends.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;

use super::super::bed::KernelError;
use super::super::namespace::Namespace;
use super::super::network::{client_ip, server_ip};
use super::super::priority::{self, Role};
use crate::error::LabError;
use crate::scenario::Buffers;

const SOURCE: &str = include_str!("../../../../peers/sctp_relay.c");
/// Buffers where the scenario gives none: the paper's with WLAN.
const BUFFERS: Buffers = Buffers {
    send_bytes: 1 << 20,
    receive_bytes: 2 << 20,
};
const READY: &str = "ready";
/// Set where a missing program is a failure.
const REQUIRED: &str = "BRAID_REQUIRE_PROGRAMS";

/// The program, built for this run of the lab.
pub(crate) struct Relay {
    program: PathBuf,
    folder: TempDir,
    number: Mutex<u32>,
}

/// Names of the Unix sockets of one run.
#[derive(Clone)]
pub(crate) struct Sockets {
    folder: PathBuf,
}

/// A relay that runs until this is dropped.
pub(crate) struct Running(Arc<Mutex<Option<Child>>>);

/// A relay that is to be started.
pub(crate) struct Waiting {
    command: Command,
    running: Arc<Mutex<Option<Child>>>,
}

impl Relay {
    /// Builds the program. None, with the reason, where compiler or library are missing; that is an
    /// error where programs are required.
    pub(crate) fn build() -> Result<Result<Self, String>, LabError> {
        let reason = match Self::try_build().map_err(KernelError::from)? {
            Ok(relay) => return Ok(Ok(relay)),
            Err(reason) => reason,
        };
        if std::env::var_os(REQUIRED).is_some() {
            return Err(KernelError::Endpoint(reason).into());
        }
        Ok(Err(reason))
    }

    fn try_build() -> io::Result<Result<Self, String>> {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("sctp_relay");
        let missing = |why: &str| {
            format!(
                "CMT-SCTP needs a C compiler and usrsctp (infra/dev/need.sh sctp, Debian's \
                 libusrsctp-dev): {why}"
            )
        };
        let started = Command::new("cc")
            .args(["-O2", "-x", "c", "-", "-o"])
            .arg(&program)
            .args(["-lusrsctp", "-lpthread"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut compiler = match started {
            Ok(compiler) => compiler,
            Err(error) => return Ok(Err(missing(&format!("cc: {error}")))),
        };
        if let Some(mut input) = compiler.stdin.take() {
            // A compiler that has given up reads no further, and says why.
            let _ = input.write_all(SOURCE.as_bytes());
        }
        let output = compiler.wait_with_output()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            let first = errors.lines().find(|line| line.contains("error"));
            return Ok(Err(missing(first.unwrap_or("cc failed").trim())));
        }
        Ok(Ok(Self {
            program,
            folder,
            number: Mutex::default(),
        }))
    }

    /// A folder for the sockets of one run.
    pub(crate) fn sockets(&self) -> io::Result<Sockets> {
        let mut number = self.number.lock();
        *number += 1;
        let folder = self.folder.path().join(number.to_string());
        std::fs::create_dir(&folder)?;
        Ok(Sockets { folder })
    }

    /// Starts the server's relay in its namespace.
    pub(crate) fn accept(
        &self,
        namespace: &Namespace,
        sockets: &Sockets,
        buffers: Option<Buffers>,
        paths: usize,
    ) -> Result<Running, KernelError> {
        let mut command = self.command(namespace, "accept", sockets.server(), buffers, paths);
        command.args((0..paths).map(|path| server_ip(path).to_string()));
        let child = spawn(command)?;
        Ok(Running(Arc::new(Mutex::new(Some(child)))))
    }

    /// The client's relay, which connects when it is started.
    pub(crate) fn connect(
        &self,
        namespace: &Namespace,
        sockets: &Sockets,
        buffers: Option<Buffers>,
        paths: usize,
    ) -> Waiting {
        let mut command = self.command(namespace, "connect", sockets.client(), buffers, paths);
        command
            .args((0..paths).map(|path| client_ip(path).to_string()))
            .args(["--", &server_ip(0).to_string()]);
        Waiting {
            command,
            running: Arc::default(),
        }
    }

    fn command(
        &self,
        namespace: &Namespace,
        role: &str,
        local: PathBuf,
        buffers: Option<Buffers>,
        paths: usize,
    ) -> Command {
        let buffers = buffers.unwrap_or(BUFFERS);
        let bytes = |bytes: u64| i32::try_from(bytes).unwrap_or(i32::MAX).to_string();
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace.name()])
            .arg(&self.program)
            .arg(role)
            .arg(local)
            .arg(if paths > 1 { "1" } else { "0" })
            .args([bytes(buffers.send_bytes), bytes(buffers.receive_bytes)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }
}

impl Sockets {
    pub(crate) fn server(&self) -> PathBuf {
        self.folder.join("server")
    }

    pub(crate) fn client(&self) -> PathBuf {
        self.folder.join("client")
    }
}

impl Waiting {
    /// The relay to start elsewhere, and what ends it.
    pub(crate) fn split(self) -> (Self, Running) {
        let running = Running(self.running.clone());
        (self, running)
    }

    /// Starts the relay, and waits until its association is up.
    pub(crate) fn start(self) -> io::Result<()> {
        let mut child = spawn(self.command)?;
        let output = child.stdout.take();
        *self.running.lock() = Some(child);
        ready(output)
    }
}

impl Running {
    /// Waits until the relay listens.
    pub(crate) fn wait_until_ready(&mut self) -> io::Result<()> {
        let output = self.0.lock().as_mut().and_then(|child| child.stdout.take());
        ready(output)
    }
}

/// Starts a relay with the priority of an endpoint, which it has from the thread that starts it.
fn spawn(mut command: Command) -> io::Result<Child> {
    let thread = std::thread::spawn(move || {
        priority::raise(Role::Endpoint);
        command.spawn()
    });
    let failed = |_| {
        Err(io::Error::other(
            "the thread that starts the relay has ended",
        ))
    };
    thread.join().unwrap_or_else(failed)
}

fn ready(output: Option<std::process::ChildStdout>) -> io::Result<()> {
    let output = output.ok_or(io::ErrorKind::BrokenPipe)?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() == READY {
        return Ok(());
    }
    Err(io::Error::other("the relay of SCTP has ended"))
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.lock().take() {
            // One that has ended already is only waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
