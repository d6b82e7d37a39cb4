//! A gateway's accounts of its journal, and the samples that it sends again when the core asks.

use contracts::vitals::{GapCause, LedgerStream};

use super::{
    fake_ingest::FakeIngest,
    under_test::{Gateway, line, until},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_accounts_for_its_journal_and_sends_again_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    ingest.got.lock().reads_ledgers = true;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    let lines = [70.0, 71.0, 72.0].map(|value| line("d1", value));
    assert_eq!(gateway.post(&lines.join("\n")).await.0, 200);
    until("an account", &ingest, |got| !got.ledgers.is_empty()).await;
    let ledger = ingest.got.lock().ledgers[0].clone();
    let first = {
        let got = ingest.got.lock();
        let first = got.samples.values().map(|(_, sample)| sample.sequence);
        first.min().unwrap()
    };
    let stream = LedgerStream {
        device: "d1".into(),
        stream: "heart-rate".into(),
        first_sequence: first,
        next_sequence: first + 3,
    };
    assert_eq!(ledger.streams, [stream]);
    assert!(ledger.journal != 0 && ledger.at_us > 0);

    until("what it has, and a gap for the rest", &ingest, |got| {
        let copies = got.samples.values().map(|(count, _)| *count);
        copies.collect::<Vec<_>>() == [2, 1, 1] && !got.gaps.is_empty()
    })
    .await;
    {
        let got = ingest.got.lock();
        let gap = &got.gaps[0];
        assert_eq!(
            (gap.first_sequence, gap.last_sequence),
            (first - 2, first - 1)
        );
        assert_eq!(gap.cause(), GapCause::NotKept);
    }
    gateway.stop().await;

    // The same journal goes on, and knows where its numbers began.
    ingest.got.lock().ledgers.clear();
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    assert_eq!(gateway.post(&line("d1", 73.0)).await.0, 200);
    until("another account", &ingest, |got| !got.ledgers.is_empty()).await;
    {
        let got = ingest.got.lock();
        let after = &got.ledgers[0];
        assert_eq!(after.journal, ledger.journal);
        assert_eq!(after.streams[0].first_sequence, first);
        assert_eq!(after.streams[0].next_sequence, first + 4);
    }
    gateway.stop().await;
}
