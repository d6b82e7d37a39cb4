//! Records of patients that the register has not answered for. Sans-IO.
//!
//! They wait in their order, and other patients are judged meanwhile. Progress does not pass the
//! first of them, so after a restart they are read again. The engines skip what they have judged.

use std::collections::BTreeMap;

use contracts::vitals::{Sample, VitalsRecord, sample};
use store::Progress;

use crate::rule_engines::subject;

/// Partition, key and content of a record that can be read.
pub(super) type Readable = (u32, String, VitalsRecord);

/// Records that wait, of all patients; one batch may exceed it. Beyond it judging waits for the
/// register.
pub(super) const DEFERRED_RECORDS_MAX: usize = 65_536;

struct Waiting {
    offset: u64,
    record: Readable,
}

#[derive(Default)]
pub(super) struct Deferred {
    by_patient: BTreeMap<String, Vec<Waiting>>,
    records: usize,
}

impl Deferred {
    pub(super) fn is_full(&self) -> bool {
        self.records >= DEFERRED_RECORDS_MAX
    }

    pub(super) fn len(&self) -> (usize, usize) {
        (self.by_patient.len(), self.records)
    }

    pub(super) fn add(&mut self, later: Later) {
        self.records += later.0.len();
        for (patient, waiting) in later.0 {
            self.by_patient.entry(patient).or_default().push(waiting);
        }
    }

    /// The oldest record of each partition that has one. Progress does not pass it.
    pub(super) fn first_offsets(&self) -> BTreeMap<u32, u64> {
        let mut first = BTreeMap::new();
        for waiting in self.by_patient.values().flatten() {
            let offset = first.entry(waiting.record.0).or_insert(waiting.offset);
            *offset = waiting.offset.min(*offset);
        }
        first
    }

    /// The records of patients with a profile, in their order for each.
    pub(super) fn judgeable(&self, has_profile: impl Fn(&str) -> bool) -> Vec<Readable> {
        let known = self.by_patient.iter().filter(|(key, _)| has_profile(key));
        let records = known.flat_map(|(_, waiting)| waiting);
        records.map(|it| it.record.clone()).collect()
    }

    /// These are judged. Returns their number.
    pub(super) fn remove(&mut self, has_profile: impl Fn(&str) -> bool) -> usize {
        let before = self.records;
        self.by_patient.retain(|key, _| !has_profile(key));
        self.records = self.by_patient.values().map(Vec::len).sum();
        before - self.records
    }

    /// Another member judges the partition.
    pub(super) fn forget(&mut self, partition: u32) {
        for waiting in self.by_patient.values_mut() {
            waiting.retain(|it| it.record.0 != partition);
        }
        self.by_patient.retain(|_, waiting| !waiting.is_empty());
        self.records = self.by_patient.values().map(Vec::len).sum();
    }
}

/// The part of a batch that must wait, by patient.
#[derive(Default)]
pub(super) struct Later(Vec<(String, Waiting)>);

impl Later {
    /// Divides the records: those of patients without a profile wait.
    pub(super) fn divide(
        readable: &[Readable],
        offsets: &[u64],
        is_known: impl Fn(&str) -> bool,
    ) -> (Vec<Readable>, Later) {
        let mut later = Later::default();
        let mut now = Vec::with_capacity(readable.len());
        for (record, offset) in readable.iter().zip(offsets) {
            let (partition, key, record) = record;
            let mut rest = record.clone();
            for (patient, record) in unknown_of(&mut rest, key, &is_known) {
                let record = (*partition, key.clone(), record);
                let offset = *offset;
                later.0.push((patient, Waiting { offset, record }));
            }
            now.push((*partition, key.clone(), rest));
        }
        (now, later)
    }

    /// Progress that does not pass these records.
    pub(super) fn hold(&self, progress: &[Progress]) -> Vec<Progress> {
        let mut first = BTreeMap::new();
        for (_, waiting) in &self.0 {
            // They are in the order of the bus.
            first.entry(waiting.record.0).or_insert(waiting.offset);
        }
        let held = progress.iter().cloned().map(|it| Progress {
            next_offset: held_to(&first, it.partition, it.next_offset),
            ..it
        });
        held.collect()
    }
}

/// `next`, or the first offset of the partition that progress must not pass.
pub(super) fn held_to(first: &BTreeMap<u32, u64>, partition: u32, next: u64) -> u64 {
    first.get(&partition).map_or(next, |first| next.min(*first))
}

/// Moves the entries of unknown patients out of a record.
fn unknown_of(
    record: &mut VitalsRecord,
    key: &str,
    is_known: impl Fn(&str) -> bool,
) -> BTreeMap<String, VitalsRecord> {
    let mut unknown: BTreeMap<String, VitalsRecord> = BTreeMap::new();
    for alert in record
        .alerts
        .extract_if(.., |it| !is_known(subject(&it.patient, key)))
    {
        let patient = subject(&alert.patient, key).to_owned();
        unknown.entry(patient).or_default().alerts.push(alert);
    }
    for sample in record
        .samples
        .extract_if(.., |it| !is_known(subject(&it.patient, key)))
    {
        let patient = subject(&sample.patient, key).to_owned();
        let samples = &mut unknown.entry(patient).or_default().samples;
        samples.push(without_waveform(sample));
    }
    unknown
}

/// A waveform would take the memory of many readings. Rules judge it only as a flat line, which is
/// then seen in the blocks that follow.
fn without_waveform(sample: Sample) -> Sample {
    match sample.reading {
        Some(sample::Reading::Waveform(_)) => Sample {
            reading: None,
            ..sample
        },
        _ => sample,
    }
}
