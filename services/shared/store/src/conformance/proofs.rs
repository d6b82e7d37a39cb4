use super::{Harness, SECOND_US, START_US, ok};
use crate::Proof;

fn heartbeat(recipient: &str, token: &str, settings: &str, at_s: i64) -> Proof {
    Proof {
        channel: "email".into(),
        tenant: "one".into(),
        recipient: recipient.into(),
        settings: settings.into(),
        token: token.into(),
        sent_us: START_US + at_s * SECOND_US,
        ..Proof::default()
    }
}

pub async fn a_heartbeat_is_sent_by_one_member_and_confirmed_by_its_token(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.store, harness.start().await.store);
    let first = heartbeat("ann@example.org", "t1", "a", 0);
    assert!(ok(one.begin_proof(&first, None).await));
    let late = heartbeat("ann@example.org", "t2", "a", 1);
    assert!(!ok(other.begin_proof(&late, None).await), "one was first");
    assert_eq!(
        ok(other.confirm_proof("t2", "nobody", START_US).await),
        None
    );
    assert_eq!(ok(other.proofs().await), std::slice::from_ref(&first));

    let at_us = START_US + 5 * SECOND_US;
    let confirmed = ok(other.confirm_proof("t1", "a link", at_us).await);
    let expected = Proof {
        confirmed_us: Some(at_us),
        confirmed_by: "a link".into(),
        ..first.clone()
    };
    assert_eq!(confirmed.as_ref(), Some(&expected));
    // The next one keeps it, and its own token replaces the earlier one.
    let second = heartbeat("ann@example.org", "t3", "a", 100);
    assert!(!ok(one.begin_proof(&second, None).await));
    assert!(!ok(one.begin_proof(&second, Some(START_US + 1)).await));
    assert!(ok(one.begin_proof(&second, Some(START_US)).await));
    assert_eq!(ok(other.proofs().await)[0].confirmed_us, Some(at_us));
    assert_eq!(ok(other.confirm_proof("t1", "late", at_us).await), None);
    // Other settings prove nothing about these.
    let changed = heartbeat("ann@example.org", "t4", "b", 200);
    assert!(ok(one.begin_proof(&changed, Some(second.sent_us)).await));
    assert_eq!(ok(other.proofs().await), std::slice::from_ref(&changed));

    let bob = heartbeat("bob@example.org", "t5", "b", 1);
    assert!(ok(one.begin_proof(&bob, None).await));
    assert_eq!(ok(other.proofs().await), [changed.clone(), bob]);
    ok(other.end_proof("email", "one", "bob@example.org").await);
    assert_eq!(ok(one.proofs().await), [changed]);
}
