//! Accounts of the journal, by which the core knows what it lacks, and the samples that it asks for
//! again.
//!
//! An account is made on request of the clock, not of the data: it also says that nothing came.
//! Both go beside the sender, on a link that is up, and nothing waits for them.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use contracts::vitals::{Gap, GapCause, Ledger, Sample, SequenceRange, UploadRequest};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    link::Link,
    sender::{BATCH_ENTRIES_MAX, Generation},
};
use crate::{
    clock::{Clock, CoreClock},
    journal::{Disk, Entry, Journal, Reader},
};

/// Time between two accounts while the core takes samples.
const EVERY: Duration = Duration::from_secs(60);
/// The same while it takes none: an account of six streams costs a SIM card 500 bytes.
const EVERY_IDLE: Duration = Duration::from_secs(300);
/// The same if another link has replaced the last one: an outage may have ended.
const AFTER_CHANGE: Duration = Duration::from_secs(10);
/// Ranges that are sent again at once; the core asks again for more.
const RANGES_MAX: usize = 256;
/// Bytes read at once while looking for samples.
const READ_BYTES: usize = 256 << 10;

/// When an account is due, and by which link.
#[derive(Default)]
pub(super) struct Accounts {
    /// The link whose ingest reads accounts.
    link: Option<Generation>,
    /// When the first such link answered: the first account is due since then.
    since: Option<Instant>,
    last: Option<(Instant, Generation)>,
    /// The core has taken entries since.
    is_moved: bool,
    /// The samples that are sent again.
    again: Option<JoinHandle<()>>,
}

impl Accounts {
    pub(super) fn on_up(&mut self, generation: Generation) {
        self.link = Some(generation);
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn on_lost(&mut self, generation: Generation) {
        self.link = self.link.filter(|link| *link != generation);
    }

    pub(super) fn on_taken(&mut self) {
        self.is_moved = true;
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let link = self.link?;
        let Some((at, by)) = self.last else {
            return self.since;
        };
        Some(match self.is_moved {
            _ if by != link => at + AFTER_CHANGE,
            true => at + EVERY,
            false => at + EVERY_IDLE,
        })
    }

    /// Makes and sends the account that is due. Its task waits for the journal, because a disk that
    /// stalls must not stall the sender.
    pub(super) fn send<D: Disk>(
        &mut self,
        links: &[Link],
        journal: &Journal<D>,
        clock: Clock,
        behind_us: Option<i64>,
    ) {
        let now = Instant::now();
        let Some(generation) = self
            .link
            .filter(|_| self.due().is_some_and(|due| due <= now))
        else {
            return;
        };
        self.last = Some((now, generation));
        self.is_moved = false;
        let Some(link) = links.iter().find(|link| link.generation == generation) else {
            self.link = None;
            return;
        };
        let (requests, journal) = (link.requests.clone(), journal.clone());
        tokio::spawn(async move {
            // The time before the journal's look: what is taken later has a later account.
            let at = clock();
            let Some((number, streams)) = journal.ledger().await else {
                return;
            };
            let ledger = Ledger {
                journal: number,
                at_us: at.wall_us,
                at_uptime_us: at.uptime_us,
                at_boot: at.boot,
                gateway_behind_us: behind_us,
                waiting: journal.waiting(),
                streams,
                gateway: String::new(),
            };
            let request = UploadRequest {
                ledger: Some(ledger),
                ..UploadRequest::default()
            };
            // A link that is full or lost has the next account.
            let sent = requests.try_send(request).is_ok();
            let outcome = if sent { "sent" } else { "left out" };
            metrics::counter!("braid_gateway_ledgers_total", "outcome" => outcome).increment(1);
        });
    }

    /// Sends again what the core lacks, among the entries that it has acknowledged. One request of
    /// the core at a time.
    pub(super) fn send_again<D: Disk>(
        &mut self,
        missing: Vec<SequenceRange>,
        link: Option<&Link>,
        journal: &Journal<D>,
        acknowledged: u64,
    ) {
        let is_busy = self.again.as_ref().is_some_and(|task| !task.is_finished());
        let Some(link) = link.filter(|_| !missing.is_empty() && !is_busy) else {
            return;
        };
        let (requests, reader) = (link.requests.clone(), journal.reader().clone());
        self.again = Some(tokio::spawn(again(missing, reader, acknowledged, requests)));
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        if let Some(task) = &self.again {
            task.abort();
        }
    }
}

/// Sequences that are wanted, by device and stream.
type Wanted = BTreeMap<(String, String), Vec<RangeInclusive<u64>>>;

async fn again<D: Disk>(
    missing: Vec<SequenceRange>,
    reader: Reader<D>,
    end: u64,
    requests: mpsc::Sender<UploadRequest>,
) {
    let mut wanted = Wanted::new();
    for range in missing.into_iter().take(RANGES_MAX) {
        let ranges = wanted.entry((range.device, range.stream)).or_default();
        ranges.push(range.first_sequence..=range.last_sequence);
    }
    let mut next = 0;
    while next < end {
        let (of, from) = (reader.clone(), next);
        let read = move || of.read_kept(from, BATCH_ENTRIES_MAX, READ_BYTES);
        let chunk = match tokio::task::spawn_blocking(read).await {
            Ok(Ok(chunk)) if chunk.next > from => chunk,
            // The rest cannot be read, so nothing is said about it.
            _ => return,
        };
        next = chunk.next;
        let entries = chunk.entries.into_iter();
        let samples: Vec<Sample> = entries
            .filter_map(|(position, entry)| match entry {
                Entry::Sample(sample) if position < end => Some(sample),
                _ => None,
            })
            .filter(|sample| take(&mut wanted, sample))
            .collect();
        let count = samples.len() as u64;
        let request = UploadRequest {
            samples,
            again: true,
            ..UploadRequest::default()
        };
        if count > 0 {
            if requests.send(request).await.is_err() {
                return;
            }
            metrics::counter!("braid_gateway_sent_again_samples_total").increment(count);
        }
    }
    // Samples that wait are on their way, and may be among those that are missing.
    if end < reader.durable() {
        return;
    }
    let gaps: Vec<Gap> = not_kept(wanted);
    if !gaps.is_empty() {
        let request = UploadRequest {
            gaps,
            ..UploadRequest::default()
        };
        let _ = requests.send(request).await;
    }
}

/// Whether the sample is wanted; then it is no longer.
fn take(wanted: &mut Wanted, sample: &Sample) -> bool {
    // Without copies of the names: most samples are not wanted.
    let ranges = wanted
        .iter_mut()
        .find(|((device, stream), _)| *device == sample.device && *stream == sample.stream);
    let Some((_, ranges)) = ranges else {
        return false;
    };
    let number = sample.sequence;
    let Some(at) = ranges.iter().position(|range| range.contains(&number)) else {
        return false;
    };
    let range = ranges.swap_remove(at);
    if *range.start() < number {
        ranges.push(*range.start()..=number - 1);
    }
    if number < *range.end() {
        ranges.push(number + 1..=*range.end());
    }
    true
}

fn not_kept(wanted: Wanted) -> Vec<Gap> {
    let gaps = wanted.into_iter().flat_map(|((device, stream), ranges)| {
        ranges.into_iter().map(move |range| Gap {
            device: device.clone(),
            stream: stream.clone(),
            first_sequence: *range.start(),
            last_sequence: *range.end(),
            cause: GapCause::NotKept.into(),
            ..Gap::default()
        })
    });
    gaps.collect()
}

/// Time by which the gateway's clock is behind the core's.
pub(super) fn behind_us(core: &CoreClock, clock: Clock) -> Option<i64> {
    core.behind_us(clock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_found_is_reported_as_no_longer_kept() {
        let stream = ("belt".to_owned(), "hr".to_owned());
        let mut wanted = Wanted::from([(stream, vec![3..=7, 10..=10])]);
        let mut wants = |device: &str, sequence| {
            let sample = Sample {
                device: device.into(),
                stream: "hr".into(),
                sequence,
                ..Sample::default()
            };
            take(&mut wanted, &sample)
        };
        assert!(!wants("clip", 5), "another device");
        assert!(!wants("belt", 8), "another number");
        assert!(wants("belt", 5) && wants("belt", 10) && wants("belt", 3));
        assert!(!wants("belt", 5), "once");
        let mut left: Vec<(u64, u64)> = not_kept(wanted)
            .iter()
            .map(|gap| (gap.first_sequence, gap.last_sequence))
            .collect();
        left.sort_unstable();
        assert_eq!(left, [(4, 4), (6, 7)]);
    }

    #[test]
    fn an_account_is_due_at_once_then_each_minute_and_sooner_after_a_change() {
        let mut accounts = Accounts::default();
        assert_eq!(accounts.due(), None, "no ingest reads it");
        accounts.on_up(1);
        assert!(accounts.due().is_some_and(|due| due <= Instant::now()));
        let at = Instant::now();
        accounts.last = Some((at, 1));
        assert_eq!(accounts.due(), Some(at + EVERY_IDLE));
        accounts.on_taken();
        assert_eq!(accounts.due(), Some(at + EVERY));
        accounts.on_lost(1);
        assert_eq!(accounts.due(), None);
        accounts.on_up(2);
        accounts.on_lost(1);
        assert_eq!(accounts.due(), Some(at + AFTER_CHANGE));
    }
}
