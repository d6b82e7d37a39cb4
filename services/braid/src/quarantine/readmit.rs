//! `braid quarantine readmit`: the file of what ingest refused at a gateway, through ingest's
//! admission once more.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use contracts::text;
use contracts::vitals::{Sample, Waveform, sample::Reading};
use ingest::readmission::{GatewayId, REFUSED_AT_ONCE_MAX, Readmission, Readmitted};
use serde::Deserialize;
use store::AuditEntry;

use crate::engines::{Engines, EnginesChoice};
use crate::process::{self, Failure};
use crate::signed::Signed;

/// Reasons printed of what is refused again.
const REASONS_MAX: usize = 20;
/// Beginning of a line that only its gateway can read.
const ENCRYPTED: &str = "{\"sealed\":";
/// Bytes of one line; a waveform of 10,000 values has fewer.
const LINE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub struct Readmit {
    /// The file, as `braid gateway rejected` printed it at the gateway.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The gateway that wrote it.
    #[arg(long, value_name = "ID")]
    gateway: String,
    #[command(flatten)]
    signed: Signed,
    /// Tenant of the gateway.
    #[arg(long, value_name = "ID", default_value = store::DEFAULT_TENANT)]
    tenant: String,
    #[command(flatten)]
    engines: EnginesChoice,
}

/// One line of the file.
#[derive(Deserialize)]
struct Line {
    device: String,
    stream: String,
    sequence: u64,
    metric: String,
    unit: String,
    device_time_us: i64,
    refused_us: i64,
    reading: Value,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    One(f64),
    Waveform { period_us: u32, values: Vec<f32> },
}

/// Every line of a file.
#[derive(Default)]
struct Lines {
    samples: Vec<Sample>,
    /// Those that are no refused sample, by number and with the reason.
    unreadable: Vec<String>,
}

impl Readmit {
    pub async fn run(self) -> Result<(), Failure> {
        let lines = read(&self.file)?;
        let engines = self.engines.open().await?;
        let gateway = GatewayId {
            tenant: self.tenant,
            id: self.gateway,
        };
        let text = readmit(&engines, &gateway, lines, &self.signed).await?;
        process::print(&format!("{text}\n"))
    }
}

fn read(path: &Path) -> Result<Lines, Failure> {
    let named = |error: std::io::Error| Failure::other(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(named)?;
    let mut lines = Lines::default();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(named)?;
        if line.trim().is_empty() {
            continue;
        }
        match sample(&line) {
            Ok(sample) => lines.samples.push(sample),
            Err(reason) => lines.unreadable.push(format!("line {number}: {reason}")),
        }
    }
    Ok(lines)
}

fn sample(line: &str) -> Result<Sample, String> {
    if line.len() > LINE_BYTES_MAX {
        return Err(format!("is longer than {LINE_BYTES_MAX} bytes"));
    }
    if line.starts_with(ENCRYPTED) {
        return Err("is encrypted: `braid gateway rejected` prints it, at its gateway".to_owned());
    }
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let entry = vitals::by_name(&line.metric)
        .ok_or_else(|| format!("metric: `{}` is unknown", line.metric))?;
    Ok(Sample {
        device: line.device,
        stream: line.stream,
        sequence: line.sequence,
        metric: entry.metric.into(),
        unit: line.unit,
        device_time_us: line.device_time_us,
        gateway_time_us: line.refused_us,
        reading: Some(match line.reading {
            Value::One(value) => Reading::Value(value),
            Value::Waveform { period_us, values } => {
                Reading::Waveform(Waveform { period_us, values })
            }
        }),
        ..Sample::default()
    })
}

async fn readmit(
    engines: &Engines,
    gateway: &GatewayId,
    lines: Lines,
    signed: &Signed,
) -> Result<String, Failure> {
    let Lines {
        samples,
        unreadable,
    } = lines;
    // Written before what it records happens, as everywhere.
    let entry = AuditEntry {
        time_us: contracts::now_us(),
        tenant: gateway.tenant.clone(),
        who: signed.by.who(&*engines.store, &gateway.tenant).await?,
        action: "readmit refused".to_owned(),
        patient: String::new(),
        detail: format!("{} samples of gateway {}", samples.len(), gateway.id),
    };
    let audited = engines
        .store
        .append_audit(vec![entry.because(&signed.reason)]);
    audited.await.map_err(Failure::other)?;
    let readmission = Readmission::new(Arc::clone(&engines.bus), Arc::clone(&engines.store));
    let mut total = Readmitted::default();
    for some in samples.chunks(REFUSED_AT_ONCE_MAX) {
        let readmitted = readmission.readmit_refused(gateway, some.to_vec()).await;
        let readmitted = readmitted.map_err(Failure::other)?;
        total.samples += readmitted.samples;
        total.apart += readmitted.apart;
        total.refused.extend(readmitted.refused);
    }
    let mut said = format!(
        "{} samples are let in, {} kept apart, {} refused again, {} lines cannot be read",
        total.samples,
        total.apart,
        total.refused.len(),
        unreadable.len()
    );
    for reason in total.refused.iter().chain(&unreadable).take(REASONS_MAX) {
        said += &format!("\n  refused: {}", text::line(reason));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bus::embedded::{EmbeddedBus, EmbeddedOptions};
    use bus::{Bus, Event, Topic};
    use contracts::vitals::{Metric, VitalsRecord};
    use prost::Message;
    use store::{DeviceEntry, SqliteStore, Store};

    use super::*;

    #[tokio::test]
    async fn what_a_gateway_wrote_down_as_refused_goes_through_admission_again() {
        let dir = tempfile::tempdir().unwrap();
        let now_us = contracts::now_us();
        let refused = |device: &str, sequence: u64, reading: serde_json::Value| {
            serde_json::json!({
                "reason": "device: is not registered",
                "refused_us": now_us - 1_000_000,
                "device": device,
                "stream": "heart-rate",
                "sequence": sequence,
                "metric": "heart-rate",
                "unit": "/min",
                "device_time_us": now_us - 60_000_000,
                "reading": reading,
            })
            .to_string()
        };
        let file = dir.path().join("rejected.jsonl");
        let lines = [
            refused("belt", 1, 71.into()),
            refused("stray", 1, 72.into()),
            refused("belt", 2, 900.into()),
            "{nonsense".to_owned(),
        ];
        std::fs::write(&file, lines.join("\n")).unwrap();
        let bus: Arc<dyn Bus> =
            Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
        let mut records = bus.tail(Topic::Vitals).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path()).unwrap());
        let entry = DeviceEntry {
            id: "belt".into(),
            tenant: "t".into(),
            gateway: "gw".into(),
            patient: "ada".into(),
            registered_us: 0,
        };
        store.put_device(&entry).await.unwrap();
        let engines = Engines { bus, store };
        let gateway = GatewayId {
            tenant: "t".into(),
            id: "gw".into(),
        };
        let signed = Signed {
            by: crate::signed::By::named("eve"),
            reason: "a test".into(),
        };
        let said = readmit(&engines, &gateway, read(&file).unwrap(), &signed).await;
        let said = said.unwrap();
        let expected =
            "1 samples are let in, 1 kept apart, 1 refused again, 1 lines cannot be read";
        assert!(said.starts_with(expected), "{said}");
        assert!(said.contains("line 4"), "{said}");
        let (mut samples, mut apart) = (Vec::new(), 0);
        while samples.is_empty() || apart == 0 {
            let Ok(Event::Batch(batch)) = records.next(10).await else {
                continue;
            };
            for record in batch {
                let record = VitalsRecord::decode(record.value).unwrap();
                samples.extend(record.samples);
                apart += record.quarantined.len();
            }
        }
        assert_eq!((samples.len(), apart), (1, 1));
        let sample = &samples[0];
        assert_eq!((sample.patient.as_str(), sample.sequence), ("ada", 1));
        assert_eq!(sample.metric(), Metric::HeartRate);
        assert_eq!(sample.reading, Some(Reading::Value(71.0)));
    }
}
