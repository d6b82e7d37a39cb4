//! Gives devices to other patients while readings wait in them.

use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use calendar::Zone;

use super::site::Site;

/// Pause before a command that failed is repeated: the database may be away.
const AGAIN: Duration = Duration::from_millis(500);
/// Time after which every service knows a change of the register.
const KNOWN_AFTER: Duration = Duration::from_secs(6);

/// A device that will be given to another patient.
pub(super) struct Held {
    pub next: &'static str,
    pub from_us: i64,
    pub is_held: Arc<AtomicBool>,
}

pub(super) struct Moves {
    held: BTreeMap<&'static str, Held>,
    threads: Vec<JoinHandle<Option<String>>>,
    deadline: Instant,
}

impl Moves {
    pub fn new(held: BTreeMap<&'static str, Held>, deadline: Instant) -> Moves {
        Moves {
            held,
            threads: Vec::new(),
            deadline,
        }
    }

    /// The device is held until the register knows its next wearer.
    pub fn begin(&mut self, patient: &str, site: &Site) {
        let Some(held) = self.held.remove(patient) else {
            return;
        };
        held.is_held.store(true, Ordering::Relaxed);
        let from = Zone::default().rfc3339(held.from_us).unwrap_or_default();
        let command = site.give_to(patient, held.next, &from);
        let deadline = self.deadline;
        self.threads.push(std::thread::spawn(move || {
            let failed = give(command, deadline);
            std::thread::sleep(KNOWN_AFTER);
            held.is_held.store(false, Ordering::Relaxed);
            failed.map(|said| format!("the device of {} was not given on: {said}", held.next))
        }));
    }

    /// The changes that failed.
    pub fn end(self) -> Vec<String> {
        let ended = self.threads.into_iter().map(|thread| match thread.join() {
            Ok(failed) => failed,
            Err(_) => Some("a change of wearers ended early".to_owned()),
        });
        ended.flatten().collect()
    }
}

/// The last words of the command, if it has not succeeded by the deadline.
fn give(mut command: Command, deadline: Instant) -> Option<String> {
    loop {
        let said = match command.output() {
            Ok(output) if output.status.success() => return None,
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            return Some(said);
        }
        std::thread::sleep(AGAIN);
    }
}
