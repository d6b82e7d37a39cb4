//! Proofs of completeness. The gateway's account finds a loss behind the acknowledgement. The loss
//! is asked for again, and explained if the gateway no longer has it.

use std::time::Duration;

use contracts::{
    query::{Proof, ProofState},
    vitals::{Gap, GapCause, Ledger, LedgerStream, SequenceRange, UploadRequest},
};
use store::{Scope, completeness::prove};

use crate::world::{PATIENCE, STREAM, Uplink, World, gateway, sample, upload};

const S: i64 = 1_000_000;

fn stream(device: &str, next_sequence: u64) -> LedgerStream {
    LedgerStream {
        device: device.into(),
        stream: STREAM.into(),
        first_sequence: 1,
        next_sequence,
    }
}

/// Sends an account, and waits until it is stored. Returns its time and what is asked for again.
async fn account(world: &World, uplink: &mut Uplink, next: u64) -> (i64, Vec<SequenceRange>) {
    let at_us = contracts::now_us();
    let ledger = Ledger {
        journal: 7,
        at_us,
        streams: vec![stream("belt-0", next), stream("nobodys", 9)],
        ..Ledger::default()
    };
    let request = UploadRequest {
        ledger: Some(ledger),
        ..UploadRequest::default()
    };
    uplink.send(request).await;
    let answer = uplink.answer().await;
    assert!(!answer.takes_ledgers, "that is said until the first comes");
    let devices = ["belt-0".to_owned(), "nobodys".to_owned()];
    let stored = async {
        loop {
            let runs = world.store.ledger_runs(&devices).await.unwrap();
            if runs.iter().any(|run| run.as_of_us >= at_us) {
                return runs;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let runs = tokio::time::timeout(PATIENCE, stored).await.unwrap();
    assert_eq!(runs.len(), 1, "none of a sensor that is not its own");
    assert_eq!((runs[0].first, runs[0].next), (1, next));
    (at_us, answer.missing)
}

async fn proof(world: &World, from_us: i64, to_us: i64) -> Proof {
    let (store, range) = (world.store.as_ref(), (from_us, to_us));
    let scope = Scope::tenant(store::DEFAULT_TENANT);
    let proof = prove(store, &scope, "patient-0", range, to_us + 600 * S).await;
    proof.unwrap().expect("the patient is known")
}

fn causes(proof: &Proof) -> Vec<(GapCause, u64)> {
    let gaps = proof.streams.iter().flat_map(|it| &it.gaps);
    gaps.map(|it| (it.cause(), it.first_sequence)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_behind_the_acknowledgement_is_asked_for_again_or_explained() {
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let from_us = contracts::now_us() - S;
    let belt = |sequences: &[u64]| sequences.iter().map(|n| sample("belt-0", *n)).collect();
    uplink.send(upload(10, belt(&[1, 2, 4, 5]))).await;
    assert!(uplink.answer().await.takes_ledgers);
    world.stored("belt-0", 4).await;
    let silent = proof(&world, from_us, contracts::now_us()).await;
    assert_eq!(silent.streams[0].known_until_us, from_us, "no account");
    assert!(silent.state() != ProofState::Complete, "{silent:?}");

    let (at_us, missing) = account(&world, &mut uplink, 6).await;
    assert_eq!(missing, [], "none is asked for before a proof");
    let lost = proof(&world, from_us, at_us).await;
    assert_eq!(causes(&lost), [(GapCause::Unexplained, 3)]);
    // A gateway accounts again meanwhile.
    let asked = world.store.asked_again("gw", at_us + 600 * S).await;
    assert_eq!(asked.unwrap().len(), 1);

    let again = UploadRequest {
        again: true,
        ..upload(0, belt(&[2, 3]))
    };
    uplink.send(again).await;
    uplink.answer().await;
    world.stored("belt-0", 5).await;
    let (at_us, _) = account(&world, &mut uplink, 6).await;
    let whole = proof(&world, from_us, at_us).await;
    assert_eq!(whole.state(), ProofState::Complete, "{whole:?}");
    assert_eq!(whole.streams[0].stored, 5);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_gateway_no_longer_has_is_a_gap_if_the_core_asked_for_it() {
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let from_us = contracts::now_us() - S;
    let sent = [1, 2, 4].map(|n| sample("belt-0", n)).to_vec();
    uplink.send(upload(10, sent)).await;
    uplink.answer().await;
    world.stored("belt-0", 3).await;
    let (at_us, _) = account(&world, &mut uplink, 5).await;
    // The core's clock now, so that the question is open.
    let (store, range) = (world.store.as_ref(), (from_us, at_us));
    let made = prove(store, &Scope::Service, "patient-0", range, at_us).await;
    assert_eq!(
        causes(&made.unwrap().unwrap()),
        [(GapCause::Unexplained, 3)]
    );
    let (at_us, missing) = account(&world, &mut uplink, 5).await;
    let range = SequenceRange {
        device: "belt-0".into(),
        stream: STREAM.into(),
        first_sequence: 3,
        last_sequence: 3,
    };
    assert_eq!(missing, [range]);
    let not_kept = |sequence| Gap {
        device: "belt-0".into(),
        stream: STREAM.into(),
        first_sequence: sequence,
        last_sequence: sequence,
        cause: GapCause::NotKept.into(),
        ..Gap::default()
    };
    let request = UploadRequest {
        gaps: vec![not_kept(3), not_kept(4)],
        ..UploadRequest::default()
    };
    uplink.send(request).await;
    uplink.answer().await;
    let (at_us, _) = (account(&world, &mut uplink, 5).await.0.max(at_us), ());
    let explained = proof(&world, from_us, at_us).await;
    assert_eq!(causes(&explained), [(GapCause::NotKept, 3)]);
    let gaps = world
        .store
        .gaps(&Scope::Service, "patient-0", from_us, at_us);
    assert_eq!(gaps.await.unwrap().len(), 1, "only what was asked for");
    running.stop().await;
}
