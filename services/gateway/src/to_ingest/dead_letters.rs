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

/// At this size the file becomes `.1`, and the previous `.1` is deleted.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// A file of JSON lines.
pub struct DeadLetters {
    path: PathBuf,
    writing: Mutex<()>,
}

impl DeadLetters {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            writing: Mutex::new(()),
        }
    }

    /// Blocks on the disk.
    pub fn put(&self, refused: &[(Sample, String)], now_us: i64) -> io::Result<()> {
        let _writing = self.writing.lock();
        if fs::metadata(&self.path).is_ok_and(|file| file.len() >= FILE_BYTES_MAX) {
            fs::rename(&self.path, self.path.with_extension("jsonl.1"))?;
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
