//! Network namespaces by name, made and removed by `ip` (iproute2).
//!
//! A name carries the process that made it. A namespace goes with its owner (`Drop`); one whose
//! process is gone, because it was killed, is removed when the next one is made.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};

use super::priority::{self, Role};

/// Where `ip netns` keeps its names.
const NAMES_DIR: &str = "/run/netns";
const NAME_PREFIX: &str = "braidlab-";
/// Names looked at when the dead are removed; more would mean that something else is wrong.
const STALE_MAX: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error(
        "kernel time makes network namespaces and TUN devices, which only root may do (in a \
         container with CAP_NET_ADMIN and CAP_SYS_ADMIN): run it as root, for example with sudo"
    )]
    NotRoot,
    #[error("`ip` is not installed: the package is called iproute2")]
    NoIp,
    #[error("`ip {arguments}` failed: {message}")]
    Ip { arguments: String, message: String },
    #[error("cannot enter the network namespace {name}")]
    Enter { name: String, source: io::Error },
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Runs `ip` with these arguments.
pub fn ip(arguments: &[&str]) -> Result<(), NamespaceError> {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|_| NamespaceError::NoIp)?;
    if output.status.success() {
        return Ok(());
    }
    Err(NamespaceError::Ip {
        arguments: arguments.join(" "),
        message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Whether this process may make namespaces and devices; the error says what is missing.
pub fn permitted() -> Result<(), NamespaceError> {
    // Root in a container may lack them.
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN;
    let has = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    if !has || !rustix::process::geteuid().is_root() {
        return Err(NamespaceError::NotRoot);
    }
    ip(&["-Version"])
}

/// A namespace of this process.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// `role` is part of the name, for people who look.
    pub fn new(role: &str) -> Result<Self, NamespaceError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        permitted()?;
        remove_stale();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAME_PREFIX}{}-{number}-{role}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ip` inside.
    pub fn ip(&self, arguments: &[&str]) -> Result<(), NamespaceError> {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments);
        ip(&all)
    }

    /// Runs `work` on a thread inside. Sockets, devices and threads that it makes belong to the
    /// namespace for good.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        let enter = || -> io::Result<()> {
            let file = File::open(Path::new(NAMES_DIR).join(&self.name))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(())
        };
        let entered = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name(self.name.clone())
                .spawn_scoped(scope, || enter().map(|()| work()))
                .map_err(NamespaceError::Thread)?;
            Ok(match thread.join() {
                Ok(entered) => entered,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        entered.map_err(|source| NamespaceError::Enter {
            name: self.name.clone(),
            source,
        })
    }

    /// A runtime whose threads all live inside. Work has to be spawned on it: `block_on` would run
    /// on the caller's thread.
    pub fn runtime(&self) -> Result<tokio::runtime::Runtime, NamespaceError> {
        // Threads inherit the namespace of the thread that starts them, and every one is started by
        // this one or its kin.
        self.run(|| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name(&self.name)
                .on_thread_start(|| {
                    priority::raise(Role::Endpoint);
                })
                .enable_all()
                .build()
        })?
        .map_err(NamespaceError::Thread)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A namespace that cannot be removed now is stale to the next process.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Removes namespaces whose process is gone.
fn remove_stale() {
    let Ok(names) = std::fs::read_dir(NAMES_DIR) else {
        return;
    };
    for entry in names.flatten().take(STALE_MAX) {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let Some(process) = owner_of(name) else {
            continue;
        };
        if !Path::new("/proc").join(process.to_string()).exists() {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(NAME_PREFIX)?
        .split('-')
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner() {
        assert_eq!(owner_of("braidlab-4711-0-client"), Some(4711));
        assert_eq!(owner_of("braidlab-x-0-client"), None);
        assert_eq!(owner_of("somebody-4711"), None);
    }
}
