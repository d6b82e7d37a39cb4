use contracts::alerts::{Alert, AlertState};

use super::{Harness, START_US, ok};
use crate::{AlertsBatch, Silent, SilentBatch, Store, WriteError, each_silent};

fn silent(subject: &str, id: &str, reading_us: i64) -> Silent {
    Silent {
        alert: Alert {
            id: id.into(),
            rule: "device-silent".into(),
            state: AlertState::Active.into(),
            since_us: reading_us,
            revision: 1,
            ..Alert::default()
        },
        subject: subject.into(),
        reading_us,
        report_us: i64::MIN,
    }
}

fn next(alert: &Alert, state: AlertState) -> Alert {
    Alert {
        state: state.into(),
        revision: alert.revision + 1,
        ..alert.clone()
    }
}

fn begun(begun: Vec<Silent>) -> SilentBatch {
    SilentBatch {
        begun,
        ended: Vec::new(),
    }
}

async fn all(store: &dyn Store) -> Vec<Silent> {
    let mut found = Vec::new();
    ok(each_silent(store, |silent| found.push(silent)).await);
    found
}

pub async fn a_silence_is_open_until_its_alert_ends(harness: &dyn Harness) {
    let process = harness.start().await;
    let belt = silent("belt\u{1f}ann", "1", START_US);
    let ring = silent("ring\u{1f}ben", "2", START_US + 1);
    let written = process
        .store
        .write_silent(begun(vec![ring.clone(), belt.clone()]));
    assert_eq!(ok(written.await).new, 2);
    (process.kill)();
    // Another process knows since when, and what came last.
    let store = harness.start().await.store;
    assert_eq!(all(store.as_ref()).await, [belt.clone(), ring.clone()]);
    assert_eq!(ok(store.outbox(10).await).len(), 2);
    let again = store.write_silent(begun(vec![belt.clone()]));
    assert_eq!(
        ok(again.await).duplicate,
        1,
        "written again after a lost answer"
    );
    // A person takes notice: the silence goes on with the newest revision.
    let seen = next(&ring.alert, AlertState::Acknowledged);
    let batch = AlertsBatch {
        transitions: vec![seen.clone()],
        ..AlertsBatch::default()
    };
    ok(store.write_alerts(batch, Vec::new()).await);
    let (page, after) = ok(store.silent_page(&belt.subject, 1).await);
    assert_eq!(
        (&page[0].alert, page[0].reading_us),
        (&seen, ring.reading_us)
    );
    let rest = ok(store.silent_page(&after.unwrap_or_default(), 1).await);
    assert_eq!(rest, (Vec::new(), None));
    let batch = SilentBatch {
        begun: Vec::new(),
        ended: vec![next(&seen, AlertState::Resolved)],
    };
    ok(store.write_silent(batch).await);
    assert_eq!(all(store.as_ref()).await, [belt]);
}

/// Members that judge one silence at the same time see none of the others, and give it other ids.
pub async fn members_that_find_a_silence_at_once_raise_it_once(harness: &dyn Harness) {
    const MEMBERS: usize = 3;
    const ROUNDS: usize = 10;
    let store = harness.start().await.store;
    for round in 0..ROUNDS {
        let subject = format!("belt-{round}");
        let writes = (0..MEMBERS).map(|member| {
            let own = silent(&subject, &format!("{round}-{member}"), START_US);
            store.write_silent(begun(vec![own]))
        });
        let written = futures::future::join_all(writes).await;
        let raised = written.iter().filter(|it| it.is_ok()).count();
        assert_eq!(raised, 1, "{round}: {written:?}");
        for refused in written.iter().filter_map(|it| it.as_ref().err()) {
            assert!(matches!(refused, WriteError::Conflict(_)), "{refused:?}");
        }
    }
    assert_eq!(all(store.as_ref()).await.len(), ROUNDS);
    assert_eq!(
        ok(store.outbox(100).await).len(),
        ROUNDS,
        "nobody is told twice"
    );
}

pub async fn a_subject_has_one_open_silence(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let first = silent("belt", "1", START_US);
    ok(store.write_silent(begun(vec![first.clone()])).await);
    // Another member found the same, and something else.
    let second = silent("belt", "2", START_US);
    let other = silent("ring", "3", START_US);
    let both = begun(vec![second.clone(), other.clone()]);
    let conflict = store.write_silent(both).await;
    assert!(
        matches!(&conflict, Err(WriteError::Conflict(ids)) if ids == &["2"]),
        "{conflict:?}"
    );
    assert_eq!(
        all(store.as_ref()).await,
        std::slice::from_ref(&first),
        "nothing is written"
    );
    assert_eq!(ok(store.outbox(10).await).len(), 1);
    // One ends and the next begins in one write, after the same reading.
    let batch = SilentBatch {
        begun: vec![second.clone()],
        ended: vec![next(&first.alert, AlertState::Resolved)],
    };
    ok(store.write_silent(batch).await);
    assert_eq!(all(store.as_ref()).await, std::slice::from_ref(&second));
    // An alert that was ended elsewhere holds its subject no longer.
    let batch = AlertsBatch {
        transitions: vec![next(&second.alert, AlertState::Resolved)],
        ..AlertsBatch::default()
    };
    ok(store.write_alerts(batch, Vec::new()).await);
    assert_eq!(all(store.as_ref()).await, []);
    let third = silent("belt", "4", START_US);
    ok(store.write_silent(begun(vec![third.clone()])).await);
    assert_eq!(all(store.as_ref()).await, [third]);

    assert_eq!(ok(store.silent_look_us().await), None);
    for at_us in [START_US + 9, START_US] {
        ok(store.note_silent_look(at_us).await);
        assert_eq!(ok(store.silent_look_us().await), Some(at_us));
    }
}
