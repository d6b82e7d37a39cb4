//! Samples that ingest refused. They are kept for people, because a repetition would be refused
//! again.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
};

use contracts::vitals::{Sample, sample::Reading};
use parking_lot::Mutex;
use serde_json::json;
use service_kit::{Warning, WarningHandle};

/// At this size the file becomes `.1`, and the previous `.1` is deleted. A warning gives the number
/// of its samples.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// A file of JSON lines.
pub struct DeadLetters {
    path: PathBuf,
    bytes_max: u64,
    /// Samples that were deleted since the start.
    lost: Mutex<u64>,
    warning: WarningHandle,
}

impl DeadLetters {
    pub fn new(path: PathBuf, warning: WarningHandle) -> Self {
        Self {
            path,
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
            lines.extend_from_slice(line.to_string().as_bytes());
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
}
