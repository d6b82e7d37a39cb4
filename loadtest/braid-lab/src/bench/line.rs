//! The setup of the speed figures: a gateway and a proxy, each as a process, joined by two paths on
//! loopback. Beside them run two bare ends of the library.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use service_kit::tls::authority::LocalAuthority;
use service_kit::tls::{IdentityFiles, PeerId};

use super::readings::{PATIENCE, POLL_INTERVAL, memory_mib, scrape, unusable};
use crate::failure::{Failure, block_on};

/// The kernel's unit of processor time.
pub(super) const TICKS_PER_S: f64 = 100.0;
/// No server listens there: the gateway's own uplinks stay down, and its applications do not need
/// them.
const NOWHERE: &str = "https://127.0.0.1:1";

/// A process under measurement, killed when dropped.
pub(super) struct Process {
    child: Child,
    name: &'static str,
}

impl Process {
    pub(super) fn spawn(name: &'static str, command: &mut Command) -> Result<Process, Failure> {
        let child = command
            .spawn()
            .map_err(|error| Failure::other(format!("cannot start {name}: {error}")))?;
        Ok(Process { child, name })
    }

    /// Processor time used so far, by the process and by the kernel for it.
    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(|error| unusable(&path, &error))?;
        // The name in parentheses may contain any character; utime and stime are the 12th and 13th
        // field after it.
        let ticks: Option<f64> = text.rsplit_once(") ").and_then(|(_, rest)| {
            let mut fields = rest.split(' ').skip(11);
            Some(fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?)
        });
        ticks
            .map(|ticks| Duration::from_secs_f64(ticks / TICKS_PER_S))
            .ok_or_else(|| Failure::other(format!("{path} cannot be read")))
    }

    pub(super) fn memory(&self) -> Result<f64, Failure> {
        memory_mib(&self.child)
    }

    pub(super) fn is_running(&mut self) -> Result<(), Failure> {
        match self.child.try_wait().map_err(Failure::other)? {
            None => Ok(()),
            Some(status) => Err(Failure::other(format!("{} ended: {status}", self.name))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Files of one run, removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Scratch {
    pub(super) fn new() -> Result<Scratch, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "braid-bench-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        std::fs::create_dir_all(&path).map_err(|error| unusable(&path, &error))?;
        Ok(Scratch(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn identity(&self, id: &PeerId) -> Result<IdentityFiles, Failure> {
        let authority = LocalAuthority::open_or_create(&self.0).map_err(Failure::other)?;
        authority
            .issue(id, &["proxy".to_owned()])
            .map_err(Failure::other)
    }
}

pub(super) fn with_identity(command: &mut Command, files: &IdentityFiles) {
    command.arg("--cert").arg(&files.cert);
    command.arg("--key").arg(&files.key);
    command.arg("--ca").arg(&files.ca);
}

/// The program that ships.
pub(super) fn braid() -> Result<Command, Failure> {
    let mut command = Command::new(lab::shipped::braid().map_err(Failure::other)?);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

/// A free address for a service that needs its address in advance.
pub(super) fn free_port() -> Result<SocketAddr, Failure> {
    testkit::ports::reserve().map_err(Failure::other)
}

/// A gateway and a proxy.
pub(super) struct Line {
    pub(super) gateway: Process,
    pub(super) proxy: Process,
    /// Address for applications.
    applications: SocketAddr,
    admins: [SocketAddr; 2],
}

impl Line {
    /// Returns once a tunnel to `destination` can be opened and both paths carry datagrams.
    pub(super) fn start(scratch: &Scratch, destination: SocketAddr) -> Result<Line, Failure> {
        let (applications, tunnel) = (free_port()?, free_port()?);
        let admins = [free_port()?, free_port()?];
        let mut command = braid()?;
        command
            .args(["proxy", "--path-telemetry", "", "--log", "warn"])
            .args(["--listen", &tunnel.to_string()])
            .args(["--admin", &admins[1].to_string()])
            .args(["--allow", &destination.to_string()])
            .args(["--requests-per-second-max", "1000"]);
        with_identity(&mut command, &scratch.identity(&PeerId::service("proxy"))?);
        let proxy = Process::spawn("braid proxy", &mut command)?;
        let mut command = braid()?;
        command
            .args(["gateway", "--path-telemetry", "", "--ingest", NOWHERE])
            .args(["--log", "warn", "--listen", "127.0.0.1:0"])
            .args(["--interface", "wifi=127.0.1.1"])
            .args(["--interface", "lte=127.0.2.1"])
            .args(["--applications", &applications.to_string()])
            .args(["--admin", &admins[0].to_string()])
            .args(["--proxy", &tunnel.to_string()])
            .arg("--data-dir")
            .arg(scratch.0.join("gateway"));
        with_identity(
            &mut command,
            &scratch.identity(&PeerId::gateway("default", "bench"))?,
        );
        let gateway = Process::spawn("braid gateway", &mut command)?;
        let mut line = Line {
            gateway,
            proxy,
            applications,
            admins,
        };
        line.wait(destination)?;
        Ok(line)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "no runtime runs here: the bench is a thread"
    )]
    fn wait(&mut self, destination: SocketAddr) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while self.connect(destination).is_err() {
            self.gateway.is_running()?;
            self.proxy.is_running()?;
            if Instant::now() > deadline {
                return Err(Failure::other("no tunnel within the time allowed"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// A connection of an application through gateway and proxy.
    pub(super) fn connect(&self, destination: SocketAddr) -> Result<TcpStream, Failure> {
        let mut stream = TcpStream::connect(self.applications).map_err(Failure::other)?;
        stream.set_nodelay(true).map_err(Failure::other)?;
        let request = format!("CONNECT {destination} HTTP/1.1\r\n\r\n");
        stream
            .write_all(request.as_bytes())
            .map_err(Failure::other)?;
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).map_err(Failure::other)?;
            answer.push(byte[0]);
        }
        match answer.starts_with(b"HTTP/1.1 200 ") {
            true => Ok(stream),
            false => Err(Failure::other(String::from_utf8_lossy(&answer))),
        }
    }

    /// Datagrams per system call of both processes since their start, sent and received.
    pub(super) fn datagrams_per_call(&self) -> Result<(f64, f64), Failure> {
        let texts = block_on(async {
            let mut texts = String::new();
            for admin in self.admins {
                texts += &scrape(admin).await.unwrap_or_default();
            }
            texts
        })?;
        let sum = |name: &str| -> f64 {
            texts
                .lines()
                .filter(|line| line.starts_with(name))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        Ok((
            sum("braid_tunnel_sent_datagrams_total") / sum("braid_tunnel_sends_total"),
            sum("braid_tunnel_received_datagrams_total") / sum("braid_tunnel_receives_total"),
        ))
    }
}

/// Two bare ends.
pub(super) struct Ends {
    pub(super) client: Process,
    pub(super) server: Process,
    /// Output of the client.
    answers: BufReader<ChildStdout>,
}

impl Ends {
    /// The arguments of client and server besides the usual ones.
    fn start(scratch: &Scratch, client: &[&str], server: &[&str]) -> Result<Ends, Failure> {
        let id = PeerId::service("proxy");
        let mut serving = Self::end("the bare server", scratch, &id, server)?;
        let address = first_line(&mut answers(&mut serving)?)?;
        let id = PeerId::gateway("default", "bare");
        let arguments = [&["--to", &address], client].concat();
        let mut asking = Self::end("the bare client", scratch, &id, &arguments)?;
        Ok(Ends {
            answers: answers(&mut asking)?,
            client: asking,
            server: serving,
        })
    }

    fn end(
        name: &'static str,
        scratch: &Scratch,
        id: &PeerId,
        arguments: &[&str],
    ) -> Result<Process, Failure> {
        let mut command = Command::new(std::env::current_exe().map_err(Failure::other)?);
        command.arg("bench-end").args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        with_identity(&mut command, &scratch.identity(id)?);
        Process::spawn(name, &mut command)
    }

    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        Ok(self.client.cpu()? + self.server.cpu()?)
    }
}

fn answers(process: &mut Process) -> Result<BufReader<ChildStdout>, Failure> {
    let out = process.child.stdout.take();
    out.map(BufReader::new)
        .ok_or_else(|| Failure::other("no pipe"))
}

fn first_line(answers: &mut BufReader<ChildStdout>) -> Result<String, Failure> {
    let mut line = String::new();
    answers.read_line(&mut line).map_err(Failure::other)?;
    Ok(line.trim().to_owned())
}

/// A bare pair whose client takes orders.
pub(super) struct Bare {
    pub(super) ends: Ends,
    orders: ChildStdin,
}

impl Bare {
    pub(super) fn start(scratch: &Scratch) -> Result<Bare, Failure> {
        let mut ends = Ends::start(scratch, &[], &[])?;
        let orders = ends.client.child.stdin.take();
        Ok(Bare {
            orders: orders.ok_or_else(|| Failure::other("no pipe"))?,
            ends,
        })
    }

    /// Moves `bytes` and returns the time that it took.
    pub(super) fn transfer(&mut self, direction: &str, bytes: u64) -> Result<Duration, Failure> {
        writeln!(self.orders, "{direction} {bytes}").map_err(Failure::other)?;
        let answer = first_line(&mut self.ends.answers)?;
        let seconds: f64 = answer.parse().map_err(Failure::other)?;
        Ok(Duration::from_secs_f64(seconds))
    }
}

/// A bare pair between TCP connections.
pub(super) struct Joined {
    pub(super) ends: Ends,
    address: SocketAddr,
}

impl Joined {
    pub(super) fn start(scratch: &Scratch, destination: SocketAddr) -> Result<Joined, Failure> {
        let forward = destination.to_string();
        let mut ends = Ends::start(scratch, &["--listen"], &["--forward", &forward])?;
        let address = first_line(&mut ends.answers)?;
        Ok(Joined {
            address: address.parse().map_err(Failure::other)?,
            ends,
        })
    }

    /// A connection to the destination.
    pub(super) fn connect(&self) -> Result<TcpStream, Failure> {
        let stream = TcpStream::connect(self.address).map_err(Failure::other)?;
        stream.set_nodelay(true).map_err(Failure::other)?;
        Ok(stream)
    }
}
