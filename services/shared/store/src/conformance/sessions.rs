use super::{Harness, SECOND_US, START_US, ok};
use crate::{
    Account, KIOSK_RENEWAL_PAUSE_US, KIOSKS_PER_TENANT_MAX, Role, SESSIONS_MAX,
    SESSIONS_PER_ACCOUNT_MAX, Scope, SessionKey, SessionKind, Store, StoredSession,
    TOKENS_PER_KIOSK_MAX, WriteError,
};

fn key(n: usize) -> SessionKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&n.to_be_bytes());
    key
}

fn session(n: usize, name: &str) -> StoredSession {
    StoredSession {
        key: key(n),
        kind: SessionKind::Person,
        name: name.into(),
        tenant: "one".into(),
        role: Role::Clinician,
        password_hash: String::new(),
        opened_us: START_US,
        expires_us: START_US + 100 * SECOND_US + n as i64,
    }
}

fn kiosk(n: usize, name: &str) -> StoredSession {
    StoredSession {
        kind: SessionKind::Kiosk,
        role: Role::Viewer,
        expires_us: i64::MAX,
        ..session(n, name)
    }
}

async fn holds(store: &dyn Store, n: usize, now_us: i64) -> bool {
    let found = ok(store.sessions_in_force(&[key(n)], now_us).await);
    found.iter().any(|session| session.key == key(n))
}

pub async fn sessions_outlive_a_process_and_end_for_all_at_once(harness: &dyn Harness) {
    let first = harness.start().await;
    let opened = session(1, "ada");
    ok(first.store.open_session(&opened).await);
    (first.kill)();
    let (one, other) = (harness.start().await.store, harness.start().await.store);
    let found = ok(one.sessions_in_force(&[key(1), key(2)], START_US).await);
    assert_eq!(found, std::slice::from_ref(&opened));
    assert!(holds(&*other, 1, opened.expires_us - 1).await);
    assert!(!holds(&*other, 1, opened.expires_us).await, "expired");
    assert_eq!(
        ok(one.close_session(&key(1), START_US).await),
        Some(opened.clone())
    );
    assert!(!holds(&*other, 1, START_US).await, "ended for all");
    assert_eq!(ok(other.close_session(&key(1), START_US).await), None);
    // An expired session is neither closed nor kept.
    ok(one.open_session(&opened).await);
    let late = StoredSession {
        opened_us: opened.expires_us,
        expires_us: opened.expires_us + SECOND_US,
        ..session(2, "ben")
    };
    ok(one.open_session(&late).await);
    assert!(!holds(&*one, 1, START_US).await, "removed");
    assert_eq!(ok(one.close_session(&key(2), late.expires_us).await), None);
}

pub async fn a_changed_account_ends_its_sessions(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let ada = Account {
        name: "ada".into(),
        tenant: "one".into(),
        role: Role::Clinician,
        password_hash: "h".into(),
        created_us: START_US,
    };
    ok(store.put_account(&ada).await);
    let opened = StoredSession {
        password_hash: "h".into(),
        ..session(1, "ada")
    };
    ok(store.open_session(&opened).await);
    ok(store.open_session(&session(2, "sso:ben")).await);
    assert!(holds(&*store, 1, START_US).await);
    let role = Account {
        role: Role::Viewer,
        ..ada.clone()
    };
    let password = Account {
        password_hash: "new".into(),
        ..ada.clone()
    };
    for changed in [role, password] {
        ok(store.put_account(&changed).await);
        assert!(!holds(&*store, 1, START_US).await, "{changed:?}");
    }
    ok(store.put_account(&ada).await);
    ok(store.remove_account("ada").await);
    assert!(!holds(&*store, 1, START_US).await);
    assert!(holds(&*store, 2, START_US).await, "has no account here");
}

pub async fn sessions_have_bounds_and_nobody_crowds_out_another(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let soonest = StoredSession {
        expires_us: START_US + SECOND_US,
        ..session(0, "ada")
    };
    ok(store.open_session(&soonest).await);
    for n in 1..=SESSIONS_PER_ACCOUNT_MAX + 2 {
        ok(store.open_session(&session(n, "mallory")).await);
    }
    for (n, alive) in [(0, true), (1, false), (2, false), (3, true)] {
        assert_eq!(holds(&*store, n, START_US).await, alive, "{n}");
    }
    const { assert!(SESSIONS_MAX > SESSIONS_PER_ACCOUNT_MAX) };
}

pub async fn a_display_is_known_by_name_until_it_is_revoked(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let code = StoredSession {
        kind: SessionKind::KioskCode,
        expires_us: START_US + SECOND_US,
        ..kiosk(1, "hall")
    };
    ok(store.open_session(&code).await);
    assert!(!holds(&*store, 1, START_US).await, "a code opens nothing");
    let one = Scope::tenant("one");
    let listed = ok(store.kiosks(&one, START_US).await);
    assert_eq!(listed, std::slice::from_ref(&code));
    assert_eq!(ok(store.kiosks(&Scope::tenant("two"), START_US).await), []);
    assert_eq!(
        ok(store.close_session(&key(1), START_US).await),
        Some(code.clone())
    );
    assert_eq!(ok(store.close_session(&key(1), START_US).await), None);
    ok(store.open_session(&kiosk(2, "hall")).await);
    assert!(holds(&*store, 2, i64::MAX - 1).await, "it has no end");
    assert!(!ok(store.revoke_kiosk("two", "hall").await));
    assert!(ok(store.revoke_kiosk("one", "hall").await));
    assert!(!holds(&*store, 2, START_US).await);
    assert!(!ok(store.revoke_kiosk("one", "hall").await));

    for n in 0..KIOSKS_PER_TENANT_MAX {
        ok(store.open_session(&kiosk(10 + n, &format!("k{n}"))).await);
    }
    let refused = store.open_session(&kiosk(5, "further")).await;
    assert!(matches!(refused, Err(WriteError::Invalid(_))));
    ok(store.open_session(&kiosk(5, "k0")).await);
}

pub async fn a_display_renews_its_token_and_a_revoked_one_does_not(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let renew =
        async |shown, next, now_us| ok(store.renew_kiosk(&key(shown), &key(next), now_us).await);
    let all_hold = async |keys: &[usize]| {
        let mut held = Vec::new();
        for n in 1..=10 {
            if holds(&*store, n, START_US).await {
                held.push(n);
            }
        }
        assert_eq!(held, keys);
    };
    ok(store.open_session(&kiosk(1, "hall")).await);
    ok(store.open_session(&session(10, "hall")).await);
    let at = |n: i64| START_US + n * KIOSK_RENEWAL_PAUSE_US;
    assert!(!renew(1, 2, at(1) - 1).await, "too soon");
    assert!(renew(1, 2, at(1)).await);
    all_hold(&[1, 2, 10]).await;
    assert!(!renew(1, 3, at(2) - 1).await, "another tab");
    // The answers are lost: the shown token stays, and the others are bounded.
    for n in 3..=6 {
        assert!(renew(1, n, at(n as i64)).await);
    }
    const { assert!(TOKENS_PER_KIOSK_MAX == 4) };
    all_hold(&[1, 4, 5, 6, 10]).await;
    assert!(renew(6, 7, at(7)).await);
    all_hold(&[6, 7, 10]).await;
    assert!(!renew(5, 8, at(9)).await, "replaced");
    assert!(!renew(10, 8, at(9)).await, "a person signs in again");
    assert!(ok(store.revoke_kiosk("one", "hall").await));
    assert!(!renew(7, 8, at(9)).await, "revoked");
    all_hold(&[10]).await;
}
