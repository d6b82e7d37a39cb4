//! Samples that ingest refused. They are kept for people, because a repetition would be refused
//! again.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use contracts::vitals::{Sample, sample::Reading};
use parking_lot::Mutex;
use serde_json::json;
use service_kit::{Warning, WarningHandle};

use crate::sealing::{Keys, Unopened};

/// At this size the file becomes `.1`, and the previous `.1` is deleted. A warning gives the number
/// of its samples.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// The name to which lines are bound.
const LINE: &str = "refused";
/// Key of a line that is sealed.
const SEALED: &str = "sealed";
const SEALED_LINE: &str = "{\"sealed\":";

/// A file of JSON lines, each sealed. `braid gateway rejected` prints them.
pub struct DeadLetters {
    path: PathBuf,
    keys: Keys,
    bytes_max: u64,
    /// Samples that were deleted since the start.
    lost: Mutex<u64>,
    warning: WarningHandle,
}

impl DeadLetters {
    pub fn new(path: PathBuf, keys: Keys, warning: WarningHandle) -> Self {
        Self {
            path,
            keys,
            bytes_max: FILE_BYTES_MAX,
            lost: Mutex::new(0),
            warning,
        }
    }

    /// Makes room by deleting the oldest samples.
    fn turn(&self, lost: &mut u64) -> io::Result<()> {
        let older = self.path.with_extension("jsonl.1");
        let lines = match fs::read(&older) {
            Ok(bytes) => bytes.iter().filter(|byte| **byte == b'\n').count() as u64,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        fs::rename(&self.path, &older)?;
        if lines == 0 {
            return Ok(());
        }
        *lost += lines;
        metrics::counter!("braid_gateway_dead_letters_lost_total").increment(lines);
        tracing::error!(
            samples = lines,
            "refused samples are deleted for newer ones"
        );
        let path = self.path.display();
        self.warning.set(Some(Warning {
            says: format!(
                "{lost} samples that ingest refused were deleted from {path}: it is full"
            ),
            to_do:
                "mend what ingest refuses, by the reasons in the file, and admit its samples by \
                    `braid quarantine readmit`"
                    .to_owned(),
        }));
        Ok(())
    }

    /// Blocks on the disk.
    pub fn put(&self, refused: &[(Sample, String)], now_us: i64) -> io::Result<()> {
        let mut lost = self.lost.lock();
        if fs::metadata(&self.path).is_ok_and(|file| file.len() >= self.bytes_max) {
            self.turn(&mut lost)?;
        }
        let mut lines = Vec::new();
        for (sample, reason) in refused {
            let reading = match &sample.reading {
                Some(Reading::Value(value)) => json!(value),
                Some(Reading::Waveform(waveform)) => {
                    json!({ "period_us": waveform.period_us, "values": waveform.values })
                }
                None => json!(null),
            };
            let line = json!({
                "reason": reason,
                "refused_us": now_us,
                "device": sample.device,
                "stream": sample.stream,
                "sequence": sample.sequence,
                "metric": vitals::name(sample.metric()),
                "unit": sample.unit,
                "device_time_us": sample.device_time_us,
                "reading": reading,
            });
            let line = to_stored(&line.to_string(), &self.keys)?;
            lines.extend_from_slice(line.as_bytes());
            lines.push(b'\n');
        }
        private_files::mend_file(&self.path)?;
        let mut file = private_files::options()
            .create(true)
            .append(true)
            .open(&self.path)?;
        file.write_all(&lines)?;
        file.sync_data()
    }
}

fn to_stored(line: &str, keys: &Keys) -> io::Result<String> {
    if !keys.seals() {
        return Ok(line.to_owned());
    }
    let sealed = keys.seal(LINE, line.as_bytes())?;
    Ok(json!({ SEALED: BASE64.encode(sealed) }).to_string())
}

/// Seals the lines that an older version wrote in clear. Blocks on the disk.
pub fn seal_old(path: &Path, keys: &Keys) -> io::Result<()> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read?,
    };
    let is_clear = |line: &&str| !line.starts_with(SEALED_LINE);
    if !keys.seals() || !text.lines().any(|line| is_clear(&line)) {
        return Ok(());
    }
    let mut sealed = String::new();
    for line in text.lines() {
        match is_clear(&line) {
            true => sealed.push_str(&to_stored(line, keys)?),
            false => sealed.push_str(line),
        }
        sealed.push('\n');
    }
    private_files::replace(path, sealed.as_bytes())
}

/// The lines of a file in clear, also of one that an older version wrote. A damaged line is left
/// out, and counted.
pub fn read(path: &Path, keys: &Keys) -> io::Result<(String, usize)> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let (mut lines, mut damaged) = (String::new(), 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let parsed: Option<serde_json::Value> = serde_json::from_str(line).ok();
        let sealed = parsed.as_ref().and_then(|it| it.get(SEALED)?.as_str());
        let opened = match (sealed, &parsed) {
            (Some(sealed), _) => {
                let bytes = BASE64.decode(sealed).map_err(|_| Unopened::Damaged);
                bytes.and_then(|bytes| match Keys::is_sealed(&bytes) {
                    true => keys.unseal(LINE, bytes),
                    false => Err(Unopened::Damaged),
                })
            }
            (None, Some(_)) => Ok(line.as_bytes().to_vec()),
            (None, None) => Err(Unopened::Damaged),
        };
        match opened.map(String::from_utf8) {
            Ok(Ok(line)) => lines.extend([line.as_str(), "\n"]),
            Err(Unopened::Key(error)) => return Err(error.into()),
            Err(Unopened::Damaged) | Ok(Err(_)) => damaged += 1,
        }
    }
    Ok((lines, damaged))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use service_kit::Health;

    use super::*;

    #[test]
    fn samples_that_are_deleted_for_newer_ones_are_counted_and_said() {
        let directory = tempfile::tempdir().unwrap();
        let health = Health::new();
        let mut letters = DeadLetters::new(
            directory.path().join("rejected.jsonl"),
            Keys::none(),
            health.warning("rejected"),
        );
        letters.bytes_max = 1;
        let refused = vec![(Sample::default(), "device: is unknown".to_owned()); 3];
        for put in 0..2 {
            letters.put(&refused, 1).unwrap();
            assert!(health.warnings().is_empty(), "after {put}: nothing is lost");
        }
        letters.put(&refused, 1).unwrap();
        let (name, warning) = health.warnings().pop().unwrap();
        assert_eq!(name, "rejected");
        assert!(warning.says.starts_with("3 samples"), "{}", warning.says);
        letters.put(&refused, 1).unwrap();
        let (_, warning) = health.warnings().pop().unwrap();
        assert!(warning.says.starts_with("6 samples"), "{}", warning.says);
    }

    #[test]
    fn refused_samples_are_sealed_and_read_beside_those_in_clear() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rejected.jsonl");
        let keys = Keys::new(&[1; 32], b"", true);
        for keys in [Keys::none(), keys.clone()] {
            let letters = DeadLetters::new(path.clone(), keys, Health::new().warning("rejected"));
            let sample = Sample {
                device: "ada-s-belt".to_owned(),
                ..Sample::default()
            };
            let refused = [(sample, "device: is unknown".to_owned())];
            letters.put(&refused, 1).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("ada-s-belt").count(), 1, "{text}");
        fs::write(&path, format!("{text}{{\"sealed\": \"AAAA\"}}\ncut")).unwrap();
        let (lines, damaged) = read(&path, &keys).unwrap();
        assert_eq!((lines.matches("ada-s-belt").count(), damaged), (2, 2));
        assert!(read(&path, &Keys::none()).is_err());
        seal_old(&path, &keys).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("ada-s-belt"), "{text}");
        let (lines, _) = read(&path, &keys).unwrap();
        assert_eq!(lines.matches("ada-s-belt").count(), 2);
    }
}
