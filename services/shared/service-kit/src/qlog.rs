//! Recording a gateway's paths as qlog files, on demand: `braid qlog` at the admin listener.
//!
//! The transport is sampled, and only changes are written. A recording costs nothing while there is
//! none, and begins on a running connection. It has at most `files` files of `file_bytes` each;
//! then the oldest is deleted. All recordings of a process have at most [`TOTAL_BYTES_MAX`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::Shutdown;
use crate::path_table::PathTable;

mod trace;

use trace::Trace;

/// Interval of samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Gateways that are recorded at once; a further recording is refused.
const RECORDINGS_MAX: usize = 8;
pub const FILES: std::ops::RangeInclusive<u64> = 1..=16;
pub const FILE_BYTES: std::ops::RangeInclusive<u64> = (64 << 10)..=(64 << 20);
pub const SECONDS: std::ops::RangeInclusive<u64> = 1..=86_400;
/// Bytes of all files of a process; beyond it the oldest ones are deleted.
const TOTAL_BYTES_MAX: u64 = 512 << 20;
/// Characters of a gateway's name, which becomes the name of a folder.
const NAME_CHARS_MAX: usize = 128;
/// Ending of qlog in JSON text sequences.
const ENDING: &str = "sqlog";

/// A wish to record. The recording ends by itself after `seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// `None`: the only gateway of the process.
    pub gateway: Option<String>,
    pub files: u64,
    pub file_bytes: u64,
    pub seconds: u64,
}

/// A recording, as `/qlog` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    pub service: String,
    pub gateway: String,
    pub folder: PathBuf,
    pub files_max: u64,
    pub file_bytes_max: u64,
    /// Bytes written so far, with those of deleted files.
    pub written_bytes: u64,
    pub seconds_left: u64,
    /// Why it ended early.
    pub failed: Option<String>,
}

/// The answer of `/qlog`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recordings {
    pub recordings: Vec<Recording>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QlogError {
    #[error("{field}: {value} is not within {least} to {most}")]
    Limit {
        field: &'static str,
        value: u64,
        least: u64,
        most: u64,
    },
    #[error("gateway: {0:?} is no name of a gateway")]
    Name(String),
    #[error("no path is open here")]
    NoPath,
    #[error("gateway: several gateways have paths here; name one")]
    Several,
    #[error("{0} is recorded already; stop that recording first")]
    Recorded(String),
    #[error("{RECORDINGS_MAX} gateways are recorded already; stop one first")]
    Full,
    #[error("{0}")]
    Folder(String),
}

/// The recordings of one service.
pub struct Recorder {
    service: &'static str,
    folder: PathBuf,
    table: PathTable,
    shutdown: Shutdown,
    /// By gateway. One that has ended stays until it is stopped or any recording starts.
    open: Mutex<BTreeMap<String, Open>>,
}

struct Open {
    shared: Arc<Mutex<Shared>>,
    /// Ends the recording when it is dropped.
    stop: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

struct Shared {
    recording: Recording,
    until: Instant,
}

impl Recorder {
    /// Writes below `folder`, which is made with the first recording.
    pub(crate) fn new(
        service: &'static str,
        folder: PathBuf,
        table: PathTable,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            service,
            folder,
            table,
            shutdown,
            open: Mutex::default(),
        }
    }

    pub fn start(&self, wanted: &Wanted) -> Result<Recording, QlogError> {
        for (field, value, range) in [
            ("files", wanted.files, FILES),
            ("file_bytes", wanted.file_bytes, FILE_BYTES),
            ("seconds", wanted.seconds, SECONDS),
        ] {
            if !range.contains(&value) {
                let (least, most) = (*range.start(), *range.end());
                return Err(QlogError::Limit {
                    field,
                    value,
                    least,
                    most,
                });
            }
        }
        let gateway = self.gateway(wanted.gateway.as_deref())?;
        let folder = self.folder.join(&gateway);
        let mut open = self.open.lock();
        open.retain(|_, it| !it.thread.is_finished());
        if open.contains_key(&gateway) {
            return Err(QlogError::Recorded(gateway));
        }
        if open.len() >= RECORDINGS_MAX {
            return Err(QlogError::Full);
        }
        let recording = Recording {
            service: self.service.to_owned(),
            gateway: gateway.clone(),
            folder: folder.clone(),
            files_max: wanted.files,
            file_bytes_max: wanted.file_bytes,
            written_bytes: 0,
            seconds_left: wanted.seconds,
            failed: None,
        };
        let in_folder =
            |error: io::Error| QlogError::Folder(format!("{}: {error}", folder.display()));
        private_files::folder(&folder).map_err(in_folder)?;
        let shared = Arc::new(Mutex::new(Shared {
            recording: recording.clone(),
            until: Instant::now() + Duration::from_secs(wanted.seconds),
        }));
        let (stop, stopped) = mpsc::channel();
        let writer = Writer {
            root: self.folder.clone(),
            table: Arc::clone(&self.table),
            shutdown: self.shutdown.clone(),
            shared: Arc::clone(&shared),
            trace: Trace::default(),
            file: None,
        };
        let thread = std::thread::Builder::new()
            .name("qlog".to_owned())
            .spawn(move || writer.run(&stopped))
            .map_err(in_folder)?;
        let entry = Open {
            shared,
            stop,
            thread,
        };
        open.insert(gateway, entry);
        Ok(recording)
    }

    /// Ends the recording of this gateway, or all; returns them as they ended.
    pub fn stop(&self, gateway: Option<&str>) -> Vec<Recording> {
        let mut ended = Vec::new();
        let mut open = self.open.lock();
        let names: Vec<String> = (open.keys())
            .filter(|name| gateway.is_none_or(|gateway| gateway == **name))
            .cloned()
            .collect();
        for name in names {
            let Some(it) = open.remove(&name) else {
                continue;
            };
            drop(it.stop);
            // The last samples are written before the answer.
            if it.thread.join().is_err() {
                tracing::error!(gateway = name, "a recording ended with a panic");
            }
            ended.push(shown(&it.shared, true));
        }
        ended
    }

    pub fn list(&self) -> Vec<Recording> {
        let open = self.open.lock();
        let each = open.values();
        each.map(|it| shown(&it.shared, it.thread.is_finished()))
            .collect()
    }

    /// The named gateway, if it has a path here, or the only one.
    fn gateway(&self, named: Option<&str>) -> Result<String, QlogError> {
        if let Some(name) = named
            && !is_name(name)
        {
            return Err(QlogError::Name(name.to_owned()));
        }
        let rows = (self.table)(named);
        let gateway = rows.first().ok_or(QlogError::NoPath)?.gateway.clone();
        if rows.iter().any(|row| row.gateway != gateway) {
            return Err(QlogError::Several);
        }
        if !is_name(&gateway) {
            return Err(QlogError::Name(gateway));
        }
        Ok(gateway)
    }
}

fn shown(shared: &Mutex<Shared>, has_ended: bool) -> Recording {
    let shared = shared.lock();
    let left = shared.until.saturating_duration_since(Instant::now());
    Recording {
        seconds_left: if has_ended { 0 } else { left.as_secs() },
        ..shared.recording.clone()
    }
}

/// A name that stays within the folder.
fn is_name(name: &str) -> bool {
    (1..=NAME_CHARS_MAX).contains(&name.len())
        && !name.starts_with('.')
        && (name.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
}

struct Writer {
    root: PathBuf,
    table: PathTable,
    shutdown: Shutdown,
    shared: Arc<Mutex<Shared>>,
    trace: Trace,
    file: Option<OpenFile>,
}

struct OpenFile {
    file: File,
    began: Instant,
    bytes: u64,
}

impl Writer {
    fn run(mut self, stopped: &mpsc::Receiver<()>) {
        let until = self.shared.lock().until;
        loop {
            if let Err(error) = self.sample() {
                let gateway = self.shared.lock().recording.gateway.clone();
                tracing::warn!(gateway, %error, "a qlog recording ends");
                self.shared.lock().recording.failed = Some(error.to_string());
                break;
            }
            let waited = stopped.recv_timeout(SAMPLE_EVERY);
            let is_over = Instant::now() >= until || self.shutdown.is_requested();
            if is_over || !matches!(waited, Err(mpsc::RecvTimeoutError::Timeout)) {
                break;
            }
        }
    }

    fn sample(&mut self) -> io::Result<()> {
        let recording = self.shared.lock().recording.clone();
        let rows = (self.table)(Some(&recording.gateway));
        let mut text = Vec::new();
        if let Some(file) = &mut self.file {
            let time_ms = file.began.elapsed().as_secs_f64() * 1e3;
            text = self.trace.events(time_ms, &rows);
            if text.is_empty() {
                return Ok(());
            }
            if file.bytes + text.len() as u64 > recording.file_bytes_max {
                self.file = None;
            }
        }
        if self.file.is_none() {
            // Each file can be read alone.
            self.trace = Trace::default();
            text = header(&recording);
            text.extend(self.trace.events(0.0, &rows));
            if text.len() as u64 > recording.file_bytes_max {
                let reason = "one sample has more bytes than a file may have";
                return Err(io::Error::other(reason));
            }
            self.make_room(&recording)?;
            self.file = Some(OpenFile {
                file: create(&recording.folder)?,
                began: Instant::now(),
                bytes: 0,
            });
        }
        if let Some(file) = &mut self.file {
            file.file.write_all(&text)?;
            file.bytes += text.len() as u64;
            self.shared.lock().recording.written_bytes += text.len() as u64;
        }
        Ok(())
    }

    /// Deletes the oldest files of the gateway, and then of all gateways, until one more has room.
    fn make_room(&self, recording: &Recording) -> io::Result<()> {
        let mut own = files(&recording.folder)?;
        own.sort();
        let surplus = (own.len() as u64 + 1).saturating_sub(recording.files_max);
        for (_, file, _) in own
            .iter()
            .take(usize::try_from(surplus).unwrap_or(usize::MAX))
        {
            fs::remove_file(file)?;
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                all.extend(files(&entry.path())?);
            }
        }
        all.sort();
        let mut bytes: u64 = all.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, file, of_file) in all {
            if bytes + recording.file_bytes_max <= TOTAL_BYTES_MAX {
                break;
            }
            fs::remove_file(file)?;
            bytes -= of_file;
        }
        Ok(())
    }
}

/// Time of the last change, place and bytes of each recorded file.
fn files(folder: &Path) -> io::Result<Vec<(SystemTime, PathBuf, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            let about = fs::metadata(&path)?;
            found.push((about.modified()?, path, about.len()));
        }
    }
    Ok(found)
}

fn create(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("{}.{ENDING}", unix_us()));
    private_files::options()
        .write(true)
        .create_new(true)
        .open(path)
}

fn unix_us() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros())
}

fn header(recording: &Recording) -> Vec<u8> {
    // The end that opens the connection is its client. `braid up` shows its gateways' ends.
    let vantage_point = match recording.service.as_str() {
        "proxy" => "server",
        _ => "client",
    };
    let now_us = i64::try_from(unix_us()).unwrap_or(0);
    let now = calendar::rfc3339_ms(now_us).unwrap_or_default();
    trace::header(&recording.service, &recording.gateway, vantage_point, &now)
}

#[cfg(test)]
mod tests;
