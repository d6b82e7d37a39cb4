#![allow(clippy::unwrap_used)]
use alerting::rules_then::RulesThen;
use clap::Parser;
use contracts::paths::{End, PathReport};
use store::{SPO2_SCALE, Spo2Scale, SqliteStore, Store};

use super::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    command: RegisterCommand,
}

fn command(line: &str) -> Assign {
    let words = std::iter::once("register").chain(line.split(' '));
    Line::try_parse_from(words).unwrap().command.assign
}

#[tokio::test]
async fn a_second_sensor_changes_nothing_about_its_patient() {
    let directory = tempfile::tempdir().unwrap();
    let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
    let base = "--gateway gw-1 --patient ada --create --device";
    for (line, name, scale) in [
        ("chest-1", "ada", Spo2Scale::One),
        ("chest-1 --name Ada --spo2-scale-two", "Ada", Spo2Scale::Two),
        ("wrist-1", "Ada", Spo2Scale::Two),
        ("wrist-1 --name Countess", "Countess", Spo2Scale::Two),
        ("wrist-1 --spo2-scale-two false", "Countess", Spo2Scale::One),
    ] {
        let entry = command(&format!("{base} {line}")).entry().unwrap();
        let said = entry.enter(store).await.unwrap();
        assert!(said[0].contains(" is with ada at gw-1 "), "{said:?}");
        let scope = Scope::tenant(store::DEFAULT_TENANT);
        let patient = store.patient(&scope, "ada").await.unwrap().unwrap();
        assert_eq!(
            (patient.name.as_str(), patient.spo2_scale),
            (name, scale),
            "{line}"
        );
    }
    let scope = Scope::tenant(store::DEFAULT_TENANT);
    let then = RulesThen::read(store, &scope, ["ada"]).await.unwrap();
    let scales = [0, i64::MAX].map(|at_us| then.scale("ada", at_us));
    assert_eq!(scales, [Some(Spo2Scale::One); 2]);
    let changes = store.stored_history(&scope, SPO2_SCALE, "ada", 10).await;
    assert_eq!(changes.unwrap().len(), 3, "new, to scale 2, and back");
}

#[tokio::test]
async fn who_is_unknown_is_created_only_when_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
    let enter = async |line: &str| command(line).entry().unwrap().enter(store).await;
    let base = "--device d --gateway gw-1 --patient";
    let refused = enter(&format!("{base} ada")).await.unwrap_err();
    assert!(refused.to_string().contains("patient `ada` is unknown"));
    let change = Change::by_program("test");
    put_patient(store, store::DEFAULT_TENANT, "ada", (None, None), &change)
        .await
        .unwrap();
    let refused = enter(&format!("{base} ada")).await.unwrap_err();
    assert!(refused.to_string().contains("gateway `gw-1` is unknown"));
    enter(&format!("{base} ada --create")).await.unwrap();
    let scope = Scope::tenant(store::DEFAULT_TENANT);
    put_patient(store, store::DEFAULT_TENANT, "ben", (None, None), &change)
        .await
        .unwrap();

    let namesake = enter("--device e --gateway gw-1 --create --patient ada-2 --name ada").await;
    let warned = namesake.unwrap().pop().unwrap();
    assert!(warned.contains("ada-2 may be taken for ada"), "{warned}");

    // Handed over a moment later, with a remark about what may wait at the gateway.
    let before_us = contracts::now_us();
    let said = enter(&format!("{base} ben")).await.unwrap();
    assert!(said[1].contains("gw-1 may hold some"), "{said:?}");
    let worn = enter::worn(store, &scope, "d").await.unwrap();
    assert_eq!(worn.len(), 2);
    assert_eq!(worn[0].until_us, worn[1].from_us);
    assert!(worn[1].from_us >= before_us + store::ASSIGN_LEAD_US);

    let past = "--from 2026-01-01T00:00:00Z --until 2026-01-02T00:00:00Z";
    enter(&format!("{base} ada --by Eve {past}")).await.unwrap();
    let from: Moment = "2026-01-01T00:00:00Z".parse().unwrap();
    let found = list::begun_at(store, &scope, "d", from).await.unwrap();
    assert_eq!(found, from.0);
    let overlapping = enter(&format!("{base} ben {past}")).await.unwrap();
    assert!(overlapping[0].contains("is with ben"), "it was replaced");
    let inside = "--from 2026-01-01T05:00:00Z --until 2026-01-01T06:00:00Z";
    let refused = enter(&format!("{base} ada {inside}")).await.unwrap_err();
    assert!(refused.to_string().contains("end or remove"), "{refused}");
}

#[tokio::test]
async fn what_waits_at_a_gateway_follows_from_its_own_report() {
    let directory = tempfile::tempdir().unwrap();
    let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
    let enter = async |line: &str| {
        let said = command(line).entry().unwrap().enter(store).await.unwrap();
        said.join("\n")
    };
    let report = async |sequence, journal_waiting, ago_us| {
        let report = PathReport {
            gateway: "gw-1".into(),
            path: "wifi".into(),
            end: End::Gateway.into(),
            session: 1,
            sequence,
            interval_ms: 1000,
            time_us: contracts::now_us() - ago_us,
            journal_waiting,
            ..PathReport::default()
        };
        store.write_paths(vec![report], Vec::new()).await.unwrap();
    };
    let base = "--device d --gateway gw-1 --create --patient";
    enter(&format!("{base} ada")).await;
    // An old report does not count for the present, and an older gateway reports nothing.
    report(1, Some(0), 3_600_000_000).await;
    let said = enter(&format!("{base} ben")).await;
    assert!(said.contains("gw-1 may hold some"), "{said}");
    report(2, None, 0).await;
    let said = enter(&format!("{base} eve")).await;
    assert!(said.contains("gw-1 may hold some"), "{said}");
    report(3, Some(41), 0).await;
    let said = enter(&format!("{base} cleo")).await;
    assert!(
        said.contains("gw-1 reported 41 entries in its journal"),
        "{said}"
    );
    report(4, Some(0), 0).await;
    let said = enter(&format!("{base} ada")).await;
    assert!(!said.contains("warning"), "nothing waits: {said}");
}

#[test]
fn what_no_sample_and_no_certificate_can_name_is_refused_by_field() {
    for (line, field) in [
        ("--device ä --gateway gw-1 --patient ada", "device"),
        ("--device d --gateway gw/1 --patient ada", "gateway"),
        ("--device d --gateway gw-1 --patient 患者", "patient"),
        ("--device d --gateway gw-1 --patient ada --name=", "name"),
        (
            "--device d --gateway gw-1 --patient ada --tenant a/b",
            "gateway",
        ),
    ] {
        let Err(refused) = command(line).entry() else {
            panic!("{line} is taken")
        };
        assert_eq!(refused.field, field);
    }
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    assert_eq!(check_name(&long).unwrap_err().field, "name");
    let taken = command("--device d --gateway gw-1 --patient ada").entry();
    assert!(taken.is_ok());
}

#[test]
fn a_subcommand_needs_no_device_and_the_quick_way_does() {
    let parse = |line: &str| Line::try_parse_from(line.split(' ')).map(|it| it.command);
    let listed = parse("register list --patient ada").unwrap();
    assert!(matches!(listed.command, Some(Subcommand::List { .. })));
    let incomplete = parse("register --device d --gateway gw-1").unwrap();
    let refused = incomplete.run().unwrap_err();
    assert!(refused.to_string().contains("patient"), "{refused}");
    assert!(parse("register remove --device d --by eve --reason why").is_err());
    let nothing = parse("register").unwrap().run().unwrap_err();
    assert!(nothing.to_string().contains("device"), "{nothing}");
}
