#![allow(clippy::unwrap_used)]
use super::*;
use crate::team::EXAMPLE;

const DAY_US: i64 = 86_400 * SECOND_US;
const NOW_US: i64 = 1_700_000_000 * SECOND_US;

fn pace(settings: &str) -> Pace {
    let of = |channel| (channel, settings.to_owned());
    Pace {
        every_us: DAY_US,
        people_every_us: DAY_US,
        settings: BTreeMap::from([of(WEBHOOK), of(EMAIL), of(MQTT)]),
    }
}

fn webhook() -> Target {
    Target {
        channel: WEBHOOK,
        tenant: String::new(),
        recipient: String::new(),
    }
}

fn ann() -> Target {
    Target {
        channel: EMAIL,
        tenant: "one".into(),
        recipient: "ann@example.org".into(),
    }
}

fn proof(target: &Target, sent_us: i64, confirmed_us: Option<i64>) -> Proof {
    Proof {
        channel: target.channel.into(),
        tenant: target.tenant.clone(),
        recipient: target.recipient.clone(),
        settings: "a".into(),
        token: String::new(),
        sent_us,
        confirmed_us,
        confirmed_by: String::new(),
    }
}

fn is_due(settings: &str, target: &Target, stored: Proof, failures: &[u32], now_us: i64) -> bool {
    let proofs = Proofs::new(&pace(settings), vec![stored]);
    let failures = failures.iter().map(|count| (target.clone(), *count));
    let due = proofs.due(
        &BTreeSet::from([target.clone()]),
        &failures.collect(),
        now_us,
    );
    !due.is_empty()
}

#[test]
fn every_recipient_of_a_configured_channel_gets_heartbeats() {
    let team = Team::from_json(EXAMPLE).unwrap();
    let tenant = "one".to_owned();
    let teams = || [(&tenant, &team)].into_iter();
    assert_eq!(targets(&Channels::default(), teams()), BTreeSet::new());
    let channels = Channels {
        webhook: true,
        mqtt: true,
        email: true,
        email_to: vec!["ward@example.org".into()],
        ..Channels::default()
    };
    let found = targets(&channels, teams());
    let of = |channel| found.iter().filter(|it| it.channel == channel).count();
    assert_eq!((of(WEBHOOK), of(MQTT), of(EMAIL)), (1, 1, 5));
}

#[test]
fn a_channel_is_proven_by_a_confirmation_of_its_present_settings_alone() {
    let standing = |settings: &str, stored: Option<Proof>, now_us| {
        Proofs::new(&pace(settings), stored.into_iter().collect()).standing(&webhook(), now_us)
    };
    assert_eq!(
        standing("a", None, NOW_US),
        Standing::Never,
        "configured only"
    );
    let sent = proof(&webhook(), NOW_US, None);
    assert_eq!(
        standing("a", Some(sent), NOW_US + 1),
        Standing::Never,
        "sent only"
    );
    let confirmed = proof(&webhook(), NOW_US, Some(NOW_US + SECOND_US));
    let at =
        |settings: &str, after_us| standing(settings, Some(confirmed.clone()), NOW_US + after_us);
    assert_eq!(at("a", DAY_US), Standing::Proven);
    assert_eq!(at("b", DAY_US), Standing::Never, "other settings");
    // The interval and a half.
    assert_eq!(at("a", DAY_US * 3 / 2 + SECOND_US), Standing::Proven);
    let old = at("a", DAY_US * 3 / 2 + 2 * SECOND_US);
    assert_eq!(old, Standing::Old(NOW_US + SECOND_US));
}

#[test]
fn a_machine_is_asked_again_soon_and_a_person_once_an_interval() {
    for target in [webhook(), ann()] {
        let due = |failures: &[u32], after_us| {
            is_due(
                "a",
                &target,
                proof(&target, NOW_US, None),
                failures,
                NOW_US + after_us,
            )
        };
        let is_machine = target.channel == WEBHOOK;
        assert_eq!(due(&[], 60 * SECOND_US), is_machine, "after a restart");
        assert!(!due(&[], 59 * SECOND_US) && due(&[], DAY_US));
        // Not sent, or not confirmed by a machine: with longer and longer pauses.
        assert!(due(&[1], 60 * SECOND_US) && !due(&[1], 59 * SECOND_US));
        assert!(due(&[3], 240 * SECOND_US) && !due(&[3], 239 * SECOND_US));
        assert!(due(&[99], DAY_US) && !due(&[99], DAY_US - SECOND_US));
        let confirmed = proof(&target, NOW_US, Some(NOW_US + 1));
        let after = |us| is_due("a", &target, confirmed.clone(), &[2], NOW_US + us);
        assert!(after(DAY_US) && !after(DAY_US - 1));
    }
}

#[test]
fn a_change_of_settings_or_of_the_clock_is_followed_by_a_heartbeat_at_once() {
    let confirmed = proof(&ann(), NOW_US, Some(NOW_US));
    assert!(is_due("b", &ann(), confirmed.clone(), &[], NOW_US + 1));
    assert!(is_due("a", &ann(), confirmed, &[], NOW_US - AHEAD_US - 1));
    let proofs = Proofs::new(&pace("a"), Vec::new());
    let due = proofs.due(&BTreeSet::from([ann()]), &BTreeMap::new(), NOW_US);
    let first = Due::Send {
        target: ann(),
        settings: "a".into(),
        before_us: None,
    };
    assert_eq!(due, [first], "a new contact");
}

#[test]
fn the_proof_of_somebody_who_has_left_is_removed_after_a_week() {
    let proofs = Proofs::new(&pace("a"), vec![proof(&ann(), NOW_US, Some(NOW_US))]);
    let due = |after_us| proofs.due(&BTreeSet::new(), &BTreeMap::new(), NOW_US + after_us);
    assert_eq!(due(KEPT_US), []);
    assert_eq!(due(KEPT_US + 1), [Due::End(ann())]);
}
