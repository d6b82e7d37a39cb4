//! The links of a network in real time. One thread reads packets from the TUN devices, asks
//! the link model when each arrives, and writes it to the other end then.
//!
//! Packets are read singly (the devices offer no segmentation, so the kernel cuts everything to the
//! MTU) and in batches until a device is empty. The thread sleeps in `poll` until the next packet
//! is due, less a short time that it spends spinning. It has the least timer slack, and real-time
//! priority where the machine allows it. How late every packet was written is kept: a run in which
//! the emulator was late says nothing about the transport.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::lateness::Lateness;
use super::line::Line;
use super::network::Ends;
use super::priority::{self, Role};
use crate::wire::Wire;

/// Packets read from one device before the others, and what is due, have their turn.
const BATCH_PACKETS: usize = 32;
/// Packets written in one go; bounds how long reading waits.
const WRITES_MAX: usize = 256;
/// Spun instead of slept before a packet is due: about what waking up takes.
const SPIN: Duration = Duration::from_micros(30);
/// Longest sleep; only a bound, there is always something that ends it sooner.
const SLEEP_MAX: Duration = Duration::from_secs(1);
const PACKET_BYTES_MAX: usize = 2048;

/// Record of an emulator.
pub struct Emulated {
    /// By path: to the server, to the client.
    pub(crate) wires: Vec<[Wire; 2]>,
    /// By path, in the same order: bytes of the measured connection.
    pub own_bytes: Vec<[u64; 2]>,
    pub lateness: Lateness,
    /// Packets that a device did not take, and packets that the emulator had no room for.
    pub refused: u64,
    pub overflowed: u64,
    /// Whether the thread had real-time priority.
    pub realtime: bool,
}

/// A running emulator; ends when stopped or dropped.
pub struct Emulator {
    stop: OwnedFd,
    thread: Option<JoinHandle<Emulated>>,
}

#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    #[error("cannot start the emulator")]
    Start(#[source] io::Error),
    #[error("the emulator broke")]
    Broke,
}

impl Emulator {
    /// Time of the links is counted from `origin`; before it they stand at zero.
    pub(crate) fn start(
        ends: Vec<Ends>,
        wires: Vec<[Wire; 2]>,
        others: Others,
        origin: Instant,
    ) -> Result<Self, EmulatorError> {
        let start = |error: rustix::io::Errno| EmulatorError::Start(error.into());
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(start)?;
        let stopped = stop.try_clone().map_err(EmulatorError::Start)?;
        let thread = std::thread::Builder::new()
            .name("emulator".to_owned())
            .spawn(move || {
                let lines = wires.into_iter().map(|pair| pair.map(Line::new)).collect();
                Emulation {
                    ends,
                    lines,
                    others,
                    origin,
                    lateness: Lateness::default(),
                    refused: 0,
                }
                .run(&stopped)
            })
            .map_err(EmulatorError::Start)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends the emulation and gives what it saw.
    pub fn stop(mut self) -> Result<Emulated, EmulatorError> {
        self.signal();
        let thread = self.thread.take().ok_or(EmulatorError::Broke)?;
        thread.join().map_err(|_| EmulatorError::Broke)
    }

    fn signal(&self) {
        // An event counter takes a one at any time.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.signal();
            let _ = thread.join();
        }
    }
}

/// Packets of traffic that only the links see.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// Time, path and bytes; the last one comes first.
    pub(crate) packets: Vec<(Duration, usize, u64)>,
    /// 0 to the server, 1 to the client.
    pub(crate) direction: usize,
}

struct Emulation {
    ends: Vec<Ends>,
    lines: Vec<[Line; 2]>,
    others: Others,
    origin: Instant,
    lateness: Lateness,
    refused: u64,
}

impl Emulation {
    fn run(mut self, stop: &OwnedFd) -> Emulated {
        let realtime = priority::raise(Role::Emulator);
        let mut buffer = [0; PACKET_BYTES_MAX];
        // By path and direction: whether there may be packets to read.
        let mut ready = vec![[true; 2]; self.ends.len()];
        loop {
            let mut idle = true;
            self.pass_others();
            for (path, ready) in ready.iter_mut().enumerate() {
                for (direction, ready) in ready.iter_mut().enumerate() {
                    if *ready {
                        *ready = self.read(path, direction, &mut buffer);
                        idle &= !*ready;
                    }
                }
            }
            let now = self.now();
            self.write(now);
            if !idle {
                continue;
            }
            let due = self.lines.iter().flatten().filter_map(Line::next_due);
            let next = due.chain(self.next_other()).min();
            let wait = next.map_or(SLEEP_MAX, |due| {
                due.saturating_sub(self.now()).min(SLEEP_MAX)
            });
            let sleep = wait.saturating_sub(SPIN);
            match self.wait(sleep, stop, &mut ready) {
                Waited::Stopped => break,
                Waited::Ready => {}
                Waited::Nothing => {
                    if let Some(due) = next {
                        while self.now() < due.min(now + wait) {
                            std::hint::spin_loop();
                        }
                    }
                }
            }
        }
        Emulated {
            overflowed: self
                .lines
                .iter()
                .flatten()
                .map(|line| line.overflowed)
                .sum(),
            own_bytes: (self.lines.iter())
                .map(|pair| pair.each_ref().map(|line| line.own_bytes))
                .collect(),
            wires: self
                .lines
                .into_iter()
                .map(|pair| pair.map(|line| line.wire))
                .collect(),
            lateness: self.lateness,
            refused: self.refused,
            realtime,
        }
    }

    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.origin)
    }

    fn next_other(&self) -> Option<Duration> {
        self.others.packets.last().map(|packet| packet.0)
    }

    /// Passes what is due of the other traffic into the links.
    fn pass_others(&mut self) {
        if self.others.packets.is_empty() {
            return;
        }
        let now = self.now();
        while let Some((_, path, bytes)) = self.others.packets.pop_if(|packet| packet.0 <= now) {
            self.lines[path][self.others.direction].offer_other(now, bytes);
        }
    }

    /// Takes a batch from a device; whether there may be more.
    fn read(&mut self, path: usize, direction: usize, buffer: &mut [u8]) -> bool {
        let ends = &self.ends[path];
        let device = if direction == 0 {
            &ends.client
        } else {
            &ends.server
        };
        let line = &mut self.lines[path][direction];
        for _ in 0..BATCH_PACKETS {
            match device.recv(buffer) {
                // Only IPv4: the kernel's own IPv6 announcements are no traffic of the experiment.
                Ok(bytes) if bytes > 0 && buffer[0] >> 4 == 4 => {
                    let now = Instant::now().saturating_duration_since(self.origin);
                    line.offer(now, &mut buffer[..bytes]);
                }
                Ok(_) => {}
                // Empty, or gone, which `poll` reports.
                Err(_) => return false,
            }
        }
        true
    }

    fn write(&mut self, mut now: Duration) {
        for (ends, lines) in self.ends.iter().zip(&mut self.lines) {
            for (line, device) in lines.iter_mut().zip([&ends.server, &ends.client]) {
                for _ in 0..WRITES_MAX {
                    let Some((due, packet)) = line.take_due(now) else {
                        break;
                    };
                    if device.send(&packet).is_err() {
                        self.refused += 1;
                    }
                    line.recycle(packet);
                    now = Instant::now().saturating_duration_since(self.origin);
                    self.lateness.add(now.saturating_sub(due));
                }
            }
        }
    }

    fn wait(&self, sleep: Duration, stop: &OwnedFd, ready: &mut [[bool; 2]]) -> Waited {
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
        for ends in &self.ends {
            for device in [&ends.client, &ends.server] {
                fds.push(PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN));
            }
        }
        let timeout = Timespec {
            tv_sec: sleep.as_secs() as i64,
            tv_nsec: i64::from(sleep.subsec_nanos()),
        };
        // Interrupted or timed out: there is nothing to read.
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return Waited::Nothing;
        }
        // A device in error has lost its namespace: the run is over, and polling on would spin.
        let broken = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        let gone = fds.iter().any(|fd| fd.revents().intersects(broken));
        if gone || !fds[0].revents().is_empty() {
            return Waited::Stopped;
        }
        for (index, fd) in fds[1..].iter().enumerate() {
            ready[index / 2][index % 2] = fd.revents().contains(PollFlags::IN);
        }
        Waited::Ready
    }
}

enum Waited {
    Stopped,
    Ready,
    Nothing,
}
