//! Alerts that overtake the journal: those behind an entry that cannot be read, and those that the
//! disk has not taken yet. Each link takes each of them once, because it may be on a dead path.

use contracts::vitals::{EdgeAlert, UploadRequest};

use super::{link::Link, sender::BATCH_ENTRIES_MAX};
use crate::journal::{Disk, Entry, Reader};

/// Sends the alerts behind an entry that cannot be read.
pub(super) fn pass_by<D: Disk>(links: &mut [Link], reader: &Reader<D>, unread: u64) {
    let mut count = 0;
    for link in links {
        let (request, next) = beyond(reader, link.passed_by.max(unread));
        let alerts = request.alerts.len() as u64;
        if alerts > 0 && link.requests.try_send(request).is_ok() {
            link.passed_by = next;
            count += alerts;
        }
    }
    metrics::counter!("braid_gateway_alerts_passed_by_total").increment(count);
}

/// Sends alerts that the disk has not taken yet. The journal's follow them, so nothing waits for an
/// answer to these.
pub(super) fn send_early(links: &[Link], alerts: Vec<EdgeAlert>) {
    let count = alerts.len() as u64;
    let request = without_position(alerts);
    let took = |link: &&Link| link.requests.try_send(request.clone()).is_ok();
    if links.iter().filter(took).count() > 0 {
        metrics::counter!("braid_gateway_alerts_early_total").increment(count);
    }
}

/// An upload of alerts that overtake the journal. They have no sequence, since ingest would take
/// the alerts before them for repetitions. The core merges them with the journal's.
fn without_position(alerts: impl IntoIterator<Item = EdgeAlert>) -> UploadRequest {
    let alerts = alerts.into_iter().map(|alert| EdgeAlert {
        sequence: 0,
        ..alert
    });
    UploadRequest {
        alerts: alerts.collect(),
        ..UploadRequest::default()
    }
}

/// The alerts from `from` on that memory holds, without a position, and the position after them.
fn beyond<D: Disk>(reader: &Reader<D>, from: u64) -> (UploadRequest, u64) {
    let chunk = reader.remembered(from, BATCH_ENTRIES_MAX);
    let next = chunk.next;
    let alerts = chunk.entries.into_iter().filter_map(|entry| match entry {
        (_, Entry::Alert(alert)) => Some(alert),
        _ => None,
    });
    (without_position(alerts), next)
}
