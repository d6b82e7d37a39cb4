use std::sync::Arc;

use contracts::{
    query::{Proof, ProofState},
    vitals::{Gap, GapCause, Ledger, LedgerStream, Metric, Sample},
};

use super::{Harness, SECOND_US, START_US, ok, sample};
use crate::{
    ASKED_US, Asked, Assignment, Change, PatientEntry, Scope, Spo2Scale, Store, VitalsBatch,
    completeness::prove,
};

const ONE: &str = "one";

fn at(second: i64) -> i64 {
    START_US + second * SECOND_US
}

fn heart(sequence: u64) -> Sample {
    sample("belt", "ann", Metric::HeartRate, sequence)
}

/// An account of the journal that has given the numbers up to `last`.
fn ledger(journal: u64, first: u64, last: u64, second: i64, waiting: u64) -> Ledger {
    Ledger {
        journal,
        at_us: at(second),
        waiting,
        streams: vec![LedgerStream {
            device: "belt".into(),
            stream: heart(1).stream,
            first_sequence: first,
            next_sequence: last + 1,
        }],
        gateway: "gw-1".into(),
        ..Ledger::default()
    }
}

async fn write(store: &dyn Store, samples: Vec<Sample>, gaps: Vec<Gap>, ledgers: Vec<Ledger>) {
    let batch = VitalsBatch {
        samples,
        gaps,
        ledgers,
        ..VitalsBatch::default()
    };
    ok(store.write_vitals(Arc::new(batch), Vec::new()).await);
}

async fn assign(store: &dyn Store, patient: &str, gateway: &str, from_us: i64) {
    ok(store
        .put_patient(&PatientEntry {
            id: patient.into(),
            tenant: ONE.into(),
            name: patient.into(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        })
        .await);
    ok(store
        .assign(&Assignment {
            device: "belt".into(),
            tenant: ONE.into(),
            gateway: gateway.into(),
            patient: patient.into(),
            from_us,
            until_us: i64::MAX,
            entered: Change::by_program("a check"),
        })
        .await);
}

async fn proof(store: &dyn Store, patient: &str, from: i64, to: i64, now: i64) -> Proof {
    let range = (at(from), at(to));
    let proof = prove(store, &Scope::tenant(ONE), patient, range, at(now)).await;
    ok(proof).unwrap_or_else(|| panic!("{patient} is not known"))
}

fn causes(proof: &Proof) -> Vec<(GapCause, u64, u64)> {
    let gaps = proof.streams.iter().flat_map(|it| &it.gaps);
    gaps.map(|it| (it.cause(), it.first_sequence, it.last_sequence))
        .collect()
}

pub async fn a_stretch_is_complete_only_by_evidence(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = &*store;
    assign(store, "ann", "gw-1", i64::MIN).await;
    let nobody = prove(store, &Scope::tenant("two"), "ann", (at(0), at(9)), at(9)).await;
    assert_eq!(ok(nobody), None, "nobody of another tenant");
    let none = proof(store, "ann", 0, 100, 100).await;
    assert_eq!(none.state(), ProofState::NotProven, "silence: {none:?}");

    write(store, (1..=40).map(heart).collect(), vec![], vec![]).await;
    let silent = proof(store, "ann", 0, 100, 100).await;
    assert_eq!(silent.state(), ProofState::NotProven, "an older gateway");
    assert_eq!(silent.complete_until_us, at(0));

    write(store, vec![], vec![], vec![ledger(7, 1, 40, 60, 0)]).await;
    let until = proof(store, "ann", 0, 100, 100).await;
    assert_eq!(until.state(), ProofState::NotProven, "{until:?}");
    assert_eq!(until.complete_until_us, at(60), "as far as the account");
    let hour = proof(store, "ann", 0, 60, 100).await;
    assert_eq!(hour.state(), ProofState::Complete, "{hour:?}");
    assert_eq!(hour.streams[0].stored, 40);

    // Thirty wait at the gateway.
    write(store, vec![], vec![], vec![ledger(7, 1, 70, 80, 30)]).await;
    let waiting = proof(store, "ann", 0, 80, 100).await;
    assert_eq!(waiting.state(), ProofState::Incomplete);
    assert_eq!(causes(&waiting), [(GapCause::InTransit, 41, 70)]);
    assert_eq!(waiting.streams[0].in_transit, 30);
    assert_eq!(waiting.complete_until_us, at(40));
    let before = proof(store, "ann", 0, 40, 100).await;
    assert_eq!(
        before.state(),
        ProofState::Complete,
        "later ones wait: {before:?}"
    );

    // An account that was overtaken takes nothing back.
    write(store, (41..=70).map(heart).collect(), vec![], vec![]).await;
    write(store, vec![], vec![], vec![ledger(7, 1, 70, 90, 0)]).await;
    write(store, vec![], vec![], vec![ledger(7, 1, 50, 70, 9)]).await;
    let whole = proof(store, "ann", 0, 90, 100).await;
    assert_eq!(whole.state(), ProofState::Complete, "{whole:?}");
}

pub async fn a_gap_has_its_cause(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = &*store;
    assign(store, "ann", "gw-1", i64::MIN).await;
    let full = Gap {
        device: "belt".into(),
        stream: heart(1).stream,
        first_sequence: 11,
        last_sequence: 20,
        from_time_us: at(11),
        to_time_us: at(20),
        patient: "ann".into(),
        gateway: "gw-1".into(),
        cause: GapCause::JournalFull.into(),
    };
    let samples = (1..=10).chain(21..=30).chain(36..=50);
    let samples = samples.map(heart).collect();
    write(
        store,
        samples,
        vec![full.clone()],
        vec![ledger(7, 1, 50, 60, 0)],
    )
    .await;
    let found = proof(store, "ann", 0, 60, 1000).await;
    assert_eq!(
        causes(&found),
        [
            (GapCause::JournalFull, 11, 20),
            (GapCause::Unexplained, 31, 35)
        ]
    );
    assert_eq!(found.complete_until_us, at(11));
    let gaps = ok(store.gaps(&Scope::Service, "ann", at(0), at(60)).await);
    assert_eq!(gaps, [full], "with its cause");
    let asked = ok(store.asked_again("gw-1", at(1001)).await);
    let range = Asked {
        device: "belt".into(),
        stream: heart(1).stream,
        first: 31,
        last: 35,
        from_us: at(30),
        to_us: at(36),
    };
    assert_eq!(asked, [range], "what has no cause is asked for again");
    assert_eq!(ok(store.asked_again("gw-2", at(1001)).await), []);
    let later = at(1000) + ASKED_US + 1;
    assert_eq!(ok(store.asked_again("gw-1", later).await), []);
    let after = proof(store, "ann", 36, 60, 1000).await;
    assert_eq!(after.state(), ProofState::Incomplete, "31 to 35 touch it");
    let after = proof(store, "ann", 37, 60, 1000).await;
    assert_eq!(after.state(), ProofState::Complete, "{after:?}");

    // The sensor's own numbers.
    let numbered = |sequence: u64, number: u64| Sample {
        sensor_sequence: Some(number),
        ..heart(sequence)
    };
    let samples = vec![numbered(51, 7), numbered(52, 8), numbered(53, 12)];
    write(store, samples, vec![], vec![ledger(7, 1, 53, 70, 0)]).await;
    let jumps = proof(store, "ann", 45, 60, 1000).await;
    assert_eq!(causes(&jumps), [(GapCause::Sensor, 9, 11)]);
}

pub async fn another_journal_or_wearer_proves_nothing_by_itself(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let store = &*store;
    assign(store, "ann", "gw-1", i64::MIN).await;
    write(
        store,
        (1..=20).map(heart).collect(),
        vec![],
        vec![ledger(7, 1, 20, 20, 0)],
    )
    .await;
    // The disk was replaced: numbers go on far above, and nothing is known from 20 to 50.
    let after = |sequence: u64| Sample {
        sequence: sequence + 1000,
        ..heart(sequence)
    };
    write(
        store,
        (40..=60).map(after).collect(),
        vec![],
        vec![ledger(8, 1040, 1060, 50, 0), ledger(8, 1040, 1060, 70, 0)],
    )
    .await;
    let replaced = proof(store, "ann", 0, 70, 100).await;
    assert_eq!(causes(&replaced), [(GapCause::JournalGone, 0, 0)]);
    assert_eq!(replaced.complete_until_us, at(20));
    let since = proof(store, "ann", 51, 70, 100).await;
    assert_eq!(since.state(), ProofState::Complete, "{since:?}");

    // From 65 the belt is at another gateway, which has said nothing yet. The word of a third one,
    // which never had the belt, counts for nothing.
    assign(store, "bob", "gw-2", at(65)).await;
    let stranger = Ledger {
        gateway: "gw-3".into(),
        ..ledger(9, 1, 5000, 90, 0)
    };
    write(store, vec![], vec![], vec![stranger]).await;
    let bob = proof(store, "bob", 65, 90, 100).await;
    assert_eq!(bob.state(), ProofState::NotProven, "{bob:?}");
    let ann = proof(store, "ann", 51, 90, 100).await;
    assert_eq!(ann.state(), ProofState::Complete, "hers until 65: {ann:?}");
    let of_bob = |sequence: u64| Sample {
        patient: "bob".into(),
        gateway: "gw-2".into(),
        sequence: sequence + 5000,
        ..heart(sequence)
    };
    let account = Ledger {
        gateway: "gw-2".into(),
        ..ledger(10, 5066, 5080, 90, 0)
    };
    write(
        store,
        (66..=80).map(of_bob).collect(),
        vec![],
        vec![account],
    )
    .await;
    for patient in ["ann", "bob"] {
        let proof = proof(store, patient, 51, 90, 100).await;
        assert_eq!(proof.state(), ProofState::Complete, "{proof:?}");
    }
}
