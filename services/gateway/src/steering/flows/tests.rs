#![allow(clippy::unwrap_used)]
use tunnel::steering_rules::{Document, Rank};

use super::*;

const BULK_BY_WIFI: &str = "format = 1\n[[rule]]\nname = \"bulk\"\naccesses = [\"wifi\"]\n\
                            match = { urgency = [\"bulk\"] }\n";

fn states(usable: [bool; 2]) -> Vec<AccessState> {
    let pairs = ["wifi", "lte"].into_iter().zip(usable);
    pairs
        .map(|(name, usable)| AccessState {
            name: name.to_owned(),
            usable,
        })
        .collect()
}

fn flows(text: &str) -> Flows {
    let flows = Flows::default();
    flows.0.lock().in_force = Arc::new(InForce {
        version: 3,
        document: Document::from_toml(text, "test").unwrap(),
    });
    flows
}

#[test]
fn a_flow_without_a_living_access_is_refused_and_an_open_one_is_closed() {
    let flows = flows(BULK_BY_WIFI);
    let start = Instant::now();
    let nothing = Measurements::new;
    flows.decide_all(start, states([true, true]), nothing());
    let bulk = || Flow::new("applications", Urgency::Bulk);
    let open = flows.enter(bulk()).unwrap();
    let schedule = flows.decide_all(start, states([true, true]), nothing());
    assert_eq!(schedule.of("wifi").rank, Some(Rank::Active));
    assert_eq!(schedule.of("lte").rank, Some(Rank::Standby), "for alerts");
    flows.decide_all(start, states([false, true]), nothing());
    let refused = flows.enter(bulk()).map(drop).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the steering rule bulk leaves it no access: wifi: no path over it answers; \
         lte: the rule does not list it"
    );
    assert!(!open.cut.is_cancelled(), "it may come back");
    flows.decide_all(start + BLOCKED_MAX, states([false, true]), nothing());
    assert!(open.cut.is_cancelled());
    drop(open);
    let schedule = flows.decide_all(start, states([true, true]), nothing());
    assert_eq!(
        schedule.of("lte").rank,
        Some(Rank::Standby),
        "its last bytes"
    );
    let later = start + Duration::from_secs(1);
    let schedule = flows.decide_all(later, states([true, true]), nothing());
    assert_eq!(
        schedule.of("lte").rank,
        Some(Rank::Active),
        "nothing is strict any more"
    );
    assert!(flows.enter(Flow::new("vitals", Urgency::Prompt)).is_ok());
}

#[tokio::test]
async fn an_open_flow_waits_while_no_living_access_may_carry_it() {
    let flows = flows(BULK_BY_WIFI);
    let start = Instant::now();
    let decide = |at, usable| flows.decide_all(at, states(usable), Measurements::new());
    decide(start, [true, true]);
    let open = flows
        .enter(Flow::new("applications", Urgency::Bulk))
        .unwrap();
    decide(start, [false, true]);
    let mut carrying = std::pin::pin!(open.carry(std::future::ready(7)));
    let waits = std::future::poll_fn(|cx| carrying.as_mut().poll(cx).is_pending().into());
    assert!(waits.await);
    decide(start, [true, true]);
    assert_eq!(carrying.await, Some(7));
    decide(start, [false, true]);
    decide(start + BLOCKED_MAX, [false, true]);
    assert_eq!(open.carry(std::future::pending::<()>()).await, None);
}

#[test]
fn a_flow_waits_as_ever_while_no_access_lives() {
    let flows = flows(BULK_BY_WIFI);
    flows.decide_all(Instant::now(), states([false, false]), Measurements::new());
    assert!(
        flows
            .enter(Flow::new("applications", Urgency::Bulk))
            .is_ok()
    );
}

#[test]
fn a_redundant_rule_copies_its_flows_and_a_changed_one_ends_that() {
    const REDUNDANT: &str = "format = 1\n[[rule]]\nname = \"call\"\nmode = \"redundant\"\n\
                             match = { port = [\"5060\"], urgency = [\"bulk\"] }\n";
    let flows = flows(REDUNDANT);
    let decide = |usable| flows.decide_all(Instant::now(), states(usable), Measurements::new());
    decide([true, true]);
    let bulk = || Flow::new("applications", Urgency::Bulk);
    let other = flows.enter(bulk().to("192.0.2.9:443")).unwrap();
    let call = flows.enter(bulk().to("192.0.2.9:5060")).unwrap();
    assert_eq!((call.copied().get(), other.copied().get()), (true, false));
    assert_eq!(decide([true, true]).copies, 2);
    flows.0.lock().in_force = Arc::new(InForce {
        version: 4,
        document: Document::from_toml(BULK_BY_WIFI, "test").unwrap(),
    });
    decide([true, true]);
    assert!(!call.copied().get());
    flows.0.lock().in_force = Arc::default();
    decide([true, true]);
    assert!(!call.copied().get());
}

#[test]
fn while_an_alert_is_open_packets_change_their_path_with_rules_and_without() {
    for text in ["format = 1\n", BULK_BY_WIFI] {
        let flows = flows(text);
        let decide = || flows.decide_all(Instant::now(), states([true, true]), Measurements::new());
        assert_eq!(decide().copies, 1, "{text}");
        flows.0.lock().alarmed = true;
        assert_eq!(decide().copies, 2, "{text}");
        flows.0.lock().alarmed = false;
        assert_eq!(decide().copies, 1, "{text}");
    }
}

#[test]
fn without_rules_nothing_is_scheduled() {
    let flows = Flows::default();
    let schedule = flows.decide_all(Instant::now(), states([true, true]), Measurements::new());
    assert_eq!(schedule, Schedule::default());
    assert!(flows.enter(Flow::new("tun", Urgency::Bulk)).is_ok());
}

#[test]
fn a_flow_has_its_schedule_when_it_begins() {
    let flows = flows(BULK_BY_WIFI);
    let published = Arc::new(Mutex::new(Vec::new()));
    let takes = published.clone();
    flows.publish_to(move |schedule: Schedule| takes.lock().push(schedule.of("lte").rank));
    let bulk = || Flow::new("applications", Urgency::Bulk);
    flows.decide_all(Instant::now(), states([true, true]), Measurements::new());
    published.lock().clear();
    let first = flows.enter(bulk()).unwrap();
    assert!(first.is_news() && !first.may_not_send());
    assert_eq!(*published.lock(), [Some(Rank::Standby)]);
    let second = flows.enter(bulk()).unwrap();
    assert!(!second.is_news(), "the schedule is the same");
    assert_eq!(published.lock().len(), 1);
}

#[test]
fn a_flow_waits_while_no_access_is_known() {
    let flows = flows(BULK_BY_WIFI);
    let bulk = || Flow::new("applications", Urgency::Bulk);
    let early = flows.enter(bulk()).unwrap();
    assert!(early.may_not_send());
    let schedule = flows.decide_all(Instant::now(), states([true, true]), Measurements::new());
    assert!(!early.may_not_send());
    assert_eq!(schedule.of("lte").rank, Some(Rank::Standby));
}
