//! Packets that were sent lately, for the questions of the far end.

use std::{convert::Infallible, time::Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{payload::Head, repair::Kept, sequence_number::SequenceNumber};

/// Shared by the tasks of one relay.
#[derive(Debug, Default)]
pub(super) struct Resend {
    kept: Mutex<Kept>,
    /// The first packet is kept.
    keeps: Notify,
}

impl Resend {
    pub(super) fn keep(&self, sequence: SequenceNumber, payload: Bytes) {
        let is_first = self.kept.lock().keep(Instant::now(), sequence, payload);
        if is_first {
            self.keeps.notify_one();
        }
    }

    /// The packets with these numbers that are still known, as they leave again.
    pub(super) fn packets(&self, numbers: Vec<SequenceNumber>) -> Vec<(Head, Bytes)> {
        let mut kept = self.kept.lock();
        let again = |it: SequenceNumber| Some((Head::new(Some(it)), kept.repeat(it)?));
        numbers.into_iter().filter_map(again).collect()
    }
}

/// Forgets packets that are too old; never returns.
pub(super) async fn forget(resend: Option<&Resend>) -> Infallible {
    let Some(resend) = resend else {
        return std::future::pending().await;
    };
    loop {
        let next = resend.kept.lock().expire(Instant::now());
        match next {
            Some(next) => tokio::time::sleep_until(next.into()).await,
            None => resend.keeps.notified().await,
        }
    }
}
